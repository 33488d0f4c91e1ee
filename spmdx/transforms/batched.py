"""Batched arrays: what a function sees inside vmap. Each looks like one example and holds the whole batch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, ClassVar

from spmdx import context, tree
from spmdx.array import Array
from spmdx.errors import BatchError
from spmdx.op import Operation
from spmdx.ops.place import moved_arrays
from spmdx.ops.shape import broadcast_to, moveaxis
from spmdx.plan import plan
from spmdx.spec import WHOLE, Layout, Spec
from spmdx.tape import Bundle, Watched, plain

_numbers = count()


class Level:
    """One vmap that is running: the length of its batch, how that is divided, and its place among those around it."""

    def __init__(self, size: int, batches: Sequence[Any] = ()) -> None:
        self.size = size
        self.number = next(_numbers)
        self.like = next((x.spec for x in batches if x.spec.layouts[0].axes), None)

    @contextmanager
    def on(self) -> Iterator[None]:
        """Run the code inside within this vmap."""
        others = [level for level in context.get().batch if level is not self]
        with context.use(batch=tuple(sorted((*others, self), key=lambda level: level.number))):
            yield

    @contextmanager
    def off(self) -> Iterator[None]:
        """Run the code inside on whole batches: as if this vmap, which is running, were not."""
        with context.use(batch=tuple(level for level in context.get().batch if level is not self)):
            yield

    def up(self, x: Any) -> Any:
        """An array whose first dimension is the batch, as one example."""
        if not isinstance(x, Array):
            return x
        if isinstance(x, Batched) and x.level.number > self.number:  # that batch's dimension comes before this one's
            return Batched(x.level, self.up(moveaxis(x.value, 1, 0)))
        return Batched(self, x)

    def down(self, x: Any, always: bool = True) -> Any:
        """One example as an array whose first dimension is the batch; one that is the same for all examples is
        repeated if ``always``, else left as it is."""
        if not isinstance(x, Array):
            return x
        if isinstance(x, Batched) and x.level is self:
            return x.value
        if isinstance(x, Batched) and x.level.number > self.number:
            return Batched(x.level, moveaxis(self.down(x.value), 0, 1)) if always or self.within(x) else x
        return self.repeated(x) if always else x

    def repeated(self, x: Any) -> Any:
        """What all examples share as a batch, divided as the others are where its own placement leaves that free."""
        made = broadcast_to(x, (self.size, *x.shape))
        spec = made.spec
        if self.like is None or spec.mesh is not self.like.mesh or spec.layouts[0].axes:
            return made
        if not {*spec.sharded_axes, *spec.partial}.isdisjoint(self.like.layouts[0].axes):
            return made
        target = spec.replace(layouts=(self.like.layouts[0], *spec.layouts[1:]))
        return moved_arrays([made], [target], [plan(spec, target)], "vmap", implied=False)[0]

    def within(self, x: Any) -> bool:
        """True if ``x`` has an element for each example."""
        return isinstance(x, Batched) and (x.level is self or self.within(x.value))

    def lowered(self, function: Callable[..., Any], flags: Sequence[bool] | None = None) -> Callable[..., Any]:
        """A function of examples as one of whole batches. ``flags``: which leaves of its arguments are batches (all
        arrays, if left out)."""

        def whole(*args: Any) -> Any:
            leaves, treedef = tree.flatten(args)
            up = [self.up(x) if flags is None or flags[i] else x for i, x in enumerate(leaves)]
            with self.on():
                return tree.map(self.down, function(*tree.unflatten(treedef, up)))

        return whole


class Batched(Array):
    """An array inside a vmap. ``value`` is the batch, along its first dimension; ``spec`` is that of one example."""

    __slots__ = ("level", "value")
    level: Level
    value: Any
    apply: ClassVar[Callable[..., Any]]  # what an operation does with batches: attached by batching.py

    def __init__(self, level: Level, value: Any) -> None:
        self.level, self.value = level, value
        spec = value.spec
        self.spec = Spec(spec.mesh, spec.shape[1:], spec.dtype, spec.layouts[1:], spec.partial, spec.op)

    @property
    def _block(self) -> Any:
        caller, line = _asked_by()
        raise BatchError(
            f"{caller} at {line} reads the elements of an array that vmap batches, and has no rule for a batch.\n"
            f"  x: {self!r}",
            "the same with operations of arrays (sx.where for `if`); or a loop over the batch, sx.stack([f(x) for x in "
            "xs]), in place of vmap(f)(xs)",
        )

    @property
    def stopped(self) -> Batched:
        """Without its record."""
        return Batched(self.level, plain(self.value))

    def __repr__(self) -> str:
        return f"Batched({self.level.size} of {self.spec!r})"

    __str__ = __repr__

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    @staticmethod
    def interpret(operation: Operation, operands: tuple[Any, ...], static: tuple[Any, ...], names: Any) -> Any:
        """An operation of which some operands are batched: the innermost vmap's batches first."""
        level: Any = level_of(operands)
        flags = tuple(isinstance(x, Batched) and x.level is level for x in operands)
        values = tuple(x.value if flag else x for x, flag in zip(operands, flags))
        return Batched(level, Batched.apply(operation, values, flags, level.size, dict(zip(names, static))))

    @staticmethod
    def moved(arrays: Sequence[Any], targets: Sequence[Spec], cause: str, implied: bool) -> list[Any]:
        """Arrays brought to specs of one example: the batch stays divided as it is."""
        wanted = [around(a, t) for a, t in zip(arrays, targets)]
        values = [a.value if isinstance(a, Batched) else a for a in arrays]
        plans = [plan(v.spec, w) for v, w in zip(values, wanted)]
        found = moved_arrays(values, wanted, plans, cause, implied)
        return [Batched(a.level, x) if isinstance(a, Batched) else x for a, x in zip(arrays, found)]


def around(x: Any, target: Spec) -> Spec:
    """The spec of a batch whose examples are to lie as ``target``, on the axes that do not divide the batch."""
    if not isinstance(x, Batched):
        return target
    inner = x.value.spec
    taken = set(inner.layouts[0].axes)
    layouts = []
    for layout in target.layouts:
        kept = tuple(a for a in layout.axes if a not in taken)
        layouts.append(layout if kept == layout.axes else Layout(kept, None, layout.interleave) if kept else WHOLE)
    partial = tuple(a for a in target.partial if a not in taken)
    found: Spec = inner.replace(
        layouts=(inner.layouts[0], *layouts), partial=partial, op=target.op if partial else None
    )
    return found


def _asked_by() -> tuple[str, str]:
    """The function of this package that was called from outside of it, and from which line."""
    frame: Any = sys._getframe(2)
    name = "this"
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "spmdx":
        name = frame.f_code.co_name if frame.f_code.co_name.isidentifier() else name
        frame = frame.f_back
    return name.strip("_"), "?" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def level_of(leaves: Sequence[Any]) -> Level | None:
    """The innermost vmap that any of these is batched by."""
    found: Level | None = None
    for x in leaves:
        if isinstance(x, Batched) and (found is None or x.level.number > found.number):
            found = x.level
    return found


def innermost(x: Any) -> Any:
    """What a batched array holds, whatever vmaps it is in."""
    return innermost(x.value) if isinstance(x, Batched) else x


def rewrapped(x: Any, inner: Any) -> Any:
    """``inner`` in the vmaps that ``x`` is in, in the place of what that holds."""
    return Batched(x.level, rewrapped(x.value, inner)) if isinstance(x, Batched) else inner


def watched(x: Any) -> bool:
    """True if a gradient watches ``x``."""
    return type(innermost(x)) is Watched


def sources(outputs: Sequence[Any], start: int) -> list[Watched]:
    """The watched arrays from before ``start`` that outputs made since depend on."""
    found: dict[int, Any] = {}
    seen: set[int] = set()
    todo = [x for x in map(innermost, outputs) if type(x) is Watched]
    while todo:
        node = todo.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if node.order < start:
            found[id(node)] = node
        else:
            todo += [x for x in node.inputs if type(x) in (Watched, Bundle)]
    return sorted(found.values(), key=lambda x: int(x.order))
