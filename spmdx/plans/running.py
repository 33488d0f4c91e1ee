"""A plan at work: what becomes of values and functions that a model names, and of gradients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, wraps
from typing import Any, NamedTuple
from weakref import ref

import numpy as np

from spmdx import context, tree
from spmdx.array import Array
from spmdx.errors import ArgumentError
from spmdx.later import Later
from spmdx.mesh import Mesh
from spmdx.move import begins
from spmdx.ops.place import asarray, moved_arrays
from spmdx.plan import plan as steps_between
from spmdx.plans.placing import Axes, changed, homeward
from spmdx.plans.plan import Plan
from spmdx.spec import Spec
from spmdx.tape import Bundle, Rule, Watched, plain
from spmdx.transforms.batched import Batched, around, innermost, level_of, rewrapped
from spmdx.transforms.bundle import bundled
from spmdx.transforms.homeward import home
from spmdx.transforms.remat import part

BUCKET = 25 * 2**20  # bytes of gradients that go home together: long messages, while most of the walk is still to come

# Leaves of a function's result: arrays, which get a mark, and what holds none.
MARKED = frozenset([Array, Watched, Batched, Later, int, float, complex, bool, str, bytes])


def name(x: Any, label: str) -> Any:
    """``x`` itself, under a name that a plan may speak of.

    Args:
        x: an array or pytree of arrays, which a running plan's ``names`` may place, all in one message (NumPy's
            arrays, which are the same on every rank, as :func:`asarray` does); or a function, for whose first argument
            (its parameters) the plan's ``gather`` may speak.
        label: the name, as "residual" or "mlp.hidden".

    Without a running plan that names it, x as it is: a model says what its values are, and not where they go. The
    gradient is the identity by values, and lies where the value did before.
    """
    given: Any = label
    if not isinstance(given, str):
        raise ArgumentError(f"a name is a string; got {given!r}.", 'sx.name(x, "residual")')
    if callable(x):
        return _named(x, label)
    state = context.get()
    x = x if state.plan is None else state.plan.value(x, label)
    if state.saving is not None:
        state.saving.named(x, label)
    return x


def _named(function: Callable[..., Any], label: str) -> Callable[..., Any]:
    function = part(label)(function)

    @wraps(function)
    def named(params: Any, *args: Any, **kwargs: Any) -> Any:
        running = context.get().plan
        group = None if running is None else running.group(params, label)
        if group is None:
            return function(params, *args, **kwargs)
        return group.leave(function(group.enter(), *args, **kwargs))

    return named


class Entered(NamedTuple):
    """A call of a named function: which leaves of a gradient, or casts of them, its arrays were; None for others."""

    name: str
    axes: Axes
    treedef: tree.TreeDef
    numbers: list[int | None]


class Running:
    """A plan on a mesh, on one rank.

    ``used`` counts the names that the code has come by, which tells patterns that nothing matches.
    """

    def __init__(self, plan: Plan, mesh: Mesh) -> None:
        self.plan, self.mesh, self.bucket = plan, mesh, BUCKET if plan.bucket is None else plan.bucket
        self.used: Counter[tuple[str, str]] = Counter()
        self.held: Group | None = None  # of a call that has ended: the next one drops its arrays
        self.groups: list[Group] = []  # entered in this gradient
        self.order: list[Entered] = []  # in the one before
        self.leaves: list[Any] = []  # what this gradient is taken of, and after it what has been cast of that
        self.places: dict[int, int] = {}  # their numbers, by the ids
        self.known: dict[int, int] = {}  # these, and those of what has been cast of them
        self.treedef: tree.TreeDef | None = None  # of the tuple of arguments that they are leaves of
        self.ahead: Group | None = None  # gathered before it is entered
        self.holds = False  # gradients of leaves stay where they arise: there are more to come

    @contextmanager
    def holding(self, holds: bool) -> Iterator[None]:
        """Gradients that are recorded inside are of one micro-batch among several."""
        before, self.holds = self.holds, holds
        try:
            yield
        finally:
            self.holds = before

    def begin(self, leaves: list[Any], treedef: tree.TreeDef) -> None:
        """A gradient of these leaves begins: it will enter the groups that the one before did, if it is a loop's."""
        self.end()
        self.leaves, self.treedef = [*leaves], treedef
        self.places = {id(leaf): n for n, leaf in enumerate(leaves)}
        self.known = dict(self.places)

    def cast(self, arrays: Sequence[Any]) -> None:
        """These have been made of leaves, each of one: groups are known by them as by leaves."""
        if context.get().depth == 1:
            for x in arrays:
                if type(x) is Watched and id(x) not in self.known and _number(x, self.places) is not None:
                    self.known[id(x)] = len(self.leaves)
                    self.leaves.append(x)

    def end(self) -> None:
        """It has ended: what remains of it is the order, and no array."""
        if self.groups:
            self.order = [g.entered for g in self.groups]
        self.groups, self.leaves, self.places, self.known, self.ahead = [], [], {}, {}, None

    def entered(self, group: Group) -> None:
        """Gather the parameters of the group that comes next, while this one computes with its own."""
        at = len(self.groups)
        self.groups.append(group)
        self.ahead = None
        if at + 1 < len(self.order) and group.entered == self.order[at] and begins(group.plans):
            name, axes, treedef, numbers = self.order[at + 1]
            if all(n is not None and n < len(self.leaves) for n in numbers):
                arrays = [self.leaves[n] for n in numbers if n is not None]
                self.ahead = Group(self, arrays, treedef, name, axes)
                self.ahead.gather()

    def placement(self, path: Any, shape: Any) -> Any:
        """The placement of a parameter."""
        return self.plan.placement(path, shape, self.mesh)

    def value(self, x: Any, label: str) -> Any:
        """A named value, where the plan wants it."""
        self.used["names", label] += 1
        axes = self.plan.find("names", label)
        if not axes:
            return x
        if isinstance(x, (Array, np.ndarray)):
            x = asarray(x)
            return _placed([x], [changed(x.spec, axes, label)], label, axes)[0]
        leaves, treedef = tree.flatten(x)
        leaves = [asarray(a) if isinstance(a, np.ndarray) else a for a in leaves]
        arrays = [a for a in leaves if isinstance(a, Array)]
        found = iter(_placed(arrays, [changed(a.spec, axes, label) for a in arrays], label, axes))
        return tree.unflatten(treedef, [next(found) if isinstance(a, Array) else a for a in leaves])

    def group(self, params: Any, label: str) -> Group | None:
        """What to do around a call of a named function; None if nothing."""
        self.used["gather", label] += 1
        axes = self.plan.find("gather", label)
        if not axes:
            return None
        leaves, treedef = tree.flatten(params)
        group, ahead = Group(self, leaves, treedef, label, axes), self.ahead
        if ahead is not None and ahead.name == label and [*map(id, ahead.arrays)] == [*map(id, group.arrays)]:
            group.gathered = ahead.gathered
        return group

    def homes(self, paths: Callable[[], Sequence[str]], specs: list[Spec]) -> list[Spec]:
        """Where gradients go, of parameters with these paths, whose own places are given."""
        if not self.plan.rules["grads"]:
            return specs
        return [changed(s, axes, p) if (axes := self.plan.find("grads", p)) else s for p, s in zip(paths(), specs)]

    def state(self, path: Any, spec: Spec) -> Any:
        """The placement of what an optimizer keeps beside a parameter."""
        return changed(spec, self.plan.find("state", path), path).placement


def _plans(arrays: Sequence[Array], targets: Sequence[Spec]) -> list[Any]:
    return [steps_between(a.spec, t) for a, t in zip(arrays, targets)]


def _placed(arrays: list[Array], targets: list[Spec], label: str, axes: Axes) -> list[Array]:
    """Arrays moved in as few messages as they need; so are their gradients, to where the arrays came from (also where
    nothing moves on the way there: tensor parallelism sums the gradient of a whole value)."""
    level = level_of(arrays)
    if level is not None:  # inside vmap: the batch stays where it is
        with level.off():
            whole = [level.down(a, always=False) for a in arrays]
            found = _placed(whole, [around(a, t) for a, t in zip(arrays, targets)], label, axes)
        return [level.up(x) if level.within(a) else x for a, x in zip(arrays, found)]
    plans = _plans(arrays, targets)
    sources = [a.spec for a in arrays]
    saving = context.get().saving

    def move() -> list[Array]:
        return moved_arrays([plain(a) for a in arrays], targets, plans, label, implied=False)

    moved = move() if saving is None else saving.moved(arrays, targets, move)

    running = context.get().plan
    stay = [running.holds and _number(a, running.places) is not None for a in arrays]

    def back(g: list[Any]) -> list[Any]:
        homes = [
            None if x is None else x.spec if stays else homeward(x.spec, source, axes)
            for x, source, stays in zip(g, sources, stay)
        ]
        return _sent(g, homes, label)

    made: list[Array] = bundled(moved, arrays, label, back)
    if saving is not None:
        saving.number(made)
    return made


def _sent(g: list[Any], targets: list[Any], label: str) -> list[Any]:
    """Gradients moved to their targets, together; None where there is none."""
    here = [i for i, x in enumerate(g) if x is not None]
    arrays = [g[i] for i in here]
    wanted = [t if t.dtype is a.dtype else t.replace(dtype=a.dtype) for a, t in zip(arrays, (targets[i] for i in here))]
    out = list(g)
    for i, x in zip(here, moved_arrays(arrays, wanted, _plans(arrays, wanted), label, implied=False, wait=False)):
        out[i] = x
    return out


class Group(Rule):
    """The parameters of one call of a named function: gathered before it, dropped after it, gathered again when the
    gradient comes by; their own gradients go home together."""

    def __init__(self, running: Running, leaves: list[Any], treedef: tree.TreeDef, label: str, axes: Axes) -> None:
        self.running, self.name, self.given, self.holds = running, label, leaves, running.holds
        self.arrays = [x for x in leaves if isinstance(x, Array)]  # numbers and texts stay as they are
        self.targets = [changed(a.spec, axes, label) for a in self.arrays]
        # Inside vmap all is done with whole batches: what they are may be asked when no vmap runs any more.
        self.batched = any(isinstance(a, Batched) for a in self.arrays) if context.get().batch else False
        if self.batched:
            lowered = [_lowered(a, t) for a, t in zip(self.arrays, self.targets)]
            self.arrays, self.targets = [a for a, _ in lowered], [t for _, t in lowered]
        self.plans = _plans(self.arrays, self.targets)
        self.places, self.tree = running.places, running.treedef
        known = {} if self.batched else running.known
        numbers = [known.get(id(a)) for a in self.arrays]
        self.entered = Entered(label, axes, treedef, numbers)
        self.before = running.groups[-1] if running.groups else None
        self.gathered: list[Array] | None = None
        self.made: list[ref[Array]] = []  # what the function got, which records this group
        self.marked = self.dropped = False

    def paths(self) -> list[str]:
        """Of the arrays, in the tree that the gradient is taken of; of those that come from elsewhere, in the
        function's own parameters, with its name before."""
        of_leaves = () if self.tree is None else _paths_of_parameters(self.tree)
        own = [p for p, x in zip(tree.paths_of(self.entered.treedef), self.given) if isinstance(x, Array)]
        numbers = self.entered.numbers
        if any(n is None or n >= len(of_leaves) for n in numbers):
            numbers = [_number(a, self.places) for a in self.arrays]
        return [f"{self.name}.{path}" if n is None else of_leaves[n] for path, n in zip(own, numbers)]

    def gather(self) -> list[Array]:
        """The whole parameters; they may be on their way."""
        if self.gathered is None:
            given = [plain(a) for a in self.arrays]
            self.gathered = moved_arrays(given, self.targets, self.plans, self.name, implied=False, wait=False)
        return self.gathered

    def enter(self) -> Any:
        """The parameters that the function gets."""
        if self.running.held is not None:
            self.running.held.drop()
        arrays, self.gathered = self.gather(), None
        made: list[Any] = bundled(arrays, self.arrays, self.name, self.back)
        self.made = [ref(x) for x in made]
        if context.get().depth == 1:
            self.running.entered(self)
        if self.batched or len(made) < len(self.given):
            rest = iter(made)
            made = [rewrapped(x, next(rest)) if isinstance(x, Array) else x for x in self.given]
        return tree.unflatten(self.entered.treedef, made)

    def leave(self, out: Any) -> Any:
        """The function's result, with a mark by which the gradient's walk enters the call again."""
        depth = context.get().depth
        if depth != 1 or not any(self.plans):  # a gradient of a gradient comes by more than once: nothing is dropped
            return out
        if not MARKED.issuperset(map(type, tree.leaves(out))):
            return out  # an object that may hold arrays, which would get no mark: nothing is dropped
        self.running.held, self.marked = self, True
        return tree.map(self.kept, out)

    def kept(self, x: Any) -> Any:
        """A result in an array of its own: a parameter that is returned keeps its block when it is dropped."""
        if type(x) is Watched:
            return Watched(x._block, x.spec, self, (x,), {})
        if isinstance(x, Batched):
            return rewrapped(x, self.kept(innermost(x)))
        return Array(x._block, x.spec) if any(x is made() for made in self.made) else x

    def gradient(self, i: int, g: Any, out: Any, inputs: Any, static: Any) -> Any:
        """The mark's rule: the arrays are needed again; the gradient passes."""
        if self.running.held is self:
            self.running.held = None  # a call that is made again inside this one drops it not: `back` does
        if self.dropped:
            again, self.gathered = self.gather(), None
            for made, found in zip(self.made, again):
                if (x := made()) is not None:
                    x._block = found._block
            self.dropped = False
            before = self.before
            if before is not None and before.dropped and begins(before.plans):
                before.gather()  # on its way while this group's gradient is computed
        return g

    def drop(self) -> None:
        """Let the gathered arrays' memory go."""
        if self.running.held is self:
            self.running.held = None
        if not self.dropped:
            for made, steps in zip(self.made, self.plans):
                if steps and (x := made()) is not None:
                    del x._block  # whoever asks for it is told: _getattr of ops/operators.py
            self.dropped = True

    def back(self, g: list[Any]) -> list[Any]:
        """The gradients sent home; nothing needs the arrays any more."""
        if self.marked and context.get().depth == 0:
            self.drop()
        if self.holds:
            return g
        homes = self.running.homes(self.paths, [home(a.spec) for a in self.arrays])
        return _sent(g, homes, self.name)


def _lowered(x: Any, target: Spec) -> tuple[Any, Spec]:
    """What a batched array holds, whatever vmaps it is in, and where that is to go if its examples go to ``target``."""
    return _lowered(x.value, around(x, target)) if isinstance(x, Batched) else (x, target)


@lru_cache(maxsize=64)
def _paths_of_parameters(treedef: tree.TreeDef) -> list[str]:
    """The paths of leaves in the arguments that they belong to."""
    return [path.partition(".")[2] for path in tree.paths_of(treedef)]


def _number(x: Any, places: dict[int, int]) -> int | None:
    """Which leaf this is, or was made of alone, as by a cast or a mask."""
    while type(x) is Watched:
        n = places.get(id(x))
        if n is not None:
            return n
        before = [y for y in x.inputs if isinstance(y, (Watched, Bundle))]
        if len(before) != 1 or getattr(before[0], "shape", None) != x.shape:
            return None
        x = before[0]
    return None
