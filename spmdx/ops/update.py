"""What optimizers do to every element, in one pass each. None of it needs another rank where the operands lie alike."""

from __future__ import annotations

from typing import Any

import numpy as np

from spmdx.op import op
from spmdx.ops.axes import names
from spmdx.ops.neural import in_pieces, wide
from spmdx.ops.pointwise import FLOATS, pointwise


@pointwise(FLOATS, ufunc=None)
@in_pieces
def _mix(xp: Any, x: Any, a: Any, y: Any, b: Any) -> Any:
    """a x + b y"""
    out = xp.asarray(x * a)
    out += y * b
    return out


@pointwise(FLOATS, ufunc=None)
@in_pieces
def _mix_square(xp: Any, x: Any, a: Any, y: Any, b: Any) -> Any:
    """a x + b y**2"""
    out = xp.asarray(y * y)
    out *= b
    out += x * a
    return out


@pointwise(FLOATS, ufunc=None)
@in_pieces
def _adam_step(xp: Any, m: Any, v: Any, p: Any, rate: Any, root: Any, eps: Any, decay: Any) -> Any:
    """-rate m / (sqrt(v) / root + eps) - decay p"""
    below = xp.asarray(xp.sqrt(v))
    below /= root
    below += eps
    xp.divide(m, below, out=below)
    below *= -rate
    if type(decay) is not float or decay:
        below -= p * decay
    return below


def _all(shape: tuple[int, ...]) -> str:
    return f"{' '.join(names(len(shape)))} ->"


@op(_all)
def _square_sum(xp: Any, x: Any) -> Any:
    """The sum of squares: a Partial sum along every axis that divides x."""
    flat = wide(xp, x).ravel()
    return np.vdot(flat, flat)
