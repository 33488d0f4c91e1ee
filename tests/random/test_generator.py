"""Exact: call number c of a generator draws what the functions draw from fold_in(key(seed), c)."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from placements import assembled, simulated

import spmdx as sx
from spmdx import random
from spmdx.random import default_rng
from spmdx.testing import spmd

KEY = random.key(42)
A = np.array([0.5, 2.0, 3.0])

# NumPy's call, and the call of spmdx.random that it is.
CALLS: dict[str, tuple[Callable[[Any], Any], Callable[[random.Key], Any]]] = {
    "random": (lambda g: g.random((2, 3)), lambda k: random.uniform(k, (2, 3))),
    "random of a type": (lambda g: g.random(4, dtype=np.float32), lambda k: random.uniform(k, 4, dtype=np.float32)),
    "random number": (lambda g: g.random(), lambda k: random.uniform(k, ())),
    "uniform": (lambda g: g.uniform(-1, 2, 5), lambda k: random.uniform(k, 5, -1, 2)),
    "integers": (lambda g: g.integers(7, size=5), lambda k: random.randint(k, 5, 0, 7)),
    "integers between": (lambda g: g.integers(-3, 7, 5), lambda k: random.randint(k, 5, -3, 7)),
    "integers, endpoint": (lambda g: g.integers(6, size=5, endpoint=True), lambda k: random.randint(k, 5, 0, 7)),
    "standard_normal": (lambda g: g.standard_normal(5), lambda k: random.normal(k, 5)),
    "normal": (lambda g: g.normal(1.0, A), lambda k: random.normal(k, (3,), 1.0, A)),
    "choice": (lambda g: g.choice(9, 4, replace=False), lambda k: random.choice(k, 9, 4, False)),
    "choice of one": (lambda g: g.choice(A), lambda k: random.choice(k, A, ())),
    "choice, weighted": (lambda g: g.choice(2, 4, p=[0.1, 0.9]), lambda k: random.choice(k, 2, 4, p=[0.1, 0.9])),
    "permutation": (lambda g: g.permutation(9), lambda k: random.permutation(k, 9)),
    "permutation of an array": (lambda g: g.permutation(A), lambda k: random.permutation(k, A)),
    "permuted": (lambda g: g.permuted(np.ones((2, 3)), 1), lambda k: random.permutation(k, np.ones((2, 3)), 1, True)),
    "permuted, all": (
        lambda g: g.permuted(np.arange(6).reshape(2, 3)),
        lambda k: random.permutation(k, 6).reshape((2, 3)),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls(name: str) -> None:
    by_method, by_function = CALLS[name]
    rng = default_rng(42)
    rng.random()
    got, want = by_method(rng), by_function(random.fold_in(KEY, 1))
    assert got.dtype == want.dtype
    assert got.numpy().tobytes() == want.numpy().tobytes()
    assert rng.state == (KEY, 2)


# Arguments for every method of NumPy's that is here, in NumPy's order.
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "beta": (2.0, A),
    "binomial": (5, 0.25),
    "bytes": (3,),
    "chisquare": (A,),
    "choice": (5,),
    "dirichlet": (A,),
    "gamma": (A, 2.0),
    "geometric": (0.25,),
    "integers": (3,),
    "multivariate_normal": (A, np.eye(3)),
    "pareto": (A,),
    "permutation": (4,),
    "permuted": (A,),
    "shuffle": (A,),
    "spawn": (2,),
    "standard_gamma": (A,),
    "standard_t": (A,),
    "weibull": (A,),
}
METHODS = [n for n in dir(random.Generator) if not n.startswith("_") and n != "state"]


@pytest.mark.parametrize("name", METHODS)
def test_methods_are_those_of_numpy(name: str) -> None:
    """Same names of arguments, in the same order, and the same shapes of results."""
    theirs = np.random.default_rng(0)
    ours = default_rng(0)
    if name != "shuffle":  # which raises here
        want = getattr(theirs, name)(*ARGUMENTS.get(name, ()))
        got = getattr(ours, name)(*ARGUMENTS.get(name, ()))
        assert np.shape(got) == np.shape(want)
        assert ours.state[1] == 1
    if (text := np.random.Generator.__dict__[name].__doc__ or "").strip().startswith(f"{name}("):
        wanted = [part.split("=")[0].strip() for part in text.strip().splitlines()[0][len(name) + 1 :].split(",")]
        wanted = [w.rstrip(")") for w in wanted if w.rstrip(")").isidentifier()]
        mine = [p for p in inspect.signature(getattr(random.Generator, name)).parameters if p not in ("self", "where")]
        assert [w for w in wanted if w in mine] == mine, (wanted, mine)


def test_placed() -> None:
    mesh = simulated(2, 2)
    want = default_rng(3).normal(size=(5, 4)).numpy()
    got = default_rng(3).normal(size=(5, 4), mesh=mesh, placement={"a": sx.Shard(0), "b": sx.Shard(1)})
    assert np.array_equal(assembled(got.spec, got._block), want)
    order = default_rng(3).permutation(7, mesh=mesh, placement={"a": sx.Shard(0)})
    assert np.array_equal(assembled(order.spec, order._block), default_rng(3).permutation(7).numpy())


def test_state() -> None:
    rng = default_rng(42)
    rng.random(3)
    state = rng.state
    want = rng.random(3).numpy()
    rng.state = state
    assert np.array_equal(rng.random(3).numpy(), want)
    again = random.Generator(*state)
    assert np.array_equal(again.random(3).numpy(), want)
    for made in (pickle.loads(pickle.dumps(rng)), copy.deepcopy(rng), copy.copy(rng)):
        assert made.state == rng.state
        made.random()
        assert made.state != rng.state
    assert default_rng(rng) is rng
    assert default_rng(KEY).state == (KEY, 0)
    assert default_rng(1, "threefry2x32").state == (random.key(1, "threefry2x32"), 0)


def test_spawn() -> None:
    rng = default_rng(42)
    rng.random()
    children = rng.spawn(3)
    assert [c.state for c in children] == [(k, 0) for k in random.split(random.fold_in(KEY, 1), 3)]
    assert rng.state == (KEY, 2)


def test_a_call_that_raises_is_none() -> None:
    rng = default_rng(42)
    with pytest.raises(sx.SpmdxError):
        rng.normal(0, -1.0, 3)
    assert rng.state == (KEY, 0)


def test_keys_are_used_once() -> None:
    with sx.debug.check_keys():
        rng = default_rng(0)
        for _ in range(3):
            rng.normal(size=2)
        rng.spawn(2)


def test_the_same_on_every_rank() -> None:
    def program() -> Any:
        mesh = sx.make_mesh({"a": 3})
        rng = default_rng(1)
        rng.spawn(1)
        x = rng.permutation(np.arange(10.0), placement={"a": sx.Shard(0)}, mesh=mesh)
        return rng.bytes(5), x.numpy().tolist(), float(rng.random(mesh=mesh)), rng.state

    results = spmd(3)(program)()
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: default_rng(0).shuffle(A, 1),
            sx.errors.ArgumentError,
            r"immutable[\s\S]*x = rng\.permutation\(x, axis=1\)",
        ),
        (lambda: default_rng(None), sx.errors.ArgumentError, r"every|the same values[\s\S]*default_rng\(0\)"),
        (lambda: default_rng(0).wald(1, 1), AttributeError, r"no 'wald'; it has [\s\S]*permutation"),
        (lambda: setattr(default_rng(0), "state", 3), sx.errors.DtypeError, r"a key and a call number"),
        (lambda: setattr(default_rng(0), "state", (KEY, -1)), sx.errors.ArgumentError, r"0 or more; got -1"),
        (lambda: setattr(default_rng(0), "state", (7, 1)), sx.errors.DtypeError, r"sx\.random\.key\(7\)"),
    ],
)
def test_errors(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_bounds_of_integers_are_numbers_lists_or_narrow_arrays() -> None:
    rng = default_rng(0)
    assert rng.integers([1, 3]).shape == (2,)
    np.testing.assert_array_equal(rng.integers([5, 6], [6, 7]).numpy(), [5, 6])
    np.testing.assert_array_equal(rng.integers([5, 6], [5, 6], endpoint=True).numpy(), [5, 6])
    for high in (np.uint8(255), np.array([255], np.uint8), sx.asarray(np.array([255], np.uint8))):
        drawn = rng.integers(0, high, size=1000, dtype=np.uint8, endpoint=True).numpy()
        assert drawn.min() < 10 and drawn.max() > 245
        assert rng.integers(250, high, size=100, endpoint=True).numpy().max() == 255
    low, high = np.array([-3]), np.zeros(1, np.uint8)  # 0 less 1 is no uint8
    assert rng.integers(low, high, size=50).numpy().max() == -1


def test_covariances_are_symmetric_up_to_rounding() -> None:
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(4, 4)))[0]
    rounded = turn @ np.diag([1.0, 2.0, 3.0, 4.0]) @ turn.T
    rounded[0, 1] += 1e-17
    almost = np.eye(4)
    almost[0, 1] = 1e-18
    for cov in (rounded, almost):
        assert default_rng(0).multivariate_normal(np.zeros(4), cov).shape == (4,)
