"""Mixed precision: float32 masters, half-width compute; and loss scaling for float16, whose small gradients vanish.

    def loss(params, batch):
        return model(nn.cast(params, sx.bfloat16), batch).astype(sx.float32).mean()

The gradient of a cast is a cast back, so gradients and optimizer state are the masters' float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, NamedTuple

import numpy as np

from spmdx import context, tree
from spmdx.array import Array
from spmdx.autodiff import value_and_grad
from spmdx.errors import DtypeError, ShapeError
from spmdx.mesh import Mesh
from spmdx.ops import elementwise as e
from spmdx.ops.create import full
from spmdx.ops.place import redistribute
from spmdx.ops.reduce import all


def cast(params: Any, dtype: Any) -> Any:
    """The pytree with its floating-point arrays in another dtype; others, and other leaves, stay.

    What a plan gathers of it travels in that dtype, and one block ahead as the parameters themselves do.
    """
    leaves, treedef = tree.flatten(params)
    made = [x.astype(dtype) if isinstance(x, Array) and x.dtype.kind in "fV" else x for x in leaves]
    if (running := context.get().plan) is not None:
        running.cast(made)
    return tree.unflatten(treedef, made)


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

        value, grads, finite = scale.value_and_grad(loss)(params, batch)
        updates, after = optimizer.update(grads, state, params)
        params, state = nn.select(finite, (optim.apply_updates(params, updates), after), (params, state))
        scale = scale.adjust(finite)
    """

    value: Array
    good_steps: Array

    def value_and_grad(
        self, function: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
    ) -> Callable[..., Any]:
        """A function that gives the loss, its gradient, found by way of the scaled loss, and whether that is finite.

        Args:
            function, argnums, has_aux: as :func:`spmdx.value_and_grad`'s.

        A scale that is too great overflows, which is what it is to find out: there are no warnings of it. Gradients
        are then NaN everywhere, from which an optimizer makes NaN without warnings of its own.
        """

        def scaled(*args: Any, **kwargs: Any) -> Any:
            found = function(*args, **kwargs)
            loss = found[0] if has_aux else found
            return self.scale(loss), found

        @wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with expected():
                (_, found), grads = value_and_grad(scaled, argnums, has_aux=True)(*args, **kwargs)
                finite = all_finite(grads)
                by = self._replace(value=e.where(finite, self.value, np.float32(np.nan)))
                return found, by.unscale(grads), finite

        return wrapped

    def scale(self, loss: Array) -> Array:
        """The loss to differentiate."""
        given: Any = loss
        if not isinstance(given, Array) or given.dtype.kind not in "fV":
            what = f"{given.dtype.name} array" if isinstance(given, Array) else type(given).__name__
            raise DtypeError(
                f"the loss that is scaled is a floating-point Array; got a {what}.", "scale.scale(sx.mean(errors))"
            )
        with expected():
            return loss * self.value.astype(loss.dtype)

    def unscale(self, grads: Any) -> Any:
        """The gradients of the loss itself, exact where the scale is a power of two, in float32 at least."""
        leaves, treedef = tree.flatten(grads)
        for path, g in zip(tree.paths_of(treedef), leaves):
            if not isinstance(g, Array):
                raise DtypeError(
                    f"gradients are Arrays; {path or 'this one'} is a {type(g).__name__}.",
                    "scale.unscale(sx.grad(lambda p: scale.scale(loss(p)))(params))",
                )
        with expected():
            return tree.map(lambda g: _wide(g) / self.value.astype(_wide(g).dtype), grads)

    def adjust(self, finite: Array, interval: int = 2000) -> LossScale:
        """Halved, not below 1, after a step that was not finite; doubled after ``interval`` good steps in a row."""
        steps = e.where(finite, self.good_steps + 1, 0)
        grown = e.greater_equal(steps, interval)
        more = e.minimum(self.value, GREATEST / 2) * 2  # an infinity would never come down again
        value = e.where(finite, e.where(grown, more, self.value), e.maximum(self.value / 2, 1))
        return LossScale(value, e.where(grown, 0, steps))


def expected() -> Any:
    """Around code in which a scale may turn out to be too great: overflows, and what comes of them, are no news."""
    return np.errstate(over="ignore", invalid="ignore")


def _wide(g: Array) -> Array:
    return g.astype("float32") if g.dtype.itemsize < 4 else g


def loss_scale(initial: float = 2.0**15, mesh: Mesh | None = None) -> LossScale:
    """A fresh :class:`LossScale`, which begins with ``initial``."""
    return LossScale(full((), initial, dtype="float32", mesh=mesh), full((), 0, dtype="int64", mesh=mesh))


def select(condition: Any, a: Any, b: Any) -> Any:
    """Pytree ``a`` where the 0-d condition is True, else ``b``: to leave out a step that was not finite."""
    if np.ndim(condition) if not isinstance(condition, Array) else condition.ndim:
        raise ShapeError("select takes one condition for all arrays.", "nn.select(nn.all_finite(grads), a, b)")
    leaves, treedef = tree.flatten(a)
    others = tree.match(b, treedef, "the tree in the other case")
    for path, x, y in zip(tree.paths_of(treedef), leaves, others):
        if getattr(x, "shape", ()) != getattr(y, "shape", ()):
            raise ShapeError(
                f"{path or 'this one'} has shape {getattr(x, 'shape', ())}, and {getattr(y, 'shape', ())} in the other "
                "case.",
                "nn.select(condition, a, b) of trees with the same shapes",
            )
    return tree.unflatten(treedef, [e.where(condition, x, y) for x, y in zip(leaves, others)])


__all__ = ["LossScale", "all_finite", "cast", "loss_scale", "select"]
