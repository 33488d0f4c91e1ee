"""Layer norm and RMS norm over the last dimension.

Where that dimension is whole, one pass, and a gradient that keeps the input alone. Where it is divided, plain
operations: small all-reduces of sums, and no gather.
"""

from __future__ import annotations

from typing import Any

from spmdx.array import Array
from spmdx.autodiff import vjp
from spmdx.dtypes import NARROW, float32, promoted
from spmdx.errors import DtypeError, ShapeError
from spmdx.ops import elementwise as e
from spmdx.ops.moments import mean
from spmdx.ops.neural import _norm, settled
from spmdx.ops.place import asarray
from spmdx.ops.together import norm_gradients
from spmdx.tape import recording
from spmdx.transforms.custom import custom_vjp


def layer_norm(x: Any, scale: Any = None, bias: Any = None, *, eps: float = 1e-5) -> Array:
    """(x - mean) / sqrt(variance + eps), times ``scale``, plus ``bias`` (Ba, Kiros and Hinton, 2016).

    Args:
        scale, bias: vectors as long as the last dimension of x, or None.
        eps: added to the variance, which is the mean square distance from the mean.

    float16 and bfloat16 are computed in float32 and rounded once.
    """
    return _normed(x, scale, bias, eps, True)


def rms_norm(x: Any, scale: Any = None, *, eps: float = 1e-6) -> Array:
    """x / sqrt(mean(x**2) + eps), times ``scale`` (Zhang and Sennrich, 2019). Otherwise as :func:`layer_norm`."""
    return _normed(x, scale, None, eps, False)


def _normed(x: Any, scale: Any, bias: Any, eps: float, centered: bool) -> Array:
    x = settled(x if isinstance(x, Array) else asarray(x))
    if x.dtype.kind not in "fV":
        name = "layer_norm" if centered else "rms_norm"
        raise DtypeError(f"{name} is of floating-point numbers; x is {x.dtype.name}.", "x.astype(float)")
    if not x.ndim:
        raise ShapeError("a norm goes over the last dimension; x is 0-d.", "x[..., features]")
    fused = not x.spec.layouts[-1].axes
    found: Array = (
        (_fused_centered if centered else _fused)(x, scale, bias, eps)
        if fused
        else _plain(x, scale, bias, eps, centered)
    )
    return found


def _plain(x: Array, scale: Any, bias: Any, eps: float, centered: bool) -> Array:
    """In plain operations: right for every placement, and differentiable again and again."""
    y = x.astype(float32) if x.dtype in NARROW else x
    if centered:
        y = y - settled(mean(y, -1, None, True))
    y = y / e.sqrt(settled(mean(y * y, -1, None, True)) + eps)
    y = y if scale is None else y * scale
    y = y if bias is None else y + bias
    out: Array = y.astype(promoted(*(a.dtype for a in (x, scale, bias) if a is not None)))
    return out


def _made(centered: bool) -> Any:
    """The fused norm with its gradient: all of the operands' gradients at once."""

    def fused(x: Array, scale: Any, bias: Any, eps: float) -> Array:
        found: Array = _norm(x, 1.0 if scale is None else scale, 0.0 if bias is None else bias, eps, centered)
        return found

    def forward(x: Array, scale: Any, bias: Any, eps: float) -> Any:
        return fused(x, scale, bias, eps), (x, scale, bias, eps)

    def backward(kept: Any, g: Array) -> Any:
        x, scale, bias, eps = kept
        given = [a for a in (x, scale, bias) if a is not None]
        if recording():
            back = iter(vjp(lambda *some: _plain(*_placed(some, scale, bias), eps, centered), *given)[1](g))
            return (*(None if a is None else next(back) for a in (x, scale, bias)), None)
        g = settled(g)
        return *norm_gradients(g, x, scale, bias, eps, centered), None

    norm = custom_vjp(fused)
    norm.defvjp(forward, backward)
    return norm


def _placed(some: tuple[Any, ...], scale: Any, bias: Any) -> tuple[Any, Any, Any]:
    rest = iter(some)
    return next(rest), None if scale is None else next(rest), None if bias is None else next(rest)


_fused_centered, _fused = _made(True), _made(False)

__all__ = ["layer_norm", "rms_norm"]
