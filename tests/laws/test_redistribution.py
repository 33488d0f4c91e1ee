"""Redistribution in the simulator: every placement to every placement, on 1-, 2- and 3-D meshes. All exact."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from case import values
from placements import OPS, blocks, holds, same_bits, simulated, specs

from spmdx import context
from spmdx import plan as planning
from spmdx.mesh import Mesh
from spmdx.move import move
from spmdx.ops.place import asarray, redistribute, to_numpy
from spmdx.placement import P, Partial, Replicate, Shard
from spmdx.plan import LOCAL, cost, plan
from spmdx.runtime import simulate
from spmdx.spec import Layout, Spec, make, place

SHAPES = [(5, 6), (0, 3), (1, 1), (7,), (4, 2)]
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = ["float64", "float32", "float16", BFLOAT16, "complex64", "complex128", "int8", "int64", "uint8", "bool"]
SAMPLES = 3000  # pairs on the meshes where all pairs take minutes; those are in the slow half


def contents(shape: tuple[int, ...], dtype: Any) -> Any:
    """Values with, where there are such, NaN, infinities, both zeros and the extremes of the type."""
    kind = np.dtype(dtype).kind
    if kind == "b":
        return values(*shape, kind="bool")
    if kind in "iu":
        limits = np.iinfo(dtype)
        out = values(*shape, kind="natural", dtype=dtype)
        out.reshape(-1)[:2] = [limits.min, limits.max][: out.size]
        return out
    if kind == "c":
        real, imaginary = (values(*shape, kind="special", seed=seed) for seed in (0, 1))
        out = np.empty(shape, dtype)
        out.real, out.imag = real, imaginary
        return out
    return values(*shape, kind="special").astype(dtype)


def check(source: Spec, target: Spec, held: tuple[Any, ...], value: Any) -> None:
    """There and back: the value is the same to the last bit, and the trace counts what the plan said."""
    there, back = plan(source, target), plan(target, source)
    with context.use(trace=[]) as state:
        [moved] = move([there], [held])
        assert holds(target, moved, value), f"{source} -> {target}: {there}"
        [returned] = move([back], [moved])
        assert holds(source, returned, value), f"{source} -> {target} -> {source}: {back}"
    assert sum(r.bytes for r in state.trace) == cost(there) + cost(back)
    assert [r.verb for r in state.trace] == [s.verb for s in (*there, *back) if s.verb not in LOCAL]


def everything(mesh: Mesh, value: Any, ops: Any = OPS) -> None:
    found = specs(mesh, value.shape, value.dtype, ops)
    for source in found:
        held = blocks(source, value)
        assert holds(source, held, value)
        for target in found:
            check(source, target, held, value)


def sampled(mesh: Mesh, value: Any, number: int, ops: Any = OPS) -> None:
    found = specs(mesh, value.shape, value.dtype, ops)
    for i, j in np.random.default_rng(0).integers(0, len(found), (number, 2)):
        check(found[i], found[j], blocks(found[i], value), value)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("size", [2, 3])
def test_one_axis(size: int, shape: tuple[int, ...]) -> None:
    everything(simulated(size), contents(shape, "float64"))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(dtype: Any) -> None:
    """Complex products are exact for finite parts only: times 1 + 0j, an infinity gets a NaN beside it."""
    ops = ("sum",) if np.dtype(dtype).kind == "c" else OPS
    everything(simulated(3), contents((5, 6), dtype), ops)
    sampled(simulated(2, 2), contents((5, 6), dtype), 200, ops)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_products(dtype: str) -> None:
    everything(simulated(3), values(5, 6, dtype=dtype), ("prod",))


def test_two_axes() -> None:
    everything(simulated(2, 2), contents((5, 6), "float64"), ("sum", "max"))


@pytest.mark.parametrize("sizes", [(2, 2), (2, 3), (2, 2, 2)], ids=str)
@pytest.mark.parametrize("shape", [*SHAPES, (3, 4, 2)], ids=str)
def test_pairs_on_several_axes(sizes: tuple[int, ...], shape: tuple[int, ...]) -> None:
    sampled(simulated(*sizes), contents(shape, "float64"), SAMPLES // len(SHAPES) // len(sizes))


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(2, 2), (2, 3)], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_pair_on_two_axes(sizes: tuple[int, ...], shape: tuple[int, ...]) -> None:
    everything(simulated(*sizes), contents(shape, "float64"))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("shape", [(5,), (5, 6)], ids=str)
def test_every_pair_on_three_axes(shape: tuple[int, ...]) -> None:
    everything(simulated(2, 2, 2), contents(shape, "float64"), ("sum", "max"))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("shape", [(), (1,)], ids=str)
def test_one_element(op: str, shape: tuple[int, ...]) -> None:
    mesh = simulated(2, 2) if not shape else simulated(3)
    for special in (np.nan, -np.inf, np.inf, -0.0, 0.0, 2.5):
        everything(mesh, np.full(shape, special), (op,))


# What a redistribution costs


def packed(steps: Any, held: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """For each collective, the most bytes that a rank packed for other ranks; of a gather, the most that one got; of
    an all-reduce, twice its message less a p-th, as a reduce-scatter and a gather would send."""
    made: list[Any] = []

    class Watching(simulate.Group):
        def turn(self, rank: int, sends: Any, counts: Any) -> Any:
            if rank == 0:
                made.append((sends, counts))
            return super().turn(rank, sends, counts)

    with monkeypatch.context() as patch:
        patch.setattr(simulate, "Group", Watching)
        out = []
        for step in steps:
            made.clear()
            [held] = move([(step,)], [held])
            if step.verb in LOCAL:
                assert not made
                continue
            most = 0
            for sends, counts in made:
                p, nbytes = len(sends), [send.nbytes for send in sends]
                for i, (send, n) in enumerate(zip(sends, counts)):
                    if step.verb == "all_reduce":
                        sent = 2 * math.ceil(nbytes[i] * (p - 1) / p)
                    elif step.verb == "all_gather":
                        sent = sum(nbytes) - nbytes[i]
                    else:
                        sent = nbytes[i] - n[i] * send.itemsize
                    most = max(most, sent)
            out.append(most)
    return out


def packs_what_was_planned(source: Spec, target: Spec, value: Any, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Exact, for every collective of the plan; how many there were of each verb."""
    steps = plan(source, target)
    made = [(s.verb, s.bytes) for s in steps if s.verb not in LOCAL]
    assert [n for _, n in made] == packed(steps, blocks(source, value), monkeypatch), steps
    return Counter(verb for verb, _ in made)


@pytest.mark.parametrize("sizes", [(2,), (3,), (5,), (2, 2), (3, 2), (2, 2, 2)], ids=str)
@pytest.mark.parametrize("shape", [(12, 12), *SHAPES, (3, 4, 2)], ids=str)
def test_bytes_packed_are_the_bytes_planned(
    sizes: tuple[int, ...], shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the divisions: even, uneven, empty, ragged, interleaved, nested."""
    mesh, value = simulated(*sizes), values(*shape)
    found = specs(mesh, shape, "float64", ("sum", "max"))
    made: Counter[str] = Counter()
    for i, j in np.random.default_rng(1).integers(0, len(found), (240 // mesh.size, 2)):
        made += packs_what_was_planned(found[i], found[j], value, monkeypatch)
    verbs = ("all_to_all", "all_reduce", "all_gather", "reduce_scatter")[: 4 if mesh.size < 8 else 2]
    assert max(shape) == 1 or 0 in shape or min(made[verb] for verb in verbs) > 0, made


@pytest.mark.parametrize("sizes", [(4,), (2, 3), (3, 1, 2)], ids=str)
def test_bytes_between_two_divisions_of_the_same_dimensions(
    sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drawn cuts, some blocks empty, in any order of nesting; on two dimensions at once where there are the axes."""
    mesh, draw = simulated(*sizes), np.random.default_rng(4)
    axes = [a for a in mesh.axis_names if mesh.shape[a] > 1]

    def drawn(n: int, of: list[str]) -> Layout:
        order = tuple(draw.permutation(of).tolist())
        ways = math.prod(mesh.shape[a] for a in order)
        kind = draw.integers(4)
        if kind < 2:
            return Layout(order, None, (1, 2)[kind])
        cuts = np.sort(draw.integers(0, n + 1, ways - 1))
        return Layout(order, tuple(np.diff(cuts, prepend=0, append=n).tolist()))

    value, exchanges = values(12, 10), 0
    for _ in range(60):
        ends = []
        for _ in range(2):
            first = draw.integers(0, 2, len(axes)).tolist()
            by_dim = [[a for a, one in zip(axes, first) if one == d] for d in range(2)]
            layouts = tuple(drawn(n, of) if of else Layout() for n, of in zip(value.shape, by_dim))
            ends.append(make(mesh, value.shape, value.dtype, layouts))
        exchanges += packs_what_was_planned(*ends, value, monkeypatch)["all_to_all"]
    assert exchanges > 20


def test_neighbours_exchange_their_edges_alone() -> None:
    """`u[2:] + u[:-2]`: what is counted, and what the choice rests on, is the few rows that change their rank."""
    for sizes, where in [((4,), P("a")), ((2, 2), P("a", "b")), ((2, 2), P(("b", "a")))]:
        u = asarray(values(50, 6), mesh=simulated(*sizes), placement=where)
        with context.use(trace=[]) as state:
            total = u[2:] + u[:-2]
        assert same_bits(to_numpy(total), values(50, 6)[2:] + values(50, 6)[:-2])
        [record] = state.trace
        assert (record.verb, record.bytes) == ("all_to_all", 2 * u.spec.block_shape((0,) * len(sizes))[1] * 8)


def test_where_nothing_has_to_travel_nothing_is_called() -> None:
    """One element, or none: whoever is to have it has it, although the divisions are by different axes."""
    mesh = simulated(2, 2)
    for n, source, target in [(1, P("a"), P(("b", "a"))), (0, P("a"), P("b")), (0, P("a"), P())]:
        value = values(n)
        start, end = place(mesh, value.shape, "float64", source), place(mesh, value.shape, "float64", target)
        steps = plan(start, end)
        assert [(s.verb, s.axes, s.bytes) for s in steps] == [("slice", (), 0)]
        [moved] = move([steps], [blocks(start, value)])
        assert holds(end, moved, value)


def test_partial_on_two_axes_takes_one_all_reduce() -> None:
    x = asarray(values(4, 6), mesh=simulated(2, 2), placement={"a": Partial("sum"), "b": Partial("sum")})
    with context.use(trace=[]) as state:
        y = redistribute(x, {})
    assert [(r.verb, r.axes, r.bytes) for r in state.trace] == [("all_reduce", ("a", "b"), 2 * 24 * 8 * 3 // 4)]
    assert same_bits(to_numpy(y), values(4, 6))


def test_partial_to_shard_takes_one_reduce_scatter() -> None:
    x = asarray(values(4, 6), mesh=simulated(2, 2), placement={"a": Partial("sum"), "b": Partial("sum")})
    with context.use(trace=[]) as state:
        redistribute(x, {"a": Shard(0), "b": Shard(1)})
    assert [(r.verb, r.axes, r.bytes) for r in state.trace] == [("reduce_scatter", ("a", "b"), 24 * 8 * 3 // 4)]


@pytest.mark.parametrize(
    ("source", "target", "verbs"),
    [
        ({}, {"a": Shard(0)}, []),
        ({}, {"a": Partial("sum")}, ["mask"]),
        ({"a": Shard(0)}, {}, ["all_gather"]),
        ({"a": Shard(0)}, {"a": Shard(1)}, ["all_to_all"]),
        ({"a": Shard(0)}, {"a": Partial("max")}, ["pad"]),
        ({"a": Partial("sum")}, {"a": Partial("max")}, ["all_reduce", "mask"]),
        ({"a": Shard(0), "b": Shard(0)}, {"a": Shard(0)}, ["all_gather"]),
        ({"a": Shard(0), "b": Shard(0)}, {"b": Shard(0)}, ["all_to_all"]),
        ({"a": Shard(0)}, {"a": Shard(0), "b": Shard(0)}, ["slice"]),
        ({"a": Shard(0), "b": Partial("sum")}, {"a": Shard(0), "b": Shard(0)}, ["reduce_scatter"]),
        (P(("a", "b")), P(("b", "a")), ["all_to_all"]),
    ],
    ids=str,
)
def test_the_steps_of_well_known_moves(source: Any, target: Any, verbs: list[str]) -> None:
    mesh = simulated(2, 2)
    steps = plan(place(mesh, (8, 4), "float64", source), place(mesh, (8, 4), "float64", target))
    assert [s.verb for s in steps] == (verbs or ["slice"])


def test_arrays_in_one_call_share_one_collective_a_step() -> None:
    """The same next step: one message. Another dtype: another message."""
    mesh = simulated(2, 2)
    shapes = [(4, 6), (5,), (3, 2, 2), (0, 3)]
    where = {"a": Partial("sum"), "b": Partial("sum")}
    arrays = [asarray(values(*s), mesh=mesh, placement=where) for s in shapes]
    with context.use(trace=[]) as state:
        moved = redistribute(arrays, {})
    n = sum(math.prod(s) for s in shapes)
    assert [(r.verb, r.axes) for r in state.trace] == [("all_reduce", ("a", "b"))]
    assert state.trace[0].bytes == sum(cost(plan(x.spec, y.spec)) for x, y in zip(arrays, moved))
    assert 0 <= state.trace[0].bytes - 2 * n * 8 * 3 / 4 < 2 * len(shapes) * 8
    for y, s in zip(moved, shapes):
        assert same_bits(to_numpy(y), values(*s))
    single = asarray(values(4, dtype="float32"), mesh=mesh, placement=where)
    with context.use(trace=[]) as state:
        redistribute([*arrays, single], {})
    assert [r.verb for r in state.trace] == ["all_reduce", "all_reduce"]


def test_arrays_in_one_call_go_different_ways() -> None:
    """Different plans in one call: every value is right, and nothing is sent twice."""
    mesh, value = simulated(2, 2), contents((5, 6), "float64")
    found = specs(mesh, value.shape, "float64", ("sum", "max"))
    draw = np.random.default_rng(3)
    for _ in range(50):
        pairs = [(found[i], found[j]) for i, j in draw.integers(0, len(found), (4, 2))]
        plans = [plan(a, b) for a, b in pairs]
        with context.use(trace=[]) as state:
            out = move(plans, [blocks(a, value) for a, _ in pairs])
        assert all(holds(b, held, value) for (_, b), held in zip(pairs, out))
        assert sum(r.bytes for r in state.trace) == sum(map(cost, plans))


# Plans


def test_plans_do_not_depend_on_the_rank() -> None:
    mesh = Mesh(("a", "b"), (2, 2))
    found = specs(mesh, (5, 6))
    pairs = [(found[i], found[j]) for i, j in np.random.default_rng(5).integers(0, len(found), (300, 2))]
    derived = []
    for rank in range(4):
        planning._memo.clear()
        with context.use(rank=rank):
            derived.append([plan(a, b) for a, b in pairs])
    assert derived[0] == derived[1] == derived[2] == derived[3]


def test_plans_are_short() -> None:
    """At most one collective of each kind, at most three in all, over distinct steps."""
    mesh = simulated(2, 2, 2)
    found = specs(mesh, (4, 6), "float64", ("sum", "max"))
    for i, j in np.random.default_rng(6).integers(0, len(found), (3000, 2)):
        steps = plan(found[i], found[j])
        verbs = Counter(s.verb for s in steps)
        assert max(verbs.values(), default=0) <= 1
        assert sum(n for verb, n in verbs.items() if verb not in LOCAL) <= 3


# The public face


def test_public_placements_there_and_back() -> None:
    mesh, value = simulated(2, 3), contents((5, 6), "float64")
    options: list[Any] = [
        {},
        {"a": Shard(0)},
        {"b": Shard(-1)},
        {"a": Shard(0), "b": Shard(0)},
        {"a": Shard(1), "b": Shard(0)},
        {"a": Partial("max"), "b": Partial("max")},
        {"a": Partial("prod"), "b": Shard(0, sizes=(0, 4, 1))},
        {"a": Shard(1, interleave=3), "b": Replicate()},
        {"a": Shard(1, sizes=(1, 0, 2, 2, 1, 0)), "b": Shard(1, sizes=(1, 0, 2, 2, 1, 0))},
        P("a", "b"),
        P(("b", "a")),
        P(None, ("b", "a")),
        P("b", partial="a", op="min"),
    ]
    for source in options:
        x = asarray(value, mesh=mesh, placement=source)
        assert same_bits(to_numpy(x), value)
        for target in options:
            y = redistribute(x, target)
            assert y.spec is place(mesh, value.shape, "float64", target)
            assert same_bits(to_numpy(y), value)
            back = redistribute(y, source)
            assert back.spec is x.spec
            assert same_bits(to_numpy(back), value)


def test_keywords_change_only_the_axes_that_they_name() -> None:
    x = asarray(values(4, 6), mesh=simulated(2, 2), placement={"a": Shard(0), "b": Partial("sum")})
    assert redistribute(x, b=Replicate()).placement == {"a": Shard(0), "b": Replicate()}
    assert redistribute(x, a=Shard(1)).placement == {"a": Shard(1), "b": Partial("sum")}


def test_a_move_to_where_it_lies_is_free_and_the_same_array() -> None:
    x = asarray(values(4, 6), mesh=simulated(2, 2), placement={"a": Shard(0)})
    with context.use(trace=[]) as state:
        assert redistribute(x, {"a": Shard(-2), "b": Replicate()}) is x
    assert state.trace == []
