"""Moments and norms: compositions of operations, so that their gradients, and that they never gather, follow."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from spmdx import dtypes
from spmdx.array import Array
from spmdx.dtypes import NARROW
from spmdx.errors import ArgumentError
from spmdx.ops import elementwise as e
from spmdx.ops.axes import several
from spmdx.ops.place import asarray
from spmdx.ops.reduce import count_nonzero, finished, max, min, sum
from spmdx.tape import plain


def _floating(x: Any, dtype: Any = None) -> tuple[Array, Any, Any]:
    """The array, the floating dtype of a mean of it, and the one to compute in."""
    x = x if isinstance(x, Array) else asarray(x)
    out = dtypes.checked(dtype) if dtype is not None else x.dtype if x.dtype.kind in "fcV" else dtypes.float64
    return x, out, dtypes.float32 if out in NARROW else out


def _real(dtype: Any) -> Any:
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype


def _cast(x: Array, dtype: Any) -> Array:
    return x if x.dtype == dtype else e.astype(x, dtype)


def _count(x: Array, axis: Any) -> int:
    return math.prod(x.shape[d] for d in several(axis, x.ndim, "mean"))


def mean(x: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Array:
    """Arithmetic mean over dimensions: the sum divided by the global count. Of integers and bools in float64."""
    x, out, wide = _floating(x, dtype)
    return _cast(e.divide(sum(x, axis, wide, keepdims), _count(x, axis)), out)


def var(
    x: Any,
    axis: Any = None,
    dtype: Any = None,
    ddof: float = 0,
    keepdims: bool = False,
    *,
    correction: float | None = None,
) -> Array:
    """Variance over dimensions, in two passes: the sum of squared distances from the mean / (count - correction).

    Args:
        ddof, correction: NumPy's name and the standard's of the same number.
    """
    x, out, wide = _floating(x, dtype)
    off = e.subtract(_cast(x, wide), finished(mean(x, axis, wide, True)))
    total = sum(_squared(off), axis, None, keepdims)
    count = _count(x, axis) - (ddof if correction is None else correction)
    result = e.divide(total, count) if count > 0 else e.divide(finished(total), 0)
    return _cast(result, out) if out in NARROW else result


def std(
    x: Any,
    axis: Any = None,
    dtype: Any = None,
    ddof: float = 0,
    keepdims: bool = False,
    *,
    correction: float | None = None,
) -> Array:
    """Standard deviation over dimensions: the square root of :func:`var`."""
    return e.sqrt(var(x, axis, dtype, ddof, keepdims, correction=correction))  # type: ignore[no-any-return]  # as above


def _squared(x: Array) -> Array:
    return e.real(e.multiply(x, e.conj(x))) if x.dtype.kind == "c" else e.multiply(x, x)  # type: ignore[no-any-return]


def logsumexp(x: Any, axis: Any = None, keepdims: bool = False) -> Array:
    """log(sum(exp(x))) over dimensions, without overflow. Two small all-reduces along reduced shards."""
    x, out, wide = _floating(x)
    x = _cast(x, wide)
    top = max(plain(x), axis, True)
    top = e.where(e.isfinite(top), top, 0)
    total = e.log(sum(e.exp(e.subtract(x, top)), axis, None, keepdims))
    return _cast(e.add(total, top if keepdims else sum(top, axis)), out)


def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Array:
    """Norm of vectors, or of matrices where ``axis`` names two dimensions (or x has two and ``ord`` is given).

    Args:
        ord: None (2-norm of all elements of the dimensions), "fro", or a number p, inf or -inf. For vectors also 0:
            how many are not 0. For matrices 1, -1, inf and -inf: the greatest or least sum of a column or a row.

    Its gradient is 0 where the norm is 0.
    """
    x, out, wide = _floating(x)
    reduced = several(axis, x.ndim, "norm")
    if ord is None or ord == "fro":
        return vector_norm(x, axis=axis, keepdims=keepdims)
    if len(reduced) != 2:
        return vector_norm(x, axis=axis, keepdims=keepdims, ord=ord)
    if ord not in (1, -1, math.inf, -math.inf):
        raise ArgumentError(f"norm of matrices has no ord={ord!r} here.", 'ord=None, "fro", 1, -1, inf or -inf')
    rows, columns = reduced
    inner, outer = (rows, columns) if ord in (1, -1) else (columns, rows)
    sums = sum(e.abs(_cast(x, wide)), inner, None, True)
    return _cast(_kept((max if ord > 0 else min)(sums, outer, True), reduced, keepdims), _real(out))


def vector_norm(x: Any, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Array:
    """The p-norm over dimensions, taken as one vector: sum(abs(x)**ord)**(1/ord), inf: greatest, 0: how many."""
    x, out, wide = _floating(x)
    x = _cast(x, wide)
    if isinstance(ord, str):
        raise ArgumentError(f"norm of vectors has no ord={ord!r}.", "a number, inf or -inf; or axis=(rows, columns)")
    out = _real(out)
    if ord == 2:
        return _cast(_root(sum(_squared(x), axis, None, keepdims), 2), out)
    if ord == 0:
        return e.astype(count_nonzero(x, axis, keepdims), out)
    size = e.abs(x)
    if ord in (math.inf, -math.inf):
        return _cast((max if ord > 0 else min)(size, axis, keepdims), out)
    if ord == 1:
        return _cast(sum(size, axis, None, keepdims), out)
    return _cast(_root(sum(e.pow(size, float(ord)), axis, None, keepdims), float(ord)), out)


def _root(total: Array, p: float) -> Array:
    """total ** (1/p), with gradient 0 where total is 0: there the root is taken of 1 instead, and not used."""
    zero = e.equal(total, 0)
    safe = e.where(zero, 1, total)
    return e.where(zero, 0 if p > 0 else math.inf, e.sqrt(safe) if p == 2 else e.pow(safe, 1 / p))  # type: ignore[no-any-return]


def _kept(x: Array, reduced: tuple[int, ...], keepdims: bool) -> Array:
    return x if keepdims else sum(x, reduced)


__all__ = ["logsumexp", "mean", "norm", "std", "var", "vector_norm"]
