"""Questions about data types: of what kind one is, its limits, and what may be cast to what."""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from spmdx.dtypes import NUMERIC, DType, bfloat16, checked, of, promoted
from spmdx.errors import ArgumentError, DtypeError

_FAMILIES = {
    "bool": "b",
    "signed integer": "i",
    "unsigned integer": "u",
    "integral": "iu",
    "real floating": "fV",
    "complex floating": "c",
    "numeric": NUMERIC,
}


def can_cast(from_: Any, to: Any, /) -> bool:
    """True if promotion may turn the first dtype (or an array's) into the second."""
    source, target = of(from_), checked(to)
    if bfloat16 in (source, target):
        return bool(promoted(source, target) == target)
    return np.can_cast(source, target)


def isdtype(dtype: Any, kind: Any) -> bool:
    """True if a dtype is of a kind: a dtype, one of the standard's words ("bool", "signed integer",
    "unsigned integer", "integral", "real floating", "complex floating", "numeric"), or a tuple of these."""
    found = dtype if isinstance(dtype, np.dtype) else checked(dtype)  # another library's may be of none
    if isinstance(kind, tuple):
        return any(isdtype(found, k) for k in kind)
    if isinstance(kind, str):
        if kind not in _FAMILIES:
            raise ArgumentError(f"{kind!r} is not a kind of dtypes.", f"one of {', '.join(map(repr, _FAMILIES))}")
        return found.kind in _FAMILIES[kind] and (found.kind != "V" or found == bfloat16)
    return bool(found == checked(kind))


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


__all__ = ["can_cast", "finfo", "iinfo", "isdtype"]
