"""The Python face of the kernels. A block of random values is filled in place, at the global indices that it holds.

`words` are a key's four 32-bit words (k0, k1, s0, s1); `shape` is the global shape; `intervals` are, for each
dimension, the (start, stop) pairs that the block holds, in order: what ``spec.pieces(dim, coordinate)`` gives. Values
follow docs/random.rst to the last bit, whatever the block, the instruction set and the number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from spmdx import _kernels
from spmdx._kernels import (
    arrive_and_wait,
    end_together,
    instruction_set,
    instruction_sets,
    philox,
    set_instruction_set,
    set_threads,
    threads,
)

__all__ = [
    "FLOATS",
    "REDUCED",
    "Intervals",
    "Words",
    "arrive_and_wait",
    "bernoulli",
    "bits",
    "end_together",
    "instruction_set",
    "instruction_sets",
    "normal",
    "philox",
    "randint",
    "reduce_ordered",
    "set_instruction_set",
    "set_threads",
    "threads",
    "uniform",
]

Words = tuple[int, int, int, int]
Intervals = Sequence[Sequence[tuple[int, int]]]
Block = NDArray[Any]

FLOATS: dict[np.dtype[Any], str] = {
    np.dtype(np.float16): "f16",
    np.dtype(ml_dtypes.bfloat16): "bf16",
    np.dtype(np.float32): "f32",
    np.dtype(np.float64): "f64",
}
REDUCED: frozenset[np.dtype[Any]] = frozenset(map(np.dtype, (np.int32, np.int64, np.float32, np.float64)))


def _empty(intervals: Intervals, dtype: np.dtype[Any]) -> Block:
    return np.empty([sum(stop - start for start, stop in pieces) for pieces in intervals], dtype)


def bits(words: Words, shape: Sequence[int], intervals: Intervals, dtype: np.dtype[Any]) -> Block:
    """Random bits: the 32-bit lane of each element, its top bits for narrower integers, two lanes for 64-bit ones."""
    out = _empty(intervals, dtype)
    _kernels.fill(out, "bits", f"u{8 * dtype.itemsize}", words, shape, intervals)
    return out


def uniform(
    words: Words, shape: Sequence[int], intervals: Intervals, dtype: np.dtype[Any], low: float = 0, high: float = 1
) -> Block:
    """Uniform floats in [low, high), low < high, both finite in ``dtype``, and high - low too."""
    out = _empty(intervals, dtype)
    bottom, top = dtype.type(low), dtype.type(high)
    wide = np.float64 if dtype.itemsize == 8 else np.float32
    scale = (float(bottom), float(wide(top) - wide(bottom)), float(np.nextafter(top, bottom)))
    _kernels.fill(out, "uniform", FLOATS[dtype], words, shape, intervals, scale)
    return out


def normal(words: Words, shape: Sequence[int], intervals: Intervals, dtype: np.dtype[Any]) -> Block:
    """Standard normal floats, by Box and Muller."""
    out = _empty(intervals, dtype)
    _kernels.fill(out, "normal", FLOATS[dtype], words, shape, intervals)
    return out


def randint(
    words: Words, shape: Sequence[int], intervals: Intervals, dtype: np.dtype[Any], low: int, high: int
) -> Block:
    """Integers in [low, high), both bounds within ``dtype`` (high: or one above): biased by less than
    (high - low) / 2**64."""
    out = _empty(intervals, dtype)
    word = 2**64  # a span of 2**64 is written 0
    kind = f"u{8 * dtype.itemsize}"
    _kernels.fill(out, "randint", kind, words, shape, intervals, low=low % word, span=(high - low) % word)
    return out


def bernoulli(words: Words, shape: Sequence[int], intervals: Intervals, p: float) -> Block:
    """True where the float32 uniform lies below float32(p), 0 <= p <= 1."""
    out = _empty(intervals, np.dtype(np.bool_))
    _kernels.fill(out, "bernoulli", "u8", words, shape, intervals, (float(np.float32(p)), 0.0, 0.0))
    return out


def reduce_ordered(parts: Sequence[Block], op: str, out: Block) -> Block:
    """``out = parts[0] op parts[1] op ...`` in that order, for the dtypes in REDUCED; op: sum, prod, min or max.

    All are contiguous, equally long and of one dtype. ``out`` may be one of the parts. Integers wrap. NaN propagates
    through min and max; of equal values (0.0 and -0.0) the first is kept.
    """
    _kernels.reduce_ordered(out, parts, op)
    return out
