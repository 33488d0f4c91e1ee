"""Where the extremes are: argmax and argmin. Along a divided dimension nothing gathers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from spmdx import dtypes
from spmdx.array import Array
from spmdx.decide import Bounds
from spmdx.errors import ArgumentError, DtypeError
from spmdx.op import op
from spmdx.ops.axes import several
from spmdx.ops.place import asarray
from spmdx.ops.reduce import left, max, min, over, some

NOTE = "only where the dimension is whole; a divided one is reduced, not gathered"
NOWHERE = np.iinfo(np.int64).max


def _one_or_all(name: str, shape: tuple[int, ...], axis: Any, keepdims: Any) -> Mapping[str, Any]:
    if isinstance(axis, (tuple, list)) and len(axis) not in (1, len(shape)):
        raise ArgumentError(f"{name} takes one axis, or None; got {axis}.", "x.reshape(...) to join dimensions")
    reduced = several(axis, len(shape), name)
    some(name, shape, reduced)
    return {"axis": reduced, "keepdims": bool(keepdims)}


def _whole(shape: tuple[int, ...], axis: tuple[int, ...], keepdims: bool) -> str:
    names, _, out = over(shape, axis, keepdims).partition(" -> ")
    marked = " ".join(f"[{n}]" if i in axis else n for i, n in enumerate(names.split()))
    return f"{marked} -> {out}"


def _arg(xp: Any, which: str, x: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
    x = xp.asarray(x)
    if x.dtype.kind == "c":
        raise DtypeError(f"arg{which} of {x.dtype.name} is not defined: complex numbers have no order.", "abs(x)")
    if 0 in x.shape:  # no lane has an element, or there is no lane
        return xp.zeros(left(x.shape, axis, keepdims), np.int64)
    x = x.astype(np.float32) if x.dtype == dtypes.bfloat16 else x
    return getattr(xp, f"arg{which}")(x, axis[0] if len(axis) == 1 else None, keepdims=keepdims)


@op(_whole, prepare=partial(_one_or_all, "argmax"), note=NOTE)
def _argmax(xp: Any, x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """The index of the greatest element, where the dimension is whole."""
    return _arg(xp, "max", x, axis, keepdims)


@op(_whole, prepare=partial(_one_or_all, "argmin"), note=NOTE)
def _argmin(xp: Any, x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """The index of the least element, where the dimension is whole."""
    return _arg(xp, "min", x, axis, keepdims)


def _first_rule(x: tuple[int, ...], m: tuple[int, ...], axis: tuple[int, ...], keepdims: bool, shape: Any) -> str:
    full, _, out = over(x, axis, keepdims).partition(" -> ")
    return f"{full}, {over(x, axis, True).partition(' -> ')[2]} -> {out}"


@op(_first_rule, arrays=2, bounds=True, reduce="min")
def _first_index(xp: Any, at: Bounds, x: Any, m: Any, axis: tuple[int, ...], keepdims: bool, shape: Any) -> Any:
    """The least global index at which ``x`` is ``m`` (or both are NaN), where the dimension is divided."""
    hit = (x == m) | ((x != x) & (m != m))
    rows = [at.indices(pieces, xp) for pieces in at.inputs[0]]
    out = left(x.shape, axis, keepdims)
    if 0 in [x.shape[d] for d in axis]:
        return xp.full(out, NOWHERE)
    if len(axis) == x.ndim:  # the first in C order of a block is the first of the array among the block's own
        rest, index, stride = hit.argmax(), 0, 1
        for row, n in zip(reversed(rows), reversed(shape)):
            index = index + row[rest % len(row)] * stride
            rest, stride = rest // len(row), stride * n
        return xp.where(hit.any(), index, NOWHERE).reshape(out)
    first = xp.argmax(hit, axis[0], keepdims=True)
    index = xp.where(xp.take_along_axis(hit, first, axis[0]), rows[axis[0]][first], NOWHERE)
    return index.reshape(out)


def _anywhere(name: str, x: Any, axis: Any, keepdims: bool, extreme: Any, whole: Any) -> Array:
    x = x if isinstance(x, Array) else asarray(x)
    reduced = _one_or_all(name, x.shape, axis, keepdims)["axis"]
    if not [d for d in reduced if x.spec.layouts[d].axes]:
        return whole(x, axis, keepdims)  # type: ignore[no-any-return]  # what operations return is known as Any
    greatest = extreme(x, reduced, True)
    return _first_index(x, greatest, reduced, bool(keepdims), x.shape)  # type: ignore[no-any-return]  # as above


def argmax(x: Any, axis: int | None = None, keepdims: bool = False) -> Array:
    """Index (flat, in C order, where ``axis`` is None) of the greatest element: the first of equals; the first NaN.

    Along a divided dimension: one small all-reduce of the maxima, and a Partial("min") of indices. No gather.
    """
    return _anywhere("argmax", x, axis, keepdims, max, _argmax)


def argmin(x: Any, axis: int | None = None, keepdims: bool = False) -> Array:
    """Index of the least element; otherwise as :func:`argmax`."""
    return _anywhere("argmin", x, axis, keepdims, min, _argmin)


__all__ = ["argmax", "argmin"]
