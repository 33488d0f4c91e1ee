"""Reductions. A dimension that is sharded and reduced gives a Partial of the reduction's own op; none gathers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from spmdx import dtypes
from spmdx.array import Array
from spmdx.dtypes import NARROW
from spmdx.errors import DtypeError, ShapeError
from spmdx.op import op
from spmdx.ops import elementwise as e
from spmdx.ops.axes import names, several
from spmdx.ops.fit import fit
from spmdx.ops.scatter import template
from spmdx.runtime import kernels, memory
from spmdx.tape import Watched, plain, recording

SUMMED = frozenset(map(np.dtype, (np.float32, np.float64)))
LEAST_ROW = 16  # elements

# How a reduction is called


def over(shape: tuple[int, ...], axis: tuple[int, ...], keepdims: bool, **_: Any) -> str:
    """The rule of a reduction over some dimensions."""
    factors = names(len(shape))
    return f"{' '.join(factors)} -> {' '.join(map(str, left(factors, axis, keepdims, '1')))}"


def left(dims: Any, axis: tuple[int, ...], keepdims: bool, one: Any = 1) -> list[Any]:
    """Of something for each dimension, what a reduction leaves; ``one`` for a dimension that it keeps."""
    return [one if d in axis else x for d, x in enumerate(dims) if keepdims or d not in axis]


def _canonical(name: str, shape: tuple[int, ...], axis: Any, keepdims: Any, **more: Any) -> Mapping[str, Any]:
    if more.get("dtype") is not None:
        more["dtype"] = dtypes.checked(more["dtype"])
    return {"axis": several(axis, len(shape), name), **more, "keepdims": bool(keepdims)}


def _not_empty(name: str, shape: tuple[int, ...], axis: Any, keepdims: Any) -> Mapping[str, Any]:
    static = _canonical(name, shape, axis, keepdims)
    some(name, shape, static["axis"])
    return static


def some(name: str, shape: tuple[int, ...], axis: tuple[int, ...]) -> None:
    """Raise a ShapeError if a reduction that has no identity would be of no elements, as NumPy does also where there
    is none of them to make."""
    if 0 in [shape[d] for d in axis]:
        raise ShapeError(f"{name} of no elements: shape {shape} over axis {axis}.", f"`if x.size:` around the {name}")


# Sums and products


def _accumulate(xp: Any, ufunc: Any, x: Any, axis: tuple[int, ...], dtype: Any, keepdims: bool) -> Any:
    x = xp.asarray(x)
    target = x.dtype if dtype is None else dtype
    if target in NARROW:
        return ufunc.reduce(x, axis, dtypes.float32, None, keepdims).astype(target)
    return ufunc.reduce(x, axis, dtype, None, keepdims)


def _quick(name: str) -> Any:
    """The quick way: the ufunc's own reduce, positionally."""

    def fast(xp: Any, kind: Any, axis: tuple[int, ...], keepdims: bool, **more: Any) -> Any:
        if xp is not np or keepdims or more.get("dtype") is not None or kind in NARROW:
            return None
        reduce, dims = getattr(xp, name).reduce, axis[0] if len(axis) == 1 else axis
        if name == "add" and axis == tuple(range(len(axis))) and kind in SUMMED:
            return partial(_sum_rows, reduce, dims, len(axis))
        return lambda x: reduce(x, dims)

    return fast


def _sum_rows(reduce: Any, dims: Any, count: int, x: Any) -> Any:
    """The sum over the first ``count`` dimensions: of many long rows on all threads, in an order of its own, which is
    NumPy's where there are up to 64."""
    if x.ndim == count:
        return reduce(x, dims)
    n = math.prod(x.shape[count:])
    if n < LEAST_ROW or x.size <= 64 * n or not x.flags.c_contiguous:
        return reduce(x, dims)
    out = np.empty(x.shape[count:], x.dtype)
    kernels.HOST.build.sum_rows(out.reshape(-1), x.reshape(-1, n))
    return out


@op(over, linear="together", prepare=partial(_canonical, "sum"), fast=_quick("add"))
def sum(xp: Any, x: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Any:
    """Sum over dimensions: all of them, or those that ``axis`` names.

    Args:
        dtype: of the result. Default: that of x; int64 or uint64 for narrower integers and bools, as NumPy's.

    float16 and bfloat16 are added in float32 and rounded once in each block. Partial("sum") along reduced shards.
    """
    return _accumulate(xp, xp.add, x, axis, dtype, keepdims)


@op(over, reduce="prod", prepare=partial(_canonical, "prod"), fast=_quick("multiply"))
def prod(xp: Any, x: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Any:
    """Product over dimensions; dtypes as :func:`sum`. Partial("prod") along reduced shards.

    Its first and second derivatives are exact where factors are 0; a third one with respect to three factors that are
    all 0 comes out as 0.
    """
    return _accumulate(xp, xp.multiply, x, axis, dtype, keepdims)


@op(over, reduce="sum", prepare=partial(_canonical, "count_nonzero"))
def count_nonzero(xp: Any, x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Number of elements that are not 0 (or False). NaN counts."""
    return xp.add.reduce(xp.asarray(x) != 0, axis, np.int64, None, keepdims)


def _spread_rule(g: tuple[int, ...], x: tuple[int, ...], axis: tuple[int, ...], keepdims: bool) -> str:
    full, _, kept = over(x, axis, keepdims).partition(" -> ")
    return f"{kept}, {full} -> {full}"


@op("... -> ...")
def finished(xp: Any, x: Any) -> Any:
    """The same value, not Partial: for a small operand of an operation that would make a large one Partial with it."""
    return x


finished.vjp(lambda g, out, x: g)


@op(_spread_rule, arrays=2)
def spread(xp: Any, g: Any, like: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
    """What a reduction over ``axis`` gave, repeated to the shape and placement of ``like``: no memory is used. It is
    linear, but a Partial is better finished while it is small."""
    if g.ndim or xp is not np or g.dtype.kind not in "fc":
        return xp.broadcast_to(g if keepdims else xp.expand_dims(g, axis), like.shape)
    out = np.ndarray(like.shape, g.dtype, g, 0, (0,) * like.ndim)  # the same, sooner
    out.flags.writeable = False
    return out


def _like(x: Array) -> Array:
    """What stands for the shape and placement of x, and is not kept in a record."""
    known = type(x) in (Array, Watched) and x._block is not None
    return template(x) if recording() or x.spec.partial or not known else x


spread.vjp(lambda g, out, x, like, axis, keepdims: sum(g, axis, None, keepdims), lambda g, out, x, like, **_: None)
sum.vjp(lambda g, out, x, axis, dtype, keepdims: fit(spread(g, _like(x), axis, keepdims), x))


@prod.vjp  # type: ignore[untyped-decorator]  # vjp returns what it is given
def _prod_vjp(g: Array, out: Array, x: Array, axis: Any, dtype: Any, keepdims: bool) -> Any:
    """g times the product of the other factors: with one zero, only its own is not 0; with two, none is."""
    zero = e.equal(x, 0)
    zeros = sum(zero, axis, None, True)
    safe = e.where(zero, 1, x)
    rest = prod(safe, axis, None, True)
    if recording():  # for a derivative of this: the product of the zeros, and the other one of two
        own = e.where(zero, x, 0)
        other = e.subtract(sum(own, axis, None, True), own)
        of_zero = e.multiply(rest, e.where(e.equal(zeros, 1), 1, e.where(e.equal(zeros, 2), other, 0)))
        of_zeros = prod(e.where(zero, x, 1), axis, None, True)
        others = e.where(zero, of_zero, e.multiply(e.divide(rest, safe), of_zeros))
    else:
        others = e.where(zero, e.where(e.equal(zeros, 1), rest, 0), e.where(e.equal(zeros, 0), e.divide(rest, safe), 0))
    return fit(e.multiply(spread(g, template(x), axis, keepdims), others), x)


# Extremes, and truth


def _extreme(xp: Any, ufunc: Any, which: str, x: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
    x = xp.asarray(x)
    if x.dtype.kind == "c":
        raise DtypeError(
            f"{which} of {x.dtype.name} is not defined: complex numbers have no order.", f"{which}(abs(x))"
        )
    if 0 in [x.shape[d] for d in axis]:  # an empty block of an array that has elements elsewhere
        return memory.filled(tuple(left(x.shape, axis, keepdims)), x.dtype, which, xp)
    if x.dtype == dtypes.bfloat16:  # its own comparisons warn of NaN
        return ufunc.reduce(x.astype(np.float32), axis, None, None, keepdims).astype(x.dtype)
    return ufunc.reduce(x, axis, None, None, keepdims)


def _quick_extreme(name: str, which: str) -> Any:
    """The same for extremes, which an empty block has none of."""

    def fast(xp: Any, kind: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
        if xp is not np or keepdims or not isinstance(kind, np.dtype) or kind.kind in "cV":
            return None
        ufunc = getattr(xp, name)
        reduce, dims = ufunc.reduce, axis[0] if len(axis) == 1 else axis
        return lambda x: reduce(x, dims) if x.size else _extreme(xp, ufunc, which, x, axis, False)

    return fast


@op(over, reduce="max", prepare=partial(_not_empty, "max"), fast=_quick_extreme("maximum", "max"))
def max(xp: Any, x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Greatest element over dimensions; NaN if there is one. Partial("max") along reduced shards.

    Its gradient is shared equally by all the elements, of all blocks, that attain it.
    """
    return _extreme(xp, xp.maximum, "max", x, axis, keepdims)


@op(over, reduce="min", prepare=partial(_not_empty, "min"), fast=_quick_extreme("minimum", "min"))
def min(xp: Any, x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Least element over dimensions; otherwise as :func:`max`."""
    return _extreme(xp, xp.minimum, "min", x, axis, keepdims)


def _shared(g: Array, out: Array, x: Array, axis: Any, keepdims: bool) -> Any:
    like = template(x)
    hit = e.equal(x, spread(plain(out), like, axis, keepdims))
    count = sum(hit, axis, g.dtype, keepdims)
    return fit(e.multiply(spread(e.divide(g, count), like, axis, keepdims), hit), x)


max.vjp(_shared)
min.vjp(_shared)


@op(over, reduce="max", prepare=partial(_canonical, "any"), fast=_quick("logical_or"))
def any(xp: Any, x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """True where some element over the dimensions is not 0; False of no elements."""
    return xp.logical_or.reduce(xp.asarray(x), axis, None, None, keepdims)


@op(over, reduce="min", prepare=partial(_canonical, "all"), fast=_quick("logical_and"))
def all(xp: Any, x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """True where every element over the dimensions is not 0; True of no elements."""
    return xp.logical_and.reduce(xp.asarray(x), axis, None, None, keepdims)


amax, amin = max, min

__all__ = ["all", "amax", "amin", "any", "count_nonzero", "max", "min", "prod", "sum"]
