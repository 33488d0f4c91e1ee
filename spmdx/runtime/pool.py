"""Memory for large results that is used again: fresh pages cost as much as adding the numbers that go into them.

Between ranks of one node it is taken from where the others can read it (spmdx/runtime/arena.py).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any
from weakref import ref

import numpy as np

Flat = np.ndarray[Any, np.dtype[Any]]

LEAST = 2**20  # bytes: below, the C library's allocator does this itself
LEAST_SHARED = 2**18  # bytes: below, messages are not read from where they lie
KEPT = 2**29  # bytes at rest at most
LARGEST_OF_HEAP = 2**25  # bytes: what is larger has pages of its own, which go back at once
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # in malloc.h

# No lock: a block comes back in a finaliser, which may run anywhere, also between two steps of an iteration. Each step
# below is one of a dict, and what is iterated over is a copy.
_free: dict[int, Flat] = {}
_lent: dict[int, tuple[ref[Flat], Flat]] = {}
_source: list[Callable[[int], Flat | None]] = []
_least = LEAST


def use(source: Callable[[int], Flat | None]) -> None:
    """Take memory from here, as long as it has some, and smaller pieces too."""
    global _least
    _source[:], _least = [source], LEAST_SHARED


def is_shared() -> bool:
    """Whether memory is taken from where other ranks can read it."""
    return bool(_source)


def take(count: int, dtype: Any) -> Flat:
    """A new flat array, not filled; its memory comes back here when it and all its views are gone."""
    dtype = np.dtype(dtype)
    nbytes = count * dtype.itemsize
    if nbytes < _least:
        return np.empty(count, dtype)
    block = _pick(nbytes)
    flat: Flat = np.frombuffer(block.data[:nbytes], dtype)  # the base of its views: it outlives them
    key = id(flat)
    _lent[key] = ref(flat, lambda _: _give_back(key)), block
    return flat


def _pick(nbytes: int) -> Flat:
    for key, block in _free.copy().items():
        if nbytes <= block.nbytes <= 2 * nbytes:
            mine = _free.pop(key, None)
            if mine is not None:  # no other thread was faster
                return mine
    found = _source[0](nbytes) if _source else None
    return np.empty(nbytes, np.uint8) if found is None else found


def _give_back(key: int) -> None:
    _, block = _lent.pop(key)
    _free[id(block)] = block
    at_rest = _free.copy()
    excess = sum(b.nbytes for b in at_rest.values()) - KEPT
    for oldest, b in at_rest.items():
        if excess <= 0:
            break
        _free.pop(oldest, None)
        excess -= b.nbytes


def keep_freed() -> None:
    """Have the C library's allocator keep what NumPy frees, up to `KEPT` at its top, instead of giving it back to the
    system after every step of a training loop. Who has set the allocator by environment variables is left alone."""
    if not any(name in os.environ for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")):
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's
        if mallopt is not None:
            mallopt(_TRIM_THRESHOLD, KEPT)
            mallopt(_MMAP_THRESHOLD, LARGEST_OF_HEAP)


keep_freed()
