"""Adam and AdamW."""

from __future__ import annotations

from typing import Any, NamedTuple

from spmdx import tree
from spmdx.array import Array
from spmdx.ops import elementwise as e
from spmdx.ops.together import adam as adam_steps
from spmdx.optim.base import (
    GradientTransformation,
    Mask,
    Numbers,
    Rate,
    beside,
    checked_rate,
    chosen,
    flat,
    needed,
    none_taken,
    own,
    rate_at,
    slots,
)


class AdamState(NamedTuple):
    """Steps taken, and the running means of gradients and of their squares, placed as the parameters."""

    steps: Array
    mean: Any
    square: Any


def adam(rate: Rate, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8) -> GradientTransformation:
    """Adam (Kingma and Ba, 2015).

    Args:
        rate, b1, b2, eps: as :func:`adamw`'s.
    """
    return adamw(rate, b1, b2, eps, 0.0)


def adamw(
    rate: Rate,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.01,
    mask: Mask = None,
) -> GradientTransformation:
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019), by torch's formula:
    -rate m / (1 - b1**t) / (sqrt(v / (1 - b2**t)) + eps) - rate weight_decay p.

    Args:
        rate: a number, or a schedule.
        b1, b2: what the running means of gradients and of their squares keep of themselves at each step.
        eps: added to the root, so that nothing is divided by 0.
        weight_decay: times the rate, the share of itself that a parameter loses at each step.
        mask: which parameters decay, as ``lambda params: tree.map(lambda p: p.ndim > 1, params)``.

    Communicates nothing where gradients, state and parameters lie alike.
    """

    rate = checked_rate(rate)

    def init(params: Any) -> AdamState:
        return AdamState(none_taken(params), slots(params), slots(params))

    def update(grads: Any, state: AdamState, params: Any = None) -> tuple[Any, AdamState]:
        count = own(state, AdamState, "adamw").steps + 1
        t = count.astype(float)
        now = rate_at(rate, state.steps)
        decay = now * weight_decay if weight_decay else 0.0
        numbers = Numbers(now / (1 - e.pow(b1, t)), e.sqrt(1 - e.pow(b2, t)), eps, decay)
        if weight_decay:
            params = needed(params, "adamw with weight_decay")

        leaves, treedef = flat(grads)
        others: list[Any] = [beside(state.mean, leaves, treedef, "running mean")]
        others.append(beside(state.square, leaves, treedef, "running square"))
        if weight_decay:
            others += [beside(params, leaves, treedef, "parameter"), chosen(mask, params)]
        taken, given = [], []
        still: dict[Any, tuple[Any, ...]] = {}  # the numbers for parameters that do not decay
        for g, m, v, *rest in zip(leaves, *others):
            p, decays = rest or (0.0, False)
            at = numbers.of(m.dtype)
            taken.append((g, m, v, p if decays else 0.0))
            given.append(at if decays else still.setdefault(m.dtype, (*at[:3], 0.0)))
        steps = adam_steps(taken, b1, b2, given)
        updates, mean, square = (tree.unflatten(treedef, [step[i] for step in steps]) for i in range(3))
        return updates, AdamState(count, mean, square)

    return GradientTransformation(init, update)


__all__ = ["adam", "adamw"]
