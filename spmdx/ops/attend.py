"""Attention by blocks of rows.

The kernel (cuda/attend.h) makes the scores of a block of rows at a time, and makes them again in the gradient, so that
memory is linear in the sequence. So it draws what dropout keeps, by the number of each weight in the whole array.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from spmdx import dtypes
from spmdx.decide import Bounds
from spmdx.dtypes import NARROW
from spmdx.op import op
from spmdx.rule import Form
from spmdx.runtime import kernels, memory

Pieces = tuple[tuple[int, int], ...]  # the intervals of one dimension that a block holds


def _limits(xp: Any, at: Bounds, which: int, offset: int | None) -> Any:
    """The last column that each row of q sees, ``which`` being q's operand: rows are numbered globally."""
    if offset is None:
        return None
    pieces = at.inputs[which][-2]
    return _last_seen(pieces, offset) if xp is np else Bounds.indices(pieces, xp) + offset


@lru_cache(256)
def _last_seen(pieces: Pieces, offset: int) -> Any:
    return Bounds.indices(pieces) + offset


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


# Dropout


@lru_cache(256)
def _numbered(pieces: tuple[Pieces, ...], sizes: tuple[int, ...]) -> tuple[Any, Any]:
    """The numbers of heads, and of rows, in an array of [..., t, s] of which ``pieces`` of [..., t] are here."""
    heads = np.zeros((), np.int64)
    for some, n in zip(pieces[:-1], sizes[:-2]):
        heads = heads[..., None] * n + Bounds.indices(some)
    return np.ascontiguousarray(heads), Bounds.indices(pieces[-1])


class Dropped(NamedTuple):
    """What is to be known of weights of which some are dropped: the words of the key, the share, and where they lie."""

    words: Any
    rate: float
    pieces: tuple[Pieces, ...]
    sizes: tuple[int, ...]

    def numbers(self, kind: np.dtype[Any]) -> tuple[Any, ...]:
        """What the kernel of a CPU takes."""
        kept = kernels.kept_numbers(1.0 - self.rate, kind.itemsize == 8)
        return (self.words.tolist(), *kept, *_numbered(self.pieces, self.sizes), self.sizes[-2])

    def __call__(self, xp: Any, weights: Any) -> Any:
        """Dropout of the weights that are here."""
        whole = ((0, self.sizes[-1]),)
        return kernels.of(xp).dropout(self.words, self.sizes, (*self.pieces, whole), weights, 1.0 - self.rate)


def _dropped(at: Bounds, which: int, words: Any, rate: float, sizes: tuple[int, ...] | None) -> Dropped | None:
    """None if nothing is. ``which`` is q's operand, which says where groups and rows lie, and the output what's before
    them."""
    if words is True or sizes is None:
        return None
    pieces = at.output[: len(sizes) - 3] + at.inputs[which][-3:-1]
    return Dropped(words, float(rate), pieces, sizes)


def _sizes(which: int) -> Callable[..., dict[str, Any]]:
    """Of a call whose operand number ``which`` is q, the shape of the weights, if some are dropped."""

    def prepare(*shapes: tuple[int, ...], offset: int | None, sizes: Any = None) -> dict[str, Any]:
        q, k, _, mask, _, words, _ = shapes[which:]
        if not words:
            return {"offset": offset, "sizes": None}
        lead = np.broadcast_shapes(q[:-3], k[:-2], mask[:-3], *(x[:-3] for x in shapes[:which]))
        return {"offset": offset, "sizes": (*lead, *q[-3:-1], k[-2])}

    return prepare


def _in_full(
    xp: Any,
    drop: Dropped,
    q: Any,
    k: Any,
    v: Any,
    mask: Any,
    limits: Any,
    scale: float,
    g: Any,
    out: Any,
    rows: Any,
    of_k: Any,
    of_v: Any,
) -> None:
    """What the kernel does, with all weights made at once: for a GPU, whose kernels drop none."""
    kind = np.result_type(np.float32, np.float64 if out.dtype.itemsize == 8 else np.float32)
    q, k, v = (x.astype(kind, copy=False) for x in (q, k, v))
    keys, values = k[..., None, :, :], v[..., None, :, :]
    scores = xp.matmul(q * kind.type(scale), xp.swapaxes(keys, -1, -2))
    if limits is not None:
        before = xp.arange(k.shape[-2]) <= limits[:, None]
        mask = before if mask is None else xp.logical_and(mask, before)
    if mask is not None:
        scores = xp.where(mask, scores, kind.type(-np.inf))
    if scores.size:
        top = scores.max(-1, keepdims=True)
        scores = xp.exp(scores - xp.where(xp.isneginf(top), kind.type(0), top))
        total = scores.sum(-1, keepdims=True)
        scores /= xp.where(total == 0, kind.type(1), total)
    weights = drop(xp, scores)
    if g is None:
        out[...] = xp.matmul(weights, values)
        return
    g = g.astype(kind, copy=False)
    along = (g * out.astype(kind, copy=False)).sum(-1, keepdims=True)
    slopes = scores * (drop(xp, xp.matmul(g, xp.swapaxes(values, -1, -2))) - along) * kind.type(scale)
    if rows is not None:
        rows[...] = xp.matmul(slopes, keys)
    if of_k is not None:
        of_k[...] = xp.matmul(xp.swapaxes(slopes, -1, -2), q).sum(-3)
        of_v[...] = xp.matmul(xp.swapaxes(weights, -1, -2), g).sum(-3)


def _run(xp: Any, drop: Dropped | None, *operands: Any) -> None:
    """The kernel, whose last operands are outputs."""
    if drop is None:
        kernels.of(xp).build.attend(*operands)
    elif xp is np:
        kernels.of(xp).build.attend(*operands, drop.numbers(operands[0].dtype))
    else:
        _in_full(xp, drop, *operands)


# The operations. Weights are dropped where ``words`` are a key's, and none where it is True: then rate is not read.


def _dims(first: str, q: tuple[int, ...], mask: tuple[int, ...], words: tuple[int, ...], out: str) -> str:
    group = "1" if mask and mask[-3] == 1 != q[-3] else "g"
    seen, key = f"... {group} t [s]" if mask else "", "[words]" if words else ""
    return f"{first}, ... [s] [d], ... [s] [e], {seen}, , {key}, -> {out}"


def _rule(q: Any, k: Any, v: Any, mask: Any, scale: Any, words: Any, rate: Any, offset: Any, sizes: Any) -> str:
    return _dims("... g t [d]", q, mask, words, "... g t [e]")


def _heads_together(shape: tuple[int, ...], dtype: Any) -> Any:
    """Room for [..., few, group, t, e], in memory [..., t, few, group, e], which is what comes next wants."""
    shape = (1, *shape)
    lies = (*shape[:-4], shape[-2], *shape[-4:-2], shape[-1])
    n = len(lies)
    return memory.empty(lies, dtype).transpose(*range(n - 4), n - 3, n - 2, n - 4, n - 1)[0]


@op(_rule, arrays=7, bounds=True, prepare=_sizes(0))
def _attend(
    xp: Any,
    at: Bounds,
    q: Any,
    k: Any,
    v: Any,
    mask: Any,
    scale: Any,
    words: Any,
    rate: Any,
    offset: int | None,
    sizes: Any = None,
) -> Any:
    """softmax(scale q k.T) v, for groups of heads that share k and v.

    ``mask`` is True where a column is seen, or True alone; row i sees columns up to i + ``offset``, or all for None.
    A row that sees nothing gives 0. Of the weights a share, ``rate``, is dropped, drawn with a key's ``words``; where
    these are True, none.
    """
    drop = _dropped(at, 0, words, rate, sizes)
    kind = dtypes.promoted(q.dtype, k.dtype, v.dtype)
    q, k, v, mask = _ready(xp, q, k, v, mask)
    shape = (*q.shape[:-1], v.shape[-1])
    out = _heads_together(shape, q.dtype) if xp is np else xp.zeros(shape, q.dtype)
    _run(xp, drop, q, k, v, mask, _limits(xp, at, 0, offset), float(scale), None, out, None, None, None)
    return out.astype(kind, copy=False)


def _back(
    xp: Any,
    at: Bounds,
    operands: tuple[Any, ...],
    offset: int | None,
    sizes: Any,
    rows: Any = None,
    columns: tuple[Any, Any] | tuple[None, None] = (None, None),
) -> None:
    """The gradients of _attend with respect to q, and to k and v, into whichever are given."""
    g, out, q, k, v, mask, scale, words, rate = operands
    drop = _dropped(at, 2, words, rate, sizes)
    q, k, v, mask, g, out = _ready(xp, q, k, v, mask, g, out)
    _run(xp, drop, q, k, v, mask, _limits(xp, at, 2, offset), float(scale), g, out, rows, *columns)


def _room(xp: Any, operands: tuple[Any, ...], sizes: tuple[int, ...]) -> Any:
    """Room for a gradient, the operands' leading dimensions, then ``sizes``: zeros unless the kernel writes it all."""
    g, out, q, k, v = operands[:5]
    batch = np.broadcast_shapes(*(x.shape[:-3] for x in (g, out, q)), *(x.shape[:-2] for x in (k, v)))
    make = memory.empty if xp is np and q.size else xp.zeros
    return make((*batch, *sizes), computed(xp, q, k, v))


def _rows_rule(
    g: Any, out: Any, q: Any, k: Any, v: Any, mask: Any, scale: Any, words: Any, rate: Any, offset: Any, sizes: Any
) -> str:
    return _dims("... g t [e], ... g t [e], ... g t [d]", q, mask, words, "... g t [d]")


@op(_rows_rule, arrays=9, bounds=True, prepare=_sizes(2))
def _attend_rows_back(
    xp: Any,
    at: Bounds,
    g: Any,
    out: Any,
    q: Any,
    k: Any,
    v: Any,
    mask: Any,
    scale: Any,
    words: Any,
    rate: Any,
    offset: int | None,
    sizes: Any = None,
) -> Any:
    """The gradient of _attend with respect to q."""
    operands = (g, out, q, k, v, mask, scale, words, rate)
    back = _room(xp, operands, q.shape[-3:])
    _back(xp, at, operands, offset, sizes, rows=back)
    return back.astype(q.dtype, copy=False)


def _columns_rule(
    g: Any, out: Any, q: Any, k: Any, v: Any, mask: Any, scale: Any, words: Any, rate: Any, offset: Any, sizes: Any
) -> Form:
    text = _dims("... g t [e], ... g t [e], ... g t [d]", q, mask, words, "... [s] w")
    return Form(text, {"w": k[-1] + v[-1]})


@op(_columns_rule, arrays=9, bounds=True, prepare=_sizes(2))
def _attend_columns_back(
    xp: Any,
    at: Bounds,
    g: Any,
    out: Any,
    q: Any,
    k: Any,
    v: Any,
    mask: Any,
    scale: Any,
    words: Any,
    rate: Any,
    offset: int | None,
    sizes: Any = None,
) -> Any:
    """The gradients of _attend with respect to k and v, side by side: one pass makes both."""
    operands, n = (g, out, q, k, v, mask, scale, words, rate), k.shape[-1]
    back = _room(xp, operands, (k.shape[-2], n + v.shape[-1]))
    _back(xp, at, operands, offset, sizes, columns=(back[..., :n], back[..., n:]))
    return back.astype(k.dtype, copy=False)


def _alike(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...]) -> bool:
    """Whether every head of q, of k and of v is a matrix of one size."""
    return q[-2:] == k[-2:] == v[-2:]


def _all_rule(
    g: Any, out: Any, q: Any, k: Any, v: Any, mask: Any, scale: Any, words: Any, rate: Any, offset: Any, sizes: Any
) -> Form:
    text = _dims("... [g] [t] [e], ... [g] [t] [e], ... [g] [t] [d]", q, mask, words, "... w")
    text = text.replace("g t [s]", "[g] [t] [s]")
    if _alike(q, k, v):
        return Form(f"{text} [t] [d]", {"w": q[-3] + 2})
    return Form(text, {"w": math.prod(q[-3:]) + math.prod(k[-2:]) + math.prod(v[-2:])})


@op(_all_rule, arrays=9, bounds=True, prepare=_sizes(2))
def _attend_back(
    xp: Any,
    at: Bounds,
    g: Any,
    out: Any,
    q: Any,
    k: Any,
    v: Any,
    mask: Any,
    scale: Any,
    words: Any,
    rate: Any,
    offset: int | None,
    sizes: Any = None,
) -> Any:
    """All three gradients of _attend: where queries are whole, one pass makes them. One after another, [..., group +
    2, t, d] where the heads are alike, and else flat; :func:`parts` takes them apart."""
    operands = (g, out, q, k, v, mask, scale, words, rate)
    shapes = (q.shape[-3:], k.shape[-2:], v.shape[-2:])
    if _alike(*shapes):
        back = _room(xp, operands, (shapes[0][0] + 2, *shapes[1]))
        if xp is np and back.ndim > 3:  # in memory [group + 2, ..., t, few, d], which is what comes next wants
            lies = (back.shape[-3], *back.shape[:-4], back.shape[-2], back.shape[-4], back.shape[-1])
            back = np.moveaxis(back.reshape(lies), (0, -2), (-3, -4))
    else:
        back = _room(xp, operands, (sum(math.prod(shape) for shape in shapes),))
    rows, *columns = parts(back, *shapes)
    _back(xp, at, operands, offset, sizes, rows, (columns[0], columns[1]))
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
