"""Steps to chain: scaling, decay of weights, clipping."""

from __future__ import annotations

from typing import Any

from spmdx import tree
from spmdx.array import Array
from spmdx.errors import ArgumentError
from spmdx.ops import elementwise as e
from spmdx.ops.create import zeros_like
from spmdx.ops.neural import settled
from spmdx.ops.update import _mix, _square_sum
from spmdx.optim.base import (
    Counted,
    GradientTransformation,
    Mask,
    Numbers,
    Rate,
    a_number,
    beside,
    checked_rate,
    chosen,
    each,
    flat,
    needed,
    none_taken,
    own,
    partition,
    rate_at,
    stateless,
)


def identity() -> GradientTransformation:
    """Nothing: gradients as they are."""
    return stateless(lambda grads, params: grads)


def set_to_zero() -> GradientTransformation:
    """Updates of 0, which leave parameters as they are: for those of :func:`partition` that are not trained."""
    return stateless(lambda grads, params: each(zeros_like, grads))


def masked(inner: GradientTransformation, mask: Mask) -> GradientTransformation:
    """A step for some parameters alone; the gradients of the others pass.

    Args:
        inner: the step, which keeps state for those parameters alone.
        mask: which they are: a pytree of bools, or a function of params that returns one, as :func:`by_path`'s.
    """

    def labels(params: Any) -> Any:
        treedef = tree.flatten(params)[1]
        return tree.unflatten(treedef, ["inner" if yes else "others" for yes in chosen(mask, params)])

    return partition({"inner": inner, "others": identity()}, labels)


def scale(factor: float) -> GradientTransformation:
    """Everything times a number."""
    a_number(factor, "optim.scale(0.5)")
    return stateless(lambda grads, params: each(lambda g: g * factor, grads))


def scale_by_learning_rate(rate: Rate) -> GradientTransformation:
    """Everything times -rate: the last step of a chain."""

    rate = checked_rate(rate)

    def update(grads: Any, state: Counted, params: Any = None) -> tuple[Any, Counted]:
        steps = own(state, Counted, "scale_by_learning_rate").steps
        numbers = Numbers(-rate_at(rate, steps))
        return each(lambda g: g * numbers.of(g.dtype)[0], grads), Counted(steps + 1)

    return GradientTransformation(lambda params: Counted(none_taken(params)), update)


def add_decayed_weights(decay: float, mask: Mask = None) -> GradientTransformation:
    """``decay`` times the parameters added, to those that ``mask`` names."""

    def update(grads: Any, params: Any) -> Any:
        leaves, treedef = flat(grads)
        others = beside(needed(params, "weight decay"), leaves, treedef, "parameter")
        decays = chosen(mask, params)
        return tree.unflatten(
            treedef, [_mix(g, 1.0, p, decay) if yes else g for g, p, yes in zip(leaves, others, decays)]
        )

    return stateless(update)


def global_norm(values: Any) -> Array:
    """The square root of the sum of the squares of all elements of a pytree: one all-reduce of one number at most.

    A real floating-point number: integers and bools are squared in float64, narrow floats in float32.
    """
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
    a_number(most, "optim.clip_by_global_norm(1.0)")

    def update(grads: Any, params: Any) -> Any:
        if not tree.leaves(grads):
            return grads
        norm = global_norm(grads)
        numbers = Numbers(e.where(norm > most, most / e.maximum(norm, most or 1.0), 1.0))  # a norm of 0 divides nothing
        return each(lambda g: g * numbers.of(g.dtype)[0], grads)

    return stateless(update)


def clip(most: float) -> GradientTransformation:
    """Every element clipped to [-most, most]."""
    a_number(most, "optim.clip(1.0)")
    return stateless(lambda grads, params: each(lambda g: e.clip(g, -most, most), grads))


__all__ = [
    "add_decayed_weights",
    "clip",
    "clip_by_global_norm",
    "global_norm",
    "identity",
    "masked",
    "scale",
    "scale_by_learning_rate",
    "set_to_zero",
]
