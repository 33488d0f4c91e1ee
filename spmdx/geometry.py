"""Which part of which block goes where in a step: index arithmetic on specs and coordinates, no data.

A *part* is what one rank hands another: a list of boxes, each a tuple of slices into the block, in global index
order, so that both sides list the same boxes in the same order.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import product
from typing import NamedTuple

from spmdx.mesh import Coordinate
from spmdx.plan import Step
from spmdx.spec import Interval, Spec

Box = tuple[slice, ...]


class Part(NamedTuple):
    """Boxes of a block, their shapes, and the elements in all of them."""

    boxes: tuple[Box, ...]
    shapes: tuple[tuple[int, ...], ...]
    elements: int


class Route(NamedTuple):
    """One rank's part in a collective step: what it packs for every member, and where it puts what they send."""

    send: tuple[Part, ...]
    receive: tuple[Part, ...]
    own: tuple[int, ...]  # shape of the block that goes in
    shape: tuple[int, ...]  # of the block that comes out
    whole: bool  # what is packed is the block as it lies
    direct: bool  # what arrives, in member order, is the block that comes out


def cut(block: tuple[tuple[Interval, ...], ...], region: tuple[tuple[Interval, ...], ...]) -> Part:
    """The part of a block (intervals per dimension) that lies in a region (likewise)."""
    per_dim = [_overlap(mine, wanted) for mine, wanted in zip(block, region)]
    boxes = tuple(tuple(slice(a, b) for a, b in box) for box in product(*per_dim))
    shapes = tuple(tuple(s.stop - s.start for s in box) for box in boxes)
    return Part(boxes, shapes, sum(math.prod(shape) for shape in shapes))


def _overlap(mine: tuple[Interval, ...], wanted: tuple[Interval, ...]) -> list[Interval]:
    """Positions within my own elements of those that are wanted."""
    out, offset = [], 0
    for a, b in mine:
        for c, d in wanted:
            low, high = max(a, c), min(b, d)
            if low < high:
                out.append((offset + low - a, offset + high - a))
        offset += b - a
    return out


def region(spec: Spec, coordinate: Coordinate) -> tuple[tuple[Interval, ...], ...]:
    """The global intervals, per dimension, of the block at a coordinate."""
    return tuple(spec.pieces(d, coordinate) for d in range(spec.ndim))


def route(step: Step, coordinate: Coordinate) -> Route:
    """The part of the rank at ``coordinate`` in a collective step."""
    mesh, source, target = step.source.mesh, step.source, step.target
    members = mesh.members(step.axes, coordinate)
    mine, wanted = region(source, coordinate), region(target, coordinate)
    if step.verb == "all_reduce":
        send = [cut(mine, wanted)]
    elif step.verb == "all_gather":
        send = [cut(mine, mine)]
    else:
        send = [cut(mine, region(target, m)) for m in members]
    if step.verb in ("all_reduce", "reduce_scatter"):
        receive = [cut(wanted, wanted)]
    else:
        receive = [cut(wanted, region(source, m)) for m in members]
    shape = target.block_shape(coordinate)
    own = source.block_shape(coordinate)
    whole = sum(part.elements for part in send) == math.prod(own) and _consecutive(send, own)
    return Route(tuple(send), tuple(receive), own, shape, whole, _consecutive(receive, shape))


def _consecutive(parts: list[Part], shape: tuple[int, ...]) -> bool:
    """True if the boxes, one after another, are the C-contiguous memory of a block of this shape."""
    at = 0
    strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    for part in parts:
        for box, size in zip(part.boxes, part.shapes):
            wide = next((d for d, n in enumerate(size) if n != 1), len(shape))
            if any(size[d] != shape[d] for d in range(wide + 1, len(shape))):
                return False
            if at != sum(s.start * stride for s, stride in zip(box, strides)):
                return False
            at += math.prod(size)
    return True


@lru_cache(maxsize=2048)
def local_parts(step: Step, coordinate: Coordinate) -> tuple[Part, Part]:
    """A slice or pad step: what of the block stays, as boxes of the old block and, in the same order, of the new."""
    before, after = region(step.source, coordinate), region(step.target, coordinate)
    return cut(before, after), cut(after, before)
