"""spmdx._nccl: on a library that plays NCCL's part every verb and every way to fail; on NCCL itself, where it is
installed, what can be asked without a GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import fake
import numpy as np
import pytest

from spmdx.errors import MeshError
from spmdx.runtime import gpu, nccl

_nccl = pytest.importorskip("spmdx._nccl", reason="the module is not built")
FLOAT, DOUBLE = nccl.TYPES["float32"], nccl.TYPES["float64"]
SUM, PROD, MAX, MIN, MEAN = range(5)


@pytest.fixture
def told() -> Iterator[Any]:
    """What the library is told to do, undone afterwards."""
    control = fake.control()
    control.fake_alive()
    yield control
    control.fake_slow(0)
    control.fake_async(0)
    control.fake_version(22700)


def on_ranks(n: int, program: Callable[[Any], Any]) -> list[Any]:
    """What a program of a communicator gives on each of n threads."""
    library = _nccl.Library(str(fake.library()))
    identity = library.unique_id()
    results: list[Any] = [None] * n

    def run(rank: int) -> None:
        try:
            comm = _nccl.Communicator(library, n, identity, rank, 5.0)
            results[rank] = program(comm)
            comm.close()
        except BaseException as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    for found in results:
        if isinstance(found, BaseException):
            raise found
    assert not any(thread.is_alive() for thread in threads)
    return results


def at(array: Any, start: int = 0) -> int:
    return int(array.ctypes.data) + start * int(array.itemsize)


def own(comm: Any, n: int) -> Any:
    return (np.arange(n) + 10.0 * comm.rank + 1).astype(np.float32)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_verbs(n: int, told: Any) -> None:
    """Exact, of small integers."""
    each = [(np.arange(6) + 10.0 * r + 1).astype(np.float32) for r in range(n)]
    told.fake_slow(3)  # calls stay in progress for some looks

    def program(comm: Any) -> None:
        assert (comm.size, comm.rank) == (n, comm.rank)
        mine = own(comm, 6)
        for op, reduce in ((SUM, np.sum), (PROD, np.prod), (MAX, np.max), (MIN, np.min), (MEAN, np.mean)):
            out, other = np.empty(6, np.float32), np.empty(4, np.float32)
            pairs = [(at(mine), at(out), 6), (at(mine, 2), at(other), 4)]
            comm.all_reduce(pairs, FLOAT, op, 0)
            want = reduce(np.stack(each), axis=0)
            np.testing.assert_array_equal(out, want)
            np.testing.assert_array_equal(other, want[2:])
        gathered = np.empty((n, 6), np.float32)
        comm.all_gather(at(mine), at(gathered), 6, FLOAT, 0)
        np.testing.assert_array_equal(gathered, each)
        if n != 3:
            return
        part = np.empty(2, np.float32)
        comm.reduce_scatter(at(mine), at(part), 2, FLOAT, SUM, 0)
        np.testing.assert_array_equal(part, np.sum(each, 0)[2 * comm.rank : 2 * comm.rank + 2])

    assert on_ranks(n, program) == [None] * n


def test_uneven_parts(told: Any) -> None:
    """Gathering 2, 0 and 3 elements; exchanging i + 2 j elements from i to j. Exact."""

    def program(comm: Any) -> None:
        counts, r = [2, 0, 3], comm.rank
        mine, out = own(comm, counts[r]), np.zeros(5, np.float32)
        ranges = [(at(out, start), n) for start, n in zip((0, 2, 2), counts)]
        comm.gather_ranges(at(mine), ranges, FLOAT, 0)
        np.testing.assert_array_equal(out, [1, 2, 21, 22, 23])
        sends, receives = [r + 2 * j for j in range(3)], [i + 2 * r for i in range(3)]
        sent = np.concatenate([np.full(n, 10.0 * r + j) for j, n in enumerate(sends)])
        got = np.zeros(sum(receives))
        comm.exchange(
            [(at(sent, sum(sends[:j])), n) for j, n in enumerate(sends)],
            [(at(got, sum(receives[:i])), n) for i, n in enumerate(receives)],
            DOUBLE,
            0,
        )
        np.testing.assert_array_equal(got, np.concatenate([np.full(n, 10.0 * i + r) for i, n in enumerate(receives)]))
        buf = own(comm, 4)
        comm.broadcast(at(buf), 4, FLOAT, 1, 0)
        np.testing.assert_array_equal(buf, [11, 12, 13, 14])

    assert on_ranks(3, program) == [None] * 3
    assert told.fake_alive() == 0


def test_split(told: Any) -> None:
    """Two rows of a 2x2 mesh, and then its columns with the order turned round."""

    def program(comm: Any) -> tuple[int, ...]:
        row, column = divmod(comm.rank, 2)
        rows = comm.split(row, column)
        columns = comm.split(column, -row)
        total = np.array([float(comm.rank)])
        rows.all_reduce([(at(total), at(total), 1)], DOUBLE, SUM, 0)
        found = rows.size, rows.rank, columns.rank, int(total[0])
        rows.close()
        columns.close()
        return found

    assert on_ranks(4, program) == [(2, 0, 1, 1), (2, 1, 1, 1), (2, 0, 0, 5), (2, 1, 0, 5)]
    assert told.fake_alive() == 0


# Every function that can refuse, and a program that comes to it.
def reduce(comm: Any) -> None:
    one = np.ones(1)
    comm.all_reduce([(at(one), at(one), 1)], DOUBLE, SUM, 0)


CALLS: dict[str, Callable[[Any], Any]] = {
    "ncclCommSplit": lambda c: c.split(0, 0),
    "ncclCommCount": lambda c: c.size,
    "ncclCommGetAsyncError": lambda c: c.check(),
    "ncclGroupStart": reduce,
    "ncclGroupEnd": reduce,
    "ncclAllReduce": reduce,
    "ncclAllGather": lambda c: c.all_gather(at(np.ones(1)), at(np.ones(1)), 1, DOUBLE, 0),
    "ncclReduceScatter": lambda c: c.reduce_scatter(at(np.ones(1)), at(np.ones(1)), 1, DOUBLE, SUM, 0),
    "ncclBroadcast": lambda c: c.broadcast(at(np.ones(1)), 1, DOUBLE, 0, 0),
    "ncclSend": lambda c: c.exchange([(at(np.ones(1)), 1)], [], DOUBLE, 0),
    "ncclRecv": lambda c: c.exchange([], [(at(np.ones(1)), 1)], DOUBLE, 0),
    "ncclCommFinalize": lambda c: c.close(),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_is_refused(name: str, told: Any) -> None:
    """It says which, and NCCL's words; the next call is not disturbed."""

    def program(comm: Any) -> str:
        told.fake_fail(name.encode(), 1, 0)
        with pytest.raises(_nccl.Error, match=r"unhandled cuda error \(the last words\)") as caught:
            CALLS[name](comm)
        assert caught.value.code == 1
        reduce(comm)
        return str(caught.value)

    assert "nccl" in on_ranks(1, program)[0] or name == "ncclCommGetAsyncError"
    assert told.fake_alive() == 0


def test_no_communicator(told: Any) -> None:
    """A refused beginning, a call that comes to nothing, and one that is never done, leave nothing behind."""
    library = _nccl.Library(str(fake.library()))
    told.fake_fail(b"ncclGetUniqueId", 3, 0)
    with pytest.raises(_nccl.Error, match="ncclGetUniqueId"):
        library.unique_id()
    identity = library.unique_id()
    told.fake_fail(b"ncclCommInitRankConfig", 2, 0)
    with pytest.raises(_nccl.Error, match="ncclCommInitRankConfig: unhandled") as caught:
        _nccl.Communicator(library, 1, identity, 0, 5.0)
    assert caught.value.code == 2
    told.fake_async(6)
    with pytest.raises(_nccl.Error, match="ncclCommInitRankConfig: remote process exited"):
        _nccl.Communicator(library, 2, identity, 0, 5.0)
    told.fake_async(0)
    told.fake_slow(-1)
    with pytest.raises(_nccl.Error, match=r"ncclCommInitRankConfig is not done after 0\.2") as caught:
        _nccl.Communicator(library, 2, identity, 0, 0.2)
    assert caught.value.code == 0
    assert told.fake_alive() == 0


@pytest.mark.parametrize(
    ("size", "rank", "identity", "match"),
    [(2, 0, b"short", "128 bytes, not 5"), (2, 2, bytes(128), "rank 2 of 2"), (0, 0, bytes(128), "rank 0 of 0")],
)
def test_arguments(size: int, rank: int, identity: bytes, match: str) -> None:
    with pytest.raises(_nccl.Error, match=match):
        _nccl.Communicator(_nccl.Library(str(fake.library())), size, identity, rank, 1.0)


def test_a_remote_failure_is_seen(told: Any) -> None:
    def program(comm: Any) -> None:
        comm.check()
        told.fake_async(6)
        with pytest.raises(_nccl.Error, match="remote process exited"):
            comm.check()
        comm.abort()
        for call in (reduce, lambda c: c.size, lambda c: c.split(0, 0), lambda c: c.check()):
            with pytest.raises(_nccl.Error, match="closed, or was aborted"):
                call(comm)
        comm.abort()  # twice does no harm

    assert on_ranks(1, program) == [None]
    assert told.fake_alive() == 0


def test_libraries(told: Any) -> None:
    with pytest.raises(_nccl.Error, match="/nowhere"):
        _nccl.Library("/nowhere/libnccl.so.2")
    with pytest.raises(_nccl.Error, match="no ncclGetVersion: it is no NCCL"):
        _nccl.Library("libm.so.6")
    told.fake_version(21000)
    with pytest.raises(_nccl.Error, match="is NCCL 21000, and 21800 is the oldest"):
        _nccl.Library(str(fake.library()))


def test_nccl_itself() -> None:
    """Its version and a unique id need no GPU; a communicator does, and says so."""
    library, path = nccl.found()
    if library is None:
        pytest.skip(f"no NCCL here ({path}): pip install 'spmdx[cuda13]'")
    assert library.version >= 21800
    first, second = library.unique_id(), library.unique_id()
    assert len(first) == 128 and first != second
    try:
        gpu.here()
    except MeshError:
        with pytest.raises(_nccl.Error, match="ncclCommInitRankConfig: unhandled cuda error"):
            _nccl.Communicator(library, 1, first, 0, 30.0)
    else:
        assert _nccl.Communicator(library, 1, first, 0, 30.0).size == 1
