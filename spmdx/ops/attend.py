"""Attention by blocks of rows, and rotations by position.

The kernel (cuda/attend.h) makes the scores of a block of rows at a time, and makes them again in the gradient, so that
memory is linear in the sequence.
"""

from __future__ import annotations

import math
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from spmdx import dtypes
from spmdx.decide import Bounds
from spmdx.dtypes import NARROW
from spmdx.op import op
from spmdx.ops.neural import wide
from spmdx.rule import Form
from spmdx.runtime import kernels, memory


def _limits(xp: Any, at: Bounds, which: int, offset: int | None) -> Any:
    """The last column that each row of q sees, ``which`` being q's operand: rows are numbered globally."""
    return None if offset is None else Bounds.indices(at.inputs[which][-2], xp) + offset


def computed(xp: Any, *operands: Any) -> np.dtype[Any]:
    """The dtype that the kernel reads: float32 or float64; of a GPU a narrow one too, which computes in float32."""
    if xp is not np:
        return dtypes.promoted(*(x.dtype for x in operands))
    return np.result_type(*(np.float32 if x.dtype in NARROW else x.dtype for x in operands), np.float32)


def _ready(xp: Any, q: Any, k: Any, v: Any, mask: Any, *like_q: Any) -> tuple[Any, ...]:
    """Operands with the same leading dimensions, in one dtype to compute with, elements of a row side by side."""
    kind = computed(xp, q, k, v)
    batch = np.broadcast_shapes(k.shape[:-2], v.shape[:-2], *(x.shape[:-3] for x in (q, *like_q)))

    def ready(x: Any, own: int) -> Any:
        x = x.astype(kind, copy=False)
        x = x if x.strides[-1] == x.itemsize else xp.ascontiguousarray(x)
        shape = *batch, *x.shape[x.ndim - own :]
        return x if x.shape == shape else xp.broadcast_to(x, shape)

    if mask is not True:
        mask = xp.broadcast_to(xp.asarray(mask), (*batch, *q.shape[-3:-1], k.shape[-2]))
    return (
        ready(q, 3),
        ready(k, 2),
        ready(v, 2),
        None if mask is True else mask,
        *(ready(x, 3) for x in like_q),
    )


def _dims(first: str, q: tuple[int, ...], mask: tuple[int, ...], out: str, rows: str = "g t") -> str:
    group, t = rows.split()
    group = "1" if mask and mask[-3] == 1 != q[-3] else group
    return f"{first}, ... [s] [d], ... [s] [e], {f'... {group} {t} [s]' if mask else ''}, -> {out}"


def _rule(q: Any, k: Any, v: Any, mask: Any, scale: Any, offset: Any) -> str:
    return _dims("... g t [d]", q, mask, "... g t [e]")


def _heads_together(shape: tuple[int, ...], dtype: Any) -> Any:
    """Room for [..., few, group, t, e], in memory [..., t, few, group, e], which is what comes next wants."""
    shape = (1, *shape)
    lies = (*shape[:-4], shape[-2], *shape[-4:-2], shape[-1])
    return np.moveaxis(memory.empty(lies, dtype), -4, -2)[0]


@op(_rule, arrays=5, bounds=True)
def _attend(xp: Any, at: Bounds, q: Any, k: Any, v: Any, mask: Any, scale: Any, offset: int | None) -> Any:
    """softmax(scale q k.T) v, for groups of heads that share k and v.

    ``mask`` is True where a column is seen, or True alone; row i sees columns up to i + ``offset``, or all for None.
    A row that sees nothing gives 0.
    """
    kind = dtypes.promoted(q.dtype, k.dtype, v.dtype)
    q, k, v, mask = _ready(xp, q, k, v, mask)
    shape = (*q.shape[:-1], v.shape[-1])
    out = _heads_together(shape, q.dtype) if xp is np else xp.zeros(shape, q.dtype)
    kernels.of(xp).build.attend(q, k, v, mask, _limits(xp, at, 0, offset), float(scale), None, out, None, None, None)
    return out.astype(kind, copy=False)


def _back(
    xp: Any,
    at: Bounds,
    operands: tuple[Any, ...],
    offset: int | None,
    rows: Any = None,
    columns: tuple[Any, Any] | tuple[None, None] = (None, None),
) -> None:
    """The gradients of _attend with respect to q, and to k and v, into whichever are given."""
    g, out, q, k, v, mask, scale = operands
    q, k, v, mask, g, out = _ready(xp, q, k, v, mask, g, out)
    kernels.of(xp).build.attend(q, k, v, mask, _limits(xp, at, 2, offset), float(scale), g, out, rows, *columns)


def _room(xp: Any, operands: tuple[Any, ...], sizes: tuple[int, ...]) -> Any:
    """Room for a gradient, the operands' leading dimensions, then ``sizes``: zeros unless the kernel writes it all."""
    g, out, q, k, v, _, _ = operands
    batch = np.broadcast_shapes(*(x.shape[:-3] for x in (g, out, q)), *(x.shape[:-2] for x in (k, v)))
    make = memory.empty if xp is np and q.size else xp.zeros
    return make((*batch, *sizes), computed(xp, q, k, v))


def _rows_rule(g: Any, out: Any, q: Any, k: Any, v: Any, mask: Any, scale: Any, offset: Any) -> str:
    return _dims("... g t [e], ... g t [e], ... g t [d]", q, mask, "... g t [d]")


@op(_rows_rule, arrays=7, bounds=True)
def _attend_rows_back(
    xp: Any, at: Bounds, g: Any, out: Any, q: Any, k: Any, v: Any, mask: Any, scale: Any, offset: int | None
) -> Any:
    """The gradient of _attend with respect to q."""
    operands = (g, out, q, k, v, mask, scale)
    back = _room(xp, operands, q.shape[-3:])
    _back(xp, at, operands, offset, rows=back)
    return back.astype(q.dtype, copy=False)


def _columns_rule(g: Any, out: Any, q: Any, k: Any, v: Any, mask: Any, scale: Any, offset: Any) -> Form:
    text = _dims("... g t [e], ... g t [e], ... g t [d]", q, mask, "... [s] w")
    return Form(text, {"w": k[-1] + v[-1]})


@op(_columns_rule, arrays=7, bounds=True)
def _attend_columns_back(
    xp: Any, at: Bounds, g: Any, out: Any, q: Any, k: Any, v: Any, mask: Any, scale: Any, offset: int | None
) -> Any:
    """The gradients of _attend with respect to k and v, side by side: one pass makes both."""
    operands, n = (g, out, q, k, v, mask, scale), k.shape[-1]
    back = _room(xp, operands, (k.shape[-2], n + v.shape[-1]))
    _back(xp, at, operands, offset, columns=(back[..., :n], back[..., n:]))
    return back.astype(k.dtype, copy=False)


def _alike(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...]) -> bool:
    """Whether every head of q, of k and of v is a matrix of one size."""
    return q[-2:] == k[-2:] == v[-2:]


def _all_rule(g: Any, out: Any, q: Any, k: Any, v: Any, mask: Any, scale: Any, offset: Any) -> Form:
    text = _dims("... [g] [t] [e], ... [g] [t] [e], ... [g] [t] [d]", q, mask, "... w").replace(
        "g t [s]", "[g] [t] [s]"
    )
    if _alike(q, k, v):
        return Form(f"{text} [t] [d]", {"w": q[-3] + 2})
    return Form(text, {"w": math.prod(q[-3:]) + math.prod(k[-2:]) + math.prod(v[-2:])})


@op(_all_rule, arrays=7, bounds=True)
def _attend_back(
    xp: Any, at: Bounds, g: Any, out: Any, q: Any, k: Any, v: Any, mask: Any, scale: Any, offset: int | None
) -> Any:
    """All three gradients of _attend: where queries are whole, one pass makes them. One after another, [..., group +
    2, t, d] where the heads are alike, and else flat; :func:`parts` takes them apart."""
    operands = (g, out, q, k, v, mask, scale)
    shapes = (q.shape[-3:], k.shape[-2:], v.shape[-2:])
    if _alike(*shapes):
        back = _room(xp, operands, (shapes[0][0] + 2, *shapes[1]))
        if xp is np and back.ndim > 3:  # in memory [group + 2, ..., t, few, d], which is what comes next wants
            lies = (back.shape[-3], *back.shape[:-4], back.shape[-2], back.shape[-4], back.shape[-1])
            back = np.moveaxis(back.reshape(lies), (0, -2), (-3, -4))
    else:
        back = _room(xp, operands, (sum(math.prod(shape) for shape in shapes),))
    rows, *columns = parts(back, *shapes)
    _back(xp, at, operands, offset, rows, (columns[0], columns[1]))
    return back.astype(q.dtype, copy=False)


def parts(back: Any, q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...]) -> list[Any]:
    """What _attend_back gives, an array or a block, in the shapes of q, k and v."""
    if _alike(q, k, v):
        return [back[..., :-2, :, :], back[..., -2, :, :], back[..., -1, :, :]]
    shapes = (q[-3:], k[-2:], v[-2:])
    ends = [0, *accumulate(math.prod(shape) for shape in shapes)]
    return [back[..., a:b].reshape((*back.shape[:-1], *shape)) for (a, b), shape in zip(pairwise(ends), shapes)]


@op("... -> ...", linear="together")
def _beside(xp: Any, x: Any) -> Any:
    """The same, with neighbouring elements side by side in memory."""
    return xp.ascontiguousarray(x).reshape(x.shape)


@op("... -> ...", linear="together")
def _gradient_beside(xp: Any, x: Any) -> Any:
    """The same; several products and sums read its gradient, which lies in another order."""
    return x


_beside.vjp(lambda g, out, x: g)
_gradient_beside.vjp(lambda g, out, x: _beside(g))

# Rotations by position


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
