"""Close: exp within 0.75 ulp; the special functions of distributions within the bounds stated, against mpmath."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
from test_scalar import LONG, needs_long_double, ulps

from spmdx.runtime import kernels

RANDOM = np.random.default_rng(3)
LEAST, MOST = -87.33, 88.72  # exp of these is normal and finite in float32


def exp32_error(bits: Any) -> float:
    x = bits.view(np.float32)
    x = x[(x > LEAST) & (x < MOST)]
    return ulps(kernels.exp(x), np.exp(x.astype(np.float64)), 24) if x.size else 0.0


@pytest.mark.parametrize("name", kernels.instruction_sets())
def test_exp32(name: str) -> None:
    kernels.set_instruction_set(name)
    assert exp32_error(np.arange(0, 2**32, 8209, dtype=np.uint64).astype(np.uint32)) < 0.75


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_exp32_everywhere() -> None:
    """Every float32 whose exp is normal."""
    for sign in (0, 2**31):
        top = int(np.float32(MOST).view(np.uint32))
        for a in range(0, top, 2**22):
            assert exp32_error(np.arange(sign + a, sign + min(a + 2**22, top), dtype=np.uint32)) < 0.75


@needs_long_double
@pytest.mark.parametrize("name", kernels.instruction_sets())
def test_exp64(name: str) -> None:
    kernels.set_instruction_set(name)
    for x in (RANDOM.uniform(-708, 709, 50_000), RANDOM.uniform(-1, 1, 50_000), 2.0 ** RANDOM.uniform(-60, 0, 20_000)):
        assert ulps(kernels.exp(x), np.exp(x.astype(LONG)), 53) < 0.75


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_exp_ends(dtype: Any) -> None:
    """0 and infinity where they belong, NaN kept, subnormals within a step."""
    x = np.array([0.0, -0.0, np.inf, -np.inf, 1000.0, -1000.0, np.nan], dtype)
    assert np.array_equal(kernels.exp(x), np.array([1, 1, np.inf, 0, np.inf, 0, np.nan], dtype), equal_nan=True)
    low = np.linspace(-103.5, -87.4, 1000) if dtype is np.float32 else np.linspace(-744.9, -708.5, 1000)
    true = np.exp(low.astype(dtype).astype(LONG))
    assert np.all(np.abs(kernels.exp(low.astype(dtype)) - true) <= np.finfo(dtype).smallest_subnormal)


def relative(name: str, true: Callable[..., Any], *columns: Any) -> float:
    got = kernels.apply(name, *(np.ascontiguousarray(c, np.float64) for c in columns))
    with mpmath.workprec(160):
        wanted = [true(*(mpmath.mpf(float(v)) for v in row)) for row in zip(*columns)]
        return float(
            max(abs(mpmath.mpf(float(g)) - w) / max(abs(w), mpmath.mpf("1e-300")) for g, w in zip(got, wanted))
        )


def test_log1p() -> None:
    x = np.concatenate(
        [RANDOM.uniform(-0.99, 9, 300), 10.0 ** RANDOM.uniform(-300, 0, 200) * RANDOM.choice([-1, 1], 200)]
    )
    assert relative("log1p", mpmath.log1p, x[x > -0.999]) < 4e-16


def test_ndtr() -> None:
    assert relative("ndtr", mpmath.ncdf, RANDOM.uniform(-37, 8, 500)) < 1e-15
    assert relative("ndtr", mpmath.ncdf, RANDOM.uniform(-2, 2, 500)) < 6e-16
    assert np.array_equal(kernels.apply("ndtr", np.array([-np.inf, -50.0, 0.0, 50.0, np.inf])), [0, 0, 0.5, 1, 1])


def test_ndtri() -> None:
    """The distribution function of the result is p again, as far as the result's rounding lets it."""
    p = np.concatenate([10.0 ** RANDOM.uniform(-300, -0.31, 300), RANDOM.uniform(0.01, 0.99, 300)])
    x = kernels.apply("ndtri", p)
    with mpmath.workprec(160):
        for a, b in zip(x, p):
            slope = mpmath.npdf(float(a)) / mpmath.ncdf(float(a))
            error = (mpmath.ncdf(float(a)) / mpmath.mpf(float(b)) - 1) / slope  # of x, absolute
            assert abs(error) < 1e-15 * max(abs(a), 1)


def test_probabilities() -> None:
    """Logarithms of Poisson's and the binomial's: without cancellation, also far from the mean."""

    def poisson(k: Any, mean: Any) -> Any:
        return k * mpmath.log(mean) - mean - mpmath.loggamma(k + 1)

    def binomial(k: Any, n: Any, p: Any) -> Any:
        rest = mpmath.loggamma(n + 1) - mpmath.loggamma(k + 1) - mpmath.loggamma(n - k + 1)
        return rest + k * mpmath.log(p) + (n - k) * mpmath.log1p(-p)

    k = np.array([0, 1, 7, 15, 16, 40, 1000, 990, 123_456, 10**15], float)
    mean = np.array([3, 3, 9.5, 16, 12, 200, 1000, 1010.5, 123_000, 10**15], float)
    assert relative("log_poisson", poisson, k, mean) < 1e-14
    n = np.array([5, 9, 40, 15, 100, 1000, 1000, 4000, 10**6, 10**15], float)
    p = np.array([0.1, 0.3, 0.2, 0.4, 0.3, 0.05, 0.999, 0.25, 0.123, 0.9], float)
    ks = np.array([0, 9, 7, 3, 31, 40, 1000, 990, 123_456, 9 * 10**14], float)
    assert relative("log_binomial", binomial, ks, n, p) < 1e-14


def test_functions_agree() -> None:
    """Exact: every function of arrays has the same bits from every build and number of threads."""
    n = 200_003
    u, count = RANDOM.uniform(0.001, 1, n), RANDOM.integers(0, 50, n).astype(float)
    low, high = RANDOM.uniform(-9, 8, n), RANDOM.uniform(8, 9, n)
    bits = RANDOM.integers(0, 2**64, n, np.uint64)
    calls: dict[str, tuple[Any, ...]] = {
        "exp32": (low.astype(np.float32),),
        "exp64": (low,),
        "log64": (u,),
        "log1p": (-u / 2,),
        "ndtr": (low,),
        "ndtri": (u * 0.99,),
        "between32": tuple(v.astype(np.float32) for v in (u, low, high - low, high)),
        "between64": (u, low, high - low, high),
        "truncated": (u, low, high),
        "multiply_high": (bits, bits[::-1].copy()),
        "log_poisson": (count, high),
        "log_binomial": (count, np.array(50.0), u / 2),
    }
    kernels.set_threads(1)
    want = {name: kernels.apply(name, *operands).tobytes() for name, operands in calls.items()}
    for build in kernels.instruction_sets():
        for threads in (1, 3):
            kernels.set_instruction_set(build)
            kernels.set_threads(threads)
            for name, operands in calls.items():
                assert kernels.apply(name, *operands).tobytes() == want[name], (name, build, threads)


def test_map_refuses() -> None:
    fill = kernels._kernels.map
    out = np.empty(4)
    for arguments, message in (
        (("sinh", [out]), "sinh"),
        (("exp64", [np.empty(3)]), "4 elements"),
        (("exp64", [np.empty(4, np.float32)]), "8 bytes"),
        (("truncated", [out, out]), "3 operands"),
    ):
        with pytest.raises(ValueError, match=message):
            fill(out, *arguments)
