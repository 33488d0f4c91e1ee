"""Redistribution on ranks that communicate: samples of what tests/laws/test_redistribution.py does whole. Exact."""

from __future__ import annotations

import sys
import zlib
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "laws"))

from case import values
from placements import OPS, blocks, piece, same_bits, specs

import spmdx as sx
from spmdx import context
from spmdx.array import Array
from spmdx.errors import MeshError, PlacementError
from spmdx.mesh import Mesh
from spmdx.ops.pieces import from_block
from spmdx.ops.place import asarray, moved_arrays, redistribute, target_spec, to_numpy
from spmdx.placement import Partial, Replicate, Shard
from spmdx.plan import LOCAL, cost, plan
from spmdx.spec import Spec

SIZES = {1: [(1,)], 2: [(2,), (1, 2)], 3: [(3,)], 4: [(4,), (2, 2)], 7: [(7,)], 8: [(2, 4)]}
NAMES = ("a", "b")
DTYPES = ["float64", "float16", np.dtype(ml_dtypes.bfloat16), "complex64", "int8", "bool"]


def meshes(ranks: int) -> list[Mesh]:
    return [Mesh(NAMES[: len(sizes)], sizes) for sizes in SIZES[ranks]]


def contents(shape: tuple[int, ...], dtype: Any) -> Any:
    kind = np.dtype(dtype).kind
    if kind == "b":
        return values(*shape, kind="bool")
    return values(*shape, kind="special" if kind in "fV" else "real", dtype=dtype)


def mine(spec: Spec, value: Any) -> Array:
    """This rank's part of the value."""
    position = spec.mesh.coordinates().index(spec.mesh.here())
    return Array(blocks(spec, value)[position], spec)


def check(x: Array, value: Any) -> None:
    """The array is this value, to the last bit: its block, and for a Partial the finished value."""
    if x.spec.partial:
        assert same_bits(to_numpy(x), value), x.spec
    else:
        assert same_bits(x.block, piece(x.spec, value, x.mesh.here())), x.spec


def there_and_back(source: Spec, target: Spec, value: Any) -> None:
    x = mine(source, value)
    before = x.block.tobytes()
    there, back = plan(source, target), plan(target, source)
    with context.use(trace=[]) as state:
        [y] = moved_arrays([x], [target], [there], "redistribute")
        sent = [r.bytes for r in state.trace]
    assert sent == [s.bytes for s in there if s.verb not in LOCAL]
    check(y, value)
    [z] = moved_arrays([y], [source], [back], "redistribute")
    check(z, value)
    assert x.block.tobytes() == before


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(5, 6), (0, 3), (7,), (1, 2, 4)], ids=str)
def test_samples_there_and_back(ranks: int, shape: tuple[int, ...], dtype: Any) -> None:
    value = contents(shape, dtype)
    for mesh in meshes(ranks):
        found = specs(mesh, shape, dtype)
        for i, j in np.random.default_rng(0).integers(0, len(found), (20 if ranks > 1 else 2, 2)):
            there_and_back(found[i], found[j], value)


@pytest.mark.slow
def test_every_pair(ranks: int) -> None:
    value = contents((5, 6), "float64")
    for mesh in meshes(ranks):
        found = specs(mesh, value.shape, "float64", ("sum", "max"))
        for source in found:
            for target in found:
                there_and_back(source, target, value)


@pytest.mark.parametrize("op", OPS)
def test_large_messages(ranks: int, op: str) -> None:
    """Beyond the size at which an all-reduce goes in two steps."""
    value = contents((257, 131), "float64")
    for mesh in meshes(ranks):
        axes = mesh.axis_names
        places: list[Any] = [{}, {axes[0]: Shard(0)}, {axes[-1]: Shard(1)}, {a: Partial(op) for a in axes}]
        for source in places:
            x = asarray(value, mesh=mesh, placement=source)
            for target in places:
                check(redistribute(x, target), value)


def test_every_rank_derives_the_same_plans(ranks: int) -> None:
    for mesh in meshes(ranks):
        found = specs(mesh, (5, 6))
        pairs = np.random.default_rng(1).integers(0, len(found), (100, 2))
        shown = "\n".join(repr(plan(found[i], found[j])) for i, j in pairs)
        digest = from_block(np.array([zlib.crc32(shown.encode())]), {a: Shard(0) for a in mesh.axis_names}, mesh=mesh)
        assert len(set(to_numpy(digest).tolist())) == 1


def test_a_real_partial_sum(ranks: int) -> None:
    """Every rank's own share, added in the order of the ranks: exact on one axis; on two, where one may be finished
    before the other, close to 1e-14."""
    for mesh in meshes(ranks):
        shares = [values(5, 6, seed=k) for k in range(ranks)]
        want = shares[0]
        for share in shares[1:]:
            want = want + share
        here = mesh.coordinates().index(mesh.here())
        x = from_block(shares[here], {a: Partial("sum") for a in mesh.axis_names}, mesh=mesh)
        assert same_bits(to_numpy(x), want)
        for target in ({}, {mesh.axis_names[0]: Shard(0)}, {a: Shard(1) for a in mesh.axis_names}):
            got = to_numpy(redistribute(x, target))
            assert same_bits(got, want) or (len(mesh.axis_names) > 1 and np.allclose(got, want, rtol=1e-14, atol=1e-14))


@pytest.mark.ranks(4)
def test_partial_on_two_axes_takes_one_all_reduce() -> None:
    mesh = Mesh(("a", "b"), (2, 2))
    x = asarray(values(4, 6), mesh=mesh, placement={"a": Partial("sum"), "b": Partial("sum")})
    with context.use(trace=[]) as state:
        y = redistribute(x, {})
    assert [(r.verb, r.axes, r.bytes) for r in state.trace] == [("all_reduce", ("a", "b"), 2 * 24 * 8 * 3 // 4)]
    assert same_bits(to_numpy(y), values(4, 6))


@pytest.mark.ranks(2, 3, 4)
def test_arrays_in_one_call_share_one_collective_a_step(ranks: int) -> None:
    mesh = Mesh(("a",), (ranks,))
    all_values = [values(*shape) for shape in [(4, 6), (5,), (3, 2, 2), (0, 3)]]
    for source, target in [(Partial("sum"), Replicate()), (Shard(0), Replicate()), (Partial("sum"), Shard(0))]:
        arrays = [asarray(v, mesh=mesh, placement={"a": source}) for v in all_values]
        with context.use(trace=[]) as state:
            moved = redistribute(arrays, {"a": target})
        assert len(state.trace) == 1
        assert state.trace[0].bytes == sum(cost(plan(x.spec, y.spec)) for x, y in zip(arrays, moved))
        for y, v in zip(moved, all_values):
            assert same_bits(to_numpy(y), v)


@pytest.mark.ranks(1, 2, 3, 4)
@pytest.mark.parametrize("source", [Shard(0), Shard(1), Shard(0, None, 2), Partial("sum")], ids=str)
def test_a_move_that_was_asked_for_before(ranks: int, source: Any) -> None:
    """It is looked up whole, and is as before: of other values, of blocks in another order, traced, differentiated,
    vectorised, in a dry run, and with its gradient."""
    mesh = Mesh(("a",), (ranks,))
    v, target = values(4, 6), {"a": Shard(0, (0, *[0] * (ranks - 2), 4))} if ranks > 1 else {}

    def go(x: Any) -> Any:
        return redistribute(x, target)

    for turn in range(3):
        x = asarray(v + turn, mesh=mesh, placement={"a": source})
        y = go(x)
        assert same_bits(to_numpy(y), to_numpy(x)) and y.spec is target_spec(x, target, {})
        block = np.asfortranarray(x.block)
        assert same_bits(to_numpy(go(Array(block, x.spec))), to_numpy(x))
        steps = plan(x.spec, y.spec)
        with context.use(trace=[]) as state:
            go(x)
        assert [r.verb for r in state.trace] == [s.verb for s in steps if s.verb not in LOCAL]
        assert sx.eval_shape(go, x) is y.spec
        assert same_bits(to_numpy(sx.grad(lambda x: sx.sum(go(x) * go(x)))(x)), 2 * to_numpy(x))
        many = sx.stack([x, x * 2])
        assert same_bits(to_numpy(sx.vmap(go)(many)), to_numpy(many))
    for wrong in ({"a": [0]}, {"a": "S"}, {"a": 0}, {"b": Shard(0)}):
        with pytest.raises((PlacementError, MeshError)):
            redistribute(x, wrong)


@pytest.mark.ranks(2, 4)
def test_the_source_is_not_changed_and_not_shared(ranks: int) -> None:
    """What a collective returns is this array's own: a second move of the same source does not disturb it."""
    mesh = Mesh(("a",), (ranks,))
    v = values(64, 33)
    x = asarray(v, mesh=mesh, placement={"a": Shard(0)})
    first = redistribute(x, {})
    second = redistribute(asarray(-v, mesh=mesh, placement={"a": Shard(0)}), {})
    assert same_bits(to_numpy(first), v)
    assert same_bits(to_numpy(second), -v)
    check(x, v)


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize("shape", [(70, 301), (701, 1502), (3, 5, 70_001)])
def test_large_blocks_in_many_pieces(ranks: int, shape: tuple[int, ...]) -> None:
    """Long messages in rows of every length, several times, for the way they go may change after some."""
    mesh = Mesh(("a",), (ranks,))
    v = np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
    places = [Shard(0), Shard(1), Shard(len(shape) - 1), Replicate()]
    for turn, (source, target) in enumerate(zip(places * 4, [*places[1:], places[0]] * 4)):
        x = asarray(v + turn, mesh=mesh, placement={"a": source})
        check(redistribute(x, {"a": target}), v + turn)
    for turn, target in enumerate(places * 3):
        mine = v * (context.rank() + 1) + turn
        x = from_block(mine, mesh=mesh, placement={"a": Partial("sum")})
        check(redistribute(x, {"a": target}), v * (ranks * (ranks + 1) // 2) + turn * ranks)
    pair = [asarray(v, mesh=mesh, placement={"a": Shard(0)}), asarray(-v.T, mesh=mesh, placement={"a": Shard(0)})]
    for got, want in zip(redistribute(pair, {"a": Shard(1)}), (v, -v.T)):
        check(got, want)
