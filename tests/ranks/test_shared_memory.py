"""The memory that the ranks of a node share: too little of it, and the choice between it and MPI. Both are the same on
every rank, whatever one rank alone sees. All values exact."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spmdx as sx
from spmdx.runtime.world import launched

SAID = launched()
if SAID is None or SAID.size == 1:
    pytest.skip("only processes share memory so: tests/test_mpi.py starts some", allow_module_level=True)
from spmdx.runtime import arena, heap, shared, world  # noqa: E402 - they need MPI
from spmdx.runtime.mpi import MPI  # noqa: E402

RANK, SIZE = SAID.rank, SAID.size

WHERE: dict[str, Callable[[int], bool]] = {
    "everywhere": lambda rank: True,
    "on the first": lambda rank: rank == 0,
    "on the last": lambda rank: rank == SIZE - 1,
}
LONG = 20_001  # elements of float64
LONGER = 50_003  # and so many in each row that rows are read from where they lie
WAYS = ["mapped", "mapped alone", "read", "staged"]  # how long messages go
names = (f"m{i}" for i in count())


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few kilobytes be a long message, of which the faster way is to be found."""
    monkeypatch.setattr(shared, "SMALL", 2**12)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Meshes do not share groups with those of other tests."""
    monkeypatch.setattr(world.current(), "_arranged", {})


def group_of(mesh: sx.Mesh) -> Any:
    return world.current().comm(mesh).group(mesh.axis_names)


@pytest.fixture
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """One of WAYS, for meshes that are made from now on."""
    monkeypatch.setattr(shared.SharedGroup, "_measured", lambda *args: True)
    if "mapped" not in request.param:
        monkeypatch.setattr(world.current(), "windows", {})
    elif not world.current().windows:
        pytest.skip("the ranks cannot map each other's memory here")
    if request.param in ("mapped alone", "staged"):
        monkeypatch.setattr(heap, "reads", lambda process, address, there: False)
    return str(request.param)


def used() -> sx.Mesh:
    """A new mesh, whose memory is divided now, after values of every kind were right on it."""
    name = next(names)
    mesh = sx.make_mesh({name: -1})
    for n in (0, 5, LONG):
        v = np.arange(float(n)) - 3
        x = sx.asarray(v, mesh=mesh, placement={name: sx.Shard(0)})
        both = sx.asarray(np.stack([v, -v]), mesh=mesh, placement={name: sx.Shard(1)})
        assert np.array_equal(x.numpy(), v)
        assert np.array_equal(both.redistribute({name: sx.Shard(0)}).numpy(), np.stack([v, -v]))
        for target in ({}, {name: sx.Shard(0)}):
            total = sx.from_block(v * (RANK + 1), {name: sx.Partial("sum")}, mesh=mesh).redistribute(target)
            assert np.array_equal(total.numpy(), v * (SIZE * (SIZE + 1) // 2))
    return mesh


def kinds(mesh: sx.Mesh) -> set[str]:
    """What the ranks have in place of a group of the whole mesh."""
    return set(MPI.COMM_WORLD.allgather(type(group_of(mesh)).__name__))


def test_memory_is_shared_where_there_is_enough() -> None:
    assert kinds(used()) == {"SharedGroup"}


@pytest.mark.parametrize("where", WHERE)
def test_too_little_is_too_little_for_all(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rank of the node says what there is."""
    if WHERE[where](RANK):
        monkeypatch.setattr(heap.Heap, "_affordable", staticmethod(lambda ranks: heap.LEAST - 1))
    assert kinds(used()) == ({"SharedGroup"} if where == "on the last" else {"MPIGroup"})


@pytest.mark.parametrize("free", [heap.LEAST, 3 * heap.LEAST])
def test_little_memory_will_do(free: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In pieces of a page or two, or without if not even one for every rank goes in."""
    monkeypatch.setattr(heap.Heap, "_affordable", staticmethod(lambda ranks: free))
    room = heap.divide(free, (SIZE,))
    assert kinds(used()) == ({"SharedGroup"} if room else {"MPIGroup"})
    assert room or free == heap.LEAST


@pytest.mark.parametrize("where", ["on the first", "on the last"])
def test_memory_that_the_system_refuses_is_used_by_none(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program may have taken what was free a moment ago."""
    if WHERE[where](RANK):
        monkeypatch.setattr(heap, "_hold", lambda memory: False)
    assert kinds(used()) == {"MPIGroup"}


@pytest.mark.parametrize("where", ["nowhere", *WHERE])
def test_processes_read_each_other_or_none_does(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system may forbid it, for one of them alone."""
    if where != "nowhere" and WHERE[where](RANK):
        monkeypatch.setattr(heap, "reads", lambda process, address, there: False)
    may = bool(heap._readable(MPI.COMM_WORLD))
    assert where == "nowhere" or not may
    assert set(MPI.COMM_WORLD.allgather(group_of(used()).channel.reads)) == {may}


@pytest.mark.parametrize("way", WAYS, indirect=True)
@pytest.mark.parametrize("first", [0, 1, 2], ids=["empty", "one row", "two rows"])
def test_blocks_that_lie_in_one_stretch_on_some_ranks(first: int, way: str) -> None:
    """Of a block of one row every part of the columns is a stretch: all ranks still go the same way."""
    name = next(names)
    mesh, sizes = sx.make_mesh({name: -1}), (first, *[2] * (SIZE - 1))
    v = np.arange(float(sum(sizes) * LONGER)).reshape(-1, LONGER)
    x = sx.asarray(v, mesh=mesh, placement={name: sx.Shard(0, sizes)})
    for target in ({name: sx.Shard(1)}, {name: sx.Shard(0)}, {}):
        y = x.redistribute(target)
        assert np.array_equal(y.block, sx.asarray(v, mesh=mesh, placement=target).block)
        assert np.array_equal(y.redistribute(x.placement).block, x.block)
    total = sx.from_block(v[:, :: 1 + RANK % 2][:, : LONGER // 2] + RANK, {name: sx.Partial()}, mesh=mesh, copy=False)
    want = sum(v[:, :: 1 + i % 2][:, : LONGER // 2] + i for i in range(SIZE))
    assert np.array_equal(total.redistribute({}).block, want)


@pytest.mark.parametrize("way", WAYS, indirect=True)
@pytest.mark.parametrize("where", ["on the first", "on the last"])
def test_a_short_block_beside_long_ones(where: str, way: str) -> None:
    """It lies in memory that nobody has mapped, and is too short to ask whether the system reads it."""
    name = next(names)
    mesh = sx.make_mesh({name: -1})
    sizes = [1000 if WHERE[where](rank) else LONGER for rank in range(SIZE)]
    v = np.arange(float(sum(sizes)))
    x = sx.asarray(v, mesh=mesh, placement={name: sx.Shard(0, sizes)})
    assert np.array_equal(x.redistribute({}).block, v)
    shifted = sx.Shard(0, sizes[::-1])
    assert np.array_equal(x.redistribute({name: shifted}).numpy(), v)


@pytest.mark.parametrize("way", WAYS, indirect=True)
def test_several_arrays_in_one_message(way: str) -> None:
    """Each a stretch or more: a short one, an empty one, and long ones of which pieces end anywhere."""
    name = next(names)
    mesh = sx.make_mesh({name: -1})
    values = [np.arange(float(n)) + 7 * n for n in (LONGER * SIZE, 5, 0, LONG, 3 * LONGER)]
    shards = [sx.asarray(v, mesh=mesh, placement={name: sx.Shard(0)}) for v in values]
    for v, y in zip(values, sx.redistribute(shards, {})):
        assert np.array_equal(y.block, v)
    sums = [sx.from_block(v * (RANK + 1), {name: sx.Partial()}, mesh=mesh) for v in values]
    for target in ({}, {name: sx.Shard(0)}):
        for v, y in zip(values, sx.redistribute(sums, target)):
            assert np.array_equal(y.numpy(), v * (SIZE * (SIZE + 1) // 2))
    columns = [sx.asarray(v.reshape(SIZE, -1), mesh=mesh, placement={name: sx.Shard(0)}) for v in values[:1]]
    for v, y in zip(values, sx.redistribute(columns, {name: sx.Shard(1)})):
        assert np.array_equal(y.numpy(), v.reshape(SIZE, -1))


def in_arena(block: Any) -> bool:
    begin, nbytes, _ = world.current().windows[RANK]
    return bool(begin <= block.ctypes.data < begin + nbytes)


@pytest.mark.parametrize("way", ["mapped"], indirect=True)
@pytest.mark.parametrize("where", ["nowhere", *WHERE])
def test_blocks_in_and_out_of_the_arena(where: str, way: str) -> None:
    """Those that NumPy made, on some ranks or all, are read by the system; columns of theirs are staged."""
    name = next(names)
    mesh = sx.make_mesh({name: -1})
    rows, columns = 7 * SIZE + 3, 6 * LONG
    v = np.arange(float(rows * columns)).reshape(rows, columns)

    def placed(block: Any, spec: Any) -> Any:
        if where != "nowhere" and WHERE[where](RANK):
            block = np.array(block)
        assert in_arena(block) == (where == "nowhere" or not WHERE[where](RANK))
        return sx.Array(block, spec)

    whole = sx.asarray(v, mesh=mesh)
    for source in (sx.Shard(0), sx.Shard(1)):
        x = sx.asarray(v, mesh=mesh, placement={name: source})
        x = placed(x.block, x.spec)
        for target in ({name: sx.Shard(0)}, {name: sx.Shard(1)}, {name: sx.Shard(1, None, 2)}, {}):
            assert np.array_equal(x.redistribute(target).block, whole.redistribute(target).block)
    some = sx.from_block(v * (RANK + 1), {name: sx.Partial()}, mesh=mesh)
    some = placed(some.block, some.spec)
    for target in ({name: sx.Shard(0)}, {name: sx.Shard(1)}, {}):
        total = some.redistribute(target)
        assert in_arena(total.block)
        assert np.array_equal(total.numpy(), v * (SIZE * (SIZE + 1) // 2))


@pytest.mark.parametrize("way", ["mapped"], indirect=True)
def test_products_lie_in_the_arena(way: str) -> None:
    """A product that stays Partial is reduced from where it lies."""
    values = np.arange(300.0 * 500 * SIZE)
    x = sx.asarray(values.reshape(300, -1) % 7, placement=sx.P(None, "world"))
    w = sx.asarray(values.reshape(-1, 300) % 5, placement=sx.P("world"))
    y = x @ w
    assert y.spec.partial and in_arena(y.block)
    assert np.array_equal(y.numpy(), x.numpy() @ w.numpy())


@pytest.mark.parametrize("where", WHERE)
def test_memory_is_mapped_by_all_or_none(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system may forbid it to one of them alone."""
    if WHERE[where](RANK):
        monkeypatch.setattr(arena.kernels, "open_shared", refused)
    assert arena.share(MPI.COMM_WORLD) == {}


def refused(nbytes: int) -> Any:
    raise RuntimeError("cannot make shared memory: Function not implemented")


def unreadable() -> Any:
    """Memory that its own process reads and the system reads for nobody: the kernel's clock; None if there is none."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith("[vvar]"):
            return np.ctypeslib.as_array((ctypes.c_int32 * 1024).from_address(int(line.partition("-")[0], 16)))
    return None


@pytest.mark.parametrize("short", [False, True], ids=["beside a long block", "alone"])
def test_memory_that_others_may_not_read(short: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank has such memory, as devices have: then the message is staged, on every rank. Also where that is all it
    sends, and the others send more."""
    monkeypatch.setattr(shared.SharedGroup, "_measured", lambda *args: True)
    clock = unreadable() if RANK == SIZE - 1 else np.zeros(LONGER if short else 1024, np.int32)
    if any(MPI.COMM_WORLD.allgather(clock is None)):
        pytest.skip("this system shows no page of its clock")
    name = next(names)
    mesh = sx.make_mesh({name: -1})
    long = sx.asarray(np.arange(SIZE * LONGER, dtype=np.int32), mesh=mesh, placement={name: sx.Shard(0)})
    for _ in range(3):
        odd = sx.from_block(clock, {name: sx.Shard(0)}, mesh=mesh, copy=False)
        odd, found = (odd.redistribute({}), long) if short else sx.redistribute([odd, long], {})
        assert np.array_equal(found.numpy(), np.arange(SIZE * LONGER))
        assert odd.block.shape == odd.shape and not odd.block[:-1024].any()


@pytest.mark.ranks(4, 8)
def test_a_mesh_with_room_for_some_of_its_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where not all groups of a mesh find room, those of all ranks do, or of none."""
    monkeypatch.setattr(heap.Heap, "_affordable", staticmethod(lambda ranks: 2**17))
    mesh = sx.make_mesh({"some": 2, "more": SIZE // 2})
    v = np.arange(3.0 * LONG).reshape(3, LONG)
    x = sx.asarray(v, mesh=mesh, placement={"some": sx.Shard(0), "more": sx.Shard(1)})
    assert np.array_equal(x.redistribute({"some": sx.Shard(1)}).numpy(), v)
    comm = world.current().comm(mesh)
    for axes in (("some",), ("more",), ("some", "more")):
        assert len(set(MPI.COMM_WORLD.allgather(type(comm.group(axes)).__name__))) == 1


# The choice, by measurement

CLOCKS: dict[str, Callable[[], Iterator[float]]] = {
    "runs wild": lambda: iter(np.random.default_rng(RANK).normal(size=100_000)),
    "sees MPI fast": lambda: iter(np.cumsum(np.tile([1.0, 1e-9, 1.0, 1.0], 10_000))),
    "knows nothing": lambda: (float("nan") for _ in count()),
}


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("where", ["on the first", "on the last"])
def test_all_ranks_choose_alike(clock: str, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = CLOCKS[clock]()
    if WHERE[where](RANK):
        monkeypatch.setattr(shared, "perf_counter", lambda: next(ticks))
    group = group_of(used())
    assert len({verb for verb, _ in group._shared}) == 4  # every verb was asked of
    choices = MPI.COMM_WORLD.allgather(sorted(group._shared.items()))
    assert all(other == choices[0] for other in choices)


@pytest.mark.parametrize("way", [True, False], ids=["shared", "MPI"])
def test_either_way_is_right(way: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared.SharedGroup, "_measured", lambda *args: way)
    group = group_of(used())
    assert set(group._shared.values()) == {way}


# Counts above 2**31. Offsets so large, at no cost: tests/pure/test_large_offsets.py


def available() -> int:
    """Bytes of memory that programs can still have; the same on every rank."""
    lines = [line.split() for line in Path("/proc/meminfo").read_text().splitlines()]
    return MPI.COMM_WORLD.bcast(next(int(line[1]) for line in lines if line[0] == "MemAvailable:") * 1024)


@pytest.mark.slow
@pytest.mark.ranks(2)
def test_more_than_two_to_31_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them of one rank: gathered, and moved to the other rank."""
    need(7)
    monkeypatch.setattr(shared.SharedGroup, "_measured", lambda *args: True)
    n = 2**31 + 12_345
    mine = np.ones(n if RANK == 0 else 0, bool)
    mine[-3:-1] = 0
    x = sx.from_block(mine, {"world": sx.Shard(0)}, copy=False)
    for target in (sx.Shard(0, sizes=(0, n)), sx.Replicate()):
        block = x.redistribute(world=target).block
        assert len(block) == (n if target == sx.Replicate() or RANK else 0)
        assert not len(block) or (block[-4:].tolist() == [1, 0, 0, 1] and np.count_nonzero(block) == n - 2)
        del block
    assert int(sx.count_nonzero(x)) == n - 2


@pytest.mark.slow
@pytest.mark.ranks(2)
def test_sums_of_more_than_two_to_31_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    need(10)
    monkeypatch.setattr(shared.SharedGroup, "_measured", lambda *args: True)
    n = 2**29 + 1_234
    mine = np.full(n, RANK + 1, np.int32)
    mine[-1] = 10
    x = sx.from_block(mine, {"world": sx.Partial("sum")}, copy=False)
    for target in ({"world": sx.Shard(0)}, {}):
        block = x.redistribute(target).block
        assert block[0] == 3 and block[-1] == (20 if RANK or not target else 3)
        assert int(block.sum(dtype=np.int64)) == 3 * len(block) + (17 if block[-1] == 20 else 0)
        del block


def need(gigabytes: int) -> None:
    if available() < (gigabytes + 4) * 2**30:
        pytest.skip(f"takes {gigabytes} GiB of memory, and some have to be left")
