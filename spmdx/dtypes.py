"""Data types: NumPy's, and bfloat16 among them, and which type mixed operands promote to."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from functools import lru_cache
from reprlib import repr as short
from typing import Any

import ml_dtypes
import numpy as np

from spmdx.errors import ArgumentError, DtypeError, RangeError, ShapeError, SpmdxError

DType = np.dtype[Any]

bool = np.dtype("bool")
int8, int16, int32, int64 = map(np.dtype, ("int8", "int16", "int32", "int64"))
uint8, uint16, uint32, uint64 = map(np.dtype, ("uint8", "uint16", "uint32", "uint64"))
float16, float32, float64 = map(np.dtype, ("float16", "float32", "float64"))
bfloat16 = np.dtype(ml_dtypes.bfloat16)
complex64, complex128 = map(np.dtype, ("complex64", "complex128"))
NARROW = frozenset({float16, bfloat16})  # sums and products are accumulated in float32, and rounded once

REAL = "iufV"  # NumPy's letters of kinds; bfloat16's own is V, of records
NUMERIC = REAL + "c"
ALL = "b" + NUMERIC
_WEAK = {builtins.bool: True, int: 1, float: 1.0, complex: 1j}  # a Python scalar adapts to the arrays that it meets


def checked(dtype: Any) -> DType:
    """A dtype that arrays can have, in this machine's byte order.

    Raises:
        DtypeError: objects, strings, dates and records; and what is no dtype.
    """
    try:
        return _known(dtype)
    except (TypeError, ValueError) as error:  # not understood, or no key of a memo
        instead = DtypeError(f"{dtype!r} is no dtype.", "sx.float32, 'float32' or another dtype's name")
        raise error if isinstance(error, DtypeError) else instead from None


@lru_cache(maxsize=256)
def _known(dtype: Any) -> DType:
    found = bfloat16 if isinstance(dtype, str) and dtype == "bfloat16" else np.dtype(dtype)
    if found.kind not in ALL or (found.kind == "V" and found != bfloat16):
        raise DtypeError(f"arrays hold numbers and bools; got dtype {found}.", "asarray(value, dtype=float)")
    native: DType = found.newbyteorder("=")
    return native


def read(value: Any, dtype: Any = None, make: Callable[..., Any] = np.asarray) -> Any:
    """The array of what a user gives: a number, an array or a nested sequence; made by this function of NumPy's.

    Raises:
        ShapeError: rows of different lengths.
        RangeError: a number that the dtype cannot hold.
        DtypeError: what is no number, and what a masked array leaves out.
    """
    kind = None if dtype is None else checked(dtype)
    if isinstance(value, np.ndarray) and type(value) is not np.ndarray and np.ma.is_masked(value):
        raise DtypeError("arrays have no masks, and this one leaves elements out.", "value.filled(0)")
    try:
        return make(value, dtype=kind)
    except OverflowError:
        raise RangeError(f"{short(value)} holds a number that {kind} does not.", "a wider dtype, or float") from None
    except (TypeError, ValueError) as error:
        instead: SpmdxError = DtypeError(f"{short(value)}: {error}.", "numbers alone, as in [1.0, 2.0]")
        if "inhomogeneous" in str(error):
            line = "[row + [0] * (longest - len(row)) for row in rows], or one array for each row"
            instead = ShapeError(f"{short(value)} is no array: its rows have different lengths.", line)
        raise error if isinstance(error, SpmdxError) else instead from None


def unfit(name: str, operands: Sequence[Any], error: OverflowError) -> OverflowError:
    """The error for a Python number that does not fit an array that it meets, whose dtype it takes, or any dtype."""
    kinds = [int64 if x.dtype == bool else x.dtype for x in operands if hasattr(x, "dtype")]  # as NumPy: a bool and 2
    for x, kind in ((x, kind) for x in operands if type(x) is int for kind in kinds if not _holds(kind, x)):
        wider = (k for k in map(np.dtype, "hiqHIQ") if _holds(k, x) and np.can_cast(kind, k))
        line = f"x.astype({next(wider, float64).name!r}) first" if abs(x) < 2**1024 else "a number below 1.8e308"
        return RangeError(f"{name}: {short(x)} is beyond {kind}, the dtype of the array that it meets.", line)
    for x in (x for x in operands if type(x) is int and not kinds and np.asarray(x).dtype.kind == "O"):
        line = "float(number)" if abs(x) < 2**1024 else "a number below 1.8e308"
        return RangeError(f"{name}: {short(x)} is beyond int64 and uint64.", line)
    return error


def _holds(kind: DType, number: int) -> builtins.bool:
    limits = np.iinfo(kind) if kind.kind in "iu" else None
    return limits.min <= number <= limits.max if limits else abs(number) < 2**1024


def of(x: Any) -> DType:
    """The dtype of an array, or the dtype that ``x`` names."""
    return checked(x if isinstance(x, type) else getattr(x, "dtype", x))


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


def widens(source: DType, target: DType) -> builtins.bool:
    """True if a cast keeps every value of a floating type: sums commute with such a cast, up to rounding."""
    return source.kind in "fcV" and target.kind in "fcV" and promoted(source, target) == target


__all__ = [
    "bfloat16",
    "bool",
    "complex64",
    "complex128",
    "float16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "result_type",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
]
