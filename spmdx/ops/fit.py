"""fit: undo what broadcasting and promotion did to an operand, for its gradient."""

from __future__ import annotations

from typing import Any

from spmdx.array import Array


def fit(g: Array, x: Any) -> Any:
    """The gradient ``g`` of a broadcast result, summed and cast to the shape and dtype of the operand ``x``: of a real
    operand the real part."""
    if not isinstance(x, Array):
        return None
    have, want = g.spec, x.spec
    if have is want:
        return g
    if have.dtype.kind == "c" and want.dtype.kind != "c":
        g = g.real  # type: ignore[attr-defined]  # attached by operators.py
    if have.shape != want.shape:
        extra = g.ndim - x.ndim
        stretched = [i + extra for i, n in enumerate(x.shape) if n == 1 and g.shape[i + extra] != 1]
        g = g.sum((*range(extra), *stretched)).reshape(x.shape)
    return g if g.dtype == x.dtype else g.astype(x.dtype)
