"""Arrays that lie in a file: how a part of one is read, and no other part.

A system reads ahead of who looks at a mapped file, megabytes on both sides: more than a rank's part of a parameter. So
it is told to leave that, and what is wanted is asked for beforehand, all of it at once: page by page, each waited for,
it would come ten times more slowly.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import numpy as np

from spmdx.runtime import memory

PAGE = mmap.PAGESIZE
TILE = 128  # elements of either side
LEAST = 2048  # in a tile: small ones take longer to be found than to be copied
CALL = max(PAGE, 2**17)  # bytes asked for at once: of more, systems take no notice beyond what they would read ahead
KNOWN = all(hasattr(mmap, name) for name in ("MADV_RANDOM", "MADV_NORMAL", "MADV_WILLNEED"))  # to this system


def file_of(block: Any) -> mmap.mmap | None:
    """The mapping that an array lies in; None, as nearly always, if it lies in memory."""
    base = block.base
    while base is not None:
        if isinstance(base, mmap.mmap):
            return base if KNOWN else None
        base = getattr(base, "base", None)
    return None


def copied(block: Any) -> Any:
    """A copy of a block; of one that lies in a file no more is read than it holds."""
    if getattr(block, "base", None) is None or file_of(block) is None:
        return memory.copied(block)
    out = room(block.shape, block.dtype)
    copy_to(out, block)
    return out


def turned(block: Any, order: tuple[int, ...]) -> Any:
    """A copy of a block with its dimensions in another order, in C order."""
    if not isinstance(block, np.ndarray):
        return memory.copied(block.transpose(order))
    laid = block.transpose(order)
    out = room(laid.shape, laid.dtype)
    turn(out, laid)
    return out


def room(shape: Any, dtype: Any) -> Any:
    """Memory for what is read, in C order."""
    return memory.empty(shape, dtype)


def copy_to(out: Any, block: Any) -> None:
    """NumPy's copy into memory; of an array that lies in a file no more is read than it holds."""
    with reading(block):
        turn(out, block)


def turn(out: Any, block: Any) -> None:
    """NumPy's copy; where one array has in rows what the other has in columns tile by tile, so that what comes into a
    cache is used while it is there."""
    dims = [d for d in range(block.ndim) if block.shape[d] > 1]
    rows, columns = (min((abs(x.strides[d]), d) for d in dims)[1] if dims else 0 for x in (block, out))
    if rows == columns or block.size < TILE**2 or math.prod(min(block.shape[d], TILE) for d in (rows, columns)) < LEAST:
        np.copyto(out, block)
        return
    sides = [TILE if d in (rows, columns) else 1 for d in range(block.ndim)]
    for corner in product(*(range(0, n, side) for n, side in zip(block.shape, sides))):
        tile = tuple(slice(i, i + side) for i, side in zip(corner, sides))
        np.copyto(out[tile], block[tile])


@contextmanager
def reading(block: Any) -> Iterator[None]:
    """Around the reading of a NumPy array, all of it and nothing else of the file that it may lie in."""
    file = file_of(block)
    if file is None:
        yield
        return
    file.madvise(mmap.MADV_RANDOM)
    try:
        first = np.frombuffer(file, np.uint8).ctypes.data
        for start, stop in spans(block):
            for page in range((start - first) // PAGE * PAGE, stop - first, CALL):
                file.madvise(mmap.MADV_WILLNEED, page, min(CALL, stop - first - page))
        yield
    finally:
        file.madvise(mmap.MADV_NORMAL)


def spans(block: Any) -> Iterator[tuple[int, int]]:
    """The addresses of an array's bytes, as intervals; what shares a page, or lies on neighbouring ones, is one."""
    at, length = block.ctypes.data, block.itemsize
    outer: list[tuple[int, int]] = []
    if not block.size:
        return
    for stride, n in sorted((abs(s), n) for s, n in zip(block.strides, block.shape) if n > 1):
        if not outer and stride <= length + PAGE:
            length += stride * (n - 1)
        else:
            outer.append((stride, n))
    at += sum(s * (n - 1) for s, n in zip(block.strides, block.shape) if s < 0)
    starts = np.full(1, at)
    for stride, n in reversed(outer):
        starts = (starts[:, None] + stride * np.arange(n)).ravel()
    for start in starts.tolist():
        yield start, start + length
