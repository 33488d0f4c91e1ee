"""Activations: elementwise, so that they run wherever the pieces lie."""

from __future__ import annotations

from typing import Any

from spmdx.array import Array
from spmdx.ops.arithmetic import relu
from spmdx.ops.neural import _gelu_erf, _gelu_tanh, _silu, _swiglu, settled
from spmdx.ops.scan import log_softmax, softmax
from spmdx.ops.special import erf
from spmdx.ops.transcendental import sigmoid, tanh


def gelu(x: Any, approximate: bool = True) -> Array:
    """Gaussian error linear unit, x times the normal distribution function of x (Hendrycks and Gimpel, 2016).

    Args:
        approximate: the form with tanh, as GPT-2's and JAX's; False for the one with erf, as torch's.
    """
    found: Array = (_gelu_tanh if approximate else _gelu_erf)(settled(x))
    return found


def silu(x: Any) -> Array:
    """Sigmoid linear unit, x / (1 + exp(-x)); also called swish."""
    found: Array = _silu(settled(x))
    return found


def swiglu(gate: Any, x: Any) -> Array:
    """silu(gate) * x, the gated unit of Llama (Shazeer, "GLU variants improve transformer", 2020)."""
    found: Array = _swiglu(settled(gate), x)
    return found


__all__ = ["erf", "gelu", "log_softmax", "relu", "sigmoid", "silu", "softmax", "swiglu", "tanh"]
