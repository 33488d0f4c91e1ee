"""Rotations by position (Su et al., 2021), which attention's queries and keys get before they meet."""

from __future__ import annotations

from typing import Any

import numpy as np

from spmdx.op import op
from spmdx.ops.neural import wide
from spmdx.runtime import kernels


@op("... t h [d], ... t [e], ... t [e] -> ... t h [d]", linear=((0,),))
def _rotate(xp: Any, x: Any, cos: Any, sin: Any, neighbours: bool) -> Any:
    """Pairs of elements along the last dimension turned by angles: the two halves, or neighbours."""
    if _fits(x, cos, sin):
        return _rotated(xp, x, cos, sin, neighbours)
    y = wide(xp, x)
    c, s = (a[..., None, :].astype(y.dtype, copy=False) for a in (cos, sin))
    half = y.shape[-1] // 2
    first, second = (y[..., 0::2], y[..., 1::2]) if neighbours else (y[..., :half], y[..., half:])
    out = xp.empty(np.broadcast_shapes(y.shape, (*c.shape[:-1], y.shape[-1])), y.dtype)
    to_first, to_second = (out[..., 0::2], out[..., 1::2]) if neighbours else (out[..., :half], out[..., half:])
    xp.multiply(first, c, out=to_first)
    to_first -= second * s
    xp.multiply(second, c, out=to_second)
    to_second += first * s
    return out.astype(x.dtype, copy=False)


def _fits(x: Any, cos: Any, sin: Any) -> bool:
    """True if the angles' leading dimensions are the last ones of x before its heads."""
    lead, own = x.shape[:-2], cos.shape
    return bool(own == sin.shape and own[:-1] == lead[len(lead) - len(own) + 1 :] and 2 * own[-1] == x.shape[-1])


def _rotated(xp: Any, x: Any, cos: Any, sin: Any, neighbours: bool) -> Any:
    y = wide(xp, x) if xp is np else x  # a GPU widens in its kernels
    computed, out = np.float64 if y.dtype.itemsize == 8 else np.float32, xp.empty(y.shape, y.dtype)
    c, s = (xp.ascontiguousarray(a, computed) for a in (cos, sin))
    if x.size:
        kernels.of(xp).build.rotate(out, xp.ascontiguousarray(y), c, s, neighbours)
    return out.astype(x.dtype, copy=False)


_rotate.vjp(
    lambda g, out, x, cos, sin, neighbours: _rotate(g, cos, -sin, neighbours),
    lambda g, out, x, cos, sin, neighbours: None,
    lambda g, out, x, cos, sin, neighbours: None,
)
