"""Softmax, its logarithm, and their gradients."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from spmdx import dtypes
from spmdx.array import Array
from spmdx.dtypes import NARROW
from spmdx.errors import DtypeError
from spmdx.op import op
from spmdx.ops import elementwise as e
from spmdx.ops.axes import one
from spmdx.ops.place import arrays
from spmdx.ops.reduce import finished, max, sum
from spmdx.ops.scan import along, with_axis
from spmdx.runtime import kernels, memory
from spmdx.tape import plain, recording

WHOLE = "only where the dimension is whole; a divided one is made of reductions, not gathered"
FEW = 16  # of fewer columns beside each other the kernel would not fill a register


def _by_kernel(xp: Any, blocks: tuple[Any, ...], axis: int) -> bool:
    """True where a kernel takes these: of one dtype, and not empty; on a GPU along the last dimension."""
    return (
        bool(blocks[0].size)
        and len({b.dtype for b in blocks}) == 1
        and (blocks[0].dtype.char in "fd" if xp is np else axis == blocks[0].ndim - 1)
    )


def _of_lanes(xp: Any, blocks: tuple[Any, ...], axis: int, logarithm: bool) -> Any:
    """Softmax of a block along a dimension, or its logarithm; of two blocks, that and g, the gradient."""
    shape, last = blocks[0].shape, blocks[0].ndim - 1
    inner = 1 if axis == last else math.prod(shape[axis + 1 :])  # so far apart the elements lie
    if inner > 1 and blocks[0].size < FEW * shape[axis]:
        turned = tuple(np.moveaxis(b, axis, last) for b in blocks)
        return np.ascontiguousarray(np.moveaxis(_of_lanes(np, turned, last, logarithm), last, axis))
    blocks = tuple(xp.ascontiguousarray(b) for b in blocks)
    out, build = memory.empty(shape, blocks[0].dtype, xp), kernels.of(xp).build
    run = build.softmax if len(blocks) == 1 else build.softmax_back
    if axis == last:
        run(out, *blocks, logarithm)
    else:
        flat = [a.reshape(-1, shape[axis] * inner) for a in (out, *blocks)]
        run(*flat, logarithm, inner)
    return out


@op(along, prepare=partial(with_axis, "softmax"), note=WHOLE)
def _softmax(xp: Any, x: Any, axis: int) -> Any:
    """exp(x) / sum(exp(x)) along a dimension that is whole."""
    if not x.size:
        return x
    if _by_kernel(xp, (x,), axis):
        return _of_lanes(xp, (x,), axis, False)
    powers = xp.exp(x - xp.maximum.reduce(x, axis, None, None, True))
    powers /= xp.add.reduce(powers, axis, None, None, True)
    return powers


@op(along, prepare=partial(with_axis, "log_softmax"), note=WHOLE)
def _log_softmax(xp: Any, x: Any, axis: int) -> Any:
    """x - log(sum(exp(x))) along a dimension that is whole."""
    if not x.size:
        return x
    if _by_kernel(xp, (x,), axis):
        return _of_lanes(xp, (x,), axis, True)
    low = x - xp.maximum.reduce(x, axis, None, None, True)
    return low - xp.log(xp.add.reduce(xp.exp(low), axis, None, None, True))


def _along_both(out: tuple[int, ...], g: tuple[int, ...], axis: int) -> str:
    one, _, to = along(out, axis).partition(" -> ")
    return f"{one}, {one} -> {to}"


@op(_along_both, arrays=2, linear=((1,),))
def _softmax_back(xp: Any, out: Any, g: Any, axis: int) -> Any:
    """The gradient of softmax, which has given ``out``, along a dimension that is whole."""
    if _by_kernel(xp, (out, g), axis):
        return _of_lanes(xp, (out, g), axis, False)
    return out * (g - xp.add.reduce(g * out, axis, None, None, True))


@op(_along_both, arrays=2, linear=((1,),))
def _log_softmax_back(xp: Any, out: Any, g: Any, axis: int) -> Any:
    """The gradient of log_softmax, which has given ``out``, along a dimension that is whole."""
    if _by_kernel(xp, (out, g), axis):
        return _of_lanes(xp, (out, g), axis, True)
    return g - xp.exp(out) * xp.add.reduce(g, axis, None, None, True)


def _composed(g: Array, axis: int) -> bool:
    """True where the gradient is made of operations: for a gradient of it, and where g lies divided along there, which
    would be gathered."""
    return recording() or bool(g.spec.layouts[axis].axes)


@_softmax.vjp  # type: ignore[untyped-decorator]  # vjp returns what it is given
def _softmax_vjp(g: Array, out: Array, x: Array, axis: int) -> Any:
    if not _composed(g, axis):
        return _softmax_back(out, g, axis)
    return e.multiply(out, e.subtract(g, finished(sum(e.multiply(g, out), axis, None, True))))


@_log_softmax.vjp  # type: ignore[untyped-decorator]  # as above
def _log_softmax_vjp(g: Array, out: Array, x: Array, axis: int) -> Any:
    if not _composed(g, axis):
        return _log_softmax_back(out, g, axis)
    return e.subtract(g, e.multiply(e.exp(out), finished(sum(g, axis, None, True))))


def _in_float(x: Any, axis: int, name: str) -> tuple[Array, int, Any]:
    """The array in a dtype to compute in, the dimension, and the dtype of the result."""
    [x] = arrays(x)
    if x.dtype.kind == "c":
        raise DtypeError(f"{name} of {x.dtype.name} is not defined: it needs a greatest element.", f"{name}(real(x))")
    out = x.dtype if x.dtype.kind in "fV" else dtypes.float64
    wide = dtypes.float32 if out in NARROW else out
    return x if x.dtype == wide else e.astype(x, wide), one(axis, x.ndim, name), out


def _whole(x: Array, axis: int) -> bool:
    """True where the operation on whole lanes is the better one: lanes are whole, or there are none."""
    return not x.spec.layouts[axis].axes or not x.size


def softmax(x: Any, axis: int = -1) -> Array:
    """exp(x) / sum(exp(x)) along a dimension, without overflow.

    Along a divided dimension: two small all-reduces, of the maxima and of the sums. No gather.
    Where the dimension is whole, on a CPU, a float32 sum is off by less than 70 half ulps, however long.
    """
    x, axis, out = _in_float(x, axis, "softmax")
    if _whole(x, axis):
        found = _softmax(x, axis)
    else:
        powers = e.exp(e.subtract(x, max(plain(x), axis, True)))
        found = e.divide(powers, sum(powers, axis, None, True))
    return found if out == found.dtype else e.astype(found, out)


def log_softmax(x: Any, axis: int = -1) -> Array:
    """log(softmax(x)) along a dimension, without overflow; communicates as :func:`softmax`."""
    x, axis, out = _in_float(x, axis, "log_softmax")
    if _whole(x, axis):
        found = _log_softmax(x, axis)
    else:
        low = e.subtract(x, max(plain(x), axis, True))
        found = e.subtract(low, e.log(sum(e.exp(low), axis, None, True)))
    return found if out == found.dtype else e.astype(found, out)


__all__ = ["log_softmax", "softmax"]
