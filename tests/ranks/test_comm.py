"""Every verb of every transport, against the same thing computed from all ranks' data at once."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from spmdx.errors import DtypeError, RanksDisagree
from spmdx.mesh import Mesh

DTYPES = [
    np.dtype(t)
    for t in (
        *["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"],
        *["float16", "float32", "float64", "complex64", "complex128"],
        ml_dtypes.bfloat16,
    )
]
SIZES = [0, 1, 7, 50_000]  # empty, and on each side of every change of method; large ones are below


def group_of(world: Any, axes: tuple[str, ...] = ("all",)) -> Any:
    return world.comm(Mesh(("all",), (world.size,))).group(axes)


def data(rank: int, n: int, dtype: np.dtype) -> np.ndarray:
    """What a rank sends: the same on whichever rank it is computed."""
    rng = np.random.default_rng([rank, n])
    if dtype.kind == "b":
        return rng.random(n) < 0.5
    if dtype.kind in "iu":
        return rng.integers(0, 100, n).astype(dtype)
    values = rng.standard_normal(n)
    if dtype.kind == "c":
        return (values + 1j * rng.standard_normal(n)).astype(dtype)
    return values.astype(dtype)


def expected(parts: list[np.ndarray], op: str) -> np.ndarray:
    """The reduction in rank order, by plain NumPy."""
    dtype = parts[0].dtype
    ufunc = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}[op]
    if dtype.kind == "b":
        ufunc = {"sum": np.logical_or, "max": np.logical_or}.get(op, np.logical_and)
    narrow = dtype.itemsize == 2 and dtype.kind not in "iub" and op in ("sum", "prod")
    total = parts[0].astype(np.float32) if narrow else parts[0].copy()
    for part in parts[1:]:
        total = ufunc(total, part.astype(np.float32) if narrow else part)
    return total.astype(dtype)


def same_bits(x: np.ndarray, y: np.ndarray) -> None:
    assert x.dtype == y.dtype
    assert x.shape == y.shape
    differ = np.flatnonzero(x.view(np.uint8) != y.view(np.uint8))
    assert not differ.size, f"bytes {differ[:8]} differ: {x[:8]} and {y[:8]}"


def close(x: np.ndarray, y: np.ndarray) -> None:
    """Complex products: NumPy fuses some of its multiplications and additions, we none."""
    assert x.dtype == y.dtype
    np.testing.assert_allclose(x, y, rtol=16 * np.finfo(x.dtype).eps)


def counts_for(n: int, p: int, shift: int = 0) -> list[int]:
    """Uneven counts, some of them zero."""
    return [(n * ((i + shift) % 3)) // 2 for i in range(p)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_all_gather(world: Any, dtype: np.dtype) -> None:
    group, p = group_of(world), world.size
    for n, uneven in itertools.product(SIZES, (False, True)):
        counts = counts_for(n, p) if uneven else [n] * p
        want = [data(r, counts[r], dtype) for r in range(p)]
        mine = want[world.rank].copy()
        for part, right in zip(group.all_gather(mine, counts), want):
            same_bits(part, right)
        out = np.empty(sum(counts), dtype)
        for part, right in zip(group.all_gather(mine, counts, out), want):
            same_bits(part, right)
            assert not part.size or np.shares_memory(part, out)
        same_bits(out, np.concatenate(want))
        same_bits(mine, want[world.rank])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_all_to_all(world: Any, dtype: np.dtype) -> None:
    for n in SIZES:
        exchange(world, dtype, n)


def exchange(world: Any, dtype: np.dtype, n: int) -> None:
    group, p, me = group_of(world), world.size, world.rank
    sent = [counts_for(n, p, shift=r) for r in range(p)]  # from rank r
    whole = [data(r, sum(sent[r]), dtype) for r in range(p)]
    starts = [[0, *itertools.accumulate(counts)] for counts in sent]
    want = [whole[r][starts[r][me] : starts[r][me + 1]] for r in range(p)]
    received = [sent[r][me] for r in range(p)]
    mine = whole[me].copy()
    for part, right in zip(group.all_to_all(mine, sent[me], received), want):
        same_bits(part, right)
    out = np.empty(sum(received), dtype)
    group.all_to_all(mine, sent[me], received, out)
    same_bits(out, np.concatenate(want))
    same_bits(mine, whole[me])


@pytest.mark.parametrize("op", ["sum", "prod", "min", "max"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reductions(world: Any, dtype: np.dtype, op: str) -> None:
    if dtype.kind == "c" and op in ("min", "max"):
        with pytest.raises(DtypeError, match="complex numbers have no order"):
            group_of(world).all_reduce(np.ones(3, dtype), op)
        return
    for n in SIZES:
        reductions(world, dtype, op, n)


def reductions(world: Any, dtype: np.dtype, op: str, n: int) -> None:
    group, p, me = group_of(world), world.size, world.rank
    parts = [data(r, n, dtype) for r in range(p)]
    mine = parts[me].copy()
    with np.errstate(all="ignore"):
        right = expected(parts, op)
    result = group.all_reduce(mine, op)
    agrees = close if dtype.kind == "c" and op == "prod" else same_bits
    agrees(result, right)
    for other in group.all_gather(result, [n] * p):
        same_bits(other, result)
    same_bits(mine, parts[me])
    result[:] = 1  # the caller's own
    same_bits(mine, parts[me])
    counts = counts_for(n, p)
    counts[0] += n - sum(counts) if sum(counts) <= n else 0
    parts = [data(r, sum(counts), dtype) for r in range(p)]
    with np.errstate(all="ignore"):
        right = expected(parts, op)
    start = sum(counts[:me])
    agrees(group.reduce_scatter(parts[me], counts, op), right[start : start + counts[me]])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("op", ["sum", "prod", "min", "max"])
@pytest.mark.parametrize("n", [11, 100_003])
def test_nan_and_signed_zero(world: Any, dtype: Any, op: str, n: int) -> None:
    """NaN on any one rank is NaN on all; zeros keep the signs that combining in rank order gives."""
    group, p = group_of(world), world.size
    special = np.array([np.nan, -0.0, 0.0, np.inf, -np.inf, 1.0], dtype)
    parts = [np.resize(np.roll(special, 5 * r + r * r), n) for r in range(p)]
    parts[p - 1][3] = np.nan
    with np.errstate(all="ignore"):
        right = expected(parts, op)
    result = group.all_reduce(parts[world.rank], op)
    np.testing.assert_array_equal(np.isnan(result), np.isnan(right))
    number = ~np.isnan(right)
    np.testing.assert_array_equal(result[number], right[number])
    if op in ("sum", "prod"):  # which zero is the least is nobody's business but the ranks': below
        same_bits(result[number], right[number])
    assert np.isnan(result[3])
    gathered = group.all_gather(result, [n] * p)
    for other in gathered:
        same_bits(other, result)


def test_negative_zeros_add_to_negative_zero(world: Any) -> None:
    result = group_of(world).all_reduce(np.full(5, -0.0), "sum")
    assert np.signbit(result).all()


@pytest.mark.parametrize("n", [90_000, 400_000, 700_001])
def test_large(world: Any, n: int) -> None:
    """Sizes that go in pieces, from ordinary memory and packed."""
    group, p, me = group_of(world), world.size, world.rank
    parts = [data(r, n, np.dtype(np.float32)) for r in range(p)]
    right = expected(parts, "sum")
    counts = [n // p + (i < n % p) for i in range(p)]
    start = sum(counts[:me])
    for packed in (False, True, False):
        mine = parts[me]
        for verb in ("reduce_scatter", "all_reduce", "all_gather", "all_to_all"):
            if packed:
                mine = group.buffer(n, np.float32)
                mine[:] = parts[me]
            if verb == "reduce_scatter":
                same_bits(group.reduce_scatter(mine, counts, "sum"), right[start : start + counts[me]])
            elif verb == "all_reduce":
                same_bits(group.all_reduce(mine, "sum"), right)
            elif verb == "all_gather":
                for part, whole in zip(group.all_gather(mine, [n] * p), parts):
                    same_bits(part, whole)
            else:
                got = group.all_to_all(mine, counts, [counts[me]] * p)
                for part, whole in zip(got, parts):
                    same_bits(part, whole[start : start + counts[me]])


def test_one_rank_sends_much_more(world: Any) -> None:
    """Ranks whose messages take different ways meet in one exchange."""
    group, p, me = group_of(world), world.size, world.rank
    sent = [[300_000 if r == 0 else r + i for i in range(p)] for r in range(p)]
    for turn in range(4):
        whole = [data(r + turn, sum(sent[r]), np.dtype(np.float64)) for r in range(p)]
        got = group.all_to_all(whole[me], sent[me], [sent[r][me] for r in range(p)])
        for r, part in enumerate(got):
            begin = sum(sent[r][:me])
            same_bits(part, whole[r][begin : begin + sent[r][me]])


def test_many_in_a_row(world: Any) -> None:
    """Memory is used again and again: nobody may overwrite what another rank still reads."""
    group, p, me = group_of(world), world.size, world.rank
    for turn in range(100):
        n = 1 + (turn * 37) % 500
        mine = group.buffer(n, np.int64)
        mine[:] = turn * 10 + me
        parts = group.all_gather(mine, [n] * p)
        assert [int(part[-1]) for part in parts] == [turn * 10 + r for r in range(p)]
        assert int(group.all_reduce(np.full(n, me + turn), "sum")[0]) == sum(range(p)) + turn * p


def test_buffers_are_the_callers(world: Any) -> None:
    """A buffer keeps its contents while other collectives pass, and several live side by side."""
    group, p, me = group_of(world), world.size, world.rank
    held = [group.buffer(1000, np.int32) for _ in range(3)]
    for i, flat in enumerate(held):
        flat[:] = 100 * i + me
    for _ in range(3):
        group.all_reduce(np.ones(1000, np.int32), "sum")
    for i, flat in enumerate(held):
        assert (flat == 100 * i + me).all()
        assert [int(part[0]) for part in group.all_gather(flat, [1000] * p)] == [100 * i + r for r in range(p)]


@pytest.mark.parametrize("dtype", [np.float64, ml_dtypes.bfloat16, np.bool_], ids=str)
def test_broadcast(world: Any, dtype: Any) -> None:
    group = group_of(world)
    for root in range(world.size):
        buf = data(world.rank, 100, np.dtype(dtype))
        group.broadcast(buf, root)
        same_bits(buf, data(root, 100, np.dtype(dtype)))


def test_point_to_point(world: Any) -> None:
    group, p, me = group_of(world), world.size, world.rank
    for n in (0, 1, 5000):
        if me == 0:
            for other in range(1, p):
                group.send(data(other, n, np.dtype(np.complex128)), other)
        else:
            buf = np.empty(n, np.complex128)
            group.recv(buf, 0)
            same_bits(buf, data(me, n, np.dtype(np.complex128)))
    group.barrier()


@pytest.mark.ranks(4)
def test_groups_along_axes(world: Any) -> None:
    """Members share the coordinates on the other axes, row-major over the axes in mesh order."""
    mesh = Mesh(("a", "b"), (2, 2), ranks=(3, 1, 0, 2))
    comm = world.comm(mesh)
    a, b = mesh.coordinate_of(world.rank)
    for axes, members in {
        ("a",): [(i, b) for i in range(2)],
        ("b",): [(a, j) for j in range(2)],
        ("b", "a"): [(i, j) for i in range(2) for j in range(2)],
        (): [(a, b)],
    }.items():
        group = comm.group(axes)
        got = group.all_gather(np.array([world.rank]), [1] * group.size)
        assert [int(part[0]) for part in got] == [mesh.rank_at(c) for c in members]
    assert comm.group(("a", "b")) is comm.group(("b", "a"))
    assert world.comm(mesh) is comm


@pytest.mark.ranks(2, 4)
def test_meshes_that_differ_in_names_share_groups(world: Any) -> None:
    """MPI has so many communicators; other shapes and orders of the ranks are other groups."""
    shape = (2, world.size // 2)
    first, second = (world.comm(Mesh(names, shape)) for names in (("one", "two"), ("two", "three")))
    for axes, theirs in {("one",): ("two",), ("two",): ("three",), ("two", "one"): ("three", "two"), (): ()}.items():
        group = second.group(theirs)
        assert first.group(axes) is group
        assert len(group.all_gather(np.array([1]), [1] * group.size)) == group.size
    backwards = world.comm(Mesh(("one", "two"), shape, ranks=range(world.size)[::-1]))
    assert backwards.group(("one", "two")) is not first.group(("one", "two"))


@pytest.mark.ranks(3, 4)
def test_part_of_the_ranks(world: Any) -> None:
    """Ranks outside a mesh take no part in its communicators."""
    mesh = Mesh(("x",), (2,), ranks=(2, 0))
    if world.rank in (0, 2):
        group = world.comm(mesh).group(("x",))
        assert [int(v[0]) for v in group.all_gather(np.array([world.rank]), [1, 1])] == [2, 0]
    else:
        with pytest.raises(ValueError, match="is not in"):
            world.comm(mesh)


@pytest.mark.ranks(2, 3)
def test_verbs_that_disagree(world: Any) -> None:
    """All ranks are told, and both sides are named."""
    group, p, me = group_of(world), world.size, world.rank
    with pytest.raises(RanksDisagree, match=r"(?s)all_reduce sum.*all_reduce max"):
        group.all_reduce(np.ones(10), "max" if me == p - 1 else "sum")
    with pytest.raises(RanksDisagree, match=r"(?s)float64.*float32"):
        group.all_reduce(np.ones(10, np.float32 if me else np.float64), "sum")
    with pytest.raises(RanksDisagree, match=r"(?s)all_reduce sum.*all_gather"):
        if me:
            group.all_gather(np.ones(3), [3] * p)
        else:
            group.all_reduce(np.ones(3), "sum")
    assert group.all_reduce(np.ones(2), "sum").tolist() == [p, p]  # and go on
