"""Close: log, sin and cos within 0.75 ulp, normals within 4 ulp of the true value, against higher precision.

The reference is float64 for float32 and the platform's long double for float64. The slow tests run over every float32
that a normal can meet, and over every angle.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import mpmath
import numpy as np
import philox_oracle as oracle
import pytest

from spmdx import _kernels
from spmdx.runtime import kernels

BOUND = 0.75
LONG = np.longdouble
PRECISE = np.finfo(LONG).nmant >= 63
needs_long_double = pytest.mark.skipif(not PRECISE, reason="long double is no wider than double here")


def ulps(got: Any, true: Any, digits: int) -> float:
    """The largest error, in units of the last place of the true value."""
    nonzero = true != 0
    assert not np.any(got[~nonzero])
    _, exponent = np.frexp(np.abs(true[nonzero]))
    return float(
        np.max(
            np.abs(got[nonzero].astype(true.dtype) - true[nonzero]) / np.ldexp(true.dtype.type(1), exponent - digits)
        )
    )


def log32_error(bits: Any) -> float:
    x = bits.view(np.float32)
    return ulps(_kernels.log(x)[0], np.log(x.astype(np.float64)), 24)


def true_sincos(rest: Any, quadrant: Any, turn: Any) -> Any:
    """sin and cos of `rest` steps, `turn` of them a whole turn, moved by quarters."""
    real = type(turn)
    theta = rest.astype(real) * (8 * np.arctan(real(1)) / turn)
    sin, cos = np.sin(theta), np.cos(theta)
    return np.stack([np.choose(quadrant, [sin, cos, -sin, -cos]), np.choose(quadrant, [cos, -sin, -cos, sin])])


def sincos32_error(angle: Any) -> float:
    a = angle.astype(np.int64)
    quadrant = (a + 2**29) >> 30
    return ulps(_kernels.sincos_turn(angle), true_sincos(a - (quadrant << 30), quadrant & 3, np.float64(2**32)), 24)


def sincos64_error(angle: Any) -> float:
    a = angle.astype(np.int64)
    quadrant = (a + 2**50) >> 51
    return ulps(_kernels.sincos_turn64(angle), true_sincos(a - (quadrant << 51), quadrant & 3, LONG(2**53)), 53)


def float_bits(low: float, high: float) -> Any:
    return np.array([low, high], np.float32).view(np.uint32).tolist()


@pytest.mark.parametrize("name", kernels.instruction_sets())
def test_log32(name: str) -> None:
    kernels.set_instruction_set(name)
    start, stop = float_bits(np.finfo(np.float32).tiny, np.finfo(np.float32).max)
    assert log32_error(np.arange(start, stop, 4099, dtype=np.uint32)) < BOUND
    start, stop = float_bits(0.5, 2.0)
    assert log32_error(np.arange(start, stop, 31, dtype=np.uint32)) < BOUND


def test_log_of_one_is_zero() -> None:
    assert _kernels.log(np.ones(1, np.float32)).tobytes() == bytes(4)
    assert _kernels.log64(np.ones(1)).tobytes() == bytes(8)


@needs_long_double
@pytest.mark.parametrize("name", kernels.instruction_sets())
def test_log64(name: str) -> None:
    kernels.set_instruction_set(name)
    random = np.random.default_rng(1)
    for x in (
        np.exp(random.uniform(-708, 708, 30_000)),
        random.uniform(0.5, 2.0, 100_000),
        1 - random.uniform(0, 1, 30_000) * 2.0 ** -random.integers(1, 50, 30_000),
    ):
        assert ulps(_kernels.log64(x)[0], np.log(x.astype(LONG)), 53) < BOUND


@pytest.mark.parametrize("name", kernels.instruction_sets())
def test_sincos32(name: str) -> None:
    kernels.set_instruction_set(name)
    assert sincos32_error(np.arange(0, 2**32, 16411, dtype=np.uint64).astype(np.uint32)) < BOUND
    corners = np.arange(8, dtype=np.uint64) * 2**29
    near = np.arange(-300, 300)
    assert sincos32_error((corners[:, None] + near.astype(np.uint64)).astype(np.uint32).reshape(-1)) < BOUND


@needs_long_double
@pytest.mark.parametrize("name", kernels.instruction_sets())
def test_sincos64(name: str) -> None:
    kernels.set_instruction_set(name)
    assert sincos64_error(np.random.default_rng(2).integers(0, 2**53, 100_000).astype(np.uint64)) < BOUND
    corners = np.arange(8)[:, None] * 2**50 + np.arange(-300, 300)
    assert sincos64_error((corners.reshape(-1) % 2**53).astype(np.uint64)) < BOUND


def test_quarter_turns_are_exact() -> None:
    quarters = np.arange(4, dtype=np.uint64)
    want = np.array([[0, 1, 0, -1], [1, 0, -1, 0]])
    assert np.array_equal(_kernels.sincos_turn((quarters << 30).astype(np.uint32)), want)
    assert np.array_equal(_kernels.sincos_turn64(quarters << 51), want)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_normal_is_within_4_ulp(dtype: Any) -> None:
    """Of sqrt(-2 log u) cos(angle), at the u and the angle that the contract gives."""
    words, count = (3, 5, 8, 13), 400
    got = kernels.normal(words, (count,), [[(0, count)]], np.dtype(dtype))
    wide = dtype is np.float64
    with mpmath.workprec(200):
        for i in range(count):
            pair = [oracle.wide(words, k) >> 11 if wide else oracle.lane(words, k) for k in (i - i % 2, i - i % 2 + 1)]
            x = oracle.round_to(oracle.Fraction(pair[0]), dtype)
            unit = 53 if wide else 32
            u = oracle.round_to((2 * oracle.Fraction(float(x)) + 1) / 2 ** (unit + 1), dtype)
            angle = 2 * mpmath.pi * pair[1] / mpmath.mpf(2) ** unit
            true = mpmath.sqrt(-2 * mpmath.log(mpmath.mpf(float(u)))) * (mpmath.sin if i % 2 else mpmath.cos)(angle)
            ulp = mpmath.mpf(2) ** (mpmath.frexp(true)[1] - (53 if wide else 24))
            assert abs(mpmath.mpf(float(got[i])) - true) < 4 * ulp


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_moments(dtype: Any) -> None:
    """A guard against gross errors: mean, variance, kurtosis and tail of 10**6 normals, and of uniforms."""
    n = 10**6
    x = kernels.normal((1, 2, 3, 4), (n,), [[(0, n)]], np.dtype(dtype)).astype(np.float64)
    assert abs(x.mean()) < 0.005
    assert abs(x.var() - 1) < 0.01
    assert abs((x**4).mean() - 3) < 0.05
    assert abs((np.abs(x) > 3).mean() - 0.0027) < 0.0004
    u = kernels.uniform((1, 2, 3, 4), (n,), [[(0, n)]], np.dtype(dtype)).astype(np.float64)
    assert u.min() >= 0
    assert u.max() < 1
    assert abs(u.mean() - 0.5) < 0.005
    assert abs(u.var() - 1 / 12) < 0.001


def test_tail() -> None:
    """The largest normals are where the smallest u are: 6.76 in float32."""
    u = np.array([2.0**-33], np.float32)
    assert round(float(np.sqrt(-2 * _kernels.log(u)[0, 0])), 2) == 6.76


@pytest.mark.slow
def test_log32_everywhere() -> None:
    """Every float32 in [2**-34, 2]."""
    start, stop = float_bits(2.0**-34, 2.0)
    worst = max(log32_error(np.arange(a, min(a + 2**22, stop), dtype=np.uint32)) for a in range(start, stop, 2**22))
    assert worst < BOUND


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_sincos32_everywhere() -> None:
    """Every angle up to an eighth of a turn; the others are these, mirrored and turned by quarters, exactly."""
    for a in range(0, 2**29, 2**16):
        angle = np.arange(a, a + 2**16, dtype=np.uint32)
        theta = angle * (2 * np.pi / 2**32)
        got = _kernels.sincos_turn(angle)
        assert ulps(got, np.stack([np.sin(theta), np.cos(theta)]), 24) < BOUND
        sin, cos = _kernels.sincos_turn(np.uint32(0) - angle)
        assert np.array_equal(sin, -got[0])
        assert np.array_equal(cos, got[1])
