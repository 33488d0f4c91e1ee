"""The plan from one spec to another: a short tuple of steps, from specs alone, so that every rank derives the same.

At most six steps, whatever the placements: finish the reductions that the target does not keep (one reduce-scatter
for those that go on as shards, one all-reduce for the rest), turn shards that become Partial into padded blocks, then
one exchange over exactly the mesh axes along which data has to travel, then fill new Partial axes with identities.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from spmdx.errors import PlacementError
from spmdx.mesh import Mesh
from spmdx.spec import WHOLE, Layout, Spec, refines

LOCAL = frozenset({"slice", "pad", "mask"})


class Step(NamedTuple):
    """One move of every block: ``verb`` over mesh ``axes`` turns ``source`` into ``target``.

    ``bytes`` is the most that a rank sends. Verbs: all_reduce, reduce_scatter, all_gather, all_to_all; and, without
    communication, slice, pad (a shard becomes a Partial block filled up with identities) and mask (coordinate 0
    keeps the block, others hold identities).
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
        sent = _over(now, layouts, scattered)
        steps.append(Step("reduce_scatter", scattered, now, then, _share(sent, now.mesh, scattered)))
        now = then
    if summed:
        then = now.replace(layouts=tuple(layouts), partial=tuple(a for a in now.partial if a not in summed))
        sent = then.largest_block * now.dtype.itemsize
        steps.append(Step("all_reduce", summed, now, then, 2 * _share(sent, now.mesh, summed)))
        now = then
    return now


def _over(now: Spec, layouts: Sequence[Layout], axes: tuple[str, ...]) -> int:
    """Bytes of the part of a block that takes part in an exchange over ``axes``: of every dimension, what lies in the
    blocks to come of all members, which the other axes alone divide."""
    count = now.dtype.itemsize
    for dim, (n, after) in enumerate(zip(now.shape, layouts)):
        own = now.layouts[dim].interleave * max(now.sizes(dim))
        if any(a in axes for a in after.axes) or not refines(after, now.layouts[dim], n, now.mesh):
            ways = math.prod(now.mesh.shape[a] for a in after.axes if a not in axes)
            count *= min(own, -(-n // ways))
        else:
            count *= after.interleave * max(now.replace(layouts=tuple(layouts)).sizes(dim))
    return count


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
    if not axes:
        step = Step("slice", (), now, then, 0)
    elif gather and not any(a in travelled for layout in target.layouts for a in layout.axes):
        sent = (then.largest_block - now.smallest_block) * now.dtype.itemsize
        step = Step("all_gather", axes, now, then, sent)
    else:
        kept = {a for layout in target.layouts for a in layout.axes}
        copies = math.prod(mesh.shape[a] for a in axes if a not in kept)
        sent = _over(now, target.layouts, axes) * copies
        step = Step("all_to_all", axes, now, then, _share(sent, mesh, axes))
    steps.append(step)
    return then


def _common(before: Layout, after: Layout) -> int:
    """How many outermost axes two default divisions share, and need no travel over."""
    if before.sizes is not None or after.sizes is not None or before.interleave != after.interleave:
        return 0
    k = 0
    while k < min(len(before.axes), len(after.axes)) and before.axes[k] == after.axes[k]:
        k += 1
    return k


def _share(count: int, mesh: Mesh, axes: tuple[str, ...]) -> int:
    """``count`` (p - 1) / p, rounded up, for a group over these axes."""
    p = math.prod(mesh.shape[a] for a in axes)
    return -(-count * (p - 1) // p)
