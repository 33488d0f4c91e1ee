"""Activations and norms in one pass each, with gradients that keep nothing but the inputs.

Where a gradient is itself recorded (for a gradient of it), the same is written in plain operations instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from spmdx import dtypes
from spmdx.array import Array
from spmdx.dtypes import NARROW
from spmdx.op import op
from spmdx.ops import elementwise as e
from spmdx.ops.fit import fit
from spmdx.ops.place import moved_arrays
from spmdx.ops.pointwise import FLOATS, pointwise
from spmdx.ops.special import erf, erf_block
from spmdx.plan import plan
from spmdx.tape import recording

ROOT_2 = math.sqrt(2.0)
TANH_SCALE, TANH_CUBIC = math.sqrt(2.0 / math.pi), 0.044715
PIECE = 1 << 14  # elements of a piece: a few of them fit in the cache of a core
DENSITY = 1.0 / math.sqrt(2.0 * math.pi)


def settled(x: Any) -> Any:
    """``x``, all-reduced if it is Partial: once, here, and neither again in the gradient nor in two messages."""
    if not isinstance(x, Array) or not x.spec.partial:
        return x
    target = x.spec.replace(partial=())
    return moved_arrays([x], [target], [plan(x.spec, target)], "settled")[0]


def settled_together(*arrays: Array) -> list[Array]:
    """Several arrays, those that are Partial all-reduced in one message."""
    targets = [x.spec.replace(partial=()) for x in arrays]
    return moved_arrays(arrays, targets, [plan(x.spec, t) for x, t in zip(arrays, targets)], "settled")


def wide(xp: Any, x: Any) -> Any:
    """An array to compute with: float16 and bfloat16 in float32."""
    x = xp.asarray(x)
    return x.astype(np.float32) if x.dtype in NARROW else x


def _like(xp: Any, out: Any, *operands: Any) -> Any:
    """A result in the dtype that the operands have together."""
    return xp.asarray(out).astype(dtypes.promoted(*(xp.asarray(x).dtype for x in operands)), copy=False)


def in_pieces(body: Callable[..., Any]) -> Callable[..., Any]:
    """An elementwise body of many steps, run on pieces of its operands that stay in the cache from step to step."""

    @wraps(body)
    def run(xp: Any, *blocks: Any) -> Any:
        arrays = [b for b in blocks if xp.ndim(b)]
        n = arrays[0].size if arrays else 0
        if n <= 2 * PIECE or any(a.shape != arrays[0].shape for a in arrays):
            return body(xp, *blocks)
        flat = [xp.ascontiguousarray(b).reshape(-1) if xp.ndim(b) else b for b in blocks]
        out: Any = None
        for start in range(0, n, PIECE):
            part = slice(start, start + PIECE)
            done = body(xp, *(b[part] if xp.ndim(b) else b for b in flat))
            out = xp.empty(n, done.dtype) if out is None else out
            out[part] = done
        return out.reshape(arrays[0].shape)

    return run


# GELU (Hendrycks and Gimpel, 2016), in the form with erf and in the one with tanh


def _inner(xp: Any, x: Any) -> Any:
    """tanh(sqrt(2 / pi) (x + 0.044715 x**3))"""
    t = xp.asarray(x * x)
    t *= TANH_CUBIC * TANH_SCALE
    t += TANH_SCALE
    t *= x
    return xp.tanh(t)


@pointwise(FLOATS, ufunc=None)
@in_pieces
def _gelu_tanh(xp: Any, x: Any) -> Any:
    """x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x**3)))"""
    y = wide(xp, x)
    t = xp.asarray(_inner(xp, y))
    t += 1.0
    t *= y
    t *= 0.5
    return _like(xp, t, x)


@pointwise(FLOATS, ufunc=None, linear=((0,),))
@in_pieces
def _gelu_tanh_back(xp: Any, g: Any, x: Any) -> Any:
    """g times the slope of _gelu_tanh."""
    y = wide(xp, x)
    t = _inner(xp, y)
    slope = xp.asarray(y * y)
    slope *= 3.0 * TANH_CUBIC * TANH_SCALE
    slope += TANH_SCALE
    slope *= y
    slope *= 1.0 - t * t
    slope += t
    slope += 1.0
    slope *= 0.5
    return _like(xp, slope * g, g, x)


@pointwise(FLOATS, ufunc=None)
@in_pieces
def _gelu_erf(xp: Any, x: Any) -> Any:
    """x / 2 (1 + erf(x / sqrt(2)))"""
    y = wide(xp, x)
    return _like(xp, y * (0.5 + 0.5 * erf_block(y / ROOT_2)).astype(y.dtype), x)


@pointwise(FLOATS, ufunc=None, linear=((0,),))
@in_pieces
def _gelu_erf_back(xp: Any, g: Any, x: Any) -> Any:
    """g times the slope of _gelu_erf."""
    y = wide(xp, x)
    slope = (0.5 + 0.5 * erf_block(y / ROOT_2)).astype(y.dtype) + y * (xp.exp(-0.5 * y * y) * DENSITY)
    return _like(xp, slope * g, g, x)


@_gelu_tanh.vjp  # type: ignore[untyped-decorator]  # vjp returns what it is given
def _gelu_tanh_vjp(g: Array, out: Array, x: Array) -> Any:
    if not recording():
        return _gelu_tanh_back(g, x)
    t = e.tanh(TANH_SCALE * (x + TANH_CUBIC * x * x * x))
    return g * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * (TANH_SCALE * (1 + 3 * TANH_CUBIC * x * x)))


@_gelu_erf.vjp  # type: ignore[untyped-decorator]  # as above
def _gelu_erf_vjp(g: Array, out: Array, x: Array) -> Any:
    if not recording():
        return _gelu_erf_back(g, x)
    return g * (0.5 * (1 + erf(x / ROOT_2)) + x * e.exp(-0.5 * x * x) * DENSITY)


# SiLU and SwiGLU (Shazeer, 2020)


def _sigmoid(xp: Any, x: Any) -> Any:
    """1 / (1 + exp(-x)): exp of a great number is infinity, and 1 / infinity what is meant."""
    with np.errstate(over="ignore"):
        s = xp.asarray(xp.exp(-x))
    s += 1.0
    return xp.divide(1.0, s, out=s)


@pointwise(FLOATS, ufunc=None)
@in_pieces
def _silu(xp: Any, x: Any) -> Any:
    """x sigmoid(x)"""
    y = wide(xp, x)
    return _like(xp, _sigmoid(xp, y) * y, x)


@pointwise(FLOATS, ufunc=None, linear=((0,),))
@in_pieces
def _silu_back(xp: Any, g: Any, x: Any) -> Any:
    """g times the slope of _silu."""
    y = wide(xp, x)
    s = _sigmoid(xp, y)
    slope = xp.asarray(1.0 - s)
    slope *= y
    slope += 1.0
    slope *= s
    return _like(xp, slope * g, g, x)


@pointwise(FLOATS, ufunc=None, linear=((1,),))
@in_pieces
def _swiglu(xp: Any, gate: Any, x: Any) -> Any:
    """silu(gate) x"""
    y = wide(xp, gate)
    out = xp.asarray(_sigmoid(xp, y) * y)
    return _like(xp, out * x, gate, x)


@_silu.vjp  # type: ignore[untyped-decorator]  # as above
def _silu_vjp(g: Array, out: Array, x: Array) -> Any:
    if not recording():
        return _silu_back(g, x)
    s = e.sigmoid(x)
    return g * (s * (1 + x * (1 - s)))


_swiglu.vjp(
    lambda g, out, gate, x: fit(_silu_vjp(g * x, out, gate), gate), lambda g, out, gate, x: fit(_swiglu(gate, g), x)
)

# Layer norm and RMS norm. Scale and bias are vectors, or numbers where there are none


def _norm_rule(x: tuple[int, ...], scale: tuple[int, ...], bias: tuple[int, ...], eps: Any, centered: bool) -> str:
    return f"... [k], {'[k]' if scale else ''}, {'[k]' if bias else ''}, -> ... [k]"


def _back_rule(g: tuple[int, ...], x: tuple[int, ...], scale: tuple[int, ...], eps: Any, centered: bool) -> str:
    return f"... [k], ... [k], {'[k]' if scale else ''}, -> ... [k]"


def _normal(xp: Any, x: Any, eps: Any, centered: bool) -> tuple[Any, Any]:
    """x along the last dimension with mean 0 (if centered) and mean square 1, and what it was multiplied by."""
    n = x.shape[-1] or 1
    x = x - xp.add.reduce(x, -1, None, None, True) / n if centered else x
    root = xp.einsum("...k,...k->...", x, x)[..., None] / n
    root = 1.0 / xp.sqrt(root + eps)
    return x * root, root.astype(x.dtype, copy=False)


@op(_norm_rule, arrays=4)
def _norm(xp: Any, x: Any, scale: Any, bias: Any, eps: Any, centered: bool) -> Any:
    """(x - mean) / sqrt(variance + eps) scale + bias over the last dimension; without the mean if not centered."""
    out, _ = _normal(xp, wide(xp, x), eps, centered)
    kinds = [x]
    if xp.ndim(scale):
        out = out * scale
        kinds.append(scale)
    if xp.ndim(bias):
        out = out + bias
        kinds.append(bias)
    return _like(xp, out, *kinds)


@op(_back_rule, arrays=4)
def _norm_back(xp: Any, g: Any, x: Any, scale: Any, eps: Any, centered: bool) -> Any:
    """The gradient of _norm with respect to x."""
    y, root = _normal(xp, wide(xp, x), eps, centered)
    n = y.shape[-1] or 1
    d = wide(xp, g) * scale if xp.ndim(scale) else wide(xp, g)
    y *= xp.einsum("...k,...k->...", d, y)[..., None] / n
    out = d - y
    if centered:
        out -= xp.add.reduce(d, -1, None, None, True) / n
    out *= root
    return _like(xp, out, x)


@op("... [k], ... [k], -> [k]", linear=((0,),))
def _norm_scale_back(xp: Any, g: Any, x: Any, eps: Any, centered: bool) -> Any:
    """The gradient of _norm with respect to scale: a Partial sum where rows are divided."""
    y, _ = _normal(xp, wide(xp, x), eps, centered)
    y *= wide(xp, g)
    return _like(xp, xp.add.reduce(y, tuple(range(y.ndim - 1))), g, x)


__all__ = ["erf"]
