"""Optimizers as pairs of pure functions, in the shape of optax: ``init(params)`` makes a state, ``update(grads, state,
params)`` gives updates and the next state. States lie where their parameters lie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from operator import attrgetter, eq, is_
from typing import Any, NamedTuple, TypeVar

import numpy as np

from spmdx import context, tree
from spmdx.array import Array
from spmdx.decide import default_mesh
from spmdx.dtypes import NARROW, float32
from spmdx.errors import ArgumentError, DtypeError, ShapeError
from spmdx.mesh import Mesh
from spmdx.ops.create import full, zeros_like
from spmdx.ops.place import redistribute
from spmdx.spec import Spec

Rate = float | Callable[[Array], Any]  # a learning rate, or a schedule: a function of the number of steps taken
Mask = Any  # a pytree of bools, or a function of params that returns one
State = TypeVar("State")
SPEC, SHAPE, DTYPE = attrgetter("spec"), attrgetter("spec.shape"), attrgetter("spec.dtype")


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
    a_step(*steps, example="optim.chain(optim.clip_by_global_norm(1.0), optim.adamw(1e-3))")

    def init(params: Any) -> Any:
        return tuple(step.init(params) for step in steps)

    def update(grads: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        if type(state) not in (tuple, list) or len(state) != len(steps):
            has = f"a {type(state).__name__}" + (f" of {len(state)}" if isinstance(state, (tuple, list)) else "")
            raise ArgumentError(
                f"a chain of {len(steps)} steps takes the tuple of their {len(steps)} states; got {has}.",
                "state = optimizer.init(params), by the same chain",
            )
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
    sums = [p + u for p, u in zip(leaves, beside(updates, leaves, treedef, "update", "parameter"))]
    if not all(map(is_, map(SPEC, sums), map(SPEC, leaves))):
        for pair in set(zip(map(DTYPE, sums), map(DTYPE, leaves))):
            _as_kind(*pair, sums, leaves, treedef)
        sums = [s if s.spec is p.spec else s.astype(p.spec.dtype) for p, s in zip(leaves, sums)]
        if not all(map(is_, map(SPEC, sums), map(SPEC, leaves))):
            sums = moved(sums, [p.spec for p in leaves])
    return tree.unflatten(treedef, sums)


def _as_kind(found: Any, kept: Any, sums: list[Array], leaves: list[Array], treedef: tree.TreeDef) -> None:
    """An error where new values would be cast to a dtype of another kind, such as floats to integers."""
    if found.kind != kept.kind and not {found.kind, kept.kind} <= REAL:
        i = next(i for i, (x, p) in enumerate(zip(sums, leaves)) if (x.dtype, p.dtype) == (found, kept))
        raise DtypeError(
            f"the parameter {tree.paths_of(treedef)[i] or 'itself'} is {kept.name} and would be {found.name} with its "
            "update added.",
            "x.astype(float) for a parameter that is to move; what is not to be trained outside of params",
        )


def partition(transforms: dict[str, GradientTransformation], labels: Any) -> GradientTransformation:
    """Different steps for different parameters.

    Args:
        transforms: by name.
        labels: the name for every parameter: a pytree of them, or a function of params that returns one.
    """

    example = 'optim.partition({"fast": optim.sgd(0.1), "slow": optim.sgd(0.01)}, labels)'
    a_step(*(transforms.values() if isinstance(transforms, Mapping) else (None,)), example=example)

    def parts(values: Any, params: Any) -> tuple[tree.TreeDef, list[str], dict[str, Any]]:
        leaves, treedef = tree.flatten(values)
        names = tree.leaves(labels(values if params is None else params) if callable(labels) else labels)
        unknown = {n for n in names if not (isinstance(n, str) and n in transforms)}
        if unknown or len(names) != len(leaves):
            strange = sorted(unknown, key=str)
            raise ArgumentError(
                f"partition has {len(names)} labels for {len(leaves)} arrays; unknown ones: {strange}.",
                f"one of {', '.join(map(repr, transforms))} for each array",
            )
        each = {k: tree.unflatten(treedef, [x if n == k else None for x, n in zip(leaves, names)]) for k in transforms}
        return treedef, names, each

    def init(params: Any) -> Any:
        return {name: transforms[name].init(part) for name, part in parts(params, None)[2].items()}

    def update(grads: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        treedef, names, each = parts(grads, params)
        if not isinstance(state, dict) or state.keys() != transforms.keys():
            raise other_state(state, f"partition, which keeps a dict with {', '.join(map(repr, transforms))}")
        own = dict.fromkeys(transforms) if params is None else parts(params, params)[2]
        done = {name: transforms[name].update(part, state[name], own[name]) for name, part in each.items()}
        found = {name: iter(tree.leaves(updates)) for name, (updates, _) in done.items()}
        merged = tree.unflatten(treedef, [next(found[name]) for name in names])
        return merged, {name: after for name, (_, after) in done.items()}

    return GradientTransformation(init, update)


# What the optimizers share


def a_step(*steps: Any, example: str) -> None:
    """An error unless these are steps of optimizers."""
    for step in steps:
        if not (callable(getattr(step, "init", None)) and callable(getattr(step, "update", None))):
            raise ArgumentError(f"{step!r} is no step of an optimizer, with init and update.", example)


def a_number(value: Any, example: str) -> None:
    """An error unless this is a number, or a 0-d array."""
    number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    if not number and not (isinstance(value, (Array, np.ndarray)) and value.ndim == 0):
        raise ArgumentError(f"a number is needed; got {value!r}.", example)


def flat(values: Any) -> tuple[list[Array], tree.TreeDef]:
    """The leaves of parameters or gradients, which are Arrays, and the structure."""
    leaves, treedef = tree.flatten(values)
    if not all(map(isinstance, leaves, repeat(Array))):
        path, x = next((p, x) for p, x in zip(tree.paths_of(treedef), leaves) if not isinstance(x, Array))
        raise DtypeError(
            f"optimizers take parameters and gradients that are Arrays; {path or 'this one'} is a {type(x).__name__}.",
            "sx.asarray(value, mesh=mesh, placement=placement) in its place; sx.grad gives gradients so",
        )
    return leaves, treedef


def beside(other: Any, leaves: list[Array], treedef: tree.TreeDef, what: str, first: str = "gradient") -> list[Array]:
    """The leaves of a tree of arrays with the structure and the shapes of the one that is given by its leaves.

    Two specs that are one object are compared at once; only where one is not are shapes.
    """
    found = tree.match(other, treedef, f"the tree of {what}s")
    try:
        alike = all(map(is_, map(SPEC, leaves), map(SPEC, found))) or all(
            map(eq, map(SHAPE, leaves), map(SHAPE, found))
        )
    except AttributeError:  # a leaf that is no Array
        flat(other)
        raise
    if not alike:
        path, x, y = next(
            (p, *xy) for p, *xy in zip(tree.paths_of(treedef), leaves, found) if xy[0].shape != xy[1].shape
        )
        raise ShapeError(
            f"the {what} {path or 'itself'} has shape {y.shape}, beside a {first} of shape {x.shape}.",
            "updates, state = optimizer.update(grads, state, params), of gradients and a state of these parameters",
        )
    return found


REAL = {"f", "V"}  # the kinds of dtypes that are trained: V is bfloat16's


def trained(params: Any, kinds: Iterable[str] = (*REAL, "c")) -> tuple[list[Array], tree.TreeDef]:
    """The leaves of parameters that an optimizer is to move, and the structure: looked at once, when it begins."""
    leaves, treedef = flat(params)
    for path, p in zip(tree.paths_of(treedef), leaves):
        if p.dtype.kind not in kinds:
            raise DtypeError(
                f"optimizers move floating-point parameters; {path or 'this one'} is {p.dtype.name}.",
                "x.astype(float) for a parameter that is to move; what is not to be trained outside of params",
            )
    return leaves, treedef


def slots(params: Any) -> Any:
    """Zeros placed as the parameters, or as the running plan places state; in float32 for those of half width."""
    leaves, treedef = trained(params, REAL)
    return tree.unflatten(treedef, [slot(p, path) for path, p in zip(tree.paths_of(treedef), leaves)])


def slot(p: Array, path: str) -> Array:
    """Zeros for one parameter."""
    running = context.get().plan
    placement = None if running is None else running.state(path, p.spec)
    return zeros_like(p, dtype=float32 if p.dtype in NARROW else None, placement=placement)


def none_taken(params: Any) -> Array:
    """The number of steps taken at the start: 0, on the parameters' mesh (the default mesh, if they have several)."""
    meshes: list[Mesh] = list(dict.fromkeys(p.mesh for p in trained(params)[0]))
    return full((), 0, dtype=np.int64, mesh=meshes[0] if len(meshes) == 1 else default_mesh())


def own(state: Any, kind: type[State], name: str) -> State:
    """The state of this optimizer, and not of another."""
    if type(state) is not kind:
        raise other_state(state, f"{name}, which keeps a {kind.__name__}")
    return state


def other_state(state: Any, whose: str) -> ArgumentError:
    """The error for a state that another optimizer has made."""
    return ArgumentError(
        f"a {type(state).__name__} is no state of {whose}.",
        "state = optimizer.init(params), and updates, state = optimizer.update(grads, state, params)",
    )


def moved(arrays: Sequence[Array], targets: Sequence[Spec]) -> list[Array]:
    """Arrays brought to where these specs lie, those of a mesh in as few messages as one array needs."""
    out = list(arrays)
    away = [i for i, (x, t) in enumerate(zip(arrays, targets)) if x.spec is not t]
    for mesh in dict.fromkeys(out[i].mesh for i in away):
        here = [i for i in away if out[i].mesh is mesh]
        for i, x in zip(here, redistribute([out[i] for i in here], [targets[i].placement for i in here])):
            out[i] = x
    return out


def checked_rate(rate: Rate) -> Rate:
    """A learning rate, or a schedule."""
    if callable(rate):
        return rate
    given: Any = rate
    if isinstance(given, np.ndarray) and given.ndim == 0:
        given = given.item()
    number = isinstance(given, (int, float, np.integer, np.floating)) and not isinstance(given, bool)
    if not number and not (isinstance(given, Array) and given.ndim == 0 and given.dtype.kind not in "bc"):
        what = f"an array of shape {given.shape}" if isinstance(given, (Array, np.ndarray)) else repr(given)
        raise ArgumentError(
            f"a learning rate is a number, or a function of the number of steps; got {what}.",
            "optim.adamw(1e-3), or optim.adamw(optim.cosine_decay_schedule(1e-3, steps)); "
            "optim.partition for different rates",
        )
    return given  # type: ignore[no-any-return]  # what it was found to be


def rate_at(rate: Rate, count: Array) -> Any:
    """The learning rate after ``count`` steps."""
    if not callable(rate):
        return rate
    found = rate(count)
    if callable(found):
        raise ArgumentError(
            f"a schedule gives a number; this one gave {found!r}.", "schedule, and not lambda: schedule"
        )
    return checked_rate(found)


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


def mapped(count: int, function: Callable[..., Any], first: Any, **rest: Any) -> tuple[Any, ...]:
    """``function``, which returns ``count`` values, over trees of arrays shaped as ``first``: a tree of each.
    The names of the others say what their arrays are, where they do not fit."""
    leaves, treedef = flat(first)
    others = [beside(t, leaves, treedef, what) for what, t in rest.items()]
    found = [function(*xs) for xs in zip(leaves, *others)]
    return tuple(tree.unflatten(treedef, [values[i] for values in found]) for i in range(count))


def each(function: Callable[..., Any], first: Any, **rest: Any) -> Any:
    """The tree of what ``function`` returns, over trees shaped as ``first``."""
    return mapped(1, lambda *xs: (function(*xs),), first, **rest)[0]


def chosen(mask: Mask, params: Any) -> list[bool]:
    """A mask's bools, one for each parameter; all True for None."""
    leaves, treedef = tree.flatten(params)
    if mask is None:
        return [True] * len(leaves)
    return tree.match(mask(params) if callable(mask) else mask, treedef, "the mask")


def needed(params: Any, why: str) -> Any:
    """The parameters, which this update needs."""
    if params is None:
        raise ArgumentError(f"{why} needs the parameters.", "optimizer.update(grads, state, params)")
    return params


__all__ = ["GradientTransformation", "apply_updates", "chain", "partition"]
