"""The contract of random values, written a second time: slowly, in plain Python and NumPy, one element at a time.

Everything is exact. Only log, sin and cos are taken from the kernels, which test_scalar.py measures; products that
are fused with a sum go through fractions.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np

from spmdx import _kernels

F32, F64 = np.float32, np.float64
MASK = 2**32 - 1


def philox(counter: tuple[int, ...], key: tuple[int, ...]) -> tuple[int, ...]:
    c, (k0, k1) = list(counter), key
    for turn in range(10):
        if turn:
            k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k0, b & MASK, (a >> 32) ^ c[3] ^ k1, a & MASK]
    return tuple(c)


def block(words: tuple[int, ...], number: int) -> tuple[int, ...]:
    k0, k1, s0, s1 = words
    return philox((number & MASK, number >> 32, s0, s1), (k0, k1))


def lane(words: tuple[int, ...], i: int) -> int:
    """The 32-bit lane of a 32-bit element."""
    return block(words, i // 4)[i % 4]


def wide(words: tuple[int, ...], i: int) -> int:
    """The 64 bits of a 64-bit element."""
    four = block(words, i // 2)
    return four[2 * (i % 2)] | four[2 * (i % 2) + 1] << 32


def bits(words: Any, i: int, dtype: Any) -> Any:
    size = 8 * np.dtype(dtype).itemsize
    return np.dtype(dtype).type(wide(words, i) if size == 64 else lane(words, i) >> (32 - size))


def round_to(value: Fraction, dtype: Any, towards_zero: bool = False) -> Any:
    """The nearest float of a dtype, ties to even; or the next one towards zero."""
    digits, least = {2: (11, -24), 4: (24, -149), 8: (53, -1074)}[np.dtype(dtype).itemsize]
    if dtype == ml_dtypes.bfloat16:
        digits, least = 8, -133
    if not value:
        return np.dtype(dtype).type(0)
    exponent = 0
    while abs(value) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    while abs(value) < Fraction(2) ** exponent:
        exponent -= 1
    step = Fraction(2) ** max(exponent + 1 - digits, least)
    scaled = value / step
    whole = int(scaled) if towards_zero else round(scaled)  # round() is to even
    return np.dtype(dtype).type(float(whole * step))


def uniform(words: Any, i: int, dtype: Any, low: float = 0.0, high: float = 1.0) -> Any:
    real = F64 if np.dtype(dtype).itemsize == 8 else F32
    u = Fraction(wide(words, i) >> 11, 2**53) if real is F64 else Fraction(lane(words, i) >> 8, 2**24)
    bottom, top = np.dtype(dtype).type(low), np.dtype(dtype).type(high)
    span = real(top) - real(bottom)
    value = round_to(u * Fraction(float(span)) + Fraction(float(bottom)), real)
    result = round_to(Fraction(float(value)), dtype, towards_zero=True)
    return np.nextafter(top, bottom) if result >= top else result


def normal(words: Any, i: int, dtype: Any) -> Any:
    even = i - i % 2
    if np.dtype(dtype).itemsize == 8:
        x, angle = wide(words, even) >> 11, wide(words, even + 1) >> 11
        u = round_to(Fraction(2 * x + 1, 2**54), F64)
        radius = np.sqrt(-2.0 * F64(_kernels.log64(np.array([u]))[0, 0]))
        sin, cos = _kernels.sincos_turn64(np.array([angle], np.uint64))[:, 0]
        return radius * (sin if i % 2 else cos)
    x, angle = lane(words, even), lane(words, even + 1)
    rounded = round_to(Fraction(x), F32)
    u = round_to((2 * Fraction(float(rounded)) + 1) / 2**33, F32)
    radius = np.sqrt(F32(-2) * F32(_kernels.log(np.array([u], F32))[0, 0]))
    sin, cos = _kernels.sincos_turn(np.array([angle], np.uint32))[:, 0]
    return round_to(Fraction(float(radius * (sin if i % 2 else cos))), dtype)


def randint(words: Any, i: int, dtype: Any, low: int, high: int) -> Any:
    return np.dtype(dtype).type(low + (wide(words, i) * (high - low) >> 64))


def bernoulli(words: Any, i: int, p: float) -> bool:
    return bool(uniform(words, i, F32) < F32(p))


def indices(shape: Any, intervals: Any) -> list[int]:
    """The flat global indices of a block, in its own C order."""
    strides = [int(np.prod([int(n) for n in shape[d + 1 :]], dtype=object)) for d in range(len(shape))]
    per_dim = [[k for a, b in pieces for k in range(a, b)] for pieces in intervals]
    return [sum(k * s for k, s in zip(at, strides)) for at in product(*per_dim)]
