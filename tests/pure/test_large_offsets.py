"""Offsets beyond 2**31 and 2**32 in the compiled channel, at the cost of a few pages: the blocks are address space that
nobody touches but where boxes lie. Exact. (tests/ranks/test_shared_memory.py moves so many bytes, in the slow half.)"""

from __future__ import annotations

import mmap
import os
import threading
from typing import Any

import numpy as np
import pytest

from spmdx.runtime.heap import divide
from spmdx.runtime.kernels import Channel, Parcel, reads

WIDE = 2**16
ROWS = 2**16 + 9  # of 2**16 bytes: 4 GiB and a bit
FAR = [0, 2**15 - 1, 2**15, 2**15 + 1, 2**16 - 1, 2**16, ROWS - 1]  # rows on both sides of 2**31 and 2**32 bytes


def sparse(*shape: int, dtype: Any = np.uint8) -> Any:
    """Zeros that take no memory before they are written."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0))
    except OSError:
        pytest.skip("the system reserves memory for all address space")
    return np.frombuffer(memory, dtype).reshape(shape)


def carried(parcels: list[Any], blocks: list[list[Any]], outs: list[list[Any]], way: str = "staged") -> list[int]:
    """A collective of two members, each a thread with its channel over the same memory; written ``past`` the caches, or
    ``read`` from where it lies."""
    region = divide(2**20, (2,))[1]
    heaps = [np.zeros(2**20 + 64, np.uint8) for _ in range(2)]
    heaps = [h[-h.ctypes.data % 64 :][: 2**20] for h in heaps]
    results = [-9, -9]

    def member(rank: int) -> None:
        processes = [os.getpid()] * 2 if way == "read" else []
        channel = Channel(heaps, rank, region.control, region.row, region.piece, region.stages, 50, processes)
        results[rank] = channel.carry(parcels[rank], blocks[rank], outs[rank], 2**62, 0 if way == "past" else 2**62)

    threads = [threading.Thread(target=member, args=(rank,), daemon=True) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return results


def boxes(rows: list[int], width: int = 3) -> list[tuple[list[int], list[int]]]:
    return [([row, WIDE - width], [1, width]) for row in rows]


@pytest.mark.parametrize("way", ["staged", "past"])
def test_boxes_far_into_a_block(way: str) -> None:
    """Member 0's rows go to member 1, from the end of one block of 4 GiB to the end of another."""
    x, y = sparse(ROWS, WIDE), sparse(ROWS, WIDE)
    for i, row in enumerate(FAR):
        x[row, -3:] = [i + 1, i + 2, i + 3]
    taken, nothing = boxes(FAR), boxes([])
    shape = [ROWS, WIDE]
    first = Parcel("all_to_all", "", 5, 0, 2, "u", 1, [shape], [[nothing, taken]], [shape], [[nothing, nothing]])
    second = Parcel("all_to_all", "", 5, 1, 2, "u", 1, [shape], [[nothing, nothing]], [shape], [[taken, nothing]])
    assert carried([first, second], [[x], [y]], [[y], [y]], way) == [0, 0]
    for i, row in enumerate(FAR):
        assert y[row, -3:].tolist() == [i + 1, i + 2, i + 3]
        assert y[row, -5:-3].tolist() == [0, 0]


@pytest.mark.parametrize("width", [1, 2, 600])
def test_columns_with_long_strides(width: int) -> None:
    """Rows of some bytes, each a GiB from the next, and the part of the rank itself."""
    x, y = sparse(6, 2**30), sparse(6, 2**30)
    x[:, 7 : 7 + width] = np.arange(1, 6 * width + 1, dtype=np.int64).reshape(6, width).astype(np.uint8)
    columns, shape = [([0, 7], [6, width])], [6, 2**30]
    elsewhere = [([0, 2**29], [6, width])]
    first = Parcel("all_to_all", "", 6, 0, 2, "u", 1, [shape], [[columns, columns]], [shape], [[elsewhere, []]])
    second = Parcel("all_to_all", "", 6, 1, 2, "u", 1, [shape], [[[], []]], [shape], [[columns, []]])
    z = sparse(6, 2**30)
    assert carried([first, second], [[x], [z]], [[y], [z]]) == [0, 0]
    assert np.array_equal(z[:, 7 : 7 + width], x[:, 7 : 7 + width])
    assert np.array_equal(y[:, 2**29 : 2**29 + width], x[:, 7 : 7 + width])


@pytest.mark.parametrize("way", ["staged", "read"])
def test_sums_of_rows_far_into_a_block(way: str) -> None:
    mark = np.arange(3, dtype=np.uint8)
    if way == "read" and not reads(os.getpid(), mark.ctypes.data, mark.tobytes()):
        pytest.skip("the system does not let a process read memory by process number")
    n, length = 2**29 + 2**15, 2**14 + 5  # of 8 bytes: 4 GiB and a bit, of which the last 128 KB are summed
    blocks = [sparse(n, dtype=np.float64) for _ in range(2)]
    for rank, block in enumerate(blocks):
        block[-length:] = np.arange(length) + rank
    tail, shape, all_of_it = [([n - length], [length])], [n], [([0], [length])]
    parcels = [
        Parcel("reduce_scatter", "sum", 7, r, 2, "f", 8, [shape], [[[], tail]], [[length * r]], [[all_of_it[:r]]])
        for r in range(2)
    ]
    outs = [[np.empty(0)], [np.empty(length)]]
    assert carried(parcels, [[b] for b in blocks], outs, way) == [0, 0]
    assert np.array_equal(outs[1][0], 2 * np.arange(length) + 1.0)
