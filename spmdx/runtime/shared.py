"""Ranks of one node: messages go through memory that they share, in pieces that stay in a cache.

The work is done by the compiled module (bindings/channel.h): it packs boxes of blocks into shared memory, and
unpacks or reduces what the others have put there. Long messages go this way or by MPI, whichever was faster when
first measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from spmdx.errors import RanksDisagree
from spmdx.mesh import Mesh
from spmdx.runtime import arena
from spmdx.runtime.arena import Window
from spmdx.runtime.comm import Comm, Counts, Group, cut
from spmdx.runtime.heap import Heap, Region
from spmdx.runtime.kernels import REDUCED, Channel, Parcel, carrier
from spmdx.runtime.message import Block, Message, flat_message
from spmdx.runtime.mpi import MPI, MPIComm, MPIGroup, MPIWorld
from spmdx.runtime.pool import LEAST, Flat, take
from spmdx.runtime.reduction import combine
from spmdx.runtime.waiting import never_comes

SMALL = 2**19  # bytes of a message: up to here MPI cannot be faster, and is not asked
PAST_CACHES = 2**24  # bytes that arrive at all members: from here on they are written past the caches
MARGIN = 0.7  # of the time by shared memory: MPI has to be faster than that, for one message may meet any delay
ANY = 2**62  # bytes
ENDED = -(2**32)  # and less by i: what the channel returns where member i has ended


class SharedGroup(Group):
    """A group whose members are all on this node."""

    def __init__(
        self, plain: MPIGroup, heap: Heap, region: Region, positions: list[int], windows: list[Window]
    ) -> None:
        self.plain, self.rank, self.size = plain, plain.rank, plain.size
        self.past_caches = PAST_CACHES // self.size
        heaps = [heap.views[position] for position in positions]
        spins = 50 if heap.crowded else 1000  # then the core is offered to others
        processes = [heap.processes[position] for position in positions] if heap.processes else []
        where = region.control, region.row, region.piece, region.stages
        self.channel = Channel(heaps, self.rank, *where, spins, processes, windows)
        self._shared: dict[tuple[str, int], bool] = {}  # by verb and size: shared memory is the faster way

    def carry(self, message: Message, blocks: Sequence[Block]) -> list[Block]:
        """Blocks through a collective, straight from where they lie to where they go."""
        if message.reduces and message.dtype not in REDUCED:
            return super().carry(message, blocks)
        return self._through(message, blocks, message.empty())

    def carrier(self, message: Message) -> Callable[[Block], Block]:
        """By the compiled module alone, if the result is short."""
        if (message.reduces and message.dtype not in REDUCED) or message.elements[0] * message.dtype.itemsize >= LEAST:
            return super().carrier(message)

        def otherwise(block: Block, out: Block, found: int) -> Block:
            return (self.carry(message, [block]) if out is None else self._after(message, [block], [out], found))[0]

        parcel, shape = message.parcel or self._parcel(message), message.routes[0].shape
        made: Any = carrier(self.channel, parcel, shape, message.dtype, SMALL, self.past_caches, otherwise)
        return made  # type: ignore[no-any-return]

    def _through(self, message: Message, blocks: Sequence[Block], outs: list[Block]) -> list[Block]:
        parcel = message.parcel or self._parcel(message)
        return self._after(message, blocks, outs, self.channel.carry(parcel, blocks, outs, SMALL, self.past_caches))

    def _after(self, message: Message, blocks: Sequence[Block], outs: list[Block], longest: int) -> list[Block]:
        """What is left to do when the channel has carried, or has found that the longest message has so many bytes."""
        if longest == 0:
            return outs
        if longest < 0:
            self._disagree(message, longest)

        def shared() -> list[Block]:
            self.channel.carry(message.parcel, blocks, outs, ANY, self.past_caches)
            return outs

        def mpi() -> list[Block]:
            return self.plain.carry(message, blocks)

        key = (message.verb, longest.bit_length())
        use = self._shared.get(key)
        if use is None:
            use = self._shared[key] = self._measured(mpi, shared, longest)
        return shared() if use else mpi()

    def _measured(self, mpi: Any, shared: Any, nbytes: int) -> bool:
        """Whether MPI is not clearly faster than shared memory: one answer on every rank."""
        best = np.full(2, np.inf)
        for _ in range(8 if nbytes <= 2**24 else 3):
            for i, way in enumerate((mpi, shared)):
                self.plain.barrier()
                start = perf_counter()
                way()
                best[i] = min(best[i], perf_counter() - start)
        self.plain.comm.Allreduce(MPI.IN_PLACE, best, op=MPI.MAX)
        decision = np.array([MARGIN * best[1] <= best[0]])
        self.plain.comm.Bcast(decision, 0)  # maxima may differ in how they round; one rank's word counts
        return bool(decision[0])

    def _parcel(self, message: Message) -> Any:
        def boxes(parts: Sequence[Any]) -> list[list[tuple[list[int], Any]]]:
            return [[([s.start for s in b], n) for b, n in zip(part.boxes, part.shapes)] for part in parts]

        routes, dtype = message.routes, message.dtype
        message.parcel = Parcel(
            message.verb,
            message.op or "",
            message.signature(),
            self.rank,
            self.size,
            dtype.kind,
            dtype.itemsize,
            [r.own for r in routes],
            [boxes(r.send) for r in routes],
            [r.shape for r in routes],
            [boxes(r.receive) for r in routes],
        )
        return message.parcel

    def _never_comes(self, what: str, found: int) -> RanksDisagree:
        member = ENDED - found
        return never_comes(self.plain.comm.group.Translate_ranks([member], MPI.COMM_WORLD.group)[0], what)

    def _disagree(self, message: Message, found: int) -> None:
        if found <= ENDED:
            raise self._never_comes(message.what, found)
        if found == -1:
            each = "".join(f"\n  member {i}: {m}" for i, m in enumerate(self.plain.comm.allgather(str(message))))
            raise RanksDisagree(f"the ranks came to different collectives:{each}", "the same calls on every rank")
        i = -2 - found
        raise RanksDisagree(
            f"{message.what}: member {i} sends {self.channel.sent(i, self.rank)} bytes to member {self.rank}, which "
            f"expects {message.incoming[i] * message.dtype.itemsize}.",
            "the same calls with arrays of the same shapes, on every rank",
        )

    # The verbs over flat arrays

    def _gather(self, send: Flat, counts: Counts, out: Flat | None, what: str) -> list[Flat]:
        message = flat_message("all_gather", None, send.dtype, (len(send),), tuple(counts), what)
        return self._flat(message, send, counts, out)

    def _exchange(
        self, send: Flat, send_counts: Counts, recv_counts: Counts, out: Flat | None, what: str
    ) -> list[Flat]:
        message = flat_message("all_to_all", None, send.dtype, tuple(send_counts), tuple(recv_counts), what)
        return self._flat(message, send, recv_counts, out)

    def _flat(self, message: Message, send: Flat, counts: Counts, out: Flat | None) -> list[Flat]:
        whole = take(sum(counts), send.dtype) if out is None else out
        arrived: Flat = self._through(message, [send], [whole])[0]
        if out is not None and arrived is not out:
            out[...] = arrived
            arrived = out
        return cut(arrived, counts)

    def reduce_scatter(self, send: Flat, counts: Counts, op: str) -> Flat:
        combine(send.dtype, op)
        if send.dtype not in REDUCED:
            return super().reduce_scatter(send, counts, op)
        mine = (counts[self.rank],)
        message = flat_message("reduce_scatter", op, send.dtype, tuple(counts), mine, f"reduce_scatter {op}")
        return self._reduced(message, send)

    def all_reduce(self, send: Flat, op: str) -> Flat:
        combine(send.dtype, op)
        if send.dtype not in REDUCED:
            return super().all_reduce(send, op)
        n = (len(send),)
        return self._reduced(flat_message("all_reduce", op, send.dtype, n, n, f"all_reduce {op}"), send)

    def _reduced(self, message: Message, send: Flat) -> Flat:
        result: Flat = self._through(message, [send], message.empty())[0]
        return result

    def broadcast(self, buf: Flat, root: int) -> None:
        """By MPI, after all have come."""
        self.barrier()
        self.plain.broadcast(buf, root)

    def send(self, buf: Flat, to: int) -> None:
        """By MPI."""
        self.plain.send(buf, to)

    def recv(self, buf: Flat, source: int) -> None:
        """By MPI."""
        self.plain.recv(buf, source)

    def barrier(self) -> None:
        """Through the slots that every collective uses."""
        found = self.channel.barrier()
        if found:
            raise self._never_comes("a barrier", found)


class SharedComm(MPIComm[Group]):
    """One heap per mesh; groups that reach beyond the node, or have no room in it, use MPI alone."""

    def __init__(self, mesh: Mesh, rank: int, parent: MPI.Intracomm, windows: Mapping[int, Window]) -> None:
        super().__init__(mesh, rank, parent)
        self.heap, self.windows = Heap(self.comm, mesh.sizes), windows

    def _make(self, axes: tuple[str, ...], positions: list[int]) -> Group:
        plain = MPIGroup(self.sub(positions), self.name(axes))
        mask = sum(1 << i for i, name in enumerate(self.mesh.axis_names) if name in axes)
        region = self.heap.regions.get(mask)
        if region is None or any(position not in self.heap.views for position in positions):
            return plain
        windows = [self.windows[self.mesh.ranks[position]] for position in positions] if self.windows else []
        return SharedGroup(plain, self.heap, region, positions, windows)


class SharedWorld(MPIWorld):
    """MPI, with shared memory between the ranks of a node."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        super().__init__(comm)
        self.windows = arena.share(comm)

    def _make(self, mesh: Mesh) -> Comm[Group]:
        return SharedComm(mesh, self.rank, self.mpi, self.windows)
