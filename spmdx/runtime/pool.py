"""Memory for large results that is used again: fresh pages cost as much as adding the numbers that go into them.

Between ranks of one node it is memory that the others have mapped (spmdx/runtime/arena.py). bindings/arena.h hands it
out.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Flat = np.ndarray[Any, np.dtype[Any]]

LEAST = 2**18  # bytes: below, pages are no matter, and messages are not read from where they lie
KEPT = 2**29  # bytes that the C library's allocator may keep
LARGEST_OF_HEAP = 2**25  # bytes: what is larger has pages of its own, which go back at once
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # in malloc.h


def _nowhere(count: int, dtype: Any) -> None:
    """The source where there is no other."""


_source: Callable[[int, Any], Flat | None] = _nowhere


def use(source: Callable[[int, Any], Flat | None]) -> None:
    """Take memory for long arrays from here, as long as it has some."""
    global _source
    _source = source


def take(count: int, dtype: Any) -> Flat:
    """A new flat array, not filled; its memory is used again when it and all its views are gone."""
    found: Flat = empty((count,), dtype)
    return found


def empty(shape: Sequence[int], dtype: Any) -> Any:
    """The same in any shape."""
    dtype, count = np.dtype(dtype), math.prod(shape)
    found = _source(count, dtype) if count * dtype.itemsize >= LEAST else None
    return np.empty(shape, dtype) if found is None else found.reshape(shape)


def keep_freed() -> None:
    """Have the C library's allocator keep what NumPy frees, up to `KEPT` at its top, instead of giving it back to the
    system after every step of a training loop. Who has set the allocator by environment variables is left alone."""
    if not any(name in os.environ for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")):
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's
        if mallopt is not None:
            mallopt(_TRIM_THRESHOLD, KEPT)
            mallopt(_MMAP_THRESHOLD, LARGEST_OF_HEAP)


keep_freed()
