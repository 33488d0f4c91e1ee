"""Muon: momentum of matrices, made orthogonal by a few matrix products; AdamW for everything else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from spmdx import tree
from spmdx.array import Array
from spmdx.ops.moments import vector_norm
from spmdx.ops.shape import permute_dims, reshape
from spmdx.ops.update import _mix
from spmdx.optim.adam import adamw
from spmdx.optim.base import GradientTransformation, Rate, chain, each, flat, moved, own, partition, slots
from spmdx.optim.labels import Matrix, matrices_of, matrix_by_name
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


class MuonState(NamedTuple):
    """The running mean of gradients, placed as the parameters."""

    mean: Any


Dims = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]  # of a stack, of rows and of columns


def _whole(arrays: list[Array], dims: list[Dims]) -> list[Array]:
    """Arrays whose rows and columns are whole: all gathered in one message. Stacks may stay divided."""
    targets = []
    for x, (stack, _, _) in zip(arrays, dims):
        layouts = tuple(layout if d in stack else WHOLE for d, layout in enumerate(x.spec.layouts))
        targets.append(x.spec.replace(layouts=layouts, partial=()))
    return moved(arrays, targets)


def _orthogonal(x: Array, dims: Dims, steps: int) -> Array:
    """The matrix that an array is, or the stack of them, made orthogonal, in the array's own shape."""
    stack, rows, columns = dims
    order = (*stack, *rows, *columns)
    sizes = tuple(x.shape[d] for d in order)
    inputs, outputs = (math.prod(x.shape[d] for d in some) for some in (rows, columns))
    if not x.size:
        return x
    found: Array = x if order == tuple(range(x.ndim)) else permute_dims(x, order)
    plain = len(rows) == len(columns) == 1
    found = orthogonal(found if plain else reshape(found, (*sizes[: len(stack)], inputs, outputs)), steps)
    found = (found if plain else reshape(found, sizes)) * max(1.0, outputs / inputs) ** 0.5
    if order != tuple(range(x.ndim)):
        found = permute_dims(found, [order.index(d) for d in range(x.ndim)])
    return found


def scale_by_muon(
    decay: float = 0.95, nesterov: bool = True, steps: int = 5, matrices: Any = None
) -> GradientTransformation:
    """A step to chain, for matrices alone: the running mean of gradients, made orthogonal, times
    sqrt(max(1, outputs / inputs)). Divided matrices are gathered, all in one message.

    Args:
        decay: what the running mean keeps of itself at each step.
        nesterov: the gradient once more in what is made orthogonal, as in :func:`momentum`.
        steps: as :func:`orthogonal`'s.
        matrices: as :func:`muon`'s; the last two dimensions of all of them if left out.
    """

    def dims_of(values: Any) -> list[Dims]:
        leaves, treedef = flat(values)
        found = matrices_of(matrices, values, lambda path, shape: Matrix())
        return [(m or Matrix()).dims(path, x.shape) for m, path, x in zip(found, tree.paths_of(treedef), leaves)]

    def init(params: Any) -> MuonState:
        dims_of(params)  # which are no matrices is said at once
        return MuonState(slots(params))

    def update(grads: Any, state: MuonState, params: Any = None) -> tuple[Any, MuonState]:
        before = own(state, MuonState, "muon").mean
        mean = each(lambda g, v: _mix(v, decay, g, 1 - decay), grads, mean=before)
        taken = each(lambda g, v: _mix(g, 1 - decay, v, decay), grads, mean=mean) if nesterov else mean
        leaves, treedef = tree.flatten(taken)
        dims = dims_of(grads)
        updates = [_orthogonal(x, d, steps) for x, d in zip(_whole(leaves, dims), dims)]
        return tree.unflatten(treedef, moved(updates, [x.spec for x in leaves])), MuonState(mean)

    return GradientTransformation(init, update)


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
        matrices: which parameters are matrices, and how: True (its last two dimensions), False, or a
            :class:`Matrix`, for patterns of paths, as ``{"experts.*.up": Matrix(-2, -1), "outer.*": False}``; or a
            pytree of these, or a function of params that returns one.

    What ``matrices`` leaves out is told by path and shape. No matrices are vectors; what is called a bias, a scale, a
    gain or a norm; and tables of vectors: tokens, positions, embeddings, heads. Three or more dimensions are parted
    into inputs and outputs where those are most nearly as many, as ``(width, heads | size)`` of the library's GPT and
    ``(heads, size | width)``: a stack of layers in one array takes a :class:`Matrix`.
    """
    decays = [add_decayed_weights(weight_decay)] if weight_decay else []
    others = adamw(adam_rate, weight_decay=weight_decay)
    last = scale_by_learning_rate(rate)

    def parted(params: Any) -> GradientTransformation:
        picked = _picked(matrices, params)  # of all parameters: the steps see their own alone
        step = scale_by_muon(decay, nesterov, steps, lambda part: picked)
        labels = tree.map(lambda m: "muon" if m else "adamw", picked)
        return partition({"muon": chain(step, *decays, last), "adamw": others}, labels)

    def update(grads: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        return parted(grads if params is None else params).update(grads, state, params)

    return GradientTransformation(lambda params: parted(params).init(params), update)


def _picked(matrices: Any, params: Any) -> Any:
    """The tree of what the parameters are: a Matrix, or False."""
    treedef = tree.flatten(params)[1]
    return tree.unflatten(treedef, [m or False for m in matrices_of(matrices, params, matrix_by_name)])


__all__ = ["muon", "orthogonal", "scale_by_muon"]
