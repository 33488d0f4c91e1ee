"""Attention by blocks of rows, and rotations by position.

Weights are made for a block of rows at a time, against all the columns that these rows may see, so that memory is
linear in the sequence; the gradient makes them again. (Dao, Fu, Ermon, Rudra and Re, "FlashAttention", 2022, whose
online softmax a CPU does not need: whole rows of a block fit in the cache.) The order of addition is fixed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from spmdx import dtypes
from spmdx.decide import Bounds
from spmdx.op import op
from spmdx.ops.neural import wide
from spmdx.rule import Form

SCORES = 1 << 18  # of a block of rows, at most, so that they stay in the cache
LEAST_ROWS = 16


class _Block(NamedTuple):
    """A block of rows: where it lies, how many columns it sees, and exp(score - greatest) with its sums."""

    batch: tuple[int, ...]
    group: int
    rows: slice
    seen: int
    powers: Any
    totals: Any


def _blocks(at: Bounds, which: int, q: Any, k: Any, mask: Any, scale: Any, offset: int | None) -> Iterator[_Block]:
    """The blocks of rows that see anything. ``which`` operand q is, for its global row numbers."""
    limits = None if offset is None else Bounds.indices(at.inputs[which][-2]) + offset
    columns = k.shape[-2]
    step = max(LEAST_ROWS, SCORES // max(columns, 1))
    for batch in np.ndindex(q.shape[:-3]):
        keys = _rows(k[batch])
        for group in range(q.shape[-3]):
            for start in range(0, q.shape[-2], step):
                rows = slice(start, start + step)
                limit = None if limits is None else limits[rows]
                seen = columns if limit is None else min(columns, max(0, int(limit.max()) + 1))
                if seen:
                    shown = None if mask is None else mask[batch][group, rows, :seen]
                    powers, totals = _powers(_rows(q[batch][group, rows]), keys[:seen], shown, scale, limit)
                    yield _Block(batch, group, rows, seen, powers, totals)


def _rows(x: Any) -> Any:
    """A matrix to multiply by: in float32 at least, and laid out as BLAS wants it."""
    x = wide(np, x)
    return x if x.strides[-1] == x.itemsize else np.ascontiguousarray(x)


def _powers(q: Any, k: Any, mask: Any, scale: Any, limit: Any) -> tuple[Any, Any]:
    scores = np.matmul(q, k.T)
    scores *= scale
    if mask is not None:
        np.copyto(scores, -np.inf, where=~mask)
    if limit is not None:
        np.copyto(scores, -np.inf, where=np.arange(k.shape[0]) > limit[:, None])
    top = np.maximum.reduce(scores, 1, keepdims=True)
    top[np.isneginf(top)] = 0  # a row that sees nothing
    scores -= top
    np.exp(scores, out=scores)
    totals = np.add.reduce(scores, 1, keepdims=True)
    totals[totals == 0] = 1
    return scores, totals


def _spread(*operands: Any) -> tuple[Any, ...]:
    """Operands with the same leading dimensions; each is an array and how many of its last dimensions are its own."""
    batch = np.broadcast_shapes(*(x.shape[: x.ndim - own] for x, own in operands))
    return tuple(np.broadcast_to(x, (*batch, *x.shape[x.ndim - own :])) for x, own in operands)


def _masks(mask: Any, q: Any) -> Any:
    """The mask for every head and row; None for True, which masks nothing."""
    if mask is True:
        return None
    return np.broadcast_to(mask, (*mask.shape[:-3], *q.shape[-3:-1], mask.shape[-1]))


def _dims(first: str, q: tuple[int, ...], mask: tuple[int, ...], out: str) -> str:
    group = "1" if mask and mask[-3] == 1 != q[-3] else "g"
    return f"{first}, ... [s] [d], ... [s] [e], {f'... {group} t [s]' if mask else ''}, -> {out}"


def _rule(q: Any, k: Any, v: Any, mask: Any, scale: Any, offset: Any) -> str:
    return _dims("... g t [d]", q, mask, "... g t [e]")


@op(_rule, arrays=5, bounds=True)
def _attend(xp: Any, at: Bounds, q: Any, k: Any, v: Any, mask: Any, scale: Any, offset: int | None) -> Any:
    """softmax(scale q k.T) v, for groups of heads that share k and v.

    ``mask`` is True where a column is seen, or True alone; row i sees columns up to i + ``offset``, or all for None.
    A row that sees nothing gives 0.
    """
    kind = dtypes.promoted(q.dtype, k.dtype, v.dtype)
    mask = _masks(mask, q)
    q, k, v, *rest = _spread((q, 3), (k, 2), (v, 2), *([] if mask is None else [(mask, 3)]))
    out = np.zeros((*q.shape[:-1], v.shape[-1]), kind)
    for b in _blocks(at, 0, q, k, rest[0] if rest else None, scale, offset):
        found = np.matmul(b.powers, _rows(v[b.batch][: b.seen]))
        found /= b.totals
        out[b.batch][b.group, b.rows] = found
    return out


def _back(
    at: Bounds, g: Any, out: Any, q: Any, k: Any, v: Any, mask: Any, scale: Any, offset: int | None
) -> Iterator[tuple[_Block, Any, Any, Any]]:
    """Block by block: the weights, the gradient of the scores, and g."""
    mask = _masks(mask, q)
    g, out, q, k, v, *rest = _spread((g, 3), (out, 3), (q, 3), (k, 2), (v, 2), *([] if mask is None else [(mask, 3)]))
    for b in _blocks(at, 2, q, k, rest[0] if rest else None, scale, offset):
        here = _rows(g[b.batch][b.group, b.rows])
        np.divide(b.powers, b.totals, out=b.powers)
        slope = np.matmul(here, _rows(v[b.batch][: b.seen]).T)
        slope -= np.einsum("ij,ij->i", here, wide(np, out[b.batch][b.group, b.rows]))[:, None]
        slope *= b.powers
        slope *= scale
        yield b, b.powers, slope, here


def _rows_rule(g: Any, out: Any, q: Any, k: Any, v: Any, mask: Any, scale: Any, offset: Any) -> str:
    return _dims("... g t [e], ... g t [e], ... g t [d]", q, mask, "... g t [d]")


@op(_rows_rule, arrays=7, bounds=True)
def _attend_rows_back(
    xp: Any, at: Bounds, g: Any, out: Any, q: Any, k: Any, v: Any, mask: Any, scale: Any, offset: int | None
) -> Any:
    """The gradient of _attend with respect to q."""
    back = np.zeros((*np.broadcast_shapes(q.shape[:-3], k.shape[:-2]), *q.shape[-3:]), q.dtype)
    keys = np.broadcast_to(k, (*back.shape[:-3], *k.shape[-2:]))
    for b, _, slope, _ in _back(at, g, out, q, k, v, mask, scale, offset):
        back[b.batch][b.group, b.rows] = np.matmul(slope, _rows(keys[b.batch][: b.seen]))
    return back


def _columns_rule(g: Any, out: Any, q: Any, k: Any, v: Any, mask: Any, scale: Any, offset: Any) -> Form:
    text = _dims("... g t [e], ... g t [e], ... g t [d]", q, mask, "... [s] w")
    return Form(text, {"w": k[-1] + v[-1]})


@op(_columns_rule, arrays=7, bounds=True)
def _attend_columns_back(
    xp: Any, at: Bounds, g: Any, out: Any, q: Any, k: Any, v: Any, mask: Any, scale: Any, offset: int | None
) -> Any:
    """The gradients of _attend with respect to k and v, side by side: one pass makes both."""
    kind = wide(np, k[..., :0]).dtype
    n, batch = k.shape[-1], np.broadcast_shapes(g.shape[:-3], k.shape[:-2])
    back = np.zeros((*batch, k.shape[-2], n + v.shape[-1]), kind)
    rows = np.broadcast_to(q, (*batch, *q.shape[-3:]))
    for b, weights, slope, here in _back(at, g, out, q, k, v, mask, scale, offset):
        mine = back[b.batch][: b.seen]
        mine[:, :n] += np.matmul(slope.T, _rows(rows[b.batch][b.group, b.rows]))
        mine[:, n:] += np.matmul(weights.T, here)
    return back.astype(k.dtype, copy=False)


# Rotations by position


@op("... t h [d], ... t [e], ... t [e] -> ... t h [d]", linear=((0,),))
def _rotate(xp: Any, x: Any, cos: Any, sin: Any, neighbours: bool) -> Any:
    """Pairs of elements along the last dimension turned by angles: the two halves, or neighbours."""
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


_rotate.vjp(
    lambda g, out, x, cos, sin, neighbours: _rotate(g, cos, -sin, neighbours),
    lambda g, out, x, cos, sin, neighbours: None,
    lambda g, out, x, cos, sin, neighbours: None,
)
