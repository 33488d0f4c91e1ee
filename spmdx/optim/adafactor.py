"""Adafactor: second moments of a matrix kept as its rows' and its columns' means."""

from __future__ import annotations

from typing import Any, NamedTuple

from spmdx import context, tree
from spmdx.array import Array
from spmdx.dtypes import NARROW, float32
from spmdx.errors import ShapeError
from spmdx.ops import elementwise as e
from spmdx.ops.create import zeros
from spmdx.ops.moments import mean
from spmdx.ops.update import _mix, _mix_square, _square_sum
from spmdx.optim.base import (
    REAL,
    GradientTransformation,
    Numbers,
    Rate,
    beside,
    chain,
    flat,
    moved,
    needed,
    none_taken,
    own,
    slot,
    trained,
)
from spmdx.optim.steps import scale_by_learning_rate
from spmdx.spec import Spec


class FactoredState(NamedTuple):
    """Steps taken, and mean squares: of rows and columns, or of all elements (in ``rows``; ``columns`` is then 0-d)."""

    steps: Array
    rows: Any
    columns: Any


def adafactor(
    rate: Rate = 1e-2,
    *,
    decay: float = 0.8,
    clipping: float = 1.0,
    eps: float = 1e-30,
    least_scale: float | None = 1e-3,
    least_size: int = 128,
) -> GradientTransformation:
    """Adafactor (Shazeer and Stern, 2018), without momentum.

    Args:
        rate: relative to the size of each parameter, unless ``least_scale`` is None.
        decay: mean squares keep the share 1 - t**-decay of their old value at step t.
        clipping: the most that the root mean square of an update may be before it is scaled.
        eps: added to squares.
        least_scale: the size of a parameter is its root mean square, or this if that is greater.
        least_size: matrices whose last two dimensions are both at least so long are kept as rows and columns.

    Under a plan that divides the state, the means are divided as well. Where parameters or state are divided, the
    means of all rows and columns, the means of those, and all root mean squares take one small message each.
    """
    factored = _factored(decay, clipping, eps, least_scale, least_size)
    return chain(factored, scale_by_learning_rate(rate))


def _kind(p: Array) -> Any:
    return float32 if p.dtype in NARROW else p.dtype


def _without(spec: Spec, dim: int, dtype: Any) -> Spec:
    """Where the means over one dimension lie, if they lie as the other dimensions do."""
    keep = [d for d in range(spec.ndim) if d != dim % spec.ndim]
    return spec.replace(
        shape=tuple(spec.shape[d] for d in keep), layouts=tuple(spec.layouts[d] for d in keep), partial=(), dtype=dtype
    )


def _means(p: Array, path: str, dim: int) -> Array:
    """Zeros for the means over one dimension of p, placed as the other dimensions are, or as the running plan places
    state."""
    running = context.get().plan
    spec = _without(p.spec, dim, _kind(p)) if running is None else running.plan.means(path, p.spec, dim)
    return zeros(spec.shape, dtype=_kind(p), mesh=p.mesh, placement=spec.placement)


def _settled(arrays: list[Array]) -> list[Array]:
    """Numbers that are Partial sums, finished in one message."""
    return moved(arrays, [x.spec.replace(partial=()) for x in arrays])


def _roots(squares: list[Array], of: list[Array]) -> list[Array]:
    """Root mean squares, of the sums of squares of these arrays; 0 of an empty one."""
    return [e.sqrt(total / max(x.size, 1)) for total, x in zip(squares, of)]


def _factored(
    decay: float, clipping: float, eps: float, least_scale: float | None, least_size: int
) -> GradientTransformation:
    def split(p: Array) -> bool:
        return p.ndim > 1 and min(p.shape[-2:]) >= max(least_size, 1)

    def init(params: Any) -> FactoredState:
        leaves, treedef = trained(params, REAL)
        rows, columns = [], []
        for path, p in zip(tree.paths_of(treedef), leaves):
            rows.append(_means(p, path, -1) if split(p) else slot(p, path))
            columns.append(_means(p, path, -2) if split(p) else zeros((), dtype=_kind(p), mesh=p.mesh))
        return FactoredState(none_taken(params), tree.unflatten(treedef, rows), tree.unflatten(treedef, columns))

    def update(grads: Any, state: FactoredState, params: Any = None) -> tuple[Any, FactoredState]:
        count = own(state, FactoredState, "adafactor").steps + 1
        fresh = count.astype(float) ** -decay
        numbers = Numbers(1 - fresh, fresh, fresh * eps)
        leaves, treedef = flat(grads)
        sizes = [] if least_scale is None else beside(needed(params, WHY), leaves, treedef, "parameter")
        rows = tree.match(state.rows, treedef, "the tree of mean squares of rows")
        columns = tree.match(state.columns, treedef, "the tree of mean squares of columns")
        for path, g, r, c in zip(tree.paths_of(treedef), leaves, rows, columns):
            _fits(path, g, r, c, split(g))
        halved = [i for i, g in enumerate(leaves) if split(g)]
        others = [i for i, g in enumerate(leaves) if not split(g)]

        # The means of what was squared, and then of rows, each in one message for all
        squares = [e.square(leaves[i].astype(rows[i].dtype)) + eps for i in halved]
        found = [mean(square, dim) for dim in (-1, -2) for square in squares]
        found = moved(found, [x[i].spec for x in (rows, columns) for i in halved])
        for n, i in enumerate(halved):
            old, new, _ = numbers.of(rows[i].dtype)
            rows[i] = _mix(rows[i], old, found[n], new)
            columns[i] = _mix(columns[i], old, found[n + len(halved)], new)
        whole = [mean(rows[i], -1, keepdims=True) for i in halved]
        # and rows and columns to where the gradients lie
        given = [rows[i] for i in halved] + [columns[i] for i in halved]
        places = [_without(leaves[i].spec, dim, rows[i].dtype) for dim in (-1, -2) for i in halved]
        found = moved([*whole, *given], [*(x.spec.replace(partial=()) for x in whole), *places])
        third = len(halved)

        updates = list(leaves)
        for n, i in enumerate(halved):
            row, column = e.sqrt(found[third + n] / found[n]), e.sqrt(found[2 * third + n])
            updates[i] = leaves[i] / (row[..., None] * column[..., None, :])
        for i in others:
            old, new, more = numbers.of(rows[i].dtype)
            rows[i] = _mix_square(rows[i], old, leaves[i], new) + more
            updates[i] = leaves[i] / e.sqrt(rows[i])

        sums = _settled([_square_sum(x) for x in (*updates, *sizes)])
        factors = [1.0 / e.maximum(root / clipping, 1.0) for root in _roots(sums, updates)]
        if least_scale is not None:
            scales = _roots(sums[len(updates) :], sizes)
            factors = [f * e.maximum(root, least_scale) for f, root in zip(factors, scales)]
        updates = [u * f.astype(u.dtype) for u, f in zip(updates, factors)]
        made = (tree.unflatten(treedef, x) for x in (updates, rows, columns))
        return next(made), FactoredState(count, *made)

    return GradientTransformation(init, update)


WHY = "adafactor with least_scale"


def _fits(path: str, g: Array, rows: Array, columns: Array, halved: bool) -> None:
    """An error unless these are the mean squares of a gradient of this shape."""
    shapes = (g.shape[:-1], (*g.shape[:-2], g.shape[-1])) if halved else (g.shape, ())
    if (rows.shape, columns.shape) != shapes:
        raise ShapeError(
            f"the gradient {path or 'itself'} has shape {g.shape}, to which mean squares of shapes {rows.shape} and "
            f"{columns.shape} do not belong.",
            "updates, state = optimizer.update(grads, state, params), of gradients and a state of these parameters",
        )


__all__ = ["adafactor"]
