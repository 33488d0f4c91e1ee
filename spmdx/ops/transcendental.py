"""Roots, powers, exponentials, logarithms, trigonometric and hyperbolic functions, each with its gradient."""

from __future__ import annotations

import cmath
import math
from typing import Any

from spmdx.array import Array
from spmdx.errors import ArgumentError
from spmdx.ops.arithmetic import square, where
from spmdx.ops.compare import equal
from spmdx.ops.fit import fit
from spmdx.ops.pointwise import FLOATS, REAL_OR_BOOL, pointwise

# Roots and powers


@pointwise()
def sqrt(xp: Any, x: Any) -> Any:
    """Square root."""
    return xp.sqrt(x)


@pointwise(ufunc=None)
def pow(xp: Any, x: Any, y: Any) -> Any:
    """x to the power y."""
    if type(y) is int and y < 0 and xp.asarray(x).dtype.kind in "biu":  # also where the block is empty
        raise ArgumentError(f"integers to the power {y} are no integers.", f"x.astype(float) ** {y}")
    return xp.pow(x, y)


@pointwise(REAL_OR_BOOL)
def hypot(xp: Any, x: Any, y: Any) -> Any:
    """sqrt(x**2 + y**2), without overflow in between. Its gradient at 0 is 0."""
    return xp.hypot(x, y)


def _of_base(g: Array, out: Array, x: Array, y: Any) -> Any:
    if not isinstance(y, Array):
        return fit(g * (y * pow(x, y - 1)), x) if y != 0 else None
    return fit(g * where(equal(y, 0), 0, y * pow(x, where(equal(y, 0), 1, y - 1))), x)


def _of_exponent(g: Array, out: Array, x: Any, y: Array) -> Any:
    """log(x) * x**y, and 0 where x is 0."""
    if isinstance(x, Array):
        return fit(g * (out * log(where(equal(x, 0), 1, x))), y)
    if x == 0:
        return None
    if isinstance(x, complex) or y.dtype.kind == "c":
        return fit(g * (out * cmath.log(x)), y)
    return fit(g * (out * (math.log(x) if x > 0 else math.nan)), y)


sqrt.vjp(lambda g, out, x: g / (2 * out))
pow.vjp(_of_base, _of_exponent)
hypot.vjp(
    lambda g, out, x, y: fit(g * (x / where(equal(out, 0), 1, out)), x),
    lambda g, out, x, y: fit(g * (y / where(equal(out, 0), 1, out)), y),
)

# Exponentials and logarithms


@pointwise(monotone=1)
def exp(xp: Any, x: Any) -> Any:
    """e to the power x."""
    return xp.exp(x)


@pointwise(monotone=1)
def expm1(xp: Any, x: Any) -> Any:
    """exp(x) - 1, accurate near 0."""
    return xp.expm1(x)


@pointwise()
def log(xp: Any, x: Any) -> Any:
    """Natural logarithm."""
    return xp.log(x)


@pointwise()
def log1p(xp: Any, x: Any) -> Any:
    """log(1 + x), accurate near 0."""
    return xp.log1p(x)


@pointwise()
def log2(xp: Any, x: Any) -> Any:
    """Logarithm to base 2."""
    return xp.log2(x)


@pointwise()
def log10(xp: Any, x: Any) -> Any:
    """Logarithm to base 10."""
    return xp.log10(x)


@pointwise(REAL_OR_BOOL)
def logaddexp(xp: Any, x: Any, y: Any) -> Any:
    """log(exp(x) + exp(y)), without overflow in between."""
    return xp.logaddexp(x, y)


@pointwise(FLOATS, monotone=1)
def sigmoid(xp: Any, x: Any) -> Any:
    """1 / (1 + exp(-x)), without overflow in between."""
    small = xp.exp(-xp.abs(x))
    return xp.where(x >= 0, 1, small) / (1 + small)


def _share(x: Any, out: Array) -> Any:
    """exp(x - out), also where both are the same infinity."""
    return exp(where(equal(x, out), 0, x - out))


exp.vjp(lambda g, out, x: g * out)
expm1.vjp(lambda g, out, x: g * (out + 1))
log.vjp(lambda g, out, x: g / x)
log1p.vjp(lambda g, out, x: g / (1 + x))
log2.vjp(lambda g, out, x: g / (x * math.log(2)))
log10.vjp(lambda g, out, x: g / (x * math.log(10)))
logaddexp.vjp(lambda g, out, x, y: fit(g * _share(x, out), x), lambda g, out, x, y: fit(g * _share(y, out), y))
sigmoid.vjp(lambda g, out, x: g * (out * (1 - out)))

# Trigonometric functions and their inverses, in radians


@pointwise()
def sin(xp: Any, x: Any) -> Any:
    """Sine."""
    return xp.sin(x)


@pointwise()
def cos(xp: Any, x: Any) -> Any:
    """Cosine."""
    return xp.cos(x)


@pointwise()
def tan(xp: Any, x: Any) -> Any:
    """Tangent."""
    return xp.tan(x)


@pointwise()
def asin(xp: Any, x: Any) -> Any:
    """Inverse sine."""
    return xp.asin(x)


@pointwise()
def acos(xp: Any, x: Any) -> Any:
    """Inverse cosine."""
    return xp.acos(x)


@pointwise()
def atan(xp: Any, x: Any) -> Any:
    """Inverse tangent."""
    return xp.atan(x)


@pointwise(REAL_OR_BOOL)
def atan2(xp: Any, x: Any, y: Any) -> Any:
    """The angle of the point (y, x), in (-pi, pi]."""
    return xp.atan2(x, y)


def _circle(x: Array) -> Any:
    """sqrt(1 - x**2): in two roots it has the branch cuts of the inverses, and no loss near 1."""
    return sqrt(1 - x) * sqrt(1 + x)


sin.vjp(lambda g, out, x: g * cos(x))
cos.vjp(lambda g, out, x: -g * sin(x))
tan.vjp(lambda g, out, x: g * (1 + square(out)))
asin.vjp(lambda g, out, x: g / _circle(x))
acos.vjp(lambda g, out, x: -g / _circle(x))
atan.vjp(lambda g, out, x: g / (1 + square(x)))


def _radius_squared(x: Any, y: Any) -> Any:
    """x**2 + y**2; integers that are numbers would wrap."""
    return square(x if isinstance(x, Array) else float(x)) + square(y if isinstance(y, Array) else float(y))


atan2.vjp(
    lambda g, out, x, y: fit(g * (y / _radius_squared(x, y)), x),
    lambda g, out, x, y: fit(-g * (x / _radius_squared(x, y)), y),
)

# Hyperbolic functions and their inverses


@pointwise()
def sinh(xp: Any, x: Any) -> Any:
    """Hyperbolic sine."""
    return xp.sinh(x)


@pointwise()
def cosh(xp: Any, x: Any) -> Any:
    """Hyperbolic cosine."""
    return xp.cosh(x)


@pointwise()
def tanh(xp: Any, x: Any) -> Any:
    """Hyperbolic tangent."""
    return xp.tanh(x)


@pointwise()
def asinh(xp: Any, x: Any) -> Any:
    """Inverse hyperbolic sine."""
    return xp.asinh(x)


@pointwise()
def acosh(xp: Any, x: Any) -> Any:
    """Inverse hyperbolic cosine."""
    return xp.acosh(x)


@pointwise()
def atanh(xp: Any, x: Any) -> Any:
    """Inverse hyperbolic tangent."""
    return xp.atanh(x)


sinh.vjp(lambda g, out, x: g * cosh(x))
cosh.vjp(lambda g, out, x: g * sinh(x))
tanh.vjp(lambda g, out, x: g * (1 - square(out)))
asinh.vjp(lambda g, out, x: g / sqrt(1 + square(x)))
acosh.vjp(lambda g, out, x: g / (sqrt(x - 1) * sqrt(x + 1)))
atanh.vjp(lambda g, out, x: g / ((1 - x) * (1 + x)))
