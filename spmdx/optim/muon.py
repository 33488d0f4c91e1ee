"""Muon: momentum of matrices, made orthogonal by a few matrix products; AdamW for everything else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spmdx import tree
from spmdx.array import Array
from spmdx.ops.moments import vector_norm
from spmdx.ops.place import redistribute
from spmdx.ops.update import _mix
from spmdx.optim.adam import adamw
from spmdx.optim.base import GradientTransformation, Rate, chain, each, partition, slots
from spmdx.optim.momentum import Velocity
from spmdx.optim.steps import add_decayed_weights, scale_by_learning_rate
from spmdx.spec import WHOLE

QUINTIC = (3.4445, -4.7750, 2.0315)  # steepest at 0: singular values end between 0.7 and 1.2 after five steps


def orthogonal(x: Array, steps: int = 5, coefficients: Sequence[float] = QUINTIC) -> Array:
    """A matrix (or a stack of them) with x's singular vectors and singular values near 1: iterations of Newton and
    Schulz, x = a x + b (x x.T) x + c (x x.T)**2 x. Only products: no decomposition.

    Args:
        steps: how many iterations.
        coefficients: a, b and c.
    """
    a, b, c = coefficients
    wide = x.shape[-2] <= x.shape[-1]
    y = x if wide else x.mT
    y = y / (vector_norm(y, axis=(-2, -1), keepdims=True) + 1e-7)
    for _ in range(steps):
        square = y @ y.mT
        y = a * y + (b * square + c * (square @ square)) @ y
    return y if wide else y.mT


def _whole(matrices: list[Array]) -> list[Array]:
    """Matrices whose last two dimensions are whole: all gathered in one message. Stacks may stay divided."""
    targets = [m.spec.replace(layouts=(*m.spec.layouts[:-2], WHOLE, WHOLE)) for m in matrices]
    if all(t is m.spec for t, m in zip(targets, matrices)):
        return matrices
    found: list[Array] = redistribute(matrices, [t.placement for t in targets])
    return found


def scale_by_muon(decay: float = 0.95, nesterov: bool = True, steps: int = 5) -> GradientTransformation:
    """A step to chain, for matrices alone: the running mean of gradients, made orthogonal, times
    sqrt(max(1, rows / columns)). Divided matrices are gathered, all in one message.

    Args:
        decay: what the running mean keeps of itself at each step.
        nesterov: the gradient once more in what is made orthogonal, as in :func:`momentum`.
        steps: as :func:`orthogonal`'s.
    """

    def update(grads: Any, state: Velocity, params: Any = None) -> tuple[Any, Velocity]:
        mean = each(lambda g, v: _mix(v, decay, g, 1 - decay), grads, state.velocity)
        moved = each(lambda g, v: _mix(g, 1 - decay, v, decay), grads, mean) if nesterov else mean
        leaves, treedef = tree.flatten(moved)
        if not leaves:
            return moved, Velocity(mean)
        updates = []
        for whole, x in zip(_whole(leaves), leaves):
            size = max(1.0, x.shape[-2] / max(x.shape[-1], 1)) ** 0.5
            made = orthogonal(whole, steps) * size
            updates.append(made if made.spec is x.spec else made.redistribute(x.placement))
        return tree.unflatten(treedef, updates), Velocity(mean)

    return GradientTransformation(lambda params: Velocity(slots(params)), update)


def muon(
    rate: Rate,
    *,
    decay: float = 0.95,
    nesterov: bool = True,
    steps: int = 5,
    weight_decay: float = 0.0,
    adam_rate: Rate = 3e-4,
    matrices: Any = None,
) -> GradientTransformation:
    """Muon (Jordan and others, 2024) for matrices, :func:`adamw` for all other parameters.

    Args:
        rate, weight_decay: of the matrices (``weight_decay`` of both).
        decay, nesterov, steps: as :func:`scale_by_muon`'s.
        adam_rate: of the others.
        matrices: which parameters are matrices to it: a pytree of bools, or a function of params that returns one;
            all with two dimensions if left out. Embeddings are better left to AdamW.
    """
    decays = [add_decayed_weights(weight_decay)] if weight_decay else []
    whole = chain(scale_by_muon(decay, nesterov, steps), *decays, scale_by_learning_rate(rate))

    def labels(params: Any) -> Any:
        picked = matrices(params) if callable(matrices) else matrices
        if picked is None:
            picked = tree.map(lambda p: p.ndim == 2, params)
        return tree.map(lambda yes: "muon" if yes else "adamw", picked)

    return partition({"muon": whole, "adamw": adamw(adam_rate, weight_decay=weight_decay)}, labels)


__all__ = ["muon", "orthogonal", "scale_by_muon"]
