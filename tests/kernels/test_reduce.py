"""Exact: ordered reductions against NumPy, one operation after another; and the barrier in shared memory."""

from __future__ import annotations

import threading
import time
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


def test_barrier() -> None:
    """No rank passes epoch e before all have written theirs: what they wrote is then seen by all."""
    size, epochs = 3, 200
    slots, written = np.zeros(8 * size, np.uint64), np.zeros((2, size), np.int64)
    seen: list[bool] = []

    def work(rank: int) -> None:
        for epoch in range(1, epochs + 1):
            written[epoch % 2, rank] = epoch
            assert kernels.arrive_and_wait(slots, rank, size, epoch, timeout=60, spins=10)
            seen.append(bool((written[epoch % 2] >= epoch).all()))

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(seen) == size * epochs
    assert all(seen)


def test_barrier_times_out_and_goes_on() -> None:
    slots = np.zeros(16, np.uint64)
    start = time.perf_counter()
    assert not kernels.arrive_and_wait(slots, 0, 2, 1, timeout=0.05)
    assert 0.04 < time.perf_counter() - start < 5
    slots[8] = 1
    assert kernels.arrive_and_wait(slots, 0, 2, 1, timeout=0.05)


def test_barrier_refuses() -> None:
    with pytest.raises(ValueError, match="64 bytes per rank"):
        kernels.arrive_and_wait(np.zeros(8, np.uint64), 0, 2, 1)
    with pytest.raises(ValueError, match="rank < size"):
        kernels.arrive_and_wait(np.zeros(16, np.uint64), 2, 2, 1)
    frozen = np.zeros(16, np.uint64)
    frozen.flags.writeable = False
    with pytest.raises((BufferError, ValueError)):
        kernels.arrive_and_wait(frozen, 0, 2, 1)
