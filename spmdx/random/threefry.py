"""Threefry2x32-20, and what JAX makes of it: its bits, integers and uniforms on [0, 1), to the last bit.

Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011. As JAX with its default
``jax_threefry_partitionable``: element i of an array is a function of the key and the 64-bit counter i alone (high
word first), so a block is made where it lies. The functions take what those of :mod:`spmdx.runtime.kernels` take.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from spmdx.runtime.kernels import Intervals

__all__ = ["bernoulli", "bits", "fold", "hash_counter", "hash_counters", "randint", "split", "uniform"]

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY, MASK = 0x1BD11BDA, 2**32 - 1
TILE = 2**14  # elements hashed at a time: what a round works on stays in the cache, and no temporary is larger

Pair = tuple[int, int]
MANTISSA = {np.dtype(t): n for t, n in ((np.float16, 10), (ml_dtypes.bfloat16, 7), (np.float32, 23), (np.float64, 52))}


def hash_counters(key: Pair, x0: Any, x1: Any) -> tuple[Any, Any]:
    """The two output words for counters (x0, x1), uint32 vectors, which are overwritten: 20 rounds."""
    k = (*key, key[0] ^ key[1] ^ PARITY)
    keys = [np.uint32(word) for word in k]
    turned = np.empty_like(x1)
    x0 += keys[0]
    x1 += keys[1]
    for group in range(5):
        for r in ROTATIONS[group % 2]:
            x0 += x1
            np.left_shift(x1, r, out=turned)
            np.right_shift(x1, 32 - r, out=x1)
            x1 |= turned
            x1 ^= x0
        x0 += keys[(group + 1) % 3]
        x1 += np.uint32((k[(group + 2) % 3] + group + 1) % 2**32)
    return x0, x1


def hash_counter(key: Pair, x0: int, x1: int) -> Pair:
    """The same for one counter, in Python's integers."""
    k = (*key, key[0] ^ key[1] ^ PARITY)
    x0, x1 = (x0 + k[0]) & MASK, (x1 + k[1]) & MASK
    for group in range(5):
        for r in ROTATIONS[group % 2]:
            x0 = (x0 + x1) & MASK
            x1 = ((x1 << r) & MASK | x1 >> (32 - r)) ^ x0
        x0, x1 = (x0 + k[(group + 1) % 3]) & MASK, (x1 + k[(group + 2) % 3] + group + 1) & MASK
    return x0, x1


def fold(key: Pair, number: int) -> Pair:
    """The key that ``fold_in`` makes of a 32-bit number: the block with counter (0, number)."""
    return hash_counter(key, 0, number)


def split(key: Pair, count: int) -> list[Pair]:
    """Keys number 0, 1, ...: the blocks with these counters."""
    low = np.arange(count, dtype=np.uint64)
    a, b = hash_counters(key, (low >> np.uint64(32)).astype(np.uint32), low.astype(np.uint32))
    return list(zip(a.tolist(), b.tolist()))


# Arrays, tile by tile


def _tiles(shape: Sequence[int], intervals: Intervals) -> Iterator[tuple[Any, Any]]:
    """Pieces of a block of at most about TILE elements: the index of the piece, and its flat global indices."""
    rows = [
        np.concatenate([np.arange(a, b, dtype=np.uint64) for a, b in p] or [np.empty(0, np.uint64)]) for p in intervals
    ]
    steps = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    along = [r * np.uint64(step % 2**64) for r, step in zip(rows, steps)]
    size = [len(r) for r in rows]
    cut = next((d for d in range(len(size)) if math.prod(size[d + 1 :]) <= TILE), 0)  # inner dimensions stay together
    if not size:
        yield (), np.zeros((), np.uint64)
        return
    inner = _sum([np.zeros(1, np.uint64), *along[cut + 1 :]]).reshape(size[cut + 1 :])
    many = max(1, TILE // max(1, inner.size))
    for lead in np.ndindex(*size[:cut]):
        base = sum((int(along[d][i]) for d, i in enumerate(lead)), 0)
        for start in range(0, size[cut], many):
            outer = along[cut][start : start + many] + np.uint64(base)
            yield (*lead, slice(start, start + many)), np.add.outer(outer, inner)


def _sum(vectors: Sequence[Any]) -> Any:
    out = vectors[0]
    for v in vectors[1:]:
        out = np.add.outer(out, v)
    return out


def _fill(key: Pair, shape: Sequence[int], intervals: Intervals, dtype: Any, last: Callable[[Any, Any], Any]) -> Any:
    """A block of ``last(first words, second words)``."""
    out = np.empty([sum(b - a for a, b in pieces) for pieces in intervals], dtype)
    if out.size:
        for where, index in _tiles(shape, intervals):
            flat = index.reshape(-1)
            words = hash_counters(key, (flat >> np.uint64(32)).astype(np.uint32), flat.astype(np.uint32))
            out[where] = last(*words).reshape(index.shape)
    return out


def _word(width: int) -> Callable[[Any, Any], Any]:
    """The bits of an element of a width."""
    if width == 64:
        return lambda a, b: (a.astype(np.uint64) << np.uint64(32)) | b
    narrow = np.dtype(f"u{width // 8}")
    return lambda a, b: (a ^ b).astype(narrow)


def bits(key: Pair, shape: Sequence[int], intervals: Intervals, dtype: np.dtype[Any]) -> Any:
    """Random bits: both words in 64, the low bits of their exclusive or in fewer."""
    return _fill(key, shape, intervals, dtype, _word(8 * dtype.itemsize))


def uniform(
    key: Pair, shape: Sequence[int], intervals: Intervals, dtype: np.dtype[Any], low: float = 0, high: float = 1
) -> Any:
    """Floats in [low, high): as many random bits as the mantissa has, of bits as wide as the dtype (bfloat16: 8)."""
    mantissa, width = MANTISSA[dtype], 8 * dtype.itemsize
    drawn = 8 if mantissa < 8 else width
    word, unsigned = _word(drawn), np.dtype(f"u{dtype.itemsize}")
    one = np.ones((), dtype)
    exponent, shift = one.view(unsigned), unsigned.type(drawn - mantissa)
    bottom, top = dtype.type(low), dtype.type(high)
    below = np.nextafter(top, bottom)

    def last(a: Any, b: Any) -> Any:
        u = ((word(a, b).astype(unsigned, copy=False) >> shift) | exponent).view(dtype) - one
        return u if (low, high) == (0, 1) else np.clip(u * (top - bottom) + bottom, bottom, below)

    return _fill(key, shape, intervals, dtype, last)


def randint(key: Pair, shape: Sequence[int], intervals: Intervals, dtype: np.dtype[Any], low: int, high: int) -> Any:
    """Integers in [low, high): the remainder of a number twice as wide as the dtype (or as 32 bits, if that is
    narrower), drawn with two keys."""
    if dtype.itemsize < 4:
        wide = np.dtype(f"{dtype.kind}4")
        return randint(key, shape, intervals, wide, low, high).astype(dtype)
    width = 8 * dtype.itemsize
    span = (high - low) % 2**width  # 0 stands for all numbers there are
    first, second = split(key, 2)
    unsigned = np.dtype(f"u{dtype.itemsize}")
    word, start = _word(width), np.array(low % 2**width, unsigned)
    over = np.array(span, unsigned)
    times = 2 ** (width // 2) % span if span else 2 ** (width // 2)
    fold_over = np.array((times * times % 2**width) % span if span else 0, unsigned)
    out = np.empty([sum(b - a for a, b in pieces) for pieces in intervals], unsigned)
    if not out.size:
        return out.view(dtype)
    for where, index in _tiles(shape, intervals):
        flat = index.reshape(-1)
        halves = (flat >> np.uint64(32)).astype(np.uint32), flat.astype(np.uint32)
        high_part, low_part = (word(*hash_counters(k, *(h.copy() for h in halves))) for k in (first, second))
        if span:
            low_part = (high_part % over * fold_over + low_part % over) % over
        out[where] = (low_part + start).reshape(index.shape)
    return out.view(dtype)


def bernoulli(key: Pair, shape: Sequence[int], intervals: Intervals, p: float) -> Any:
    """True where our float32 uniform of the element's 32 bits lies below float32(p)."""
    chance = np.float32(p)
    scale = np.float32(2**-24)
    return _fill(
        key,
        shape,
        intervals,
        np.dtype(np.bool_),
        lambda a, b: ((a ^ b) >> np.uint32(8)).astype(np.float32) * scale < chance,
    )
