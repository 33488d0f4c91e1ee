"""Mixed precision: float32 masters, half-width compute; and loss scaling for float16, whose small gradients vanish.

    def loss(params, batch):
        return model(nn.cast(params, sx.bfloat16), batch).astype(sx.float32).mean()

The gradient of a cast is a cast back, so gradients and optimizer state are the masters' float32.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from spmdx import tree
from spmdx.array import Array
from spmdx.mesh import Mesh
from spmdx.ops import elementwise as e
from spmdx.ops.create import full
from spmdx.ops.place import redistribute
from spmdx.ops.reduce import all


def cast(params: Any, dtype: Any) -> Any:
    """The pytree with its floating-point arrays in another dtype; others, and other leaves, stay."""
    return tree.map(lambda x: x.astype(dtype) if isinstance(x, Array) and x.dtype.kind in "fV" else x, params)


def all_finite(grads: Any) -> Array:
    """A bool, 0-d: True if every element of every array is finite. One small collective at most."""
    found = [all(e.isfinite(g)) for g in tree.leaves(grads)]
    if not found:
        return full((), True, dtype=bool)
    found = redistribute(found, {})
    out: Array = found[0]
    for one in found[1:]:
        out = e.logical_and(out, one)
    return out


GREATEST = 2.0**127  # of the powers of two that float32 has


class LossScale(NamedTuple):
    """A scale for the loss that adapts (Micikevicius and others, "Mixed precision training", 2018). Pure: ``adjust``
    returns a new one.

        scaled, grads = sx.value_and_grad(lambda p: scale.scale(loss(p)))(params)
        grads, finite = scale.unscale(grads), nn.all_finite(grads)
        params, scale = nn.select(finite, optim.apply_updates(params, updates), params), scale.adjust(finite)
    """

    value: Array
    good_steps: Array

    def scale(self, loss: Array) -> Array:
        """The loss to differentiate."""
        return loss * self.value.astype(loss.dtype)

    def unscale(self, grads: Any) -> Any:
        """The gradients of the loss itself, exact where the scale is a power of two, in float32 at least."""
        return tree.map(lambda g: _wide(g) / self.value.astype(_wide(g).dtype), grads)

    def adjust(self, finite: Array, interval: int = 2000) -> LossScale:
        """Halved, not below 1, after a step that was not finite; doubled after ``interval`` good steps in a row."""
        steps = e.where(finite, self.good_steps + 1, 0)
        grown = e.greater_equal(steps, interval)
        more = e.minimum(self.value, GREATEST / 2) * 2  # an infinity would never come down again
        value = e.where(finite, e.where(grown, more, self.value), e.maximum(self.value / 2, 1))
        return LossScale(value, e.where(grown, 0, steps))


def _wide(g: Array) -> Array:
    return g.astype("float32") if g.dtype.itemsize < 4 else g


def loss_scale(initial: float = 2.0**15, mesh: Mesh | None = None) -> LossScale:
    """A fresh :class:`LossScale`, which begins with ``initial``."""
    return LossScale(full((), initial, dtype="float32", mesh=mesh), full((), 0, dtype="int64", mesh=mesh))


def select(condition: Array, a: Any, b: Any) -> Any:
    """Pytree ``a`` where the 0-d condition is True, else ``b``: to leave out a step that was not finite."""
    return tree.map(lambda x, y: e.where(condition, x, y), a, b)


__all__ = ["LossScale", "all_finite", "cast", "loss_scale", "select"]
