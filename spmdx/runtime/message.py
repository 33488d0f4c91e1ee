"""What a collective carries: which boxes of which blocks go to whom, and where what arrives is put.

A message is made once for every kind of move and used for all of them. A part is a list of boxes of a block, one
after another; geometry finds them, and here they are only read.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from spmdx.runtime import memory
from spmdx.runtime.boxes import Plan
from spmdx.runtime.pool import Flat, take

LINE = 64  # bytes: blocks begin on lines of the cache
SMALL = 2**14  # elements: fewer are no matter of `take`

of_host = take
Block = Any
Shape = tuple[int, ...]


# As geometry makes them. Part: boxes (tuples of slices), their shapes, and the elements in all of them.
# Route: what a rank packs of one block for every member (send), and where it puts what they send (receive); the shapes
# of the block that goes in (own) and comes out (shape); whole: what is packed is the block as it lies; direct: what
# arrives, in member order, is the block that comes out.
Part = Any
Route = Any


class Stretch(NamedTuple):
    """A part of a flat array."""

    boxes: tuple[tuple[slice, ...], ...]
    shapes: tuple[Shape, ...]
    elements: int


def pack(part: Part, block: Block, flat: Flat, at: int = 0) -> None:
    """Copy a part of a block into a flat array, from position ``at`` on."""
    for box, shape in zip(part.boxes, part.shapes):
        n = math.prod(shape)
        flat[at : at + n].reshape(shape)[...] = block[box]
        at += n


def unpack(part: Part, flat: Flat, block: Block, at: int = 0) -> None:
    """Copy a flat array, from position ``at`` on, to a part of a block."""
    for box, shape in zip(part.boxes, part.shapes):
        n = math.prod(shape)
        block[box] = flat[at : at + n].reshape(shape)
        at += n


class Message:
    """One rank's part in one collective that carries one or more blocks of one dtype."""

    __slots__ = ("counts", "dtype", "elements", "incoming", "op", "parcel", "reduces", "routes", "verb", "what")

    def __init__(
        self, verb: str, op: str | None, dtype: np.dtype[Any], routes: Sequence[Route], what: str = ""
    ) -> None:
        self.verb, self.op, self.dtype, self.routes = verb, op, dtype, tuple(routes)
        self.reduces = "reduce" in verb
        self.what = what or (f"{verb} {op}" if self.reduces else verb)
        # Elements for every member, and from every member (or of the result), all blocks together.
        self.counts = [sum(each) for each in zip(*([part.elements for part in r.send] for r in routes))]
        self.incoming = [sum(each) for each in zip(*([part.elements for part in r.receive] for r in routes))]
        self.elements = [math.prod(r.shape) for r in routes]
        self.parcel: Any = None  # what a transport makes of it

    @property
    def common(self) -> list[int]:
        """The counts that are the same on every rank."""
        if self.verb == "all_gather":
            return self.incoming
        return [] if self.what == "all_to_all" else self.counts

    def signature(self) -> int:
        """The same number on all ranks that come to the same collective."""
        return hash((zlib.crc32(f"{self.what} {self.dtype.name}".encode()), *self.common))  # of numbers only

    def __str__(self) -> str:
        return f"{self.what} of {self.dtype.name} {self.common}"

    def empty(self, take: Callable[[int, Any], Flat] = take) -> list[Block]:
        """New blocks for what arrives. What an all_reduce brings is used together: its blocks are one piece of memory,
        large enough for every member to write to."""
        if len(self.routes) == 1:
            n, shape = self.elements[0], self.routes[0].shape
            small = n < SMALL and take is of_host
            return [np.empty(shape, self.dtype) if small else take(n, self.dtype).reshape(shape)]
        if self.verb != "all_reduce":
            return [take(n, self.dtype).reshape(r.shape) for n, r in zip(self.elements, self.routes)]
        item = self.dtype.itemsize
        starts = [0, *accumulate(-(-n * item // LINE) * LINE // item for n in self.elements)]
        flat = take(starts[-1], self.dtype)
        return [flat[at : at + n].reshape(r.shape) for at, n, r in zip(starts, self.elements, self.routes)]

    def packed(self, blocks: Sequence[Block], buffer: Callable[[int, Any], Flat]) -> Flat:
        """One flat array: for every member, the parts of every block. A view where a block already lies so."""
        if len(self.routes) == 1 and self.routes[0].whole and blocks[0].flags.c_contiguous:
            flat: Flat = blocks[0].reshape(-1)
            return flat
        flat, at = buffer(sum(self.counts), self.dtype), 0
        if memory.on_device(flat):
            return self._on_gpu(0, blocks, flat)
        for j in range(len(self.counts)):
            for r, block in zip(self.routes, blocks):
                pack(r.send[j], block, flat, at)
                at += r.send[j].elements
        return flat

    def sent(self, flat: Flat, group: Any) -> list[Block]:
        """The blocks that come out when ``flat`` goes through a group's verb."""
        if self.reduces:
            if self.verb == "all_reduce":
                return self.split(group.all_reduce(flat, self.op), group.take)
            return self.split(group.reduce_scatter(flat, self.counts, self.op), group.take)
        if len(self.routes) == 1 and self.routes[0].direct:
            out = group.take(self.elements[0], self.dtype)
            self._travel(flat, group, out)
            return [out.reshape(self.routes[0].shape)]
        blocks = self.empty(group.take)
        if memory.on_device(flat):
            return self._arrived(blocks, group.take(sum(self.incoming), self.dtype), flat, group)
        for j, arrived in enumerate(self._travel(flat, group, None)):
            at = 0
            for r, block in zip(self.routes, blocks):
                unpack(r.receive[j], arrived, block, at)
                at += r.receive[j].elements
        return blocks

    def _arrived(self, blocks: list[Block], out: Flat, flat: Flat, group: Any) -> list[Block]:
        self._travel(flat, group, out)
        self._on_gpu(1, blocks, out)
        return blocks

    def _on_gpu(self, side: int, blocks: Sequence[Block], flat: Flat) -> Flat:
        """All boxes that are sent (0) or have arrived (1), copied by one kernel."""
        if self.parcel is None:
            self.parcel = [
                Plan(
                    [[r[side][j] for r in self.routes] for j in range(len(self.routes[0][side]))],
                    [r[2 + side] for r in self.routes],
                    self.dtype.itemsize,
                )
                for side in (0, 1)
            ]
        lying = [b if b.flags.c_contiguous else b.copy() for b in blocks] if side == 0 else blocks
        memory.gpu().launch.copy(self.parcel[side], lying, flat, side == 0)
        return flat

    def _travel(self, flat: Flat, group: Any, out: Flat | None) -> list[Flat]:
        if self.verb == "all_gather":
            parts: list[Flat] = group.all_gather(flat, self.incoming, out=out)
        else:
            parts = group.all_to_all(flat, self.counts, self.incoming, out=out)
        return parts

    def split(self, flat: Flat, take: Callable[[int, Any], Flat]) -> list[Block]:
        """A reduced message is the blocks one after another: views of it, for it is ours."""
        blocks, at = [], 0
        for r, n in zip(self.routes, self.elements):
            if r.direct:
                blocks.append(flat[at : at + n].reshape(r.shape))
            else:
                block = take(n, flat.dtype).reshape(r.shape)
                unpack(r.receive[0], flat, block, at)
                blocks.append(block)
            at += n
        return blocks


class FlatRoute(NamedTuple):
    """A flat array, cut into consecutive parts."""

    send: tuple[Stretch, ...]
    receive: tuple[Stretch, ...]
    own: Shape
    shape: Shape
    whole: bool = True
    direct: bool = True


def stretches(counts: Sequence[int]) -> tuple[Stretch, ...]:
    """Consecutive parts of a flat array."""
    made, at = [], 0
    for n in counts:
        made.append(Stretch(((slice(at, at + n),),), ((n,),), n))
        at += n
    return tuple(made)


@lru_cache(maxsize=1024)
def flat_message(
    verb: str, op: str | None, dtype: np.dtype[Any], counts: tuple[int, ...], incoming: tuple[int, ...], what: str
) -> Message:
    """The message of a verb over flat arrays."""
    route = FlatRoute(stretches(counts), stretches(incoming), (sum(counts),), (sum(incoming),))
    return Message(verb, op, dtype, [route], what)
