"""Gradient descent, with and without momentum, and Lion."""

from __future__ import annotations

from typing import Any, NamedTuple

from spmdx.array import Array
from spmdx.ops import elementwise as e
from spmdx.ops.update import _mix
from spmdx.optim.base import GradientTransformation, Mask, Rate, chain, each, mapped, own, slots
from spmdx.optim.steps import add_decayed_weights, scale_by_learning_rate


class Velocity(NamedTuple):
    """The running sum of gradients, placed as the parameters."""

    velocity: Any


class LionState(NamedTuple):
    """The running mean of gradients, placed as the parameters."""

    mean: Any


def momentum(decay: float = 0.9, nesterov: bool = False) -> GradientTransformation:
    """A step to chain: v = decay v + g; v itself, or g + decay v in Nesterov's form (Sutskever and others, 2013)."""

    def update(grads: Any, state: Velocity, params: Any = None) -> tuple[Any, Velocity]:
        before = own(state, Velocity, "momentum").velocity
        velocity = each(lambda g, v: _mix(v, decay, g, 1.0), grads, velocity=before)
        moved = each(lambda g, v: _mix(g, 1.0, v, decay), grads, velocity=velocity) if nesterov else velocity
        return moved, Velocity(velocity)

    return GradientTransformation(lambda params: Velocity(slots(params)), update)


def sgd(
    rate: Rate, momentum_decay: float = 0.0, nesterov: bool = False, weight_decay: float = 0.0, mask: Mask = None
) -> GradientTransformation:
    """Gradient descent by torch's formula: weight decay is added to the gradient, then momentum, then the rate.

    Args:
        rate: a number, or a schedule.
        momentum_decay, nesterov: as :func:`momentum`'s; 0 for none.
        weight_decay, mask: as :func:`add_decayed_weights`'s; 0 for none.
    """
    steps = [add_decayed_weights(weight_decay, mask)] if weight_decay else []
    steps += [momentum(momentum_decay, nesterov)] if momentum_decay else []
    return chain(*steps, scale_by_learning_rate(rate))


def _signs(b1: float, b2: float) -> GradientTransformation:
    def update(grads: Any, state: LionState, params: Any = None) -> tuple[Any, LionState]:
        def one(g: Array, m: Array) -> tuple[Array, Array]:
            return e.sign(_mix(m, b1, g, 1 - b1)), _mix(m, b2, g, 1 - b2)

        signs, mean = mapped(2, one, grads, mean=own(state, LionState, "lion").mean)
        return signs, LionState(mean)

    return GradientTransformation(lambda params: LionState(slots(params)), update)


def lion(
    rate: Rate, b1: float = 0.9, b2: float = 0.99, weight_decay: float = 0.0, mask: Mask = None
) -> GradientTransformation:
    """-rate (sign(b1 m + (1 - b1) g) + weight_decay p), then m = b2 m + (1 - b2) g (Chen and others, "Lion", 2023).

    Args:
        rate: a number, or a schedule.
        b1, b2: how much of the running mean m is in the step, and stays in the mean.
        weight_decay, mask: as :func:`adamw`'s.
    """
    decay = [add_decayed_weights(weight_decay, mask)] if weight_decay else []
    return chain(_signs(b1, b2), *decay, scale_by_learning_rate(rate))


__all__ = ["lion", "momentum", "sgd"]
