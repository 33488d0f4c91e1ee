"""Which dimensions a call means: negative numbers resolved, with an error that names the range."""

from __future__ import annotations

import operator
from typing import Any

from spmdx.errors import AxisError, ShapeError


def one(axis: Any, ndim: int, name: str) -> int:
    """A dimension number in range(ndim)."""
    dim = operator.index(axis)
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


def names(ndim: int) -> list[str]:
    """A factor for every dimension."""
    return [f"d{i}" for i in range(ndim)]
