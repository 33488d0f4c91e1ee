"""Continuous distributions with parameters of shape: functions of a standard draw, or of a stream an element.

Parameters are numbers, or arrays of any placement that broadcast to the shape; the bits are the same. gamma and what is
made of it draw from the element's own stream and are computed in float64, whatever the dtype, and rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spmdx.array import Array
from spmdx.errors import ArgumentError
from spmdx.mesh import Mesh
from spmdx.placement import Placement
from spmdx.random.fill import DOUBLE, Where, drawn, floating, parameter, target, words_of, working
from spmdx.random.key import Key, split
from spmdx.runtime.kernels import Intervals

__all__ = ["beta", "chisquare", "gamma", "lognormal", "pareto", "t", "truncated_normal", "weibull"]


def truncated_normal(
    key: Key,
    shape: Any,
    lower: Any = -2.0,
    upper: Any = 2.0,
    *,
    dtype: Any = np.float64,
    mesh: Mesh | None = None,
    placement: Placement | None = None,
    device: str | None = None,
) -> Array:
    """Standard normals confined to [lower, upper], by the inverse distribution function, computed in float64.

    Where both bounds lie beyond 38 on one side the distribution function is 0 there, and every value is the bound that
    is nearer to 0.
    """
    kind, words = floating(dtype, "truncated_normal"), words_of(key)

    def fill(on: Any, n: tuple[int, ...], i: Intervals, a: Any, b: Any) -> Any:
        if not (a < b).all():
            raise ArgumentError("truncated_normal needs lower < upper.", "lower=-2.0, upper=2.0")
        return on.truncated_normal(words, n, i, kind, a, b)

    given = [(lower, "lower", "number"), (upper, "upper", "number")]
    return _shaped("truncated_normal", fill, shape, kind, given, (mesh, placement, device), working(kind))


def lognormal(
    key: Key,
    shape: Any,
    mean: Any = 0.0,
    sigma: Any = 1.0,
    *,
    dtype: Any = np.float64,
    mesh: Mesh | None = None,
    placement: Placement | None = None,
    device: str | None = None,
) -> Array:
    """exp of normals with mean ``mean`` and standard deviation ``sigma``."""
    kind, words = floating(dtype, "lognormal"), words_of(key)
    inner = working(kind)

    def fill(on: Any, n: tuple[int, ...], i: Intervals, mean: Any, sigma: Any) -> Any:
        x = on.normal(words, n, i, inner)
        return _rounded(on.exp(mean.astype(inner) + sigma.astype(inner) * x), kind)

    given = [(mean, "mean", "finite"), (sigma, "sigma", "non-negative")]
    return _shaped("lognormal", fill, shape, kind, given, (mesh, placement, device), inner)


def weibull(
    key: Key,
    shape: Any,
    a: Any,
    scale: Any = 1.0,
    *,
    dtype: Any = np.float64,
    mesh: Mesh | None = None,
    placement: Placement | None = None,
    device: str | None = None,
) -> Array:
    """Weibull values of exponent ``a``: scale * E**(1 / a), E standard exponential."""
    kind, words = floating(dtype, "weibull"), words_of(key)
    inner = working(kind)

    def fill(on: Any, n: tuple[int, ...], i: Intervals, a: Any, scale: Any) -> Any:
        x = on.continuous("gumbel", words, n, i, inner)  # -log(E)
        return _rounded(scale.astype(inner) * on.exp(-x / a.astype(inner)), kind)

    given = [(a, "a", "positive"), (scale, "scale", "non-negative")]
    return _shaped("weibull", fill, shape, kind, given, (mesh, placement, device), inner)


def pareto(
    key: Key,
    shape: Any,
    b: Any,
    *,
    dtype: Any = np.float64,
    mesh: Mesh | None = None,
    placement: Placement | None = None,
    device: str | None = None,
) -> Array:
    """Pareto values from 1 up: density b / x**(b + 1). NumPy's ``pareto`` is this less 1."""
    kind, words = floating(dtype, "pareto"), words_of(key)
    inner = working(kind)

    def fill(on: Any, n: tuple[int, ...], i: Intervals, b: Any) -> Any:
        x = on.continuous("exponential", words, n, i, inner)
        return _rounded(on.exp(x / b.astype(inner)), kind)

    return _shaped("pareto", fill, shape, kind, [(b, "b", "positive")], (mesh, placement, device), inner)


def gamma(
    key: Key,
    shape: Any,
    alpha: Any,
    scale: Any = 1.0,
    *,
    dtype: Any = np.float64,
    mesh: Mesh | None = None,
    placement: Placement | None = None,
    device: str | None = None,
) -> Array:
    """Gamma values: density x**(alpha - 1) exp(-x / scale), by Marsaglia and Tsang (2000)."""
    kind, words = floating(dtype, "gamma"), words_of(key)

    def fill(on: Any, n: tuple[int, ...], i: Intervals, alpha: Any, scale: Any) -> Any:
        x = on.streams("gamma", words, n, i, alpha)
        if scale.ndim or scale != 1:
            x *= scale
        return _rounded(x, kind)

    given = [(alpha, "alpha", "non-negative"), (scale, "scale", "non-negative")]
    return _shaped("gamma", fill, shape, kind, given, (mesh, placement, device), DOUBLE)


def chisquare(
    key: Key,
    shape: Any,
    df: Any,
    *,
    dtype: Any = np.float64,
    mesh: Mesh | None = None,
    placement: Placement | None = None,
    device: str | None = None,
) -> Array:
    """The sum of ``df`` squared normals; df need not be whole."""
    kind, words = floating(dtype, "chisquare"), words_of(key)

    def fill(on: Any, n: tuple[int, ...], i: Intervals, df: Any) -> Any:
        x = on.streams("gamma", words, n, i, 0.5 * df)
        x *= 2.0
        return _rounded(x, kind)

    return _shaped("chisquare", fill, shape, kind, [(df, "df", "positive")], (mesh, placement, device), DOUBLE)


def beta(
    key: Key,
    shape: Any,
    a: Any,
    b: Any,
    *,
    dtype: Any = np.float64,
    mesh: Mesh | None = None,
    placement: Placement | None = None,
    device: str | None = None,
) -> Array:
    """Beta values in [0, 1]: density x**(a - 1) (1 - x)**(b - 1). Of two gamma values with the keys of ``split(key)``,
    by their logarithms, which do not underflow.
    """
    kind, (first, second) = floating(dtype, "beta"), split(key)

    def fill(on: Any, n: tuple[int, ...], i: Intervals, a: Any, b: Any) -> Any:
        x = on.streams("log_gamma", first.words, n, i, a)
        y = on.streams("log_gamma", second.words, n, i, b)
        return _rounded(1.0 / (1.0 + on.exp(y - x)), kind)

    given = [(a, "a", "positive"), (b, "b", "positive")]
    return _shaped("beta", fill, shape, kind, given, (mesh, placement, device), DOUBLE)


def t(
    key: Key,
    shape: Any,
    df: Any,
    *,
    dtype: Any = np.float64,
    mesh: Mesh | None = None,
    placement: Placement | None = None,
    device: str | None = None,
) -> Array:
    """Student's t with ``df`` degrees of freedom: a normal over the root of a gamma value, by the keys of a split."""
    kind, (first, second) = floating(dtype, "t"), split(key)

    def fill(on: Any, n: tuple[int, ...], i: Intervals, df: Any) -> Any:
        half = 0.5 * df
        x, g = on.normal(first.words, n, i, DOUBLE), on.streams("gamma", second.words, n, i, half)
        with np.errstate(divide="ignore"):
            return _rounded(x * on.xp.sqrt(half / g), kind)

    return _shaped("t", fill, shape, kind, [(df, "df", "positive")], (mesh, placement, device), DOUBLE)


def _shaped(
    name: str,
    fill: Any,
    shape: Any,
    kind: np.dtype[Any],
    given: Sequence[tuple[Any, str, str]],
    where: Where,
    inner: np.dtype[Any],
) -> Array:
    """The array of blocks that ``fill`` makes, with the parameters checked in ``inner`` and brought to the blocks."""
    ready = [(parameter(value, word, condition, inner, where[0]), word, condition) for value, word, condition in given]
    return drawn(target(shape, kind, [value for value, _, _ in ready], where, name), fill, ready)


def _rounded(block: Any, kind: np.dtype[Any]) -> Any:
    with np.errstate(over="ignore"):
        if kind.itemsize == 2 and block.dtype == DOUBLE:
            block = block.astype(np.float32)
        return block.astype(kind, copy=False)
