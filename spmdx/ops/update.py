"""What optimizers do to every element, in one pass each. None of it needs another rank where the operands lie alike."""

from __future__ import annotations

from typing import Any

import numpy as np

from spmdx.op import op
from spmdx.ops import elementwise as e
from spmdx.ops.axes import names
from spmdx.ops.fit import fit
from spmdx.ops.neural import activate, wide
from spmdx.ops.pointwise import FLOATS, pointwise
from spmdx.runtime import memory


@pointwise(FLOATS, ufunc=None)
def _mix(xp: Any, x: Any, a: Any, y: Any, b: Any) -> Any:
    """a x + b y, for numbers a and b"""
    return activate(xp, "mix", x, y, numbers=(a, b))


@pointwise(FLOATS, ufunc=None)
def _mix_square(xp: Any, x: Any, a: Any, y: Any, b: Any) -> Any:
    """a x + b y**2, for numbers a and b"""
    return activate(xp, "mix_square", x, y, numbers=(a, b))


@pointwise(FLOATS, ufunc=None)
def _adam_step(xp: Any, m: Any, v: Any, p: Any, rate: Any, root: Any, eps: Any, decay: Any) -> Any:
    """-rate m / (sqrt(v) / root + eps) - decay p, for numbers but m, v and p; p may be one if decay is 0"""
    if not memory.on_device(decay) and np.ndim(decay) == 0 and not decay:
        return activate(xp, "adam_step", m, v, numbers=(rate, root, eps))
    return activate(xp, "adamw_step", m, v, p, numbers=(rate, root, eps, decay))


def _all(shape: tuple[int, ...]) -> str:
    return f"{' '.join(names(len(shape)))} ->"


@op(_all)
def _square_sum(xp: Any, x: Any) -> Any:
    """The sum of squares, of what is neither real nor floating too: a Partial sum along every axis that divides x."""
    flat = wide(xp, x).ravel()
    if flat.dtype.kind not in "fc":
        flat = flat.astype(np.float64)
    return xp.vdot(flat, flat).real


_square_sum.vjp(lambda g, out, x: fit(2 * g * (e.conj(x) if x.dtype.kind == "c" else x), x))
