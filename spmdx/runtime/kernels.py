"""The Python face of the kernels. A block of random values is filled in place, at the global indices that it holds.

`words` are a key's four 32-bit words (k0, k1, s0, s1), or the two of a Threefry key; `shape` is the global shape;
`intervals` are, for each dimension, the (start, stop) pairs that the block holds, in order: what
``spec.pieces(dim, coordinate)`` gives. Values follow docs/random.rst to the last bit, whatever the block, the
instruction set and the number of threads. With a Threefry key bits, uniform and randint are JAX's.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np

from spmdx.runtime import pool
from spmdx.runtime.pages import promises_are_kept

try:
    from spmdx import _kernels
    from spmdx._kernels import (
        Channel,
        Parcel,
        activate,
        add_norm,
        add_rows,
        attend,
        carrier,
        deeper,
        end_together,
        farewell_at_end,
        forget_rules,
        instruction_set,
        instruction_sets,
        keep_constant,
        map_arena,
        matmul,
        open_arena,
        open_shared,
        own_count,
        own_slot,
        philox,
        product,
        reads,
        rotate,
        say_ended,
        set_instruction_set,
        set_threads,
        short_way,
        take_own,
        take_shared,
        tell_arrays,
        tell_progress,
        tell_recording,
        tell_walk,
        threads,
        threefry,
        underway,
        use_blas,
        walk,
        watch,
    )
except ImportError as error:
    raise ImportError(
        f"the compiled kernels are missing, or older than the Python sources: {error}\n  Write make install"
    ) from error

Words = tuple[int, ...]
Intervals = Sequence[Sequence[tuple[int, int]]]
Block = Any  # NumPy's, or CuPy's

FLOATS: dict[np.dtype[Any], str] = {
    np.dtype(np.float16): "f16",
    np.dtype(ml_dtypes.bfloat16): "bf16",
    np.dtype(np.float32): "f32",
    np.dtype(np.float64): "f64",
}
REDUCED: frozenset[np.dtype[Any]] = frozenset(map(np.dtype, (np.int32, np.int64, np.float32, np.float64)))


@lru_cache(maxsize=256)
def _scale(dtype: np.dtype[Any], low: float, high: float) -> tuple[float, float, float]:
    """What a uniform is stretched by: low, high - low, and the greatest value below high."""
    bottom, top = dtype.type(low), dtype.type(high)
    wide = np.float64 if dtype.itemsize == 8 else np.float32
    return float(bottom), float(wide(top) - wide(bottom)), float(np.nextafter(top, bottom))


def kept_numbers(kept: float, wide: bool) -> tuple[float, float]:
    """What dropout compares its uniforms with, and what it multiplies by, as its kernels take them."""
    scale = 1.0 / kept if kept else 1.0  # nothing is kept
    return float(np.float32(kept)), float((np.float64 if wide else np.float32)(scale))


def _narrow(block: Block, dtype: np.dtype[Any]) -> Block:
    with np.errstate(over="ignore"):  # a Cauchy value may be infinite in float16
        return block.astype(dtype, copy=False)


class Kernels:
    """The kernels of one build, over one namespace."""

    def __init__(self, xp: Any, build: Any, take: Any) -> None:
        self.xp, self.build, self.take = xp, build, take

    def empty(self, intervals: Intervals, dtype: np.dtype[Any]) -> Block:
        """Memory for a block."""
        shape = [sum([stop - start for start, stop in pieces]) for pieces in intervals]
        # Fresh pages would cost as much as the values that go into them.
        return self.take(math.prod(shape), dtype).reshape(shape)

    def bits(self, words: Words, shape: Sequence[int], intervals: Intervals, dtype: np.dtype[Any]) -> Block:
        """Random bits: the 32-bit lane of each element, its top bits for narrower integers, two lanes for 64-bit."""
        out = self.empty(intervals, dtype)
        self.build.fill(out, "bits", f"u{8 * dtype.itemsize}", words, shape, intervals)
        return out

    def uniform(
        self,
        words: Words,
        shape: Sequence[int],
        intervals: Intervals,
        dtype: np.dtype[Any],
        low: float = 0,
        high: float = 1,
    ) -> Block:
        """Uniform floats in [low, high), low < high, both finite in ``dtype``, and high - low too."""
        out = self.empty(intervals, dtype)
        self.build.fill(out, "uniform", FLOATS[dtype], words, shape, intervals, _scale(dtype, low, high))
        return out

    def normal(self, words: Words, shape: Sequence[int], intervals: Intervals, dtype: np.dtype[Any]) -> Block:
        """Standard normal floats, by Box and Muller."""
        out = self.empty(intervals, dtype)
        self.build.fill(out, "normal", FLOATS[dtype], words, shape, intervals)
        return out

    def randint(
        self, words: Words, shape: Sequence[int], intervals: Intervals, dtype: np.dtype[Any], low: int, high: int
    ) -> Block:
        """Integers in [low, high), both bounds within ``dtype`` (high: or one above): biased by less than
        (high - low) / 2**64."""
        out = self.empty(intervals, dtype)
        word = 2**64  # a span of 2**64 is written 0
        kind = f"u{8 * dtype.itemsize}"
        self.build.fill(out, "randint", kind, words, shape, intervals, low=low % word, span=(high - low) % word)
        return out

    def bernoulli(self, words: Words, shape: Sequence[int], intervals: Intervals, p: float) -> Block:
        """True where the float32 uniform lies below float32(p), 0 <= p <= 1."""
        out = self.empty(intervals, np.dtype(np.bool_))
        self.build.fill(out, "bernoulli", "u8", words, shape, intervals, (float(np.float32(p)), 0.0, 0.0))
        return out

    def dropout(self, words: Words, shape: Sequence[int], intervals: Intervals, x: Block, kept: float) -> Block:
        """``x / kept`` where :func:`bernoulli` with the chance ``kept`` is true, 0 elsewhere, in one pass: x, of a
        floating or complex type, times 1 / kept, rounded to the type (float32 for narrow ones, whose products are
        rounded once)."""
        out = self.empty(intervals, x.dtype)
        kind = FLOATS.get(x.dtype) or f"c{8 * x.itemsize}"
        numbers = kept_numbers(kept, kind in ("f64", "c128"))
        self.build.drop(out, self.xp.ascontiguousarray(x), kind, words, shape, intervals, *numbers)
        return out

    def continuous(
        self, name: str, words: Words, shape: Sequence[int], intervals: Intervals, dtype: np.dtype[Any]
    ) -> Block:
        """Standard exponential, gumbel, rayleigh, laplace, logistic or cauchy; narrow floats are float32's, rounded. Or
        unit: in float32 what :func:`bernoulli` compares, from either generator."""
        wide = dtype if dtype.itemsize > 2 else np.dtype(np.float32)
        out = self.empty(intervals, wide)
        self.build.fill(out, name, FLOATS[wide], words, shape, intervals)
        return out if wide is dtype else _narrow(out, dtype)

    def complex_normal(self, words: Words, shape: Sequence[int], intervals: Intervals, dtype: np.dtype[Any]) -> Block:
        """Complex normals of variance 1."""
        out = self.empty(intervals, dtype)
        self.build.fill(out, "complex_normal", f"c{8 * dtype.itemsize}", words, shape, intervals)
        return out

    def truncated_normal(
        self, words: Words, shape: Sequence[int], intervals: Intervals, dtype: np.dtype[Any], lower: Any, upper: Any
    ) -> Block:
        """Standard normals confined to [lower, upper], each a float64 number or a block of them; float64 inside."""
        wide = dtype if dtype.itemsize > 2 else np.dtype(np.float32)
        if self.xp.ndim(lower) == self.xp.ndim(upper) == 0:
            out = self.empty(intervals, wide)
            bounds = (float(lower), float(upper), 0.0)
            self.build.fill(out, "truncated_normal", FLOATS[wide], words, shape, intervals, bounds)
            return _narrow(out, dtype)
        u = self.open_uniform(words, shape, intervals, wide)
        return _narrow(_narrow(self.apply("truncated", u, lower, upper), wide), dtype)

    def open_uniform(self, words: Words, shape: Sequence[int], intervals: Intervals, dtype: np.dtype[Any]) -> Block:
        """Uniform float64s in (0, 1] from the bits of elements of ``dtype``, with half a step added."""
        out = self.empty(intervals, np.dtype(np.float64))
        self.build.fill(out, f"open{8 * dtype.itemsize}", "f64", words, shape, intervals)
        return out

    def streams(self, name: str, words: Words, shape: Sequence[int], intervals: Intervals, *parameters: Any) -> Block:
        """gamma(alpha), log_gamma(alpha), poisson(mean), binomial(n, p): float64, each element from its own stream.

        Parameters are float64 blocks of the same shape, or of one element."""
        out = self.empty(intervals, np.dtype(np.float64))
        self.build.fill_streams(out, name, words, shape, intervals, [self.operand(p, out.dtype) for p in parameters])
        return out

    def between(self, u: Block, low: Any, high: Any, dtype: np.dtype[Any]) -> Block:
        """The uniforms u in [0, 1), float32 or float64, stretched to [low, high) as :func:`uniform` does, with blocks
        of bounds of ``dtype``."""
        low, high = self.xp.asarray(low), self.xp.asarray(high)
        span = high.astype(u.dtype) - low.astype(u.dtype)
        last = self.xp.nextafter(high, low).astype(u.dtype)
        value = self.apply(f"between{8 * u.itemsize}", u, low.astype(u.dtype), span, last)
        if u.dtype == dtype:
            return value
        near = value.astype(dtype)  # rounded; to be truncated
        xp = self.xp
        return xp.where(xp.abs(near.astype(u.dtype)) > xp.abs(value), xp.nextafter(near, xp.zeros((), dtype)), near)

    def apply(self, name: str, *operands: Any) -> Block:
        """A function of cuda/map.h, element by element: exp, log1p, ndtr, ndtri... The first operand has the result's
        shape and dtype, the others the same shape or one element."""
        first = operands[0]
        out = self.take(first.size, first.dtype).reshape(first.shape)
        self.build.map(out, name, [self.operand(x, first.dtype) for x in operands])
        return out

    def exp(self, x: Block) -> Block:
        """exp of a float32 or float64 block, within 0.75 ulp, with the same bits on every processor."""
        return self.apply(f"exp{8 * x.itemsize}", x)

    def log(self, x: Block) -> Block:
        """log of a float64 block of normal positive numbers, within 0.75 ulp, with the same bits on every processor."""
        return self.apply("log64", x)

    def operand(self, x: Any, dtype: np.dtype[Any]) -> Block:
        """An array as kernels read it."""
        return self.xp.ascontiguousarray(x, dtype)


def memory_of_node() -> int:
    """Bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


if not promises_are_kept():
    with suppress(RuntimeError, ValueError):  # where there is none, NumPy's is as good
        open_arena(memory_of_node())
        pool.use(take_own)


def _take(count: int, dtype: Any) -> Block:
    return pool.take(count, dtype) if count > 2**16 else np.empty(count, dtype)


HOST = Kernels(np, _kernels, _take)
_gpu: list[Kernels] = []


def on(device: str) -> Kernels:
    """The kernels for blocks on a kind of device."""
    return HOST if device != "cuda" else _of_gpu()


def of(xp: Any) -> Kernels:
    """The kernels for blocks of a namespace."""
    return HOST if xp is np else _of_gpu()


def _of_gpu() -> Kernels:
    if not _gpu:
        from spmdx.runtime.gpu import here  # only where it is wanted: most programs have none

        _gpu.append(Kernels(here().xp, here().launch, here().xp.empty))
    return _gpu[0]


empty = HOST.empty
bits = HOST.bits
uniform = HOST.uniform
normal = HOST.normal
randint = HOST.randint
bernoulli = HOST.bernoulli
dropout = HOST.dropout
continuous = HOST.continuous
complex_normal = HOST.complex_normal
truncated_normal = HOST.truncated_normal
open_uniform = HOST.open_uniform
streams = HOST.streams
between = HOST.between
apply = HOST.apply
exp = HOST.exp
log = HOST.log


def reduce_ordered(parts: Sequence[Block], op: str, out: Block) -> Block:
    """``out = parts[0] op parts[1] op ...`` in that order, for the dtypes in REDUCED; op: sum, prod, min or max.

    All are contiguous, equally long and of one dtype. ``out`` may be one of the parts. Integers wrap. NaN propagates
    through min and max; of equal values (0.0 and -0.0) the first is kept.
    """
    _kernels.reduce_ordered(out, parts, op)
    return out
