"""Activations: elementwise, so that they run wherever the pieces lie."""

from __future__ import annotations

from typing import Any

from spmdx.array import Array
from spmdx.autodiff import vjp
from spmdx.ops.arithmetic import relu
from spmdx.ops.neural import _bias_gelu, _gelu_erf, _gelu_tanh, _silu, _swiglu, settled
from spmdx.ops.soft import log_softmax, softmax
from spmdx.ops.special import erf
from spmdx.ops.together import bias_gelu_gradients
from spmdx.ops.transcendental import sigmoid, tanh
from spmdx.tape import recording
from spmdx.transforms.custom import custom_vjp


def gelu(x: Any, approximate: bool = True, *, bias: Any = None) -> Array:
    """Gaussian error linear unit, x times the normal distribution function of x (Hendrycks and Gimpel, 2016).

    Args:
        approximate: the form with tanh, as GPT-2's and JAX's; False for the one with erf, as torch's.
        bias: what is to be added to x first, or None: of the product before, in the same pass.
    """
    x = settled(x)
    if bias is None:
        found: Array = (_gelu_tanh if approximate else _gelu_erf)(x)
    else:
        fused = approximate and isinstance(x, Array) and isinstance(bias, Array)
        found = _biased(x, settled(bias)) if fused else gelu(x + bias, approximate)
    return found


def _back(kept: Any, g: Array) -> Any:
    x, bias = kept
    if recording():  # a gradient of this gradient is wanted
        return vjp(lambda x, bias: _gelu_tanh(x + bias), x, bias)[1](g)
    return bias_gelu_gradients(g, x, bias)


_biased = custom_vjp(lambda x, bias: _bias_gelu(x, bias))
_biased.defvjp(lambda x, bias: (_bias_gelu(x, bias), (x, bias)), _back)


def silu(x: Any) -> Array:
    """Sigmoid linear unit, x / (1 + exp(-x)); also called swish."""
    found: Array = _silu(settled(x))
    return found


def swiglu(gate: Any, x: Any) -> Array:
    """silu(gate) * x, the gated unit of Llama (Shazeer, "GLU variants improve transformer", 2020)."""
    found: Array = _swiglu(settled(gate), x)
    return found


__all__ = ["erf", "gelu", "log_softmax", "relu", "sigmoid", "silu", "softmax", "swiglu", "tanh"]
