"""The protocol: a few verbs over flat buffers.

A transport supplies gathering and exchanging; reductions are derived here, so that their order, and with it every
bit, is the same whatever carries the data. A buffer is a one-dimensional contiguous NumPy array.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from spmdx.errors import MeshError
from spmdx.mesh import Mesh
from spmdx.runtime.message import Block, Message
from spmdx.runtime.pending import Halves, Pending
from spmdx.runtime.pool import Flat, take
from spmdx.runtime.reduction import combine, reduce_ordered

SMALL = 64 * 1024  # bytes of all members together: up to here an all-reduce is one all-gather, beyond it two steps

Counts = Sequence[int]


def near_equal(n: int, parts: int) -> list[int]:
    """``n`` split into ``parts``, the first ones larger by one."""
    each, more = divmod(n, parts)
    return [each + 1] * more + [each] * (parts - more)


def cut(flat: Flat, counts: Counts) -> list[Flat]:
    """Views of consecutive pieces of a flat array."""
    views, start = [], 0
    for n in counts:
        views.append(flat[start : start + n])
        start += n
    return views


class Group(ABC):
    """Some ranks that communicate, and this rank's place among them."""

    rank: int
    size: int
    begins = False  # `begin` may win something
    take = staticmethod(take)  # new flat memory for messages and results, where the blocks lie

    # What a transport supplies. `what` describes the verb that is derived from it: ranks that disagree are told.
    @abstractmethod
    def _gather(self, send: Flat, counts: Counts, out: Flat | None, what: str) -> list[Flat]: ...

    @abstractmethod
    def _exchange(
        self, send: Flat, send_counts: Counts, recv_counts: Counts, out: Flat | None, what: str
    ) -> list[Flat]: ...

    @abstractmethod
    def broadcast(self, buf: Flat, root: int) -> None:
        """Give every member ``root``'s data, in place."""

    @abstractmethod
    def send(self, buf: Flat, to: int) -> None:
        """Send to one member, who calls ``recv``."""

    @abstractmethod
    def recv(self, buf: Flat, source: int) -> None:
        """Fill ``buf`` with what one member sends."""

    @abstractmethod
    def barrier(self) -> None:
        """Return when every member has come here."""

    def buffer(self, count: int, dtype: DTypeLike) -> Flat:
        """Memory to pack a message into; the caller's until the collective that sends it returns."""
        return self.take(count, dtype)

    def carry(self, message: Message, blocks: Sequence[Block]) -> list[Block]:
        """One collective from blocks to blocks: pack all, call the verb, unpack all."""
        return message.sent(message.packed(blocks, self.buffer), self)

    def carrier(self, message: Message) -> Callable[[Block], Block]:
        """`carry` for one block, as a function: of messages that are sent again and again."""
        return lambda block: self.carry(message, [block])[0]

    def begin(self, message: Message, blocks: Sequence[Block]) -> Pending | None:
        """The same, begun and not waited for; None where nothing is won by that: then `carry` it."""
        return None

    def half(self, message: Message, blocks: Sequence[Block]) -> Halves | None:
        """An all-reduce of which the first half has begun; None where nothing is won by that."""
        if not self.begins or message.verb != "all_reduce":
            return None
        return Halves(self, message, message.packed(blocks, self.buffer), near_equal(sum(message.counts), self.size))

    def all_gather(self, send: Flat, counts: Counts, out: Flat | None = None) -> list[Flat]:
        """Every member's ``send``, in member order; member i's has ``counts[i]`` elements.

        With ``out`` the data lie there one after another and the list holds views of it; otherwise the views are
        valid until the next collective on this communicator.
        """
        if self.size == 1:
            return [_kept(send, out)]
        return self._gather(send, counts, out, "all_gather")

    def all_to_all(self, send: Flat, send_counts: Counts, recv_counts: Counts, out: Flat | None = None) -> list[Flat]:
        """One part of ``send`` to each member, one from each, in member order; ``out`` as in `all_gather`."""
        if self.size == 1:
            return [_kept(send, out)]
        return self._exchange(send, send_counts, recv_counts, out, "all_to_all")

    def reduce_scatter(self, send: Flat, counts: Counts, op: str) -> Flat:
        """This member's part (``counts[rank]`` elements) of the reduction of every member's ``send``."""
        combine(send.dtype, op)
        if self.size == 1:
            return _own(send)
        mine = [counts[self.rank]] * self.size
        return reduce_ordered(self._exchange(send, counts, mine, None, f"reduce_scatter {op}"), op)

    def all_reduce(self, send: Flat, op: str) -> Flat:
        """The reduction of every member's ``send``, whole, on every member."""
        combine(send.dtype, op)
        if self.size == 1:
            return _own(send)
        n, p, what = len(send), self.size, f"all_reduce {op}"
        if p * send.nbytes <= SMALL:
            return reduce_ordered(self._gather(send, [n] * p, None, what), op)
        counts = near_equal(n, p)
        mine = reduce_ordered(self._exchange(send, counts, [counts[self.rank]] * p, None, what), op)
        out = self.take(n, send.dtype)
        self._gather(mine, counts, out, what)
        return out


def _own(send: Flat) -> Flat:
    out: Flat = send.copy()
    return out


def _kept(send: Flat, out: Flat | None) -> Flat:
    if out is None:
        return send
    out[...] = send
    return out


G = TypeVar("G", bound=Group)


class Comm(ABC, Generic[G]):
    """The ranks of one mesh, and their groups along its axes."""

    def __init__(self, mesh: Mesh, rank: int) -> None:
        self.mesh = mesh
        self.coordinate = mesh.coordinate_of(rank)
        self._groups: dict[tuple[str, ...], G] = {}

    @abstractmethod
    def _make(self, axes: tuple[str, ...], positions: list[int]) -> G:
        """A group of the ranks at these positions in the mesh."""

    def group(self, axes: tuple[str, ...]) -> G:
        """The ranks that share this rank's coordinates on all other axes, row-major over ``axes`` in mesh order."""
        found = self._groups.get(axes)
        if found is None:
            ordered = tuple(name for name in self.mesh.axis_names if name in axes)
            found = self._groups.get(ordered)
            if found is None:
                found = self._groups[ordered] = self._make(ordered, self.positions(ordered))
            self._groups[axes] = found
        return found

    def positions(self, axes: tuple[str, ...]) -> list[int]:
        """Row-major positions in the mesh of this rank's group over ``axes``."""
        sizes = self.mesh.sizes
        return [int(np.ravel_multi_index(c, sizes)) if sizes else 0 for c in self.mesh.members(axes, self.coordinate)]


class Renamed(Comm[Any]):
    """The groups of another mesh that has the same ranks in the same places, under the names of this one's axes."""

    def __init__(self, mesh: Mesh, rank: int, other: Comm[Any]) -> None:
        super().__init__(mesh, rank)
        self.other = other

    def _make(self, axes: tuple[str, ...], positions: list[int]) -> Any:
        names = zip(self.mesh.axis_names, self.other.mesh.axis_names)
        return self.other.group(tuple(theirs for mine, theirs in names if mine in axes))


C = TypeVar("C", bound=Comm[Any])


class World(ABC, Generic[C]):
    """All the ranks that run the program together.

    Communicators are kept for as long as the world is: to free one takes all its ranks at once, and none knows when
    the others are done with it. Meshes that differ in the names of their axes alone share groups, so that there are as
    many as a program arranges its ranks in different ways: MPI has about 2,000 communicators.
    """

    rank: int
    size: int
    kind: str
    local: int | None = None  # this rank's number on its node, where that is known
    of_gpu: Any = None  # makes the communicator of a mesh of GPUs: (world, mesh) -> Comm

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._comms: dict[Mesh, C] = {}
        self._arranged: dict[Any, C] = {}  # the first one of each arrangement of ranks
        self.carriers: dict[Any, tuple[Callable[[Block], Block], Any]] = {}  # of moves that were asked for: move.py
        self._lock = threading.RLock()  # to make one of GPUs asks for the hosts'

    @abstractmethod
    def _make(self, mesh: Mesh) -> C: ...

    def comm(self, mesh: Mesh) -> C:
        """The communicator of a mesh, made at first use: then the mesh's ranks must all ask for it."""
        found = self._comms.get(mesh)
        if found is None:
            with self._lock:
                found = self._comms.get(mesh) or self._comms.setdefault(mesh, self._made(mesh))
        return found

    def _made(self, mesh: Mesh) -> Any:
        if self.rank not in mesh.ranks:
            raise MeshError(
                f"rank {self.rank} is not in {mesh!r}, so it cannot communicate there.",
                "`if mesh.contains_me():` around code for the mesh's own ranks",
            )
        if max(mesh.ranks) >= self.size:
            raise MeshError(
                f"{mesh!r} names rank {max(mesh.ranks)}, and the world has {self.size} rank(s).",
                "sx.make_mesh(...), which uses the ranks there are",
            )
        key = mesh.sizes, mesh.ranks, mesh.device
        if key in self._arranged:
            return Renamed(mesh, self.rank, self._arranged[key])
        made = self._arranged[key] = self._make(mesh) if mesh.device != "cuda" else self.of_gpu(self, mesh)
        return made
