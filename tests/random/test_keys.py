"""Keys as data, in pytrees, and used once."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import spmdx as sx
from spmdx import random, tree
from spmdx.testing import spmd

IMPLS = ("philox4x32", "threefry2x32")
KEY = random.key(5)


@pytest.mark.parametrize("impl", IMPLS)
def test_data_and_back(impl: str) -> None:
    keys = random.split(random.key(-3, impl), 4)
    data = random.key_data(keys[0])
    assert data.dtype == np.uint32
    assert data.tolist() == list(keys[0].words)
    assert random.wrap_key_data(data, impl=impl) == keys[0]
    assert random.wrap_key_data(random.key_data(keys), impl=impl) == keys
    assert random.wrap_key_data(sx.asarray(data), impl=impl) == keys[0]
    assert random.key_data([]).shape == (0, 4)


def test_both_generators_have_the_same_functions() -> None:
    """Same keys, same values; other keys, other values; folds and splits do not meet."""
    for impl in IMPLS:
        key = random.key(9, impl)
        made = [key, *random.split(key, 3), *(random.fold_in(key, i + 2**20) for i in range(3)), random.key(10, impl)]
        assert len(set(made)) == len(made)
        rows = np.array([random.bits(k, (8,)).numpy() for k in made])
        assert len(np.unique(rows, axis=0)) == len(made)
        assert random.split(key, 0) == ()
        assert random.split(key, 3)[:2] == random.split(key)


@pytest.mark.parametrize("impl", IMPLS)
def test_in_a_pytree(impl: str) -> None:
    """A node without leaves: carried along, compared as structure, never differentiated."""
    key = random.key(1, impl)
    leaves, structure = tree.flatten({"key": key, "x": 1.0})
    assert leaves == [1.0]
    assert tree.unflatten(structure, [2.0]) == {"key": key, "x": 2.0}
    assert tree.flatten({"key": random.key(1, impl), "x": 0})[1] == structure
    assert tree.flatten({"key": random.key(2, impl), "x": 0})[1] != structure

    def loss(p: Any) -> Any:
        return (p["x"] * random.uniform(p["key"], (3,))).sum()

    g = sx.grad(loss)({"key": key, "x": sx.asarray(np.ones(3))})
    assert g["key"] == key
    assert np.array_equal(g["x"].numpy(), random.uniform(key, (3,)).numpy())


# Used once


def draws() -> dict[str, Callable[[random.Key], Any]]:
    """Every public function that draws from a key or splits it, with arguments that suit it."""
    given: dict[str, tuple[Any, ...]] = {
        "split": (),
        "randint": ((3,), 0, 5),
        "choice": (9, (3,)),
        "categorical": (np.zeros((2, 3)),),
        "permutation": (5,),
        "shuffle": (np.ones(4),),
        "dirichlet": ((2,), np.ones(3)),
        "multivariate_normal": ((2,), np.zeros(2), np.eye(2)),
        "orthogonal": ((2,), 3),
        "ball": ((2,), 3),
        "gamma": ((3,), 2.0),
        "beta": ((3,), 2.0, 1.0),
        "chisquare": ((3,), 2.0),
        "t": ((3,), 4.0),
        "weibull": ((3,), 2.0),
        "pareto": ((3,), 2.0),
        "binomial": ((3,), 5),
        "geometric": ((3,), 0.5),
    }
    skipped = {"Key", "Generator", "default_rng", "key", "fold_in", "key_data", "wrap_key_data", "consume", "clone"}
    names = [n for n in random.__all__ if n not in skipped]
    return {n: lambda k, n=n: getattr(random, n)(k, *given.get(n, ((3,),))) for n in names}


@pytest.mark.parametrize("name", draws())
def test_every_draw_uses_its_key_up(name: str) -> None:
    assert next(iter(inspect.signature(getattr(random, name)).parameters)) == "key"
    draw = draws()[name]
    draw(KEY)
    draw(KEY)  # outside, keys may be used again
    with sx.debug.check_keys():
        draw(KEY)
        with pytest.raises(
            sx.errors.KeyReuseError, match=r"is used up[\s\S]*split\(key\), or fold_in[\s\S]*clone\(key\)"
        ):
            draw(KEY)
        draw(random.key(6))
    with sx.debug.check_keys():
        draw(KEY)


def test_dropout_uses_its_key_up_once() -> None:
    x = sx.asarray(np.ones(4))
    with sx.debug.check_keys():
        sx.grad(lambda a: sx.nn.dropout(KEY, a, 0.5).sum())(x)  # the gradient draws the mask again
        with pytest.raises(sx.errors.KeyReuseError):
            sx.nn.dropout(KEY, x, 0.5)


def test_remat_may_draw_again() -> None:
    x = sx.asarray(np.ones(4))
    with sx.debug.check_keys():
        sx.grad(lambda a: sx.remat(lambda v: (v * random.normal(KEY, (4,))).sum())(a))(x)


def test_consume_and_clone() -> None:
    assert random.consume(KEY) is KEY
    random.normal(KEY, (2,))  # marks nothing outside of debug mode
    with sx.debug.check_keys():
        random.consume(KEY)
        with pytest.raises(sx.errors.KeyReuseError):
            random.normal(KEY, (2,))
        with pytest.raises(sx.errors.KeyReuseError):
            random.consume(KEY)
        random.normal(random.clone(KEY), (2,))
        random.fold_in(KEY, 1)  # never uses a key up, nor needs an unused one
        other = random.fold_in(KEY, 2)
        random.normal(other, (2,))


def test_ranks_mark_their_own_keys() -> None:
    def program() -> None:
        with sx.debug.check_keys():
            random.normal(KEY, (4,), mesh=sx.make_mesh({"a": 2}), placement={"a": sx.Shard(0)})

    spmd(2)(program)()


def test_under_spmdx_check() -> None:
    """There only keys that were given to consume are checked: whole programs draw the same values on purpose."""
    program = """
import spmdx as sx
key = sx.random.key(0)
sx.random.normal(key, (2,)), sx.random.normal(key, (2,))
sx.random.consume(key)
try:
    sx.random.normal(key, (2,))
except sx.errors.KeyReuseError:
    print("raised")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "SPMDX_CHECK": "1"}, capture_output=True, text=True
    )
    assert done.stdout == "raised\n", done.stderr


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: random.wrap_key_data(np.zeros(4)), sx.errors.DtypeError, r"uint32 words, not float64"),
        (lambda: random.wrap_key_data(np.zeros(3, np.uint32)), sx.errors.ShapeError, r"has 4 words[\s\S]*\(n, 4\)"),
        (
            lambda: random.wrap_key_data(np.zeros(4, np.uint32), impl="threefry2x32"),
            sx.errors.ShapeError,
            r"threefry2x32 key has 2 words",
        ),
        (
            lambda: random.wrap_key_data(np.zeros(4, np.uint32), impl="mt"),
            sx.errors.ArgumentError,
            r"no generator 'mt'",
        ),
        (lambda: random.key_data([3]), sx.errors.DtypeError, r"sx\.random\.key\(3\)"),
        (lambda: random.key_data([KEY, random.key(0, IMPLS[1])]), sx.errors.ArgumentError, r"two generators"),
        (lambda: random.consume(7), sx.errors.DtypeError, r"sx\.random\.key\(7\)"),
    ],
)
def test_errors(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
