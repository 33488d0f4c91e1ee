"""Adafactor: second moments of a matrix kept as its rows' and its columns' means."""

from __future__ import annotations

from typing import Any, NamedTuple

from spmdx import tree
from spmdx.array import Array
from spmdx.dtypes import NARROW, float32
from spmdx.ops import elementwise as e
from spmdx.ops.create import zeros, zeros_like
from spmdx.ops.moments import mean
from spmdx.ops.neural import settled
from spmdx.ops.update import _mix, _mix_square
from spmdx.optim.base import GradientTransformation, Numbers, Rate, chain, mapped, needed, none_taken
from spmdx.optim.steps import scale_by_learning_rate


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

    Where a parameter is divided, the means of its rows, columns and squares take small all-reduces.
    """
    factored = _factored(decay, clipping, eps, least_scale, least_size)
    return chain(factored, scale_by_learning_rate(rate))


def _beside(p: Array, dropped: int) -> Array:
    """Zeros for the means over one dimension of p, placed as the other dimensions are."""
    keep = [d for d in range(p.ndim) if d != p.ndim + dropped]
    spec = p.spec.replace(
        shape=tuple(p.shape[d] for d in keep), layouts=tuple(p.spec.layouts[d] for d in keep), partial=()
    )
    return zeros(spec.shape, dtype=_kind(p), mesh=p.mesh, placement=spec.placement)


def _kind(p: Array) -> Any:
    return float32 if p.dtype in NARROW else p.dtype


def _beside_it(x: Array, like: Array) -> Array:
    """x, finished and placed as ``like``."""
    return x if x.spec is like.spec else x.redistribute(like.placement)


def _root_mean_square(x: Array) -> Array:
    found: Array = e.sqrt(settled(mean(x * x)))
    return found


def _factored(
    decay: float, clipping: float, eps: float, least_scale: float | None, least_size: int
) -> GradientTransformation:
    def split(p: Array) -> bool:
        return p.ndim > 1 and min(p.shape[-2:]) >= least_size

    def init(params: Any) -> FactoredState:
        def start(p: Array) -> tuple[Array, Array]:
            if split(p):
                return _beside(p, -1), _beside(p, -2)
            return zeros_like(p, dtype=_kind(p)), zeros((), dtype=_kind(p), mesh=p.mesh)

        return FactoredState(none_taken(params), *mapped(2, start, params))

    def update(grads: Any, state: FactoredState, params: Any = None) -> tuple[Any, FactoredState]:
        count = state.steps + 1
        fresh = count.astype(float) ** -decay
        numbers = Numbers(1 - fresh, fresh, fresh * eps)

        def one(g: Array, rows: Array, columns: Array) -> tuple[Array, Array, Array]:
            old, new, more = numbers.of(rows.dtype)
            if not split(g):
                rows = _mix_square(rows, old, g, new) + more
                u = g / e.sqrt(rows)
            else:
                square = e.square(g.astype(rows.dtype)) + eps
                rows = _mix(rows, old, _beside_it(mean(square, -1), rows), new)
                columns = _mix(columns, old, _beside_it(mean(square, -2), columns), new)
                each = rows / settled(mean(rows, -1, keepdims=True))
                u = g / (e.sqrt(each)[..., None] * e.sqrt(columns)[..., None, :])
            return u / e.maximum(_root_mean_square(u) / clipping, 1.0), rows, columns

        updates, rows, columns = mapped(3, one, grads, state.rows, state.columns)
        if least_scale is not None:
            sizes = needed(params, "adafactor with least_scale")
            updates = tree.map(lambda u, p: u * e.maximum(_root_mean_square(p), least_scale), updates, sizes)
        return updates, FactoredState(count, rows, columns)

    return GradientTransformation(init, update)


__all__ = ["adafactor"]
