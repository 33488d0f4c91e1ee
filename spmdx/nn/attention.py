"""Attention, and positions turned into rotations. Heads, batch and queries may be divided wherever they like.

Arrays are [..., positions, heads, features]. Keys and values that are whole along positions take the way by blocks,
whose memory is linear in the sequence, with dropout of the weights too; divided ones take plain operations: small
all-reduces, and no gather. So does a bias, whose memory grows as the square of it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from spmdx.array import Array
from spmdx.autodiff import vjp
from spmdx.dtypes import NARROW, float32
from spmdx.errors import ArgumentError, DtypeError, ShapeError
from spmdx.nn.dropout import prepared
from spmdx.ops import elementwise as e
from spmdx.ops.attend import (
    _attend,
    _attend_back,
    _attend_columns_back,
    _attend_rows_back,
    _gradient_beside,
    parts,
)
from spmdx.ops.contract import einsum
from spmdx.ops.create import arange, tri
from spmdx.ops.fit import fit
from spmdx.ops.neural import settled
from spmdx.ops.place import arrays, asarray
from spmdx.ops.rotate import _rotate
from spmdx.ops.shape import broadcast_to, permute_dims
from spmdx.ops.soft import softmax
from spmdx.ops.together import Drop
from spmdx.random import Key
from spmdx.random.dropped import dropped
from spmdx.tape import recording
from spmdx.transforms.custom import custom_vjp
from spmdx.transforms.remat import part

LEAST = -1e30  # a score that is not seen, where a whole row may be


def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    mask: Any = None,
    bias: Any = None,
    causal: bool = False,
    scale: float | None = None,
    dropout: float = 0.0,
    key: Key | None = None,
) -> Array:
    """softmax(scale q k.T + bias) v, for every head (Vaswani and others, 2017).

    Args:
        q: [..., t, heads, d].
        k, v: [..., s, few, d] and [..., s, few, e], where ``few`` divides ``heads``: each of the heads of k and v
            serves heads / few neighbouring heads of q (Ainslie and others, "GQA", 2023).
        mask: bools, True where a query sees a key: [t, s] or [..., heads or 1, t, s], where t or s may be 1, the same
            for all. A query that sees nothing gives 0.
        bias: numbers added to the scores, shaped as ``mask``.
        causal: query i sees key j where j <= i + s - t: the last query sees every key.
        scale: 1 / sqrt(d) if left out.
        dropout: the share of the weights set to 0 (the others grow by 1 / (1 - dropout)), drawn from ``key``: those
            that ``nn.dropout`` of [..., few, heads / few, t, s] drops, drawn once more for the gradient.

    Memory grows as t + s: no weight is kept. With a bias, with keys divided along s, in gradients of gradients, and
    with dropout on a GPU while it computes, as t s.

    Returns:
        [..., t, heads, e].

    Raises:
        ShapeError: shapes that are not those, or heads of q that those of k and v do not divide.
        ArgumentError: dropout without a key.
    """
    q, k, v = arrays(q, k, v)
    _check(q, k, v)
    if dropout and key is None:
        raise ArgumentError(f"attention with dropout={dropout} draws random values.", "key=sx.random.key(0)")
    drop = prepared(key, q, dropout) if dropout else None
    q, k, v = (_gradient_beside(settled(x)) for x in (q, k, v))
    t, heads, few, s = q.shape[-3], q.shape[-2], k.shape[-2], k.shape[-3]
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    q = q.reshape((*q.shape[:-2], few, heads // few, q.shape[-1]))
    mask, bias = _by_group(mask, q, s, "mask"), _by_group(bias, q, s, "bias")
    offset = s - t if causal else None
    if bias is None and not any(x.spec.layouts[d].axes for x, d in _needed_whole(q, k, v)):
        rows = permute_dims(q, _order(q, -3, -2, -4, -1))
        keys, values = (permute_dims(x, _order(x, -2, -3, -1)) for x in (k, v))
        seen = True if mask is None else broadcast_to(mask, (*mask.shape[:-2], t, s))
        words, rate = (True, 0.0) if drop is None else (drop.words, drop.rate)
        found = _by_blocks(rows, keys, values, seen, scale, words, rate, offset)
        found = permute_dims(found, _order(found, -2, -4, -3, -1))
    else:
        found = _plain(q, k, v, mask, bias, scale, offset, drop)
    out: Array = found.reshape((*found.shape[:-3], heads, v.shape[-1]))
    return out


def _check(q: Array, k: Array, v: Array) -> None:
    shapes = [tuple(x.shape) for x in (q, k, v)]
    if min(map(len, shapes)) < 3 or shapes[1][:-1] != shapes[2][:-1] or shapes[0][-1] != shapes[1][-1]:
        raise ShapeError(
            f"attention of q, k and v with shapes {shapes[0]}, {shapes[1]} and {shapes[2]}.",
            "q[..., t, heads, d], k[..., s, few, d], v[..., s, few, e]",
        )
    if not shapes[1][-2] or shapes[0][-2] % shapes[1][-2]:
        raise ShapeError(
            f"{shapes[0][-2]} heads of q cannot share the {shapes[1][-2]} heads of k and v equally.",
            "a number of heads of k and v that divides that of q",
        )
    for name, x in zip("qkv", (q, k, v)):
        if x.dtype.kind not in "fV":
            raise DtypeError(
                f"attention takes floating-point numbers; {name} is {x.dtype.name}.", f"{name}.astype(float)"
            )


def _needed_whole(q: Array, k: Array, v: Array) -> list[tuple[Array, int]]:
    return [(q, -1), (k, -3), (k, -1), (v, -3), (v, -1)]


def _order(x: Array, *last: int) -> tuple[int, ...]:
    """The dimensions with the last ones in another order."""
    return (*range(x.ndim - len(last)), *(x.ndim + d for d in last))


def _by_group(x: Any, q: Array, s: int, what: str) -> Any:
    """A mask or bias [..., heads or 1, t or 1, s or 1] as [..., few or 1, group or 1, t or 1, s or 1]."""
    if x is None:
        return None
    x = x if isinstance(x, Array) else asarray(x, mesh=q.mesh)
    if what == "mask" and x.dtype.kind != "b":
        raise DtypeError(f"a mask holds bools, True where a query sees a key; got {x.dtype.name}.", "mask=mask != 0")
    t, few, group = q.shape[-4:-1]
    heads = x.shape[-3] if x.ndim > 2 else 1
    if x.ndim < 2 or heads not in (1, few * group) or x.shape[-2] not in (1, t) or x.shape[-1] not in (1, s):
        raise ShapeError(
            f"a {what} of shape {x.shape} for {few * group} heads, t={t} and s={s}.",
            "[t, s], or [..., heads or 1, t, s]",
        )
    return x.reshape((*x.shape[:-3], *((1, 1) if heads == 1 else (few, group)), *x.shape[-2:]))


@part("attention")
def _plain(
    q: Array, k: Array, v: Array, mask: Any, bias: Any, scale: Any, offset: int | None, drop: Drop | None
) -> Array:
    """In plain operations. q is [..., t, few, group, d]; memory grows as t s."""
    kind = q.dtype
    q = q.astype(float32) if kind in NARROW else q
    scores = einsum("...tkgd,...skd->...kgts", q * scale, k)
    if bias is not None:
        scores = scores + bias
    if offset is not None:
        lower = tri(scores.shape[-2], scores.shape[-1], k=offset, dtype=bool, mesh=q.mesh)
        mask = lower if mask is None else e.logical_and(mask, lower)
    weights = softmax(scores if mask is None else e.where(mask, scores, LEAST), -1)
    weights = weights if mask is None else e.where(mask, weights, 0)
    weights = weights if drop is None else drop(weights)
    out: Array = einsum("...kgts,...ske->...tkge", weights, v)
    return out if out.dtype == kind else out.astype(kind)


@custom_vjp
def _by_blocks(q: Any, k: Any, v: Any, mask: Any, scale: Any, words: Any, rate: Any, offset: Any) -> Array:
    """q is [..., few, group, t, d]; k and v are [..., few, s, d]."""
    found: Array = _attend(q, k, v, mask, scale, words, rate, offset)
    return found


def _forward(q: Any, k: Any, v: Any, mask: Any, scale: Any, words: Any, rate: Any, offset: Any) -> Any:
    out = _attend(q, k, v, mask, scale, words, rate, offset)
    return out, (out, q, k, v, mask, scale, words, rate, offset)


def _backward(kept: Any, g: Array) -> Any:
    out, q, k, v, mask, scale, words, rate, offset = kept
    if recording():
        drop = None if words is True else Drop(dropped, words, rate)
        _, back = vjp(lambda q, k, v: _plain_by_group(q, k, v, mask, scale, offset, drop), q, k, v)
        return (*back(g), None, None, None, None, None)
    g = settled(g)
    back = [g, out, q, k, v, mask, scale, words, rate, offset]
    if any(x.spec.layouts[d].axes for x in (g, out, q) for d in (-3, -2)):
        columns, n = _attend_columns_back(*back), k.shape[-1]
        found = _attend_rows_back(*back), columns[..., :n], columns[..., n:]
    else:
        found = tuple(parts(_attend_back(*back), q.shape, k.shape, v.shape))
    return (*(fit(slope, x) for slope, x in zip(found, (q, k, v))), None, None, None, None, None)


def _plain_by_group(q: Array, k: Array, v: Array, mask: Any, scale: Any, offset: Any, drop: Drop | None) -> Array:
    q = permute_dims(q, _order(q, -2, -4, -3, -1))
    k, v = (permute_dims(x, _order(x, -2, -3, -1)) for x in (k, v))
    out = _plain(q, k, v, None if mask is True else mask, None, scale, offset, drop)
    found: Array = permute_dims(out, _order(out, -3, -2, -4, -1))
    return found


_by_blocks.defvjp(_forward, _backward)


# Positions


def rope_table(positions: Any, dim: int, *, base: float = 10000.0, mesh: Any = None) -> tuple[Array, Array]:
    """The cosines and sines for :func:`rope`, [..., t, dim / 2], in float64.

    Args:
        positions: how many, or the numbers themselves.
        dim: of a head: d.
        base: as :func:`rope`'s.
    """
    if isinstance(positions, (int, np.integer)):
        positions = arange(positions, mesh=mesh)
    at = positions if isinstance(positions, Array) else asarray(positions, mesh=mesh)
    angles = at.astype(float)[..., None] * (base ** (-np.arange(0, dim, 2) / dim))
    return e.cos(angles), e.sin(angles)


def rope(
    x: Array, positions: Any = None, *, base: float = 10000.0, table: Any = None, neighbours: bool = False
) -> Array:
    """Rotary position embedding (Su and others, "RoFormer", 2021) of queries or keys [..., t, heads, d].

    Args:
        positions: [t] or [..., t]; 0, 1, 2, ... if left out.
        base: pair i turns by position / base**(2 i / d); not asked for where there is a table.
        table: what :func:`rope_table` made, to make it once for many layers.
        neighbours: turn elements 2i and 2i + 1 together, as the paper; else i and i + d / 2, as in Llama's
            weights.
    """
    x = x if isinstance(x, Array) else asarray(x)
    if x.dtype.kind not in "fV":
        raise DtypeError(f"rope turns floating-point numbers; got {x.dtype.name}.", "x.astype(float)")
    if x.ndim < 3 or x.shape[-1] % 2:
        raise ShapeError(f"rope of shape {x.shape}.", "[..., positions, heads, features], with even features")
    if table is None:
        table = rope_table(x.shape[-3] if positions is None else positions, x.shape[-1], base=base, mesh=x.mesh)
    found: Array = _rotate(x, *table, bool(neighbours))
    return found


__all__ = ["attention", "rope", "rope_table"]
