"""Steps to chain: scaling, decay of weights, clipping."""

from __future__ import annotations

from typing import Any

from spmdx import tree
from spmdx.array import Array
from spmdx.errors import ArgumentError
from spmdx.ops import elementwise as e
from spmdx.ops.neural import settled
from spmdx.ops.update import _mix, _square_sum
from spmdx.optim.base import (
    Counted,
    GradientTransformation,
    Mask,
    Numbers,
    Rate,
    chosen,
    each,
    flat,
    needed,
    none_taken,
    rate_at,
    stateless,
)


def scale(factor: float) -> GradientTransformation:
    """Everything times a number."""
    return stateless(lambda grads, params: each(lambda g: g * factor, grads))


def scale_by_learning_rate(rate: Rate) -> GradientTransformation:
    """Everything times -rate: the last step of a chain."""

    def update(grads: Any, state: Counted, params: Any = None) -> tuple[Any, Counted]:
        numbers = Numbers(-rate_at(rate, state.steps))
        return each(lambda g: g * numbers.of(g.dtype)[0], grads), Counted(state.steps + 1)

    return GradientTransformation(lambda params: Counted(none_taken(params)), update)


def add_decayed_weights(decay: float, mask: Mask = None) -> GradientTransformation:
    """``decay`` times the parameters added, to those that ``mask`` names."""

    def update(grads: Any, params: Any) -> Any:
        where = chosen(mask, needed(params, "weight decay"))
        return each(lambda g, p, yes: _mix(g, 1.0, p, decay) if yes else g, grads, params, where)

    return stateless(update)


def global_norm(values: Any) -> Array:
    """The square root of the sum of the squares of all elements of a pytree: one all-reduce of one number at most."""
    squares = [_square_sum(settled(x)) for x in flat(values)[0]]
    if not squares:
        raise ArgumentError("the norm of no arrays is asked for.", "a pytree with arrays in it")
    total = squares[0]
    for square in squares[1:]:
        total = total + square
    found: Array = e.sqrt(total)
    return found


def clip_by_global_norm(most: float) -> GradientTransformation:
    """Gradients scaled down together where their norm is greater (Pascanu, Mikolov and Bengio, 2013)."""

    def update(grads: Any, params: Any) -> Any:
        if not tree.leaves(grads):
            return grads
        norm = global_norm(grads)
        numbers = Numbers(e.where(norm > most, most / norm, 1.0))
        return each(lambda g: g * numbers.of(g.dtype)[0], grads)

    return stateless(update)


def clip(most: float) -> GradientTransformation:
    """Every element clipped to [-most, most]."""
    return stateless(lambda grads, params: each(lambda g: e.clip(g, -most, most), grads))


__all__ = ["add_decayed_weights", "clip", "clip_by_global_norm", "global_norm", "scale", "scale_by_learning_rate"]
