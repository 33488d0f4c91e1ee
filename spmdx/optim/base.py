"""Optimizers as pairs of pure functions, in the shape of optax: ``init(params)`` makes a state, ``update(grads, state,
params)`` gives updates and the next state. States lie where their parameters lie.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from spmdx import context, tree
from spmdx.array import Array
from spmdx.decide import default_mesh
from spmdx.dtypes import NARROW, float32
from spmdx.errors import ArgumentError, DtypeError
from spmdx.mesh import Mesh
from spmdx.ops.create import full, zeros_like
from spmdx.ops.place import redistribute

Rate = float | Callable[[Array], Any]  # a learning rate, or a schedule: a function of the number of steps taken
Mask = Any  # a pytree of bools, or a function of params that returns one


class GradientTransformation(NamedTuple):
    """A step of an optimizer.

    ``init(params) -> state`` and ``update(grads, state, params=None) -> (updates, state)``; both are pure, and all
    are pytrees. Updates are what is to be added to the parameters.
    """

    init: Callable[[Any], Any]
    update: Callable[..., tuple[Any, Any]]


class Empty(NamedTuple):
    """The state of what remembers nothing."""


class Counted(NamedTuple):
    """The state of what remembers how many steps were taken."""

    steps: Array


def chain(*steps: GradientTransformation) -> GradientTransformation:
    """One after another: what the first gives is the second's gradient. The state is the tuple of their states."""

    def init(params: Any) -> Any:
        return tuple(step.init(params) for step in steps)

    def update(grads: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        states = []
        for step, one in zip(steps, state):
            grads, after = step.update(grads, one, params)
            states.append(after)
        return grads, tuple(states)

    return GradientTransformation(init, update)


def stateless(update: Callable[[Any, Any], Any]) -> GradientTransformation:
    """A step that remembers nothing: ``update(grads, params) -> updates``."""
    return GradientTransformation(lambda params: Empty(), lambda g, state, params=None: (update(g, params), state))


def apply_updates(params: Any, updates: Any) -> Any:
    """params + updates, in the dtype and the placement of the parameters.

    Where updates are divided and parameters are not (an optimizer state that a plan divides), the sums are made of
    the pieces and gathered, all in one message.
    """
    leaves, treedef = flat(params)
    sums = [p + u for p, u in zip(leaves, tree.match(updates, treedef, "the tree of updates"))]
    sums = [s if s.spec is p.spec else s.astype(p.dtype) for p, s in zip(leaves, sums)]
    for mesh in dict.fromkeys(p.mesh for p, s in zip(leaves, sums) if s.spec is not p.spec):
        away = [i for i, p in enumerate(leaves) if p.mesh is mesh and sums[i].spec is not p.spec]
        home = redistribute([sums[i] for i in away], [leaves[i].placement for i in away])
        for i, moved in zip(away, home):
            sums[i] = moved
    return tree.unflatten(treedef, sums)


def partition(transforms: dict[str, GradientTransformation], labels: Any) -> GradientTransformation:
    """Different steps for different parameters.

    Args:
        transforms: by name.
        labels: the name for every parameter: a pytree of them, or a function of params that returns one.
    """

    def parts(values: Any, params: Any) -> tuple[tree.TreeDef, list[str], dict[str, Any]]:
        leaves, treedef = tree.flatten(values)
        names = tree.leaves(labels(values if params is None else params) if callable(labels) else labels)
        unknown = set(names) - transforms.keys()
        if unknown or len(names) != len(leaves):
            raise ArgumentError(
                f"partition has {len(names)} labels for {len(leaves)} arrays; unknown ones: {sorted(unknown)}.",
                f"one of {', '.join(map(repr, transforms))} for each array",
            )
        each = {k: tree.unflatten(treedef, [x if n == k else None for x, n in zip(leaves, names)]) for k in transforms}
        return treedef, names, each

    def init(params: Any) -> Any:
        return {name: transforms[name].init(part) for name, part in parts(params, None)[2].items()}

    def update(grads: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        treedef, names, each = parts(grads, params)
        own = dict.fromkeys(transforms) if params is None else parts(params, params)[2]
        done = {name: transforms[name].update(part, state[name], own[name]) for name, part in each.items()}
        found = {name: iter(tree.leaves(updates)) for name, (updates, _) in done.items()}
        merged = tree.unflatten(treedef, [next(found[name]) for name in names])
        return merged, {name: after for name, (_, after) in done.items()}

    return GradientTransformation(init, update)


# What the optimizers share


def flat(values: Any) -> tuple[list[Array], tree.TreeDef]:
    """The leaves of parameters or gradients, which are Arrays, and the structure."""
    leaves, treedef = tree.flatten(values)
    for path, x in zip(tree.paths(values), leaves) if not all(isinstance(x, Array) for x in leaves) else ():
        if not isinstance(x, Array):
            raise DtypeError(
                f"optimizers take parameters and gradients that are Arrays; {path or 'this one'} is a "
                f"{type(x).__name__}.",
                "sx.asarray(value, mesh=mesh, placement=placement) in its place; sx.grad gives gradients so",
            )
    return leaves, treedef


def slots(params: Any) -> Any:
    """Zeros placed as the parameters, or as the running plan places state; in float32 for those of half width."""
    leaves, treedef = flat(params)
    running = context.get().plan
    return tree.unflatten(
        treedef,
        [
            zeros_like(
                p,
                dtype=float32 if p.dtype in NARROW else None,
                placement=None if running is None else running.state(path, p.spec),
            )
            for path, p in zip(tree.paths(params), leaves)
        ],
    )


def none_taken(params: Any) -> Array:
    """The number of steps taken at the start: 0, on the parameters' mesh (the default mesh, if they have several)."""
    meshes: list[Mesh] = list(dict.fromkeys(p.mesh for p in flat(params)[0]))
    return full((), 0, dtype=np.int64, mesh=meshes[0] if len(meshes) == 1 else default_mesh())


def rate_at(rate: Rate, count: Array) -> Any:
    """The learning rate after ``count`` steps."""
    return rate(count) if callable(rate) else rate


class Numbers:
    """Numbers of one step, as each parameter's dtype needs them: 0-d arrays are cast once for each dtype, Python
    numbers are weak anyway."""

    def __init__(self, *values: Any) -> None:
        self.values = values
        self.cast: dict[Any, tuple[Any, ...]] = {}

    def of(self, dtype: Any) -> tuple[Any, ...]:
        """The numbers beside arrays of this dtype."""
        found = self.cast.get(dtype)
        if found is None:
            found = tuple(v.astype(dtype) if isinstance(v, Array) else v for v in self.values)
            self.cast[dtype] = found
        return found


def mapped(count: int, function: Callable[..., Any], first: Any, *rest: Any) -> tuple[Any, ...]:
    """``function``, which returns ``count`` values, over trees shaped as ``first``: a tree of each."""
    leaves, treedef = flat(first)
    others = [tree.match(t, treedef, "a tree beside the gradients") for t in rest]
    found = [function(*xs) for xs in zip(leaves, *others)]
    return tuple(tree.unflatten(treedef, [values[i] for values in found]) for i in range(count))


def each(function: Callable[..., Any], first: Any, *rest: Any) -> Any:
    """The tree of what ``function`` returns, over trees shaped as ``first``."""
    return mapped(1, lambda *xs: (function(*xs),), first, *rest)[0]


def chosen(mask: Mask, params: Any) -> Any:
    """A mask as a pytree of bools; all True for None."""
    if mask is None:
        return tree.map(lambda p: True, params)
    return mask(params) if callable(mask) else mask


def needed(params: Any, why: str) -> Any:
    """The parameters, which this update needs."""
    if params is None:
        raise ArgumentError(f"{why} needs the parameters.", "optimizer.update(grads, state, params)")
    return params


__all__ = ["GradientTransformation", "apply_updates", "chain", "partition"]
