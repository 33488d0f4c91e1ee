"""The plan from one spec to another: a short tuple of steps, from specs alone, so that every rank derives the same.

At most six steps, whatever the placements: finish the reductions that the target does not keep (one reduce-scatter
for those that go on as shards, one all-reduce for the rest), turn shards that become Partial into padded blocks, then
one exchange over exactly the mesh axes along which data has to travel, then fill new Partial axes with identities.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from spmdx.errors import PlacementError
from spmdx.mesh import Mesh
from spmdx.spec import WHOLE, Layout, Spec, refines

LOCAL = frozenset({"slice", "pad", "mask"})


class Step(NamedTuple):
    """One move of every block: ``verb`` over mesh ``axes`` turns ``source`` into ``target``.

    ``bytes`` is the most that a rank sends, exactly; for an all_gather, the most that a rank gets; for an all_reduce,
    twice what its block has beyond a p-th, whatever the transport does. Verbs: all_reduce, reduce_scatter, all_gather,
    all_to_all; and, without communication, slice, pad (a shard becomes a Partial block filled up with identities) and
    mask (coordinate 0 keeps the block, others hold identities).
    """

    verb: str
    axes: tuple[str, ...]
    source: Spec
    target: Spec
    bytes: int

    def __repr__(self) -> str:
        return f"{self.verb} over {', '.join(self.axes) or '-'}: {self.source} -> {self.target}, {self.bytes} bytes"


_memo: dict[tuple[Spec, Spec], tuple[Step, ...]] = {}


def plan(source: Spec, target: Spec) -> tuple[Step, ...]:
    """The steps from ``source`` to ``target``: same mesh, shape and dtype, any two placements."""
    if source is target:
        return ()
    found = _memo.get((source, target))
    if found is None:
        if len(_memo) >= 8192:  # bounded: old plans are cheap to make again
            _memo.clear()
        found = _memo[source, target] = _derive(source, target)
    return found


def cost(steps: tuple[Step, ...]) -> int:
    """Bytes that the rank which sends most sends."""
    return sum(step.bytes for step in steps)


def _derive(source: Spec, target: Spec) -> tuple[Step, ...]:
    if (source.mesh, source.shape, source.dtype) != (target.mesh, target.shape, target.dtype):
        raise PlacementError(
            f"a plan keeps mesh, shape and dtype; got {source!r} and {target!r}.",
            "source.replace(layouts=..., partial=...)",
        )
    steps: list[Step] = []
    now = _finish(source, target, steps)
    now = _pad(now, target, steps)
    now = _exchange(now, target, steps)
    if now.partial != target.partial:
        fresh = tuple(a for a in target.partial if a not in now.partial)
        steps.append(Step("mask", fresh, now, target, 0))
    return tuple(steps)


def _finish(now: Spec, target: Spec, steps: list[Step]) -> Spec:
    """Reduce over the Partial axes that the target does not keep, cutting on the way whatever is cut in the end."""
    finished = [a for a in now.partial if a not in target.partial or now.op != target.op]
    if not finished:
        return now
    idle = {a for a in now.mesh.axis_names if a not in now.sharded_axes and a not in now.partial}
    layouts = list(now.layouts)
    for dim, goal in enumerate(target.layouts):
        added = set(goal.axes) - set(layouts[dim].axes)
        if added <= idle | set(finished) and refines(goal, layouts[dim], now.shape[dim], now.mesh):
            layouts[dim] = goal
    scattered = tuple(a for a in finished if any(a in layout.axes for layout in layouts))
    summed = tuple(a for a in finished if a not in scattered)
    if scattered:
        rest = tuple(a for a in now.partial if a not in scattered)
        then = now.replace(layouts=tuple(layouts), partial=rest)
        steps.append(Step("reduce_scatter", scattered, now, then, _sent(now, then, scattered)))
        now = then
    if summed:
        then = now.replace(layouts=tuple(layouts), partial=tuple(a for a in now.partial if a not in summed))
        count, p = then.largest_block * now.dtype.itemsize, math.prod(now.mesh.shape[a] for a in summed)
        steps.append(Step("all_reduce", summed, now, then, 2 * -(-count * (p - 1) // p)))
        now = then
    return now


def _pad(now: Spec, target: Spec, steps: list[Step]) -> Spec:
    """Shards that become Partial: no communication, if the axis is the innermost of its dimension."""
    fresh = [a for a in target.partial if a not in now.partial]
    layouts, padded = list(now.layouts), []
    for dim, layout in enumerate(layouts):
        axes = layout.axes
        while axes and axes[-1] in fresh:
            padded.append(axes[-1])
            axes = axes[:-1]
        if len(axes) < len(layout.axes):
            layouts[dim] = _outer(layout, len(axes), now.mesh)
    if not padded:
        return now
    then = now.replace(layouts=tuple(layouts), partial=(*now.partial, *padded), op=target.op)
    steps.append(Step("pad", tuple(a for a in now.mesh.axis_names if a in padded), now, then, 0))
    return then


def _outer(layout: Layout, keep: int, mesh: Mesh) -> Layout:
    """The layout by the ``keep`` outermost axes alone."""
    if not keep:
        return WHOLE
    if layout.sizes is None:
        return Layout(layout.axes[:keep], None, layout.interleave)
    below = math.prod(mesh.shape[a] for a in layout.axes[keep:])
    sizes = tuple(sum(layout.sizes[i : i + below]) for i in range(0, len(layout.sizes), below))
    return Layout(layout.axes[:keep], sizes)


def _exchange(now: Spec, target: Spec, steps: list[Step]) -> Spec:
    """One collective for whatever remains of the way between two divisions."""
    if now.layouts == target.layouts:
        return now
    mesh, gather = now.mesh, True
    travelled: set[str] = set()
    for n, before, after in zip(now.shape, now.layouts, target.layouts):
        if before == after:
            continue
        gather = gather and refines(before, after, n, mesh)
        if not refines(after, before, n, mesh):
            travelled.update(before.axes[_common(before, after) :])
    then = now.replace(layouts=target.layouts)
    axes = tuple(a for a in mesh.axis_names if a in travelled)
    if gather and not any(a in travelled for layout in target.layouts for a in layout.axes):
        verb, sent = "all_gather", _sent(then, now, axes)  # what a rank gets: as much as it would send on the way back
    else:
        verb, sent = "all_to_all", _sent(now, then, axes)
    steps.append(Step(verb, axes, now, then, sent) if sent else Step("slice", (), now, then, 0))
    return then


def _common(before: Layout, after: Layout) -> int:
    """How many outermost axes two default divisions share, and need no travel over."""
    if before.sizes is not None or after.sizes is not None or before.interleave != after.interleave:
        return 0
    k = 0
    while k < min(len(before.axes), len(after.axes)) and before.axes[k] == after.axes[k]:
        k += 1
    return k


# What an exchange sends: from how much of the blocks before lies in the blocks after, dimension by dimension


def _sent(now: Spec, then: Spec, axes: tuple[str, ...]) -> int:
    """The most bytes that a rank sends, if each hands every other member of its group over ``axes`` the part of its
    block that lies in the member's block to come.

    Members differ in their coordinates along ``axes`` alone, and an axis divides one dimension at most: so what lies
    in the blocks to come of all members together is a product over the dimensions.
    """
    if not axes or 0 in now.shape:
        return 0
    to_all: Any = math.prod(now.mesh.shape[a] for a in axes if a not in then.sharded_axes)
    to_self: Any = 1
    for dim, after in enumerate(then.layouts):
        own = _within(now, then, dim, ())
        to_self = to_self * own
        to_all = to_all * (_within(now, then, dim, axes) if any(a in axes for a in after.axes) else own)
    most = to_all - to_self
    return int(most if isinstance(most, int) else most.max()) * now.dtype.itemsize


def _within(now: Spec, then: Spec, dim: int, axes: tuple[str, ...]) -> Any:
    """How much of one dimension of a block lies in the blocks to come of its group's members over ``axes``: one number
    if this is the same for all blocks, else a table by coordinates, of length 1 along axes that do not matter."""
    mesh, n, before, after = now.mesh, now.shape[dim], now.layouts[dim], then.layouts[dim]
    fixed = [a for a in after.axes if a not in axes]
    if not fixed or refines(before, after, n, mesh):
        return _lengths(now, dim)
    if refines(after, before, n, mesh):
        inner = _lengths(then, dim)
        more = [i for i, a in enumerate(mesh.axis_names) if a in axes and a in after.axes[len(before.axes) :]]
        if isinstance(inner, int):
            return inner * math.prod(mesh.sizes[i] for i in more)
        return inner.sum(axis=tuple(more), keepdims=True) if more else inner
    # Neither divides the blocks of the other: along both at once, from cut to cut.
    ends, new_ends = _ends(now, dim), _ends(then, dim)
    cuts = np.sort(np.concatenate((_START, ends, new_ends)))
    shared, cuts = np.diff(cuts), cuts[1:]
    at, to = _holders(before, mesh, ends, cuts), _holders(after, mesh, new_ends, cuts)
    for a in fixed:
        shared = shared * (at.setdefault(a, to[a]) == to[a])
    table = np.zeros([m if a in at else 1 for a, m in mesh.shape.items()], int)
    np.add.at(table, tuple(at.get(a, 0) for a in mesh.axis_names), shared)
    return table


_START = np.zeros(1, int)


def _lengths(spec: Spec, dim: int) -> Any:
    """The lengths of a dimension's blocks, as a number or a table."""
    mesh, layout, n = spec.mesh, spec.layouts[dim], spec.shape[dim]
    if not layout.axes:
        return n
    ways = [mesh.shape[a] for a in layout.axes]
    if layout.sizes is None and n % (layout.interleave * math.prod(ways)) == 0:
        return n // math.prod(ways)
    table = np.array(spec.sizes(dim)).reshape(ways) * layout.interleave
    if len(ways) > 1:
        table = table.transpose(sorted(range(len(ways)), key=lambda i: mesh.axis_names.index(layout.axes[i])))
    return table.reshape([m if a in layout.axes else 1 for a, m in mesh.shape.items()])


def _ends(spec: Spec, dim: int) -> Any:
    """Where the pieces of a dimension end, in global order."""
    return np.array(spec.sizes(dim) * spec.layouts[dim].interleave).cumsum()


def _holders(layout: Layout, mesh: Mesh, ends: Any, cuts: Any) -> dict[str, Any]:
    """The coordinates of the block that holds what lies before each cut, along the axes of a division."""
    ways = [mesh.shape[a] for a in layout.axes]
    blocks = ends.searchsorted(cuts) % math.prod(ways)
    return dict(zip(layout.axes, np.unravel_index(blocks, ways) if len(ways) > 1 else [blocks]))
