"""Memory for large results that is used again: fresh pages cost as much as adding the numbers that go into them."""

from __future__ import annotations

from typing import Any
from weakref import ref

import numpy as np

Flat = np.ndarray[Any, np.dtype[Any]]

LEAST = 2**20  # bytes: below, the C library's allocator does this itself
KEPT = 2**29  # bytes at rest at most

# No lock: a block comes back in a finaliser, which may run anywhere, also between two steps of an iteration. Each step
# below is one of a dict, and what is iterated over is a copy.
_free: dict[int, Flat] = {}
_lent: dict[int, tuple[ref[Flat], Flat]] = {}


def take(count: int, dtype: Any) -> Flat:
    """A new flat array, not filled; its memory comes back here when it and all its views are gone."""
    dtype = np.dtype(dtype)
    nbytes = count * dtype.itemsize
    if nbytes < LEAST:
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
    return np.empty(nbytes, np.uint8)


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
