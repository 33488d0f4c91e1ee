"""NumPy's functions that are a line or two of operations. They have gradients, and move no more than that line does."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from reprlib import repr as short
from typing import Any

import numpy as np

from spmdx.array import Array
from spmdx.dtypes import read
from spmdx.errors import ArgumentError, ShapeError
from spmdx.op import constants
from spmdx.ops import elementwise as e
from spmdx.ops.axes import one, whole
from spmdx.ops.diagonal import diagonal_of, on_diagonal
from spmdx.ops.join import concat, flip, pad, promoted, split, stack, unstack
from spmdx.ops.kinds import finfo
from spmdx.ops.mask import nonzero
from spmdx.ops.moments import mean
from spmdx.ops.place import asarray
from spmdx.ops.products import vecdot
from spmdx.ops.reduce import all, finished, max, min, sum
from spmdx.ops.shape import broadcast_to, expand_dims, moveaxis, permute_dims, ravel, reshape

concatenate = concat


def _arrays(name: str, *values: Any) -> list[Array]:
    """The values as Arrays: numbers and NumPy arrays are constants on the mesh of the others."""
    return list(constants(tuple(x if isinstance(x, Array) else read(x) for x in values), name))


def _finished(name: str, *values: Any) -> list[Any]:
    """As Arrays that are not Partial: they are read more than once, and would be finished each time."""
    return [finished(x) if x.spec.partial else x for x in _arrays(name, *values)]


def copy(x: Any) -> Array:
    """x itself: arrays never change."""
    return x if isinstance(x, Array) else asarray(x)


# Joined and cut


def _at_least(x: Array, ndim: int) -> Any:
    """NumPy's atleast_1d, 2d and 3d: a vector becomes a row."""
    if x.ndim >= ndim:
        return x
    if ndim == 3 and x.ndim:
        return expand_dims(x, -1) if x.ndim == 2 else reshape(x, (1, x.shape[0], 1))
    return reshape(x, (1,) * (ndim - x.ndim) + x.shape)


def vstack(arrays: Sequence[Any], /) -> Any:
    """Arrays joined along the first dimension; vectors are rows."""
    return concat([_at_least(x, 2) for x in promoted(arrays, "vstack")])


def hstack(arrays: Sequence[Any], /) -> Any:
    """Arrays joined along the second dimension; vectors along their only one."""
    parts = [_at_least(x, 1) for x in promoted(arrays, "hstack")]
    return concat(parts, 0 if parts[0].ndim == 1 else 1)


def dstack(arrays: Sequence[Any], /) -> Any:
    """Arrays joined along the third dimension."""
    return concat([_at_least(x, 3) for x in promoted(arrays, "dstack")], 2)


def column_stack(arrays: Sequence[Any], /) -> Any:
    """Vectors as the columns of a matrix; matrices joined along the second dimension."""
    parts = promoted(arrays, "column_stack")
    return concat([reshape(x, (-1, 1)) if x.ndim < 2 else x for x in parts], 1)


def append(x: Any, values: Any, axis: int | None = None) -> Any:
    """x with values joined to its end along a dimension; both flattened where axis is None."""
    return concat([x, values], axis)


def array_split(x: Array, indices_or_sections: Any, /, axis: int = 0) -> list[Array]:
    """:func:`split` into parts that need not be equal: the first ones have one element more."""
    if isinstance(indices_or_sections, (tuple, list, np.ndarray)):
        return split(x, indices_or_sections, axis)
    parts = whole(indices_or_sections, "array_split: the number of parts", "array_split(x, 2)")
    if not 1 <= parts < 2**31:
        raise ArgumentError(f"array_split: {short(parts)} parts.", "1 or more, and as many as a list may hold")
    few, more = divmod(x.shape[one(axis, x.ndim, "array_split")], parts)
    return split(x, [i * few + builtins.min(i, more) for i in range(1, parts)], axis)


def flipud(x: Any) -> Any:
    """The order reversed along the first dimension."""
    return flip(x, 0)


def fliplr(x: Any) -> Any:
    """The order reversed along the second dimension."""
    return flip(x, 1)


# Compared


def isclose(x: Any, y: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Any:
    """Where abs(x - y) <= atol + rtol * abs(y), or both are the same infinity (with equal_nan: both NaN)."""
    x, y = _finished("isclose", x, y)
    y = e.astype(y, np.result_type(y.dtype, np.float64)) if y.dtype.kind in "iub" else y
    with np.errstate(invalid="ignore"):
        near = e.less_equal(e.abs(e.subtract(x, y)), e.add(atol, e.multiply(rtol, e.abs(y))))
    same = e.logical_or(e.logical_and(near, e.isfinite(y)), e.equal(x, y))
    return e.logical_or(same, e.logical_and(e.isnan(x), e.isnan(y))) if equal_nan else same


def allclose(x: Any, y: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Any:
    """Whether all elements are close, as :func:`isclose` says: a 0-d array, which bool() finishes."""
    return all(isclose(x, y, rtol, atol, equal_nan))


def array_equal(x: Any, y: Any, equal_nan: bool = False) -> Any:
    """Whether shapes and all elements are equal: a 0-d array, which bool() finishes."""
    x, y = _finished("array_equal", x, y)
    if x.shape != y.shape:
        return asarray(False, mesh=x.mesh)
    same = e.equal(x, y)
    return all(e.logical_or(same, e.logical_and(e.isnan(x), e.isnan(y))) if equal_nan else same)


# Diagonals


def diagonal(x: Array, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """The elements x[i, i + offset] of two dimensions, along a last dimension in their stead."""
    [x], offset = _arrays("diagonal", x), whole(offset, "diagonal: offset", "offset=0")
    if x.ndim < 2:
        raise ShapeError(f"a diagonal needs 2 dimensions or more; got shape {x.shape}.", "diag(x), of a vector")
    first, second = one(axis1, x.ndim, "diagonal"), one(axis2, x.ndim, "diagonal")
    if first == second:
        raise ArgumentError(f"diagonal: axis1 and axis2 are both {first}.", "two dimensions")
    rows, columns = builtins.max(-offset, 0), builtins.max(offset, 0)
    length = builtins.max(builtins.min(x.shape[first] - rows, x.shape[second] - columns), 0)
    index = [slice(None)] * x.ndim
    index[first], index[second] = slice(rows, rows + length), slice(columns, columns + length)
    low, high = sorted((first, second))
    return moveaxis(diagonal_of(x[tuple(index)], low, high), low, -1)


def diag(x: Any, k: int = 0) -> Any:
    """The k-th diagonal of a matrix, or the matrix with a vector on its k-th diagonal and zeros elsewhere."""
    [x], k = _arrays("diag", x), whole(k, "diag: k", "k=0")
    if x.ndim == 2:
        return diagonal(x, k)
    if x.ndim != 1:
        raise ShapeError(f"diag takes a vector or a matrix; got shape {x.shape}.", "diagonal(x, k, axis1, axis2)")
    below, right = builtins.max(-k, 0), builtins.max(k, 0)
    square = on_diagonal(x)
    return pad(square, ((below, right), (right, below))) if k else square


def trace(x: Array, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None) -> Any:
    """The sum along a diagonal."""
    return sum(diagonal(x, offset, axis1, axis2), -1, dtype)


# Products and averages


def vdot(x: Any, y: Any) -> Any:
    """The sum of conj(x) * y over all elements."""
    x, y = _arrays("vdot", x, y)
    return vecdot(ravel(x), ravel(y))


def cross(x: Any, y: Any, axis: int = -1) -> Any:
    """The cross product of vectors with 3 components along a dimension."""
    x, y = _finished("cross", x, y)
    shapes = [a.shape[one(axis, a.ndim, "cross")] for a in (x, y)]
    if shapes != [3, 3]:
        raise ShapeError(f"cross takes vectors of 3 components; got {shapes} along axis {axis}.", "a third one, 0")
    (a, b, c), (u, v, w) = (unstack(z, axis=axis) for z in (x, y))
    return stack([b * w - c * v, c * u - a * w, a * v - b * u], axis)


def kron(x: Any, y: Any) -> Any:
    """The Kronecker product: every element of x times the whole of y, in blocks."""
    x, y = _arrays("kron", x, y)
    ndim = builtins.max(x.ndim, y.ndim)
    a, b = (reshape(z, (1,) * (ndim - z.ndim) + z.shape) for z in (x, y))
    left = reshape(a, tuple(n for m in a.shape for n in (m, 1)))
    right = reshape(b, tuple(n for m in b.shape for n in (1, m)))
    return reshape(left * right, tuple(m * n for m, n in zip(a.shape, b.shape)))


def average(x: Any, axis: Any = None, weights: Any = None, *, keepdims: bool = False) -> Any:
    """The mean, or sum(x * weights) / sum(weights). A vector of weights belongs to the dimension that axis names."""
    if weights is None:
        return mean(x, axis, keepdims=keepdims)
    x, weights = _arrays("average", x, weights)
    if weights.shape != x.shape:
        if not isinstance(axis, int) or weights.shape != (x.shape[one(axis, x.ndim, "average")],):
            raise ShapeError(
                f"average: weights of shape {weights.shape} for {x.shape}.", "weights of x's shape, or axis="
            )
        dim = one(axis, x.ndim, "average")
        weights = broadcast_to(reshape(weights, tuple(-1 if d == dim else 1 for d in range(x.ndim))), x.shape)
    return e.divide(sum(x * weights, axis, None, keepdims), sum(weights, axis, None, keepdims))


def ptp(x: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    """The greatest element less the least."""
    return e.subtract(max(x, axis, keepdims), min(x, axis, keepdims))


def nan_to_num(x: Any, *, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Any:
    """NaN replaced by a number, and infinities (by the dtype's greatest and least number unless told)."""
    [x] = _finished("nan_to_num", x)
    if x.dtype.kind not in "fV":
        return x
    limits = finfo(x.dtype)
    top, low = limits.max if posinf is None else posinf, limits.min if neginf is None else neginf
    finite = e.where(e.isinf(x), e.where(e.greater(x, 0), top, low), x)
    return e.where(e.isnan(x), nan, finite)


# Where


def flatnonzero(x: Any) -> Array:
    """The flat indices, in C order, of the elements that are not 0."""
    [x] = _arrays("flatnonzero", x)
    return nonzero(ravel(x))[0]


def argwhere(x: Any) -> Any:
    """The indices of the elements that are not 0, one element a row."""
    [x] = _arrays("argwhere", x)
    return permute_dims(stack(nonzero(x)))


__all__ = [
    "allclose",
    "append",
    "argwhere",
    "array_equal",
    "array_split",
    "average",
    "column_stack",
    "concatenate",
    "copy",
    "cross",
    "diag",
    "diagonal",
    "dstack",
    "flatnonzero",
    "fliplr",
    "flipud",
    "hstack",
    "isclose",
    "kron",
    "nan_to_num",
    "ptp",
    "trace",
    "vdot",
    "vstack",
]
