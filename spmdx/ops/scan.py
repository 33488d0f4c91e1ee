"""Along one dimension: sorting, running sums, and picking elements by their index along it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from spmdx import dtypes
from spmdx.array import Array
from spmdx.decide import Bounds
from spmdx.dtypes import NARROW
from spmdx.errors import ArgumentError, DtypeError, ShapeError
from spmdx.op import op
from spmdx.ops import elementwise as e
from spmdx.ops.axes import names, one
from spmdx.ops.fit import fit
from spmdx.ops.place import asarray
from spmdx.ops.scatter import check, locate, template
from spmdx.ops.shape import broadcast_to, common_shape, ravel
from spmdx.rule import Form
from spmdx.runtime import memory
from spmdx.tape import plain, recording

NOTE = "moves by re-sharding another dimension, or gathers in 1-D"


def along(shape: tuple[int, ...], axis: int, **_: Any) -> str:
    """The rule of what needs one dimension whole and treats the others independently."""
    d = names(len(shape))
    d[axis] = f"[{d[axis]}]"
    return f"{' '.join(d)} -> {' '.join(d)}"


def with_axis(name: str, shape: tuple[int, ...], axis: Any, **more: Any) -> Mapping[str, Any]:
    """Static arguments of which one is an axis, checked."""
    if axis is None:
        raise ArgumentError(f"{name} is along one axis; got axis=None.", f"{name}(ravel(x))")
    return {"axis": one(axis, len(shape), name), **more}


def _array(x: Any) -> Array:
    return x if isinstance(x, Array) else asarray(x)


# Sorting. NaN comes last, in either order


def _order(xp: Any, x: Any, axis: int, descending: bool) -> Any:
    if x.dtype == dtypes.bfloat16:  # its own sort loses its way at NaN
        x = x.astype(np.float32)
    if not descending or not x.shape[axis]:
        return xp.argsort(x, axis, kind="stable")
    n = x.shape[axis]
    order = n - 1 - xp.flip(xp.argsort(xp.flip(x, axis), axis, kind="stable"), axis)
    if x.dtype.kind not in "fc":
        return order
    along = xp.arange(n).reshape([n if d == axis else 1 for d in range(x.ndim)])
    return xp.take_along_axis(order, (along + xp.isnan(x).sum(axis, keepdims=True)) % n, axis)


@op(along, prepare=partial(with_axis, "argsort"), note=NOTE)
def argsort(xp: Any, x: Any, axis: int = -1, *, descending: bool = False, stable: bool = True) -> Any:
    """The indices that sort along a dimension. Always stable; NaN last."""
    return _order(xp, x, axis, bool(descending))


@op(along, prepare=partial(with_axis, "sort"), note=NOTE)
def sort(xp: Any, x: Any, axis: int = -1, *, descending: bool = False, stable: bool = True) -> Any:
    """The elements in order along a dimension. Always stable; NaN last."""
    if descending or x.dtype == dtypes.bfloat16:
        return xp.take_along_axis(x, _order(xp, x, axis, bool(descending)), axis)
    return xp.sort(x, axis, "stable")


@sort.vjp  # type: ignore[untyped-decorator]  # vjp returns what it is given
def _sort_vjp(g: Array, out: Array, x: Array, axis: int, descending: bool, stable: bool) -> Any:
    back = argsort(argsort(plain(x), axis, descending=descending), axis)
    return take_along_axis(g, back, axis)


@op("k, ... -> ...", arrays=2)
def _searchsorted(xp: Any, x: Any, v: Any, side: str) -> Any:
    """How many of a block's elements go before each value: summed over blocks, the place in the whole."""
    if x.dtype == dtypes.bfloat16:
        x, v = x.astype(np.float32), xp.asarray(v, np.float32)
    return xp.asarray(xp.searchsorted(x, xp.asarray(v), side), np.int64)


def searchsorted(x1: Any, x2: Any, /, side: str = "left", sorter: Any = None) -> Array:
    """Where each of x2 would be inserted to keep the 1-D array x1 in order. Partial("sum") where x1 is divided."""
    x1 = _array(x1)
    if x1.ndim != 1:
        raise ShapeError(f"searchsorted looks in a 1-D array; got shape {x1.shape}.", "ravel(x)")
    if side not in ("left", "right"):
        raise ArgumentError(f"searchsorted has no side={side!r}.", 'side="left" or "right"')
    x1 = x1 if sorter is None else take_along_axis(x1, sorter, 0)
    return _searchsorted(x1, x2, side)  # type: ignore[no-any-return]  # what operations return is known as Any


# Running sums and products


def _running_rule(shape: tuple[int, ...], axis: int, include_initial: bool, **_: Any) -> str | Form:
    d = names(len(shape))
    before = " ".join(f"[{n}]" if i == axis else n for i, n in enumerate(d))
    d[axis] = "more" if include_initial else d[axis]
    return Form(f"{before} -> {' '.join(d)}", {"more": shape[axis] + 1})


def _run(xp: Any, ufunc: Any, x: Any, axis: int, dtype: Any, include_initial: bool, reverse: bool) -> Any:
    out = dtype or (x.dtype if x.dtype.kind in "fcV" else ufunc.reduce(x[:0], None).dtype)
    wide = dtypes.promoted(out, dtypes.float32) if out in NARROW else out
    x = xp.flip(x, axis) if reverse else x
    found = ufunc.accumulate(x, axis, wide)
    if include_initial:
        shape = [1 if d == axis else n for d, n in enumerate(x.shape)]
        found = xp.concatenate([xp.full(shape, ufunc.identity, found.dtype), found], axis)
    return (xp.flip(found, axis) if reverse else found).astype(out, copy=False)


def _running(name: str, shape: tuple[int, ...], axis: Any, dtype: Any, **more: Any) -> Mapping[str, Any]:
    return with_axis(name, shape, axis, dtype=None if dtype is None else dtypes.checked(dtype), **more)


@op(_running_rule, linear="together", prepare=partial(_running, "cumulative_sum"), note=NOTE)
def _cumulative_sum(xp: Any, x: Any, axis: int, dtype: Any, include_initial: bool, reverse: bool = False) -> Any:
    """Running sums along a dimension."""
    return _run(xp, xp.add, x, axis, dtype, include_initial, reverse)


@op(_running_rule, prepare=partial(_running, "cumulative_prod"), note=NOTE)
def _cumulative_prod(xp: Any, x: Any, axis: int, dtype: Any, include_initial: bool) -> Any:
    """Running products along a dimension."""
    return _run(xp, xp.multiply, x, axis, dtype, include_initial, False)


def cumulative_sum(x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Array:
    """Running sums along a dimension (which a 1-D array need not name); with a 0 before them if ``include_initial``.

    dtype: as for sum. float16 and bfloat16 are added in float32.
    """
    x, axis = _only(x, axis, "cumulative_sum")
    return _cumulative_sum(x, axis, dtype, bool(include_initial))  # type: ignore[no-any-return]  # as above


def cumulative_prod(x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Array:
    """Running products along a dimension; otherwise as :func:`cumulative_sum`."""
    x, axis = _only(x, axis, "cumulative_prod")
    return _cumulative_prod(x, axis, dtype, bool(include_initial))  # type: ignore[no-any-return]  # as above


def _only(x: Any, axis: int | None, name: str) -> tuple[Array, int]:
    x = _array(x)
    if axis is None and x.ndim != 1:
        raise ArgumentError(f"{name} of shape {x.shape} needs an axis.", f"{name}(x, axis=-1)")
    return x, 0 if axis is None else axis


def cumsum(x: Any, axis: int | None = None, dtype: Any = None) -> Array:
    """Running sums, under NumPy's name: of the flattened array where no axis is given."""
    x = ravel(x) if axis is None else x
    return _cumulative_sum(_array(x), 0 if axis is None else axis, dtype, False)  # type: ignore[no-any-return]  # as above


def cumprod(x: Any, axis: int | None = None, dtype: Any = None) -> Array:
    """Running products, under NumPy's name: of the flattened array where no axis is given."""
    x = ravel(x) if axis is None else x
    return _cumulative_prod(_array(x), 0 if axis is None else axis, dtype, False)  # type: ignore[no-any-return]  # as above


def _rest(x: Array, axis: int, include_initial: bool, reverse: bool = False) -> Any:
    """Without the 0 or 1 before the running values (after them, if they run backwards)."""
    if not include_initial:
        return x
    return x[(slice(None),) * axis + (slice(None, -1) if reverse else slice(1, None),)]


@_cumulative_sum.vjp  # type: ignore[untyped-decorator]  # as above
def _cumulative_sum_vjp(
    g: Array, out: Array, x: Array, axis: int, dtype: Any, include_initial: bool, reverse: bool
) -> Any:
    return fit(_cumulative_sum(_rest(g, axis, include_initial, reverse), axis, None, False, not reverse), x)


@_cumulative_prod.vjp  # type: ignore[untyped-decorator]  # as above
def _cumulative_prod_vjp(g: Array, out: Array, x: Array, axis: int, dtype: Any, include_initial: bool) -> Any:
    """Product by product, g times the other factors. Past the first 0 every product is 0; that 0's own gradient takes
    the products without it."""
    g, out = _rest(g, axis, include_initial), _rest(out, axis, include_initial)
    zero = e.equal(x, 0)
    first = e.logical_and(zero, e.equal(_cumulative_sum(zero, axis, None, False), 1))
    without = _cumulative_prod(e.where(first, 1, x), axis, dtype, False)

    def to_the_end(products: Array) -> Any:
        return _cumulative_sum(e.multiply(g, products), axis, None, False, True)

    others = e.where(first, to_the_end(without), e.divide(to_the_end(out), e.where(zero, 1, x)))
    if recording():  # for a derivative of this: that of the second 0 with respect to the first
        second = e.logical_and(zero, e.equal(_cumulative_sum(zero, axis, None, False), 2))
        without = _cumulative_prod(e.where(second, 1, x), axis, dtype, False)
        others = e.where(second, to_the_end(without), others)
    return fit(others, x)


# Elements by their index along a dimension


def _picked(shape: tuple[int, ...], indices: tuple[int, ...], axis: int, size: int) -> str:
    d = names(len(shape))
    at = list(d)
    at[axis] = "picked"
    return f"{' '.join(d)}, {' '.join(at)} -> {' '.join(at)}"


@op(_picked, arrays=2, linear=((0,),), bounds=True)
def _take_along_axis(xp: Any, at: Bounds, x: Any, indices: Any, axis: int, size: int) -> Any:
    """The elements that are picked and lie in this block; identities for those of other blocks."""
    check(indices, size, axis)
    local, inside = locate(indices, at.inputs[0][axis], size)
    if not x.shape[axis]:
        return memory.filled(indices.shape, x.dtype, "sum", xp)
    found = xp.take_along_axis(x, local, axis)
    if xp is np and inside.all():
        return found
    return xp.where(inside, found, xp.asarray(memory.neutral(x.dtype, "sum"), x.dtype))


def _put_rule(like: tuple[int, ...], g: tuple[int, ...], indices: tuple[int, ...], axis: int, size: int) -> str:
    x, at = _picked(like, indices, axis, size).partition(" -> ")[0].split(", ")
    return f"{x}, {at}, {at} -> {x}"


@op(_put_rule, arrays=3, linear=((1,),), bounds=True)
def _add_along_axis(xp: Any, at: Bounds, like: Any, values: Any, indices: Any, axis: int, size: int) -> Any:
    """Zeros, placed as ``like``, with values added at indices along a dimension."""
    local, inside = locate(indices, at.output[axis], size)
    wide = np.dtype(np.float32) if values.dtype in NARROW else values.dtype
    n = like.shape[axis]
    shape = [n + 1 if d == axis else m for d, m in enumerate(like.shape)]
    out = xp.zeros(shape, wide)  # one place more, for what belongs to other blocks
    many = indices.shape
    grid = [xp.arange(m).reshape([m if k == d else 1 for k in range(len(many))]) for d, m in enumerate(many)]
    grid[axis] = xp.where(inside, local, n)
    if xp is not np and wide.kind in "iu":
        wide = np.dtype(np.uint64)  # what CuPy adds integers in
        out = out.astype(wide)
    xp.add.at(out, tuple(grid), values.astype(wide, copy=False))
    return out[(slice(None),) * axis + (slice(0, n),)].astype(values.dtype, copy=False)


_take_along_axis.vjp(
    lambda g, out, x, i, axis, size: _add_along_axis(template(x), g, i, axis, size), lambda g, out, x, i, **_: None
)
_add_along_axis.vjp(
    lambda g, out, like, values, i, **_: None,
    lambda g, out, like, values, i, axis, size: _take_along_axis(g, i, axis, size),
    lambda g, out, like, values, i, **_: None,
)


def take_along_axis(x: Any, indices: Any, axis: int = -1) -> Array:
    """The elements at these indices along a dimension: out[i, j] = x[i, indices[i, j]]. Other dimensions broadcast.

    Where x is divided along there, each rank takes what it has: Partial("sum"). No gather.

    Raises:
        BoundsError: an index out of range.
    """
    x = _array(x)
    indices = indices if isinstance(indices, Array) else asarray(indices, mesh=x.mesh)
    if indices.dtype.kind not in "iu":
        raise DtypeError(f"indices are integers; these are {indices.dtype.name}.", "indices.astype(int)")
    if indices.ndim != x.ndim:
        raise ShapeError(
            f"take_along_axis of shape {x.shape} at indices of shape {indices.shape}.", "as many dimensions"
        )
    axis = one(axis, x.ndim, "take_along_axis")
    size = x.shape[axis]
    rest = common_shape(*((*a.shape[:axis], 1, *a.shape[axis + 1 :]) for a in (x, indices)))
    x, indices = (broadcast_to(a, (*rest[:axis], a.shape[axis], *rest[axis + 1 :])) for a in (x, indices))
    return _take_along_axis(x, indices, axis, size)  # type: ignore[no-any-return]  # as above


__all__ = [
    "argsort",
    "cumprod",
    "cumsum",
    "cumulative_prod",
    "cumulative_sum",
    "searchsorted",
    "sort",
    "take_along_axis",
]
