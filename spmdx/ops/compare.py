"""Comparisons, logic, bits and tests of floats. None has a gradient: the outputs are bools or integers."""

from __future__ import annotations

from typing import Any

from spmdx.ops.pointwise import BITS, INTEGERS, REAL_OR_BOOL, pointwise


@pointwise()
def equal(xp: Any, x: Any, y: Any) -> Any:
    """x == y."""
    return xp.equal(x, y)


@pointwise()
def not_equal(xp: Any, x: Any, y: Any) -> Any:
    """x != y."""
    return xp.not_equal(x, y)


@pointwise(REAL_OR_BOOL)
def less(xp: Any, x: Any, y: Any) -> Any:
    """x < y."""
    return xp.less(x, y)


@pointwise(REAL_OR_BOOL)
def less_equal(xp: Any, x: Any, y: Any) -> Any:
    """x <= y."""
    return xp.less_equal(x, y)


@pointwise(REAL_OR_BOOL)
def greater(xp: Any, x: Any, y: Any) -> Any:
    """x > y."""
    return xp.greater(x, y)


@pointwise(REAL_OR_BOOL)
def greater_equal(xp: Any, x: Any, y: Any) -> Any:
    """x >= y."""
    return xp.greater_equal(x, y)


@pointwise()
def logical_and(xp: Any, x: Any, y: Any) -> Any:
    """True where both are true (not 0)."""
    return xp.logical_and(x, y)


@pointwise()
def logical_or(xp: Any, x: Any, y: Any) -> Any:
    """True where either is true (not 0)."""
    return xp.logical_or(x, y)


@pointwise()
def logical_xor(xp: Any, x: Any, y: Any) -> Any:
    """True where exactly one is true (not 0)."""
    return xp.logical_xor(x, y)


@pointwise()
def logical_not(xp: Any, x: Any) -> Any:
    """True where x is false (0)."""
    return xp.logical_not(x)


@pointwise(BITS)
def bitwise_and(xp: Any, x: Any, y: Any) -> Any:
    """x & y."""
    return xp.bitwise_and(x, y)


@pointwise(BITS)
def bitwise_or(xp: Any, x: Any, y: Any) -> Any:
    """x | y."""
    return xp.bitwise_or(x, y)


@pointwise(BITS)
def bitwise_xor(xp: Any, x: Any, y: Any) -> Any:
    """x ^ y."""
    return xp.bitwise_xor(x, y)


@pointwise(BITS)
def bitwise_invert(xp: Any, x: Any) -> Any:
    """~x: of bools, not."""
    return xp.bitwise_invert(x)


@pointwise(INTEGERS)
def bitwise_left_shift(xp: Any, x: Any, y: Any) -> Any:
    """x << y."""
    return xp.bitwise_left_shift(x, y)


@pointwise(INTEGERS)
def bitwise_right_shift(xp: Any, x: Any, y: Any) -> Any:
    """x >> y; the sign of x is kept."""
    return xp.bitwise_right_shift(x, y)


@pointwise()
def isfinite(xp: Any, x: Any) -> Any:
    """True where x is neither infinite nor NaN."""
    return xp.isfinite(x)


@pointwise()
def isinf(xp: Any, x: Any) -> Any:
    """True where x is an infinity."""
    return xp.isinf(x)


@pointwise()
def isnan(xp: Any, x: Any) -> Any:
    """True where x is NaN."""
    return xp.isnan(x)


@pointwise(REAL_OR_BOOL)
def signbit(xp: Any, x: Any) -> Any:
    """True where the sign bit is set: of negative numbers, and of -0.0."""
    return xp.signbit(x)


__all__ = [
    "bitwise_and",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "equal",
    "greater",
    "greater_equal",
    "isfinite",
    "isinf",
    "isnan",
    "less",
    "less_equal",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "not_equal",
    "signbit",
]
