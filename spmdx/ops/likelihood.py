"""Cross-entropy in passes that never gather the classes: each rank reads its own scores."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from spmdx.decide import Bounds
from spmdx.errors import BoundsError
from spmdx.op import op
from spmdx.ops.neural import wide
from spmdx.ops.scatter import locate
from spmdx.runtime import kernels, memory

ROWS = 1 << 18  # scores of a block of rows, at most, so that they stay in the cache


def _rows(x: Any, n: int) -> Any:
    return np.ascontiguousarray(x).reshape(-1, n) if x.size else np.empty((math.prod(x.shape[:-1]), n), x.dtype)


@op("... -> ...")
def _from_zero(xp: Any, labels: Any, classes: int) -> Any:
    """Labels, none of them negative: an index may count from the end, and a label of -1 would quietly be the last
    class."""
    if isinstance(labels, np.ndarray) and labels.size and (least := int(labels.min())) < 0:
        raise BoundsError(
            f"label {least} is out of range for {classes} classes.",
            "cross_entropy(logits, labels.clip(0)) * (labels >= 0) to leave some out",
        )
    return labels


def _sums(xp: Any, x: Any, top: Any, powers: bool) -> Any:
    """The sum of exp(x - top) over the last dimension, or of x - top."""
    n = x.shape[-1]
    if xp is np and x.dtype == top.dtype and x.dtype.char in "fd":
        sums = np.empty(top.size, top.dtype)
        kernels.HOST.build.sum_scores(sums, _rows(x, n), np.ascontiguousarray(top).reshape(-1), powers)
        return sums.reshape(top.shape)
    step = max(1, ROWS // max(n, 1))
    rows, tops = x.reshape(-1, n) if x.size else x.reshape(top.size, n), top.reshape(-1, 1)
    out = xp.empty(rows.shape[0], top.dtype)
    for start in range(0, rows.shape[0], step):
        some = slice(start, start + step)
        low = xp.subtract(rows[some], tops[some], dtype=top.dtype)
        xp.add.reduce(xp.exp(low, out=low) if powers else low, 1, None, out[some])
    return out.reshape(x.shape[:-1])


@op("... v, ... -> ...")
def _sum_low(xp: Any, x: Any, top: Any) -> Any:
    """The sum of x - top over the last dimension: a Partial sum where it is divided."""
    return _sums(xp, x, top, False)


@op("... v, ... -> ...")
def _sum_exp(xp: Any, x: Any, top: Any) -> Any:
    """The sum of exp(x - top) over the last dimension: a Partial sum where it is divided."""
    return _sums(xp, x, top, True) if xp is np else _sum_exp_on_gpu(xp, x, top)


@op("..., ... v, ..., ..., ..., -> ... v", bounds=True)
def _cross_entropy_back(
    xp: Any, at: Bounds, g: Any, x: Any, top: Any, sums: Any, labels: Any, smooth: Any, classes: int
) -> Any:
    """The gradient of cross-entropy with respect to the scores: g (exp(x - top) / sums - target)."""
    part = 1 / sums
    if xp is not np:
        return _back_on_gpu(xp, at, g, x, top, part, labels, float(smooth), classes)
    if x.dtype == top.dtype == part.dtype == g.dtype and x.dtype.char in "fd":
        local, inside = locate(labels, at.inputs[1][-1], classes)
        n = x.shape[-1]
        flat = [np.ascontiguousarray(a).reshape(-1) for a in (top, part, np.where(inside, local, -1), g)]
        back = memory.empty((labels.size, n), x.dtype)
        kernels.HOST.build.scores_back(back, _rows(x, n), *flat, smooth / classes, 1.0 - smooth)
        return back.reshape(x.shape)
    y = wide(xp, x)
    out = xp.asarray(y - top[..., None])
    xp.exp(out, out=out)
    out *= part[..., None]
    if smooth:
        out -= smooth / classes
    local, inside = locate(labels, at.inputs[1][-1], classes)
    rows = xp.nonzero(inside)
    picked = (*rows, local[rows])
    out[picked] -= 1.0 - smooth
    out *= wide(xp, g)[..., None]
    return out.astype(x.dtype, copy=False)


# The same in one kernel each


def _sum_exp_on_gpu(xp: Any, x: Any, top: Any) -> Any:
    out = xp.zeros(top.shape, np.float64 if x.dtype.itemsize == 8 else np.float32)
    kernels.of(xp).build.sum_exp(out, xp.ascontiguousarray(x), xp.ascontiguousarray(top, out.dtype))
    return out.astype(top.dtype, copy=False)


def _back_on_gpu(
    xp: Any, at: Bounds, g: Any, x: Any, top: Any, part: Any, labels: Any, smooth: float, classes: int
) -> Any:
    local, inside = locate(labels, at.inputs[1][-1], classes)
    here, out = xp.where(inside, local, -1), xp.empty(x.shape, x.dtype)
    wide = np.float64 if x.dtype.itemsize == 8 else np.float32
    rows = (xp.ascontiguousarray(xp.broadcast_to(xp.asarray(a, wide), x.shape[:-1])) for a in (top, part, g))
    build = kernels.of(xp).build
    build.cross_back(out, xp.ascontiguousarray(x), *rows, here, smooth / classes, 1.0 - smooth)
    return out
