"""Activations and norms in one pass each, with gradients that keep nothing but the inputs.

Where a gradient is itself recorded (for a gradient of it), the same is written in plain operations instead.
"""

from __future__ import annotations

import math
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
from spmdx.ops.special import erf
from spmdx.plan import plan
from spmdx.runtime import kernels, memory
from spmdx.tape import recording

ROOT_2 = math.sqrt(2.0)
TANH_SCALE, TANH_CUBIC = math.sqrt(2.0 / math.pi), 0.044715
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


# GELU (Hendrycks and Gimpel, 2016), in the form with erf and in the one with tanh


def activate(xp: Any, name: str, *blocks: Any, numbers: tuple[Any, ...] = ()) -> Any:
    """A function of cuda/neural.h, element by element; float16 and bfloat16 in float32."""
    kind = dtypes.promoted(*(b.dtype for b in blocks))
    computed = np.dtype(np.float32) if kind in NARROW and xp is np else kind  # a GPU widens in its kernels
    if any(b.shape != blocks[0].shape for b in blocks):
        blocks = tuple(xp.broadcast_arrays(*blocks))
    out, ready = memory.empty(blocks[0].shape, computed, xp), [xp.ascontiguousarray(b, computed) for b in blocks]
    kernels.of(xp).build.activate(out, name, ready, [n if memory.on_device(n) else float(n) for n in numbers])
    return out.astype(kind, copy=False)


@pointwise(FLOATS, ufunc=None)
def _gelu_tanh(xp: Any, x: Any) -> Any:
    """x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x**3)))"""
    return activate(xp, "gelu", x)


@pointwise(FLOATS, ufunc=None, linear=((0,),))
def _gelu_tanh_back(xp: Any, g: Any, x: Any) -> Any:
    """g times the slope of _gelu_tanh."""
    return activate(xp, "gelu_back", g, x)


@pointwise(FLOATS, ufunc=None)
def _gelu_erf(xp: Any, x: Any) -> Any:
    """x / 2 (1 + erf(x / sqrt(2)))"""
    return activate(xp, "gelu_erf", x)


@pointwise(FLOATS, ufunc=None, linear=((0,),))
def _gelu_erf_back(xp: Any, g: Any, x: Any) -> Any:
    """g times the slope of _gelu_erf."""
    return activate(xp, "gelu_erf_back", g, x)


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


# The same of x + bias, as it follows a product of matrices


def _biased(xp: Any, g: Any, x: Any, bias: Any) -> Any:
    """GELU of x + bias, or g times its slope there: one pass where every row has the same bias added."""
    given = [x, bias] if g is None else [x, bias, g]
    kind = dtypes.promoted(*(a.dtype for a in given))
    rows = 0 < bias.ndim <= x.ndim and x.shape[x.ndim - bias.ndim :] == bias.shape
    if not rows or (g is not None and g.shape != x.shape):
        y = wide(xp, x) + wide(xp, bias)
        name, more = ("gelu", ()) if g is None else ("gelu_back", (wide(xp, g),))
        return activate(xp, name, *more, xp.asarray(y)).astype(kind, copy=False)
    computed = np.dtype(np.float32) if kind in NARROW and xp is np else kind  # a GPU widens in its kernels
    out = memory.empty(x.shape, computed, xp)
    if x.size:
        flat = [xp.ascontiguousarray(a, computed).reshape(-1, bias.size) for a in (out, *given)]
        slope = flat[3] if g is not None else None
        kernels.of(xp).build.bias_gelu(flat[0], flat[1], flat[2].reshape(-1), slope, None)
    return out.astype(kind, copy=False)


@pointwise(FLOATS, ufunc=None)
def _bias_gelu(xp: Any, x: Any, bias: Any) -> Any:
    """_gelu_tanh of x + bias"""
    return _biased(xp, None, x, bias)


@pointwise(FLOATS, ufunc=None, linear=((0,),))
def _bias_gelu_back(xp: Any, g: Any, x: Any, bias: Any) -> Any:
    """g times the slope of _gelu_tanh at x + bias."""
    return _biased(xp, g, x, bias)


# SiLU and SwiGLU (Shazeer, 2020)


@pointwise(FLOATS, ufunc=None)
def _silu(xp: Any, x: Any) -> Any:
    """x sigmoid(x)"""
    return activate(xp, "silu", x)


@pointwise(FLOATS, ufunc=None, linear=((0,),))
def _silu_back(xp: Any, g: Any, x: Any) -> Any:
    """g times the slope of _silu."""
    return activate(xp, "silu_back", g, x)


@pointwise(FLOATS, ufunc=None, linear=((1,),))
def _swiglu(xp: Any, gate: Any, x: Any) -> Any:
    """silu(gate) x"""
    return activate(xp, "swiglu", gate, x)


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


def _ready(xp: Any, *arrays: Any) -> tuple[list[Any], Any, Any]:
    """Arrays (None for numbers) in the dtype that kernels compute in; that, and the dtype that they have together."""
    given = [None if a is None or not xp.ndim(a) else xp.asarray(a) for a in arrays]
    kind = dtypes.promoted(*(a.dtype for a in given if a is not None))
    computed = np.dtype(np.float32) if kind in NARROW and xp is np else kind  # a GPU widens in its kernels
    return [None if a is None else xp.ascontiguousarray(a, computed) for a in given], computed, kind


@op(_norm_rule, arrays=4)
def _norm(xp: Any, x: Any, scale: Any, bias: Any, eps: Any, centered: bool) -> Any:
    """(x - mean) / sqrt(variance + eps) scale + bias over the last dimension; without the mean if not centered."""
    ready, computed, kind = _ready(xp, x, scale, bias)
    out = memory.empty(x.shape, computed, xp)
    if x.size:
        kernels.of(xp).build.norm(out, *ready, float(eps), centered)
    return out.astype(kind, copy=False)


@op(_back_rule, arrays=4)
def _norm_back(xp: Any, g: Any, x: Any, scale: Any, eps: Any, centered: bool) -> Any:
    """The gradient of _norm with respect to x."""
    ready, computed, _ = _ready(xp, x, scale, g)
    out = memory.empty(x.shape, computed, xp)
    if x.size:
        kernels.of(xp).build.norm_back(out, None, None, *ready, float(eps), centered)
    return out.astype(x.dtype, copy=False)


@op("... [k], ... [k], -> [k]", linear=((0,),))
def _norm_scale_back(xp: Any, g: Any, x: Any, eps: Any, centered: bool) -> Any:
    """The gradient of _norm with respect to scale: a Partial sum where rows are divided."""
    (x, g), computed, kind = _ready(xp, x, g)
    out = (xp.empty if x.size else xp.zeros)(x.shape[-1], computed)
    if x.size:
        kernels.of(xp).build.norm_back(None, out, None, x, None, g, float(eps), centered)
    return out.astype(kind, copy=False)


__all__ = ["erf"]
