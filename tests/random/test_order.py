"""Exact: permutations and choices are the same wherever the pieces lie, and nothing is gathered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from placements import assembled, blocks, simulated, specs

import spmdx as sx
from spmdx import random
from spmdx.array import Array
from spmdx.mesh import Mesh
from spmdx.ops.ordering import ascending, holders, inverse, sample_sort
from spmdx.spec import Spec, place
from spmdx.testing import spmd

KEY = random.key(7)
MESHES = [(2,), (3,), (2, 2)]
each_mesh = pytest.mark.parametrize("sizes", MESHES, ids=str)


def held(spec: Spec, value: Any) -> Array:
    return Array(blocks(spec, value), spec)


def words(n: int, key: random.Key = KEY) -> Any:
    return random.bits(key, (n,), dtype=np.uint64).numpy()


# The distributed sort


@each_mesh
@pytest.mark.parametrize("n", [0, 1, 2, 7, 40])
@pytest.mark.parametrize("kind", ["distinct", "few", "one"])
def test_sample_sort(n: int, kind: str, sizes: tuple[int, ...]) -> None:
    x = words(n) % np.uint64({"distinct": 2**63, "few": 3, "one": 1}[kind])
    want = np.argsort(x, kind="stable")
    for spec in specs(simulated(*sizes), (n,), np.uint64, ops=("sum",)):
        keys, index = sample_sort(held(spec, x))
        assert np.array_equal(assembled(keys.spec, keys._block), x[want]), spec
        assert np.array_equal(assembled(index.spec, index._block), want), spec
        assert set(index.spec.sharded_axes) == set(spec.sharded_axes)
        assert all(layout.sizes is None for layout in index.spec.layouts), "not level"


@each_mesh
def test_holders(sizes: tuple[int, ...]) -> None:
    """Which member holds an index, and where: from the blocks themselves."""
    mesh, n = simulated(*sizes), 12
    for spec in specs(mesh, (n,), np.int64, ops=()):
        axes = tuple(a for a in mesh.axis_names if a in spec.sharded_axes)
        member, place = holders(spec, 0, np.arange(n))
        held_by = blocks(spec, np.arange(n))
        group = mesh.members(axes, (0,) * len(sizes))
        for i in range(n):
            assert held_by[mesh.coordinates().index(group[member[i]])][place[i]] == i


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint16", "int64", "uint64", "float16", "bfloat16", "float32", "float64"]
)
def test_ascending(dtype: str) -> None:
    kind = sx.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    x = np.array([3, 0, 1, 7, 5] if dtype in ("bool", "uint16", "uint64") else [3, -2, 0, -128, 7, 127]).astype(kind)
    order = np.argsort(x.astype(np.float64), kind="stable")
    assert np.array_equal(np.argsort(ascending(x), kind="stable"), order)
    back = np.argsort(ascending(x, descending=True), kind="stable")
    assert np.array_equal(x[back], x[order[::-1]])
    if dtype.startswith("float"):
        odd = np.array([np.nan, np.inf, -0.0, 0.0, -np.inf, -np.nan], kind)
        assert np.argsort(ascending(odd), kind="stable").tolist() == [4, 2, 3, 1, 0, 5]
        assert np.argsort(ascending(odd, True), kind="stable").tolist() == [1, 2, 3, 4, 0, 5]


@each_mesh
def test_inverse(sizes: tuple[int, ...]) -> None:
    order = np.argsort(words(11))
    for spec in specs(simulated(*sizes), (11,), np.int64, ops=()):
        found = inverse(held(spec, order))
        assert np.array_equal(assembled(found.spec, found._block), np.argsort(order))


# Permutations


@each_mesh
@pytest.mark.parametrize("n", [0, 1, 7, 24])
def test_permutation_of_numbers(n: int, sizes: tuple[int, ...]) -> None:
    want = np.argsort(words(n), kind="stable")
    assert np.array_equal(random.permutation(KEY, n).numpy(), want)
    for spec in specs(simulated(*sizes), (n,), np.int64, ops=("sum", "max")):
        got = random.permutation(KEY, n, mesh=spec.mesh, placement=spec.placement)
        assert got.spec is place(spec.mesh, (n,), np.int64, spec.placement)
        assert np.array_equal(assembled(got.spec, got._block), want)


@each_mesh
@pytest.mark.parametrize(("shape", "axis"), [((7,), 0), ((0,), 0), ((6, 5), 0), ((6, 5), 1), ((3, 4, 2), -2)])
def test_permutation_of_an_array(shape: tuple[int, ...], axis: int, sizes: tuple[int, ...]) -> None:
    x = np.arange(np.prod(shape, dtype=int)).reshape(shape) * 1.5
    order = np.argsort(words(shape[axis]), kind="stable")
    want = np.take(x, order, axis)
    for spec in specs(simulated(*sizes), shape, ops=("sum",)):
        for draw in (random.permutation, random.shuffle):
            got = draw(KEY, held(spec, x), axis)
            assert np.array_equal(assembled(got.spec, got._block), want), spec
            if set(spec.layouts[axis].axes):
                assert got.spec is spec.replace(partial=()), spec


@each_mesh
@pytest.mark.parametrize(("shape", "axis"), [((7,), 0), ((6, 5), 0), ((6, 5), 1)])
def test_independent_permutations(shape: tuple[int, ...], axis: int, sizes: tuple[int, ...]) -> None:
    x = np.arange(np.prod(shape, dtype=int)).reshape(shape) * 1.5
    order = np.argsort(random.bits(KEY, shape, dtype=np.uint64).numpy(), axis, kind="stable")
    want = np.take_along_axis(x, order, axis)
    for spec in specs(simulated(*sizes), shape, ops=("sum",)):
        got = random.permutation(KEY, held(spec, x), axis, independent=True)
        assert got.spec is spec.replace(partial=())
        assert np.array_equal(assembled(got.spec, got._block), want), spec


def test_nothing_is_gathered() -> None:
    """Rows travel once; no collective carries more than a rank's share of them, twice over for uneven buckets."""
    mesh, n = simulated(4), 4096
    x = sx.asarray(np.ones((n, 64)), mesh=mesh, placement={"a": sx.Shard(0)})
    with sx.debug.trace() as t:
        random.permutation(KEY, x)
    share = n * 64 * 8 // 4
    assert t.count("all_to_all") == 4, t
    assert max(r.bytes for r in t) <= share, t
    assert sum(r.bytes for r in t if r.verb == "all_gather") <= 4096, t
    with sx.debug.trace() as t:
        random.permutation(KEY, n, mesh=mesh, placement={"a": sx.Shard(0)})
    assert max(r.bytes for r in t) <= 2 * 16 * n // 4, t


@each_mesh
def test_gradients(sizes: tuple[int, ...]) -> None:
    """Exact: the gradient goes back to where each element came from; the gradient of that, forth."""
    x, w = np.arange(12.0).reshape(6, 2) + 1, np.arange(12.0).reshape(6, 2) ** 2
    order = np.argsort(words(6), kind="stable")
    want = np.empty_like(x)
    want[order] = 3 * np.take(x, order, 0) ** 2 * w
    for spec in specs(simulated(*sizes), (6, 2), ops=()):
        weights = sx.asarray(w, mesh=spec.mesh)

        def loss(a: Any, weights: Any = weights) -> Any:
            return (random.permutation(KEY, a) ** 3 * weights).sum()

        g = sx.grad(loss)(held(spec, x))
        assert np.array_equal(assembled(g.spec, g._block), want), spec
        second = sx.grad(lambda a, loss=loss: (sx.grad(loss)(a) * 2).sum())(held(spec, x))
        got = assembled(second.spec, second._block)
        expected = np.empty_like(x)
        expected[order] = 12 * np.take(x, order, 0) * w
        assert np.array_equal(got, expected), spec


# Choice


def everywhere(draw: Callable[..., Array], shape: tuple[int, ...], want: Any) -> None:
    for sizes in MESHES:
        for spec in specs(simulated(*sizes), shape, np.int64, ops=("sum",)):
            got = draw(mesh=spec.mesh, placement=spec.placement)
            assert got.spec is place(spec.mesh, shape, np.int64, spec.placement)
            assert np.array_equal(assembled(got.spec, got._block), want), spec


@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3)])
@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_choice_of_numbers(shape: tuple[int, ...], replace: bool, weighted: bool) -> None:
    p = np.array([0.1, 0, 0.3, 0.05, 0.15, 0.1, 0.25, 0.05]) if weighted else None
    want = random.choice(KEY, 8, shape, replace, p).numpy()
    assert want.shape == shape
    assert ((want >= 0) & (want < 8)).all()
    assert not weighted or not (want == 1).any()
    assert replace or len(set(want.ravel().tolist())) == want.size
    everywhere(lambda **where: random.choice(KEY, 8, shape, replace, p, **where), shape, want)


@each_mesh
def test_choice_of_slices(sizes: tuple[int, ...]) -> None:
    x = np.arange(24.0).reshape(4, 6)
    for replace in (True, False):
        index = random.choice(KEY, 6, (2, 2), replace).numpy()
        for spec in specs(simulated(*sizes), (4, 6), ops=("sum",)):
            got = random.choice(KEY, held(spec, x), (2, 2), replace, axis=1)
            assert np.array_equal(assembled(got.spec, got._block), np.take(x, index, 1)), spec


@each_mesh
def test_weighted_by_a_divided_array(sizes: tuple[int, ...]) -> None:
    p = np.array([0.125, 0.25, 0.0, 0.5, 0.0625, 0.0625])
    for replace in (True, False):
        want = random.choice(KEY, 6, (4,), replace, p).numpy()
        for spec in specs(simulated(*sizes), (6,), ops=("sum",)):
            got = random.choice(KEY, 6, (4,), replace, held(spec, p), mesh=spec.mesh)
            assert np.array_equal(got.numpy(), want), spec


def test_choice_has_the_probabilities() -> None:
    """Close: within 5 deviations of each expected count."""
    p = np.array([0.5, 0.125, 0.25, 0.125])
    for given in (p, None):
        got = np.bincount(random.choice(KEY, 4, (20_000,), p=given).numpy(), minlength=4)
        chance = np.full(4, 0.25) if given is None else given
        assert (np.abs(got - 20_000 * chance) < 5 * np.sqrt(20_000 * chance * (1 - chance))).all()
    first = [int(random.choice(random.fold_in(KEY, i), 4, (2,), False, p).numpy()[0]) for i in range(2000)]
    got = np.bincount(first, minlength=4)
    assert (np.abs(got - 2000 * p) < 5 * np.sqrt(2000 * p * (1 - p))).all()


@each_mesh
@pytest.mark.parametrize(("axis", "shape"), [(-1, None), (0, None), (1, (2, 3))])
def test_categorical(axis: int, shape: Any, sizes: tuple[int, ...]) -> None:
    logits = np.log(np.arange(1.0, 13).reshape(3, 4))
    want = random.categorical(KEY, logits, axis, shape).numpy()
    for spec in specs(simulated(*sizes), (3, 4), ops=("sum",)):
        got = random.categorical(KEY, held(spec, logits), axis, shape)
        assert np.array_equal(assembled(got.spec, got._block), want), spec


# On ranks


@pytest.mark.parametrize("n", [2, 3, 4])
def test_on_thread_ranks(n: int) -> None:
    x = np.arange(77.0).reshape(11, 7)
    order = np.argsort(words(11), kind="stable")

    def program() -> None:
        mesh = sx.make_mesh({"a": 2, "b": 2} if n == 4 else {"a": n})
        for placement in ({"a": sx.Shard(0)}, sx.P(mesh.axis_names), sx.P(None, "a"), {}, sx.P(mesh.axis_names[::-1])):
            a = sx.asarray(x, mesh=mesh, placement=placement)
            assert np.array_equal(random.permutation(KEY, a).numpy(), x[order])
            one = {"a": sx.Shard(0)} if placement else {}
            assert np.array_equal(random.permutation(KEY, 11, mesh=mesh, placement=one).numpy(), order)
            got = random.choice(KEY, 11, (5,), False, mesh=mesh, placement=one).numpy()
            assert np.array_equal(got, order[:5])
        a = sx.asarray(x, mesh=mesh, placement={"a": sx.Shard(0, sizes=(11, *(0,) * (mesh.shape["a"] - 1)))})
        g = sx.grad(lambda v: (random.permutation(KEY, v) * x).sum())(a)
        assert np.array_equal(g.numpy()[order], x)

    spmd(n)(program)()


def test_same_trace_in_the_simulator() -> None:
    """What the simulator counts is what ranks send."""

    def traced(mesh: Mesh) -> list[tuple[Any, ...]]:
        x = sx.asarray(np.ones((101, 3)), mesh=mesh, placement={"a": sx.Shard(0)})
        with sx.debug.trace() as t:
            random.permutation(KEY, x)
        return [(r.verb, r.axes, r.bytes) for r in t]

    want = traced(simulated(3))
    assert len(want) == 7, want
    assert spmd(3)(lambda: traced(sx.make_mesh({"a": 3})))() == [want] * 3


# Errors


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: random.permutation(KEY, -1), sx.errors.ArgumentError, r"x is 0 or more; got -1"),
        (lambda: random.permutation(KEY, 2.5), sx.errors.DtypeError, r"x is a number or an array[\s\S]*x=10"),
        (lambda: random.permutation(KEY, sx.asarray(3)), sx.errors.ShapeError, r"permutation\(key, 3\)"),
        (lambda: random.permutation(KEY, np.ones((2, 3)), 2), sx.errors.ShapeError, r"axis 2 is out of range"),
        (lambda: random.shuffle(KEY, 5), sx.errors.DtypeError, r"permutation\(key, 5\)"),
        (lambda: random.choice(KEY, 5, (6,), False), sx.errors.ArgumentError, r"6 different[\s\S]*replace=True"),
        (lambda: random.choice(KEY, 0, (6,)), sx.errors.ArgumentError, r"nothing to choose from"),
        (lambda: random.choice(KEY, 2, (1,), p=[0.5, 0.6]), sx.errors.ArgumentError, r"sum to 1\.1[\s\S]*p / p\.sum"),
        (lambda: random.choice(KEY, 2, (1,), p=[1.5, -0.5]), sx.errors.ArgumentError, r"some are negative"),
        (lambda: random.choice(KEY, 2, (1,), p=[np.nan, 0.5]), sx.errors.ArgumentError, r"sum to nan"),
        (lambda: random.choice(KEY, 3, (1,), p=[0.5, 0.5]), sx.errors.ShapeError, r"p of shape \(3,\)"),
        (lambda: random.choice(KEY, 3, (2,), False, [1.0, 0, 0]), sx.errors.ArgumentError, r"only 1 have"),
        (lambda: random.categorical(KEY, [1, 2]), sx.errors.DtypeError, r"logits\.astype\(float\)"),
        (
            lambda: random.categorical(KEY, np.ones((2, 3)), shape=(3,)),
            sx.errors.ShapeError,
            r"shape=\(\.\.\., \*\(2,\)\)",
        ),
    ],
)
def test_errors(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_explicit() -> None:
    x = sx.asarray(np.ones(8), mesh=simulated(2), placement={"a": sx.Shard(0)})
    with sx.explicit(), pytest.raises(sx.errors.ImpliedMoveError, match="permutation along a divided dimension"):
        random.permutation(KEY, x)
