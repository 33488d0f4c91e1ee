"""Exact: ordered reductions against NumPy, one operation after another; and the barrier in shared memory."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import weakref
from typing import Any

import numpy as np
import pytest

from spmdx.runtime import kernels

UFUNCS = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}
DTYPES = [np.int32, np.int64, np.float32, np.float64]


def parts(dtype: Any, count: int, size: int) -> list[Any]:
    random = np.random.default_rng(count * size)
    if np.dtype(dtype).kind == "i":
        limits = np.iinfo(dtype)
        return [random.integers(limits.min, limits.max, size, dtype, endpoint=True) for _ in range(count)]
    made = [random.standard_normal(size).astype(dtype) for _ in range(count)]
    for i, part in enumerate(made):
        part[i :: 2 * count + 1] = np.nan
        part[i + 1 :: 3 * count + 1] = np.inf if i % 2 else -np.inf
    return made


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", UFUNCS)
def test_reduce(op: str, dtype: Any) -> None:
    for count, size in ((1, 5), (2, 0), (2, 5000), (3, 1), (3, 2050), (5, 10_000)):
        inputs = parts(dtype, count, size)
        with np.errstate(all="ignore"):
            want = inputs[0].copy()
            for part in inputs[1:]:
                want = UFUNCS[op](want, part)
        for name in kernels.instruction_sets():
            kernels.set_instruction_set(name)
            got = kernels.reduce_ordered(inputs, op, np.empty(size, dtype))
            np.testing.assert_array_equal(got, want)


def test_reduce_into_an_input() -> None:
    for which in range(4):
        inputs = parts(np.float64, 4, 5000)
        want = ((inputs[0] + inputs[1]) + inputs[2]) + inputs[3]
        kernels.reduce_ordered(inputs, "sum", inputs[which])
        np.testing.assert_array_equal(inputs[which], want)


def test_reduce_threads() -> None:
    inputs = parts(np.float32, 3, 2_000_003)
    for count in (1, 2, 5):
        kernels.set_threads(count)
        got = kernels.reduce_ordered(inputs, "sum", np.empty_like(inputs[0]))
        np.testing.assert_array_equal(got, inputs[0] + inputs[1] + inputs[2])


def test_zeros_keep_the_first() -> None:
    plus, minus = np.zeros(9, np.float32), -np.zeros(9, np.float32)
    for op in ("min", "max"):
        for first, second in ((plus, minus), (minus, plus)):
            got = kernels.reduce_ordered([first, second], op, np.empty(9, np.float32))
            assert got.tobytes() == first.tobytes()


def test_reduce_refuses() -> None:
    x = np.zeros(4)
    for inputs, op, message in (
        ([x, np.zeros(5)], "sum", "4 elements"),
        ([x, np.zeros(4, np.int64)], "sum", "differ in dtype"),
        ([x, np.zeros(8)[::2]], "sum", "C-contiguous"),
        ([x, x], "mean", "mean"),
        ([], "sum", "at least one"),
    ):
        with pytest.raises(ValueError, match=message):
            kernels.reduce_ordered(inputs, op, np.empty(4))


def channel(heaps: list[np.ndarray], rank: int) -> Any:
    """A channel of len(heaps) members with as little as it takes: slots, two headers, two stages."""
    size, row, piece = len(heaps), 16, 64
    stages = 64 * size + 16 * row
    return kernels.Channel(heaps, rank, 0, row, piece, (stages, stages + (size + 1) * piece), 10)


def heap() -> np.ndarray:
    memory = np.zeros(2**13 + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + 2**13]


def parcel_of_four(size: int) -> Any:
    """A sum of four numbers of each member."""
    part = [[[([0], [4])]]]
    return kernels.Parcel("all_reduce", "sum", 1, 0, size, "f", 8, [[4]], part, [[4]], part)


@pytest.mark.parametrize("way", ["carry", "carrier"])
def test_memory_stays_where_a_rank_leaves_a_collective(way: str) -> None:
    """As a user's interrupt has it: the others may be about to read its block, or to write to its result."""
    parcel, mine = parcel_of_four(2), channel([heap(), heap()], 0)
    blocks, outs = [np.zeros((2, 2)).T.reshape(4)], [np.zeros(4)]
    known = [weakref.ref(blocks[0]), weakref.ref(outs[0])][: 2 if way == "carry" else 1]
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(KeyboardInterrupt):
            if way == "carry":
                mine.carry(parcel, blocks, outs, 2**20, 2**20)
            else:
                kernels.carrier(mine, parcel, [4], np.dtype(float), 2**20, 2**20, print)(blocks[0])
    finally:
        signal.signal(signal.SIGALRM, before)
    del blocks, outs
    gc.collect()
    assert all(array() is not None for array in known)


def test_a_carrier_makes_the_result() -> None:
    """Of the shape and dtype that it was told; or else it asks what to do."""
    asked: list[tuple[Any, ...]] = []

    def otherwise(*args: Any) -> str:
        asked.append(args)
        return "asked"

    known, dtype, x = weakref.ref(otherwise), np.dtype(float), np.arange(4.0)
    carry = kernels.carrier(channel([heap()], 0), parcel_of_four(1), [2, 2], dtype, 2**20, 2**20, otherwise)
    short = kernels.carrier(channel([heap()], 0), parcel_of_four(1), [4], dtype, 31, 2**20, otherwise)
    for block in (x, x.reshape(4, 1), x.view(np.int64)):
        y = carry(block)
        assert y.shape == (2, 2) and y.dtype is dtype and y.flags.owndata
        assert np.array_equal(y.ravel(), x) and not np.shares_memory(x, y)
    for block in (np.arange(8.0)[::2], np.zeros(5), np.zeros(8, np.int32), 7, None):  # nothing has been done
        assert carry(block) == "asked"
        given, result, found = asked.pop()
        assert given is block and result is None and found == 0
    assert short(x) == "asked"  # what was longer than the limit, and where it is to go
    given, result, found = asked.pop()
    assert given is x and result.shape == (4,) and found == 32

    before = [sys.getrefcount(each) for each in (x, dtype, otherwise)]
    for _ in range(9):
        carry(x), carry(None), short(x), asked.clear()
    assert before == [sys.getrefcount(each) for each in (x, dtype, otherwise)]

    with pytest.raises(TypeError, match="one block"):
        carry(x, x)
    with pytest.raises(TypeError, match="one block"):
        carry(block=x)
    with pytest.raises(ValueError, match="this shape and dtype"):
        kernels.carrier(channel([heap()], 0), parcel_of_four(1), [5], dtype, 1, 1, otherwise)
    with pytest.raises(ZeroDivisionError):
        kernels.carrier(channel([heap()], 0), parcel_of_four(1), [4], dtype, 31, 1, lambda *_: 1 // 0)(x)
    otherwise.me = carry, short  # type: ignore[attr-defined]  # a cycle
    del carry, short, otherwise
    gc.collect()
    assert known() is None


def test_barrier() -> None:
    """No rank passes a barrier before all have come to it: what they wrote is then seen by all."""
    size, epochs = 3, 200
    heaps, written = [heap() for _ in range(size)], np.zeros((2, size), np.int64)
    seen: list[bool] = []

    def work(rank: int) -> None:
        mine = channel(heaps, rank)
        for epoch in range(1, epochs + 1):
            written[epoch % 2, rank] = epoch
            assert mine.barrier() == 0
            seen.append(bool((written[epoch % 2] >= epoch).all()))

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(seen) == size * epochs
    assert all(seen)


def test_barrier_tells_of_a_member_that_has_ended() -> None:
    """Whoever came before its end is met; whoever it will never come to is told its number."""
    heaps = [heap(), heap()]
    mine, slots = channel(heaps, 0), heaps[0][:128].view(np.uint64)
    slots[8] = 2**63 + 1  # member 1 came once
    assert mine.barrier() == 0
    assert mine.barrier() == -(2**32) - 1


def test_channel_refuses() -> None:
    with pytest.raises(ValueError, match="too small"):
        channel([np.zeros(64, np.uint8)] * 2, 0)
    with pytest.raises(ValueError, match="rank < size"):
        channel([heap(), heap()], 2)
