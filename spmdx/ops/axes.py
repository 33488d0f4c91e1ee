"""Which dimensions and sizes a call means: negative numbers resolved, with errors that name what may stand there."""

from __future__ import annotations

import operator
from typing import Any

from spmdx.errors import AxisError, DtypeError, ShapeError, SpmdxError


def whole(value: Any, what: str, line: str) -> int:
    """A whole number; ``what`` names it in the error, which ends with this line to write."""
    try:
        return operator.index(value)
    except TypeError as error:
        if isinstance(error, SpmdxError):
            raise
        raise DtypeError(f"{what} is a whole number; got {type(value).__name__} {value!r}.", line) from None


def one(axis: Any, ndim: int, name: str) -> int:
    """A dimension number in range(ndim)."""
    dim = whole(axis, f"{name}: axis", "axis=0")
    if not -ndim <= dim < ndim:
        if ndim == 0:
            raise AxisError(f"{name}: axis {dim} is out of range: 0-d arrays have no dimensions.", "x[None] to add one")
        plural = "s" * (ndim > 1)
        raise AxisError(
            f"{name}: axis {dim} is out of range for {ndim} dimension{plural}.", f"axis from {-ndim} to {ndim - 1}"
        )
    return dim + ndim if dim < 0 else dim


def several(axis: Any, ndim: int, name: str) -> tuple[int, ...]:
    """Distinct dimension numbers, in the order given; all of them for None."""
    if axis is None:
        return tuple(range(ndim))
    given = axis if isinstance(axis, (tuple, list)) else (axis,)
    dims = tuple(one(a, ndim, name) for a in given)
    if len(set(dims)) != len(dims):
        raise ShapeError(f"{name}: axis {given} names a dimension twice.", f"axis={tuple(dict.fromkeys(dims))}")
    return dims


def sizes_of(shape: Any) -> tuple[int, ...]:
    """A shape argument: an int, or a sequence of them."""
    try:
        given = tuple(shape) if hasattr(shape, "__iter__") and not isinstance(shape, str) else (shape,)
        return tuple(operator.index(n) for n in given)
    except TypeError as error:
        raise ShapeError(f"a shape is made of whole numbers; got {shape!r}.", "(3, 5), or 3 for (3,)") from error


def names(ndim: int) -> list[str]:
    """A factor for every dimension."""
    return [f"d{i}" for i in range(ndim)]
