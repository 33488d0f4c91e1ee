"""Memory for large results that is used again: fresh pages cost as much as adding the numbers that go into them.

Between ranks of one node it is memory that the others have mapped (spmdx/runtime/arena.py). bindings/arena.h hands it
out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Flat = np.ndarray[Any, np.dtype[Any]]

LEAST = 2**18  # bytes: below, pages are no matter, and messages are not read from where they lie


def _nowhere(count: int, dtype: Any) -> None:
    """The source where there is no other."""


_source: Callable[[int, Any], Flat | None] = _nowhere


def use(source: Callable[[int, Any], Flat | None]) -> None:
    """Take memory for long arrays from here, as long as it has some."""
    global _source
    _source = source


def take(count: int, dtype: Any) -> Flat:
    """A new flat array, not filled; its memory is used again when it and all its views are gone."""
    dtype = np.dtype(dtype)
    found = _source(count, dtype) if count * dtype.itemsize >= LEAST else None
    return np.empty(count, dtype) if found is None else found


def empty(shape: Sequence[int], dtype: Any) -> Any:
    """The same in any shape."""
    dtype, count = np.dtype(dtype), math.prod(shape)
    found = _source(count, dtype) if count * dtype.itemsize >= LEAST else None
    return np.empty(shape, dtype) if found is None else found.reshape(shape)
