"""Elementwise operations, selection and casts: examples for the law suite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from case import Case, values

from spmdx.ops import arithmetic, compare, transcendental

BFLOAT16 = ml_dtypes.bfloat16
CLOSE = 1e-14  # the last bits of functions that NumPy computes differently in the middle and at the end of a block


def _function(name: str) -> Callable[..., Any]:
    return next(getattr(m, name) for m in (arithmetic, compare, transcendental) if hasattr(m, name))


def _case(name: str, *inputs: Any, close: float = 0.0, grad: tuple[int, ...] = ()) -> Case:
    """An operation that has NumPy's name."""
    return Case(name, _function(name), getattr(np, name), inputs, close, grad)


def _in_float32(function: Callable[..., Any]) -> Callable[..., Any]:
    """The oracle of bfloat16: NumPy in float32, rounded once."""

    def oracle(*inputs: Any) -> Any:
        return np.asarray(function(*(x.astype(BFLOAT16).astype(np.float32) for x in inputs))).astype(BFLOAT16)

    return oracle


def _bfloat16(name: str, *inputs: Any) -> Case:
    return Case(name, _function(name), _in_float32(getattr(np, name)), inputs)


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


A, B = values(5, 7), values(5, 7, seed=1)
ROW, COLUMN, ONE = values(7, seed=2), values(5, 1, seed=3), values(1, 1, seed=4)
SMALL, SMALL_B = values(2, 5), values(2, 5, seed=1)
WHOLE, WHOLE_B = values(5, 3, kind="integer", dtype="int32"), values(5, 3, kind="integer", dtype="int32", seed=1)
BOOL, BOOL_B = values(5, 3, kind="bool"), values(5, 3, kind="bool", seed=1)
TIED = np.minimum(SMALL, SMALL_B)  # equal to one of them everywhere
POSITIVE, UNIT = values(2, 5, kind="positive"), values(2, 5, kind="unit")
COMPLEX, COMPLEX_B = values(2, 5, dtype="complex128"), values(2, 5, dtype="complex128", seed=1)
SPECIAL, SPECIAL_B = values(3, 5, kind="special"), values(3, 5, kind="special", seed=1)
EMPTY = values(0, 3)
HALF, HALF_B = values(3, 5, dtype="float16"), values(3, 5, dtype="float16", seed=1)
BRAIN = values(3, 5).astype(BFLOAT16)
BRAIN_B = values(5, seed=1).astype(BFLOAT16)

ARITHMETIC = [
    _case("add", A, B, grad=(0, 1)),
    _case("add", A, ROW, grad=(0, 1)),
    _case("add", COLUMN, ROW, grad=(0, 1)),
    _case("add", A, ONE, grad=(1,)),
    _case("add", EMPTY, values(1, 3), grad=(0, 1)),
    _case("add", values(), values(3, seed=1), grad=(0, 1)),
    _case("add", WHOLE, values(3, kind="integer", dtype="int8")),
    _case("add", BOOL, BOOL_B),
    _case("add", HALF, SMALL[0].astype(np.float32)),
    _case("add", HALF, HALF_B),
    _bfloat16("add", BRAIN, BRAIN_B),
    _bfloat16("add", BRAIN, values(5, kind="integer", dtype="int64")),
    _case("subtract", A, ROW, grad=(0, 1)),
    _case("subtract", WHOLE, WHOLE_B),
    _case("multiply", A, COLUMN, grad=(0, 1)),
    _case("multiply", EMPTY, EMPTY, grad=(0, 1)),
    _case("multiply", COMPLEX, SMALL, close=CLOSE, grad=(0, 1)),
    _case("multiply", WHOLE, BOOL[0]),
    _case("multiply", BOOL, BOOL_B),
    _bfloat16("multiply", BRAIN, BRAIN_B),
    _case("divide", A, ROW, grad=(0, 1)),
    _case("divide", COMPLEX, COMPLEX_B, close=CLOSE, grad=(0, 1)),
    _case("divide", WHOLE, values(5, 1, kind="natural", dtype="int32") + 1),
    _case("floor_divide", A, ROW, grad=(0, 1)),
    _case("floor_divide", WHOLE, values(3, kind="natural", dtype="int32") + 1),
    _case("remainder", A, ROW, grad=(0, 1)),
    _bfloat16("remainder", BRAIN, BRAIN_B),
    _case("negative", A, grad=(0,)),
    _case("negative", WHOLE),
    _case("positive", A, grad=(0,)),
    _case("square", A, grad=(0,)),
    _case("square", COMPLEX, close=CLOSE, grad=(0,)),
    _case("reciprocal", A, grad=(0,)),
    _case("reciprocal", COMPLEX, close=CLOSE, grad=(0,)),
]

ROUNDING = [
    *(_case(name, A, grad=(0,)) for name in ("floor", "ceil", "trunc", "round")),
    *(_case(name, SPECIAL) for name in ("floor", "ceil", "trunc", "round")),
    *(_case(name, WHOLE) for name in ("floor", "round")),
    Case("round", lambda x: arithmetic.round(x, 1), lambda x: np.round(x, 1), (A,)),
    _bfloat16("floor", BRAIN),
]

PARTS = [
    _case("abs", A, grad=(0,)),
    _case("abs", COMPLEX, close=CLOSE, grad=(0,)),
    _case("abs", values(1)),
    _case("sign", SPECIAL),
    _case("sign", A, grad=(0,)),
    _case("sign", COMPLEX, close=CLOSE, grad=(0,)),
    _case("copysign", A, ROW, grad=(0, 1)),
    _case("nextafter", SMALL, SMALL_B, grad=(0, 1)),
    _case("nextafter", BRAIN, BRAIN_B),
    _case("conj", COMPLEX, grad=(0,)),
    _case("conj", A, grad=(0,)),
    _case("real", COMPLEX, grad=(0,)),
    _case("imag", COMPLEX, grad=(0,)),
    _case("imag", SMALL, grad=(0,)),
]


def _cast(x: Any, dtype: Any, grad: tuple[int, ...] = ()) -> Case:
    return Case("cast", lambda x: arithmetic.astype(x, dtype), lambda x: x.astype(dtype), (x,), grad=grad)


SELECTION = [
    _cast(A, "float32"),
    _cast(A.astype("float32"), "float64"),
    _cast(A, "complex128", grad=(0,)),
    _cast(A, "int16"),
    _cast(WHOLE, "int64"),
    _cast(WHOLE, "float64"),
    _cast(WHOLE, "bool"),
    _cast(BOOL, "int8"),
    _cast(BRAIN, "float32"),
    _cast(SMALL.astype("float32"), BFLOAT16),
    _case("where", A > 0, A, B, grad=(1, 2)),
    _case("where", COLUMN > 0, ROW, A, grad=(1, 2)),
    _case("where", BOOL, WHOLE, values(3, dtype="float32")),
    _case("where", EMPTY > 0, EMPTY, values(3), grad=(1, 2)),
    Case("where", lambda c, x: arithmetic.where(c, x, 0), lambda c, x: np.where(c, x, 0), (A > 0, A), grad=(1,)),
    _case("maximum", A, ROW, grad=(0, 1)),
    _case("maximum", SPECIAL, SPECIAL_B),
    _case("maximum", WHOLE, WHOLE_B),
    _case("maximum", SMALL, TIED, grad=(0, 1)),
    _case("minimum", A, ROW, grad=(0, 1)),
    _case("minimum", SMALL, TIED, grad=(0, 1)),
    _bfloat16("minimum", BRAIN, BRAIN_B),
    Case("minimum", lambda x: arithmetic.clip(x, -1, 1.5), lambda x: np.clip(x, -1, 1.5), (A,), grad=(0,)),
    Case("relu", arithmetic.relu, lambda x: np.maximum(x, 0), (A,), grad=(0,)),
]

COMPARISON = [
    *(_case(name, TIED, SMALL) for name in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")),
    *(_case(name, SPECIAL, SPECIAL_B[0]) for name in ("equal", "less")),
    _case("equal", COMPLEX, COMPLEX[0]),
    _case("less", WHOLE, values(5, 1, kind="natural", dtype="uint8")),
    *(_case(name, BOOL, BOOL_B) for name in ("logical_and", "logical_or", "logical_xor")),
    _case("logical_and", A, BOOL[:, :1]),
    _case("logical_not", BOOL),
    _case("logical_not", SPECIAL),
    *(_case(name, BOOL, BOOL_B) for name in ("bitwise_and", "bitwise_or", "bitwise_xor")),
    *(_case(name, WHOLE, WHOLE_B[0]) for name in ("bitwise_and", "bitwise_or", "bitwise_xor")),
    _case("bitwise_invert", WHOLE),
    _case("bitwise_invert", BOOL),
    *(
        _case(name, WHOLE, values(3, kind="natural", dtype="int32"))
        for name in ("bitwise_left_shift", "bitwise_right_shift")
    ),
    *(_case(name, SPECIAL) for name in ("isfinite", "isinf", "isnan", "signbit")),
    *(_case(name, BRAIN) for name in ("isnan", "signbit")),
]

ON_ALL = ("exp", "expm1", "sin", "cos", "sinh", "cosh", "tanh", "atan", "asinh")
ON_POSITIVE = ("sqrt", "log", "log1p", "log2", "log10")
ON_UNIT = ("asin", "acos", "atanh", "tan")
TRANSCENDENTAL = [
    *(_case(name, A, close=CLOSE, grad=(0,)) for name in ON_ALL),
    *(_case(name, POSITIVE, close=CLOSE, grad=(0,)) for name in ON_POSITIVE),
    *(_case(name, UNIT, close=CLOSE, grad=(0,)) for name in ON_UNIT),
    _case("acosh", POSITIVE + 1, close=CLOSE, grad=(0,)),
    *(_case(name, COMPLEX, close=1e-13, grad=(0,)) for name in (*ON_ALL, *ON_POSITIVE, *ON_UNIT, "acosh")),
    *(_case(name, WHOLE, close=CLOSE) for name in ("exp", "tanh")),
    _case("exp", values(0, 3), grad=(0,)),
    _case("exp", values(), close=CLOSE, grad=(0,)),
    _bfloat16("exp", BRAIN),
    _case("tanh", HALF, close=2e-3),
    _case("pow", values(2, 5, kind="positive"), SMALL, close=CLOSE, grad=(0, 1)),
    _case("pow", SMALL, values(5, kind="natural"), close=CLOSE, grad=(0,)),
    _case("pow", COMPLEX, SMALL, close=1e-13, grad=(0, 1)),
    _case("pow", WHOLE, values(3, kind="natural", dtype="int32")),
    Case("pow", lambda x: x**3, lambda x: x**3, (A,), CLOSE, (0,)),
    Case("pow", lambda x: 2**x, lambda x: 2**x, (A,), CLOSE, (0,)),
    *(_case(name, SMALL, SMALL_B, close=CLOSE, grad=(0, 1)) for name in ("hypot", "atan2", "logaddexp")),
    _bfloat16("logaddexp", BRAIN, BRAIN_B),
    Case("sigmoid", transcendental.sigmoid, _sigmoid, (A,), CLOSE, (0,)),
]

CASES = [*ARITHMETIC, *ROUNDING, *PARTS, *SELECTION, *COMPARISON, *TRANSCENDENTAL]
