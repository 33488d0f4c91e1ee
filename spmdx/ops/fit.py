"""fit: undo what broadcasting and promotion did to an operand, for its gradient."""

from __future__ import annotations

from typing import Any

from spmdx.array import Array


def fit(g: Array, x: Any) -> Any:
    """The gradient ``g`` of a broadcast result, summed and cast to the shape and dtype of the operand ``x``."""
    if not isinstance(x, Array):
        return None
    if g.shape != x.shape:
        extra = g.ndim - x.ndim
        axes = tuple(range(extra)) + tuple(i + extra for i, n in enumerate(x.shape) if n == 1 and g.shape[i + extra] != 1)
        g = g.sum(axes).reshape(x.shape)
    return g if g.dtype == x.dtype else g.astype(x.dtype)
