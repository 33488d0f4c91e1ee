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


# Distributions by their inverse distribution functions


def log(x: Any) -> Any:
    return (_kernels.log64 if x.dtype == F64 else _kernels.log)(np.array([x]))[0, 0]


def sincos(words: Any, i: int, dtype: Any, mask: int = 0) -> Any:
    """Of the angle that a 64-bit or 32-bit element is."""
    if np.dtype(dtype).itemsize == 8:
        return _kernels.sincos_turn64(np.array([wide(words, i) >> 11 | mask], np.uint64))[:, 0]
    return _kernels.sincos_turn(np.array([lane(words, i) | mask], np.uint32))[:, 0]


def radius_unit(x: int, dtype: Any) -> Any:
    """(x + 1/2) / 2**32, of 64 bits (x // 2**11 + 1/2) / 2**53, in the dtype."""
    if dtype == F64:
        return round_to(Fraction(2 * (x >> 11) + 1, 2**54), F64)
    return round_to((2 * Fraction(float(round_to(Fraction(x), F32))) + 1) / 2**33, F32)


def point(words: Any, i: int, dtype: Any) -> tuple[Any, bool]:
    """The distance to the nearer end of the unit interval, and whether that is the upper one."""
    x, size = (wide(words, i), 64) if dtype == F64 else (lane(words, i), 32)
    upper = x >> (size - 1) == 1
    return radius_unit(x ^ (2**size - 1) if upper else x, dtype), upper


def unit_exponential(words: Any, i: int, real: Any) -> Any:
    v, upper = point(words, i, real)
    if upper:
        return real(0) - log(v)
    rest = real(1) - v
    return (v - (real(1) - rest)) / rest - log(rest)


def continuous(words: Any, i: int, name: str, dtype: Any) -> Any:
    real = F64 if np.dtype(dtype).itemsize == 8 else F32
    v, upper = point(words, i, real)
    if name == "cauchy":
        sin, cos = sincos(words, i, real, 1)
        value = sin / cos
    elif name == "laplace":
        value = (-1 if upper else 1) * log(real(2) * v)
    elif name == "logistic":
        value = (1 if upper else -1) * log((real(1) - v) / v)
    else:
        value = unit_exponential(words, i, real)
        if name == "gumbel":
            value = real(0) - log(value)
        elif name == "rayleigh":
            value = np.sqrt(real(2) * value)
    with np.errstate(over="ignore"):
        return value.astype(dtype)


def complex_normal(words: Any, i: int, dtype: Any) -> Any:
    """Both coordinates of one point: complex64 of the element's two lanes, complex128 of one block."""
    if np.dtype(dtype).itemsize == 8:
        real, (x, _), (sin, cos) = F32, divmod_lanes(words, i), sincos(words, 2 * i + 1, F32)
    else:
        real, x, (sin, cos) = F64, wide(words, 2 * i), sincos(words, 2 * i + 1, F64)
    radius = np.sqrt(real(0) - log(radius_unit(x, real)))
    return np.array([radius * cos, radius * sin], real).view(dtype)[0]


def divmod_lanes(words: Any, i: int) -> tuple[int, int]:
    return lane(words, 2 * i), lane(words, 2 * i + 1)


def apply(name: str, *values: Any) -> Any:
    """A function of one element, from the kernels; test_special.py measures them."""
    out = np.empty(1)
    _kernels.map(out, name, [np.array([v], F64) for v in values])
    return out[0]


def truncated_normal(words: Any, i: int, dtype: Any, low: float, high: float) -> Any:
    double = np.dtype(dtype).itemsize == 8
    u = radius_unit(wide(words, i), F64) if double else F64(2 * lane(words, i) + 1) / 2**33
    with np.errstate(over="ignore"):
        inner = apply("truncated", u, low, high)
        return (inner if double else F32(inner)).astype(dtype)


# Distributions with a stream for each element


def stream(words: Any, i: int) -> tuple[int, ...]:
    """fold_in(fold_in(key, 2**63 + 1), i)."""
    for number in (2**63 + 1, i):
        k0, k1, s0, s1 = words
        words = philox((number & MASK, number >> 32, s0 ^ MASK, s1 ^ MASK), (k0, k1))
    return tuple(words)


def gamma(words: Any, i: int, alpha: float) -> Any:
    own, a = stream(words, i), F64(alpha if alpha >= 1 else alpha + 1)
    d = a - F64(1) / 3
    c = F64(1) / np.sqrt(9 * d)
    attempt = 0
    while True:
        four = block(own, attempt)
        attempt += 1
        radius = np.sqrt(-2 * log(radius_unit(four[0] | four[1] << 32, F64)))
        angle = np.array([four[2] << 21], np.uint64)
        x = radius * _kernels.sincos_turn64(angle)[1, 0]
        t = round_to(Fraction(float(c)) * Fraction(float(x)) + 1, F64)
        if t <= 0:
            continue
        v, u = t * t * t, F64(2 * four[3] + 1) / 2**33
        if u < 1 - F64(0.0331) * (x * x * (x * x)) or log(u) < F64(0.5) * (x * x) + d * (1 - v + log(v)):
            break
    if alpha >= 1:
        return d * v
    far = block(own, 2**63)
    return d * v * apply("exp64", log(radius_unit(far[0] | far[1] << 32, F64)) / F64(alpha))


def poisson(words: Any, i: int, mean: float) -> Any:
    """Below a mean of 10: the least k at which the distribution function is u or more."""
    four = block(stream(words, i), 0)
    rest, p, k = radius_unit(four[0] | four[1] << 32, F64), apply("exp64", -mean), 0
    while rest > p:
        rest -= p
        k += 1
        p *= F64(mean) / k
    return F64(k)
