"""Data types: NumPy's, and bfloat16 among them. What kind a type is, and which type mixed operands promote to."""

from __future__ import annotations

import builtins
from functools import lru_cache
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from spmdx.errors import ArgumentError, DtypeError

DType = np.dtype[Any]

bool = np.dtype("bool")
int8, int16, int32, int64 = map(np.dtype, ("int8", "int16", "int32", "int64"))
uint8, uint16, uint32, uint64 = map(np.dtype, ("uint8", "uint16", "uint32", "uint64"))
float16, float32, float64 = map(np.dtype, ("float16", "float32", "float64"))
bfloat16 = np.dtype(ml_dtypes.bfloat16)
complex64, complex128 = map(np.dtype, ("complex64", "complex128"))

REAL = "iufV"  # NumPy's letters of kinds; bfloat16's own is V, of records
NUMERIC = REAL + "c"
ALL = "b" + NUMERIC
_FAMILIES = {
    "bool": "b",
    "signed integer": "i",
    "unsigned integer": "u",
    "integral": "iu",
    "real floating": "fV",
    "complex floating": "c",
    "numeric": NUMERIC,
}
_WEAK = {builtins.bool: True, int: 1, float: 1.0, complex: 1j}  # a Python scalar adapts to the arrays that it meets


@lru_cache(maxsize=256)
def checked(dtype: Any) -> DType:
    """A dtype that arrays can have, in this machine's byte order.

    Raises:
        DtypeError: objects, strings, dates and records.
    """
    found = np.dtype(dtype)
    if found.kind not in ALL or (found.kind == "V" and found != bfloat16):
        raise DtypeError(f"arrays hold numbers and bools; got dtype {found}.", "asarray(value, dtype=float)")
    native: DType = found.newbyteorder("=")
    return native


def of(x: Any) -> DType:
    """The dtype of an array, or the dtype that ``x`` names."""
    return np.dtype(x if isinstance(x, type) else getattr(x, "dtype", x))


def kind(dtype: Any) -> str:
    """The letter of a dtype's kind: b, i, u, f, c, or V for bfloat16. Also of a Python scalar's type."""
    return np.asarray(_WEAK[dtype]).dtype.kind if dtype in _WEAK else np.dtype(dtype).kind


def result_type(*arrays_and_dtypes: Any) -> DType:
    """The dtype that operands promote to: as NumPy's; bfloat16 with integers gives bfloat16, with float16 float32.

    Args:
        arrays_and_dtypes: arrays, dtypes, and Python scalars, which are weak (they choose no width).
    """
    if not arrays_and_dtypes:
        raise ArgumentError("result_type needs at least one array or dtype.", "result_type(x, y)")
    return promoted(*(type(x) if type(x) in _WEAK else of(x) for x in arrays_and_dtypes))


def promoted(*dtypes: Any) -> DType:
    """As :func:`result_type`, of dtypes and of the types of Python scalars: what a call's operands are known by."""
    if bfloat16 not in dtypes:
        return np.result_type(*(_WEAK.get(d, d) for d in dtypes))
    strong = [d for d in dtypes if d not in _WEAK and d != bfloat16]
    found = np.result_type(*strong) if strong else bfloat16
    if found.kind in "biu":
        found = bfloat16
    elif found == float16:
        found = float32
    if complex not in dtypes:
        return found
    return complex64 if found == bfloat16 else np.result_type(found, 1j)


def can_cast(from_: Any, to: Any, /) -> builtins.bool:
    """True if promotion may turn the first dtype (or an array's) into the second."""
    source, target = of(from_), np.dtype(to)
    if bfloat16 in (source, target):
        return builtins.bool(promoted(source, target) == target)
    return np.can_cast(source, target)


def widens(source: DType, target: DType) -> builtins.bool:
    """True if a cast keeps every value of a floating type: sums commute with such a cast, up to rounding."""
    return source.kind in "fcV" and target.kind in "fcV" and promoted(source, target) == target


def isdtype(dtype: Any, kind: Any) -> builtins.bool:
    """True if a dtype is of a kind: a dtype, one of the standard's words ("bool", "signed integer",
    "unsigned integer", "integral", "real floating", "complex floating", "numeric"), or a tuple of these."""
    found = np.dtype(dtype)
    if isinstance(kind, tuple):
        return any(isdtype(found, k) for k in kind)
    if isinstance(kind, str):
        if kind not in _FAMILIES:
            raise ArgumentError(f"{kind!r} is not a kind of dtypes.", f"one of {', '.join(map(repr, _FAMILIES))}")
        return found.kind in _FAMILIES[kind]
    return builtins.bool(found == np.dtype(kind))


class FloatInfo(NamedTuple):
    """Limits of a floating type; of a complex type those of its parts."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


class IntInfo(NamedTuple):
    """Limits of an integer type."""

    bits: int
    max: int
    min: int
    dtype: DType


def finfo(type: Any, /) -> FloatInfo:
    """Limits of a floating type, or of an array's."""
    dtype = of(type)
    if dtype.kind not in "fcV":
        raise DtypeError(f"finfo is of floating types; got {dtype}.", f"iinfo({dtype})")
    found: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    limits = (float(found.eps), float(found.max), float(found.min), float(found.smallest_normal))
    return FloatInfo(found.bits, *limits, np.dtype(found.dtype))


def iinfo(type: Any, /) -> IntInfo:
    """Limits of an integer type, or of an array's."""
    dtype = of(type)
    if dtype.kind not in "iu":
        raise DtypeError(f"iinfo is of integer types; got {dtype}.", f"finfo({dtype})")
    found = np.iinfo(dtype)
    return IntInfo(found.bits, int(found.max), int(found.min), dtype)


__all__ = [
    "bfloat16",
    "bool",
    "can_cast",
    "complex64",
    "complex128",
    "finfo",
    "float16",
    "float32",
    "float64",
    "iinfo",
    "int8",
    "int16",
    "int32",
    "int64",
    "isdtype",
    "result_type",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
]
