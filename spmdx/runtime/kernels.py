"""The Python face of the kernels. A block of random values is filled in place, at the global indices that it holds.

`words` are a key's four 32-bit words (k0, k1, s0, s1), or the two of a Threefry key; `shape` is the global shape;
`intervals` are, for each dimension, the (start, stop) pairs that the block holds, in order: what
``spec.pieces(dim, coordinate)`` gives. Values follow docs/random.rst to the last bit, whatever the block, the
instruction set and the number of threads. With a Threefry key bits, uniform and randint are JAX's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from spmdx.runtime import pool

try:
    from spmdx import _kernels
    from spmdx._kernels import (
        Channel,
        Parcel,
        activate,
        attend,
        end_together,
        instruction_set,
        instruction_sets,
        norm,
        own_slot,
        philox,
        say_ended,
        set_instruction_set,
        set_threads,
        threads,
        threefry,
    )
except ImportError as error:
    raise ImportError(
        f"the compiled kernels are missing, or older than the Python sources: {error}\n  Write make install"
    ) from error

__all__ = [
    "FLOATS",
    "REDUCED",
    "Channel",
    "Intervals",
    "Parcel",
    "Words",
    "activate",
    "apply",
    "attend",
    "bernoulli",
    "between",
    "bits",
    "complex_normal",
    "continuous",
    "dropout",
    "empty",
    "end_together",
    "exp",
    "instruction_set",
    "instruction_sets",
    "log",
    "norm",
    "normal",
    "open_uniform",
    "own_slot",
    "philox",
    "randint",
    "reduce_ordered",
    "say_ended",
    "set_instruction_set",
    "set_threads",
    "streams",
    "threads",
    "threefry",
    "truncated_normal",
    "uniform",
]

Words = tuple[int, ...]
Intervals = Sequence[Sequence[tuple[int, int]]]
Block = NDArray[Any]

FLOATS: dict[np.dtype[Any], str] = {
    np.dtype(np.float16): "f16",
    np.dtype(ml_dtypes.bfloat16): "bf16",
    np.dtype(np.float32): "f32",
    np.dtype(np.float64): "f64",
}
REDUCED: frozenset[np.dtype[Any]] = frozenset(map(np.dtype, (np.int32, np.int64, np.float32, np.float64)))


def empty(intervals: Intervals, dtype: np.dtype[Any]) -> Block:
    """Memory for a block."""
    shape = [sum([stop - start for start, stop in pieces]) for pieces in intervals]
    count = math.prod(shape)
    # Fresh pages would cost as much as the values that go into them.
    return pool.take(count, dtype).reshape(shape) if count > 2**16 else np.empty(shape, dtype)


def bits(words: Words, shape: Sequence[int], intervals: Intervals, dtype: np.dtype[Any]) -> Block:
    """Random bits: the 32-bit lane of each element, its top bits for narrower integers, two lanes for 64-bit ones."""
    out = empty(intervals, dtype)
    _kernels.fill(out, "bits", f"u{8 * dtype.itemsize}", words, shape, intervals)
    return out


def uniform(
    words: Words, shape: Sequence[int], intervals: Intervals, dtype: np.dtype[Any], low: float = 0, high: float = 1
) -> Block:
    """Uniform floats in [low, high), low < high, both finite in ``dtype``, and high - low too."""
    out = empty(intervals, dtype)
    _kernels.fill(out, "uniform", FLOATS[dtype], words, shape, intervals, _scale(dtype, low, high))
    return out


@lru_cache(maxsize=256)
def _scale(dtype: np.dtype[Any], low: float, high: float) -> tuple[float, float, float]:
    """What a uniform is stretched by: low, high - low, and the greatest value below high."""
    bottom, top = dtype.type(low), dtype.type(high)
    wide = np.float64 if dtype.itemsize == 8 else np.float32
    return float(bottom), float(wide(top) - wide(bottom)), float(np.nextafter(top, bottom))


def normal(words: Words, shape: Sequence[int], intervals: Intervals, dtype: np.dtype[Any]) -> Block:
    """Standard normal floats, by Box and Muller."""
    out = empty(intervals, dtype)
    _kernels.fill(out, "normal", FLOATS[dtype], words, shape, intervals)
    return out


def randint(
    words: Words, shape: Sequence[int], intervals: Intervals, dtype: np.dtype[Any], low: int, high: int
) -> Block:
    """Integers in [low, high), both bounds within ``dtype`` (high: or one above): biased by less than
    (high - low) / 2**64."""
    out = empty(intervals, dtype)
    word = 2**64  # a span of 2**64 is written 0
    kind = f"u{8 * dtype.itemsize}"
    _kernels.fill(out, "randint", kind, words, shape, intervals, low=low % word, span=(high - low) % word)
    return out


def bernoulli(words: Words, shape: Sequence[int], intervals: Intervals, p: float) -> Block:
    """True where the float32 uniform lies below float32(p), 0 <= p <= 1."""
    out = empty(intervals, np.dtype(np.bool_))
    _kernels.fill(out, "bernoulli", "u8", words, shape, intervals, (float(np.float32(p)), 0.0, 0.0))
    return out


def dropout(words: Words, shape: Sequence[int], intervals: Intervals, x: Block, kept: float) -> Block:
    """``x / kept`` where :func:`bernoulli` with the chance ``kept`` is true, 0 elsewhere, in one pass: x, of a floating
    or complex type, times 1 / kept, rounded to the type (float32 for narrow ones, whose products are rounded once)."""
    out = empty(intervals, x.dtype)
    kind = FLOATS.get(x.dtype) or f"c{8 * x.itemsize}"
    scale = 1.0 / kept if kept else 1.0  # nothing is kept
    real = np.float64 if kind in ("f64", "c128") else np.float32
    given = np.ascontiguousarray(x)
    _kernels.drop(out, given, kind, words, shape, intervals, float(np.float32(kept)), float(real(scale)))
    return out


def continuous(name: str, words: Words, shape: Sequence[int], intervals: Intervals, dtype: np.dtype[Any]) -> Block:
    """Standard exponential, gumbel, rayleigh, laplace, logistic or cauchy; narrow floats are float32's, rounded. Or
    unit: in float32 what :func:`bernoulli` compares, from either generator."""
    wide = dtype if dtype.itemsize > 2 else np.dtype(np.float32)
    out = empty(intervals, wide)
    _kernels.fill(out, name, FLOATS[wide], words, shape, intervals)
    return out if wide is dtype else _narrow(out, dtype)


def _narrow(block: Block, dtype: np.dtype[Any]) -> Block:
    with np.errstate(over="ignore"):  # a Cauchy value may be infinite in float16
        return block.astype(dtype, copy=False)


def complex_normal(words: Words, shape: Sequence[int], intervals: Intervals, dtype: np.dtype[Any]) -> Block:
    """Complex normals of variance 1."""
    out = empty(intervals, dtype)
    _kernels.fill(out, "complex_normal", f"c{8 * dtype.itemsize}", words, shape, intervals)
    return out


def truncated_normal(
    words: Words, shape: Sequence[int], intervals: Intervals, dtype: np.dtype[Any], lower: Any, upper: Any
) -> Block:
    """Standard normals confined to [lower, upper], each a float64 number or a block of them; float64 inside."""
    wide = dtype if dtype.itemsize > 2 else np.dtype(np.float32)
    if np.ndim(lower) == np.ndim(upper) == 0:
        out = empty(intervals, wide)
        bounds = (float(lower), float(upper), 0.0)
        _kernels.fill(out, "truncated_normal", FLOATS[wide], words, shape, intervals, bounds)
        return _narrow(out, dtype)
    u = open_uniform(words, shape, intervals, wide)
    return _narrow(_narrow(apply("truncated", u, lower, upper), wide), dtype)


def open_uniform(words: Words, shape: Sequence[int], intervals: Intervals, dtype: np.dtype[Any]) -> Block:
    """Uniform float64s in (0, 1] from the bits of elements of ``dtype``, with half a step added."""
    out = empty(intervals, np.dtype(np.float64))
    _kernels.fill(out, f"open{8 * dtype.itemsize}", "f64", words, shape, intervals)
    return out


def streams(name: str, words: Words, shape: Sequence[int], intervals: Intervals, *parameters: Any) -> Block:
    """gamma(alpha), log_gamma(alpha), poisson(mean), binomial(n, p): float64, each element from a stream of its own.

    Parameters are float64 blocks of the same shape, or of one element."""
    out = empty(intervals, np.dtype(np.float64))
    _kernels.fill_streams(out, name, words, shape, intervals, [_operand(p, out.dtype) for p in parameters])
    return out


def between(u: Block, low: Any, high: Any, dtype: np.dtype[Any]) -> Block:
    """The uniforms u in [0, 1), float32 or float64, stretched to [low, high) as :func:`uniform` does, with blocks of
    bounds of ``dtype``."""
    span = np.asarray(high, u.dtype) - np.asarray(low, u.dtype)
    last = np.nextafter(high, low).astype(u.dtype)
    value = apply(f"between{8 * u.itemsize}", u, np.asarray(low, u.dtype), span, last)
    if u.dtype == dtype:
        return value
    near = value.astype(dtype)  # rounded; to be truncated
    return np.where(np.abs(near.astype(u.dtype)) > np.abs(value), np.nextafter(near, np.zeros((), dtype)), near)


def apply(name: str, *operands: Any) -> Block:
    """A function of cuda/map.h, element by element: exp, log1p, ndtr, ndtri... The first operand has the result's shape
    and dtype, the others the same shape or one element."""
    first = operands[0]
    out = np.empty(first.shape, first.dtype)
    _kernels.map(out, name, [_operand(x, first.dtype) for x in operands])
    return out


def exp(x: Block) -> Block:
    """exp of a float32 or float64 block, within 0.75 ulp, with the same bits on every processor."""
    return apply(f"exp{8 * x.itemsize}", x)


def log(x: Block) -> Block:
    """log of a float64 block of normal positive numbers, within 0.75 ulp, with the same bits on every processor."""
    return apply("log64", x)


def _operand(x: Any, dtype: np.dtype[Any]) -> Block:
    return np.ascontiguousarray(x, dtype)


def reduce_ordered(parts: Sequence[Block], op: str, out: Block) -> Block:
    """``out = parts[0] op parts[1] op ...`` in that order, for the dtypes in REDUCED; op: sum, prod, min or max.

    All are contiguous, equally long and of one dtype. ``out`` may be one of the parts. Integers wrap. NaN propagates
    through min and max; of equal values (0.0 and -0.0) the first is kept.
    """
    _kernels.reduce_ordered(out, parts, op)
    return out
