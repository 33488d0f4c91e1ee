"""Ranks of one node: messages lie in shared memory and are read where they lie.

A collective opens with a header from every member and a barrier; then all know what every member brings and where.
What was packed into `buffer()` is read in place. What lies in ordinary memory goes through a staging area in pieces
that stay in a cache. Staging areas alternate: whoever has passed a barrier has read everything of the one before,
so one barrier per step is enough. Large messages go this way or by MPI, whichever was faster when first measured.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import accumulate
from time import perf_counter
from typing import TypeVar
from weakref import ref

import numpy as np
from numpy.typing import DTypeLike

from spmdx.errors import RanksDisagree
from spmdx.mesh import Mesh
from spmdx.runtime.comm import Comm, Counts, Group, cut
from spmdx.runtime.heap import LINE, Heap, Region
from spmdx.runtime.mpi import MPI, MPIComm, MPIGroup, MPIWorld
from spmdx.runtime.pool import Flat, take
from spmdx.runtime.reduction import combine, reduce_ordered

try:
    from spmdx.runtime.kernels import arrive_and_wait
except ImportError:
    arrive_and_wait = None

T = TypeVar("T")
Rows = list[list[int]]  # a header per member: signature, bytes, place in its heap (-1: ordinary memory), offsets

SMALL = 2**19  # bytes: up to here an ordinary message is copied to shared memory whole, and MPI is not asked
FOREVER = 1e30  # seconds
SIGNATURE, BYTES, PLACE, OFFSETS = 0, 1, 2, 3


class SharedGroup(Group):
    """A group whose members are all on this node."""

    def __init__(self, plain: MPIGroup, heap: Heap, region: Region, positions: list[int]) -> None:
        self.plain, self.heap, self.region = plain, heap, region
        self.rank, self.size = plain.rank, plain.size
        self.views = [heap.views[position] for position in positions]
        self.mine = self.views[self.rank]
        self.piece = region.piece
        self.small = min(SMALL, region.piece)
        self.epoch = 0
        slots = self.size * LINE
        control = self.views[0][region.control :]
        self._slots = control[:slots]
        table = self.size * region.row * 8
        self._tables = [control[slots + i * table : slots + (i + 1) * table].data.cast("q") for i in (0, 1)]
        self._bytes = [t.cast("B") for t in self._tables]
        self._whole = (0,) * (self.size + 1)  # the offsets of a message that is for everyone
        self._header = struct.Struct(f"{self.size + 4}q")
        self._spins = 50 if heap.crowded else 1000  # then the core is offered to others
        self._handed: list[ref[Flat] | None] = [None, None]
        self._read_at = [-1, -1]  # the epoch in which each message area was last read
        self._codes: dict[tuple[str, np.dtype[np.generic]], int] = {}
        self._choice: dict[tuple[str, int, bool], bool] = {}

    # The opening of every collective

    def buffer(self, count: int, dtype: DTypeLike) -> Flat:
        """Shared memory where there is room that nobody reads any more; else ordinary memory."""
        dtype = np.dtype(dtype)
        nbytes = count * dtype.itemsize
        if 0 < nbytes <= self.region.room:
            for i, handed in enumerate(self._handed):
                if self._read_at[i] < self.epoch and (handed is None or handed() is None):
                    start = self.region.messages[i]
                    flat = np.frombuffer(self.mine[start : start + nbytes].data, dtype)
                    self._handed[i] = ref(flat)
                    return flat
        return take(count, dtype)

    def _open(self, what: str, send: Flat, counts: Counts, offsets: tuple[int, ...]) -> Rows:
        """Tell the others what this rank brings, and learn what they bring."""
        code = self._codes.get((what, send.dtype))
        if code is None:
            code = self._codes[what, send.dtype] = zlib.crc32(f"{what} {send.dtype.name}".encode())
        signature = hash((code, *counts))  # of numbers only: the same in every process
        nbytes, place = send.nbytes, -1
        self.epoch = epoch = self.epoch + 1
        half = epoch & 1
        for i in (0, 1):
            handed = self._handed[i]
            if handed is not None and handed() is send:
                place, self._handed[i], self._read_at[i] = self.region.messages[i], None, epoch
        if place < 0 and nbytes <= self.small:
            place = self.region.stages[half] + self.piece  # the first piece is for results
            self.mine[place : place + nbytes] = send.view(np.uint8)
        row = self.region.row
        self._header.pack_into(self._bytes[half], self.rank * row * 8, signature, nbytes, place, *offsets)
        self._arrive()
        numbers = self._tables[half].tolist()
        rows = [numbers[i * row : (i + 1) * row] for i in range(self.size)]
        for other in rows:
            if other[SIGNATURE] != signature:
                self._disagree(f"{what} of {send.dtype.name} {list(counts)}")
        return rows

    def _arrive(self) -> None:
        if arrive_and_wait is not None:
            arrive_and_wait(self._slots, self.rank, self.size, self.epoch, FOREVER, self._spins)
        else:
            self.heap.window.Sync()
            self.plain.comm.Barrier()
            self.heap.window.Sync()

    def _disagree(self, mine: str) -> None:
        each = "".join(f"\n  member {i}: {said}" for i, said in enumerate(self.plain.comm.allgather(mine)))
        raise RanksDisagree(f"the ranks came to different collectives:{each}", "the same calls on every rank")

    def _close(self, rows: Rows, steps: int) -> None:
        """Others may have read what lies in shared memory in every one of the steps, the last one included."""
        if steps & 1 and any(0 <= row[PLACE] < self.region.messages[0] for row in rows):
            self.barrier()  # a message in the staging area that the next collective will use
        for i, start in enumerate(self.region.messages):
            if rows[self.rank][PLACE] == start:
                self._read_at[i] = self.epoch

    def _is_small(self, rows: Rows) -> bool:
        """All that was brought lies in shared memory, and is so little that MPI cannot be faster."""
        for row in rows:  # noqa: SIM110 - `all` takes four times as long
            if row[PLACE] < 0 or row[BYTES] > self.small:
                return False
        return True

    def _either(self, verb: str, rows: Rows, mpi: Callable[[], T], shared: Callable[[], T]) -> T:
        """A large message's result by the faster way; the first time in this size class both are tried."""
        nbytes = max(row[BYTES] for row in rows)
        in_place = all(row[PLACE] >= 0 for row in rows)
        key = (verb, nbytes.bit_length(), in_place)
        use, opened = self._choice.get(key), self.epoch
        if use is not None:
            result = shared() if use else mpi()
        else:
            best = np.full(2, np.inf)
            for _ in range(4 if nbytes <= 2**24 else 2):
                for i, way in enumerate((mpi, shared)):
                    self.plain.barrier()
                    start = perf_counter()
                    result = way()
                    best[i] = min(best[i], perf_counter() - start)
            self.plain.comm.Allreduce(MPI.IN_PLACE, best, op=MPI.MAX)
            decision = np.array([best[1] <= best[0]])
            self.plain.comm.Bcast(decision, 0)  # maxima may differ in how they round; one rank's word counts
            self._choice[key] = bool(decision[0])
        self._close(rows, self.epoch - opened)
        return result

    # The verbs

    def _gather(self, send: Flat, counts: Counts, out: Flat | None, what: str) -> list[Flat]:
        rows = self._open(what, send, counts, self._whole)
        if self._is_small(rows):
            return self._small(send, rows, counts, out, True)
        return self._either(
            "all_gather",
            rows,
            lambda: self.plain._gather(send, counts, out, what),
            lambda: self._read([send] * self.size, rows, counts, out, True),
        )

    def _exchange(
        self, send: Flat, send_counts: Counts, recv_counts: Counts, out: Flat | None, what: str
    ) -> list[Flat]:
        offsets = _offsets(tuple(send_counts), send.itemsize)
        rows = self._open(what, send, (), offsets)
        first, item = OFFSETS + self.rank, send.itemsize
        for i, row in enumerate(rows):
            if row[first + 1] - row[first] != recv_counts[i] * item:
                raise RanksDisagree(
                    f"{what}: member {i} sends {row[first + 1] - row[first]} bytes to member {self.rank}, which "
                    f"expects {recv_counts[i] * item}."
                )
        if self._is_small(rows):
            own = send[offsets[self.rank] // item : offsets[self.rank + 1] // item]
            return self._small(own, rows, recv_counts, out, False)
        return self._either(
            what,
            rows,
            lambda: self.plain.exchange(send, send_counts, recv_counts, out, _alike(rows)),
            lambda: self._read(cut(send, send_counts), rows, recv_counts, out, False),
        )

    def reduce_scatter(self, send: Flat, counts: Counts, op: str) -> Flat:
        """This member's part of the reduction, read from where the others' data lie."""
        combine(send.dtype, op)
        offsets = _offsets(tuple(counts), send.itemsize)
        rows = self._open(f"reduce_scatter {op}", send, counts, offsets)
        if self._is_small(rows):
            own = send[offsets[self.rank] // send.itemsize : offsets[self.rank + 1] // send.itemsize]
            return reduce_ordered(self._in_place(own, rows, [counts[self.rank]] * self.size, False), op)
        return self._either(
            "reduce_scatter",
            rows,
            lambda: self.plain.reduce_scatter(send, counts, op),
            lambda: self._reduce(cut(send, counts), rows, counts, op),
        )

    def all_reduce(self, send: Flat, op: str) -> Flat:
        """The whole reduction on every member, in a pipeline of pieces."""
        combine(send.dtype, op)
        n = len(send)
        rows = self._open(f"all_reduce {op}", send, (n,), self._whole)
        if self._is_small(rows):
            if self.size * send.nbytes > self.small:
                return self._pipeline(send, rows, op)  # reads each number once, where the line below reads all
            return reduce_ordered(self._in_place(send, rows, [n] * self.size, True), op)
        return self._either(
            "all_reduce", rows, lambda: self.plain.all_reduce(send, op), lambda: self._pipeline(send, rows, op)
        )

    def broadcast(self, buf: Flat, root: int) -> None:
        """By MPI."""
        self.plain.broadcast(buf, root)

    def send(self, buf: Flat, to: int) -> None:
        """By MPI."""
        self.plain.send(buf, to)

    def recv(self, buf: Flat, source: int) -> None:
        """By MPI."""
        self.plain.recv(buf, source)

    def barrier(self) -> None:
        """Through the slots that every collective uses."""
        self.epoch += 1
        self._arrive()

    # How data are read

    def _in_place(self, own: Flat, rows: Rows, counts: Counts, whole: bool) -> list[Flat]:
        """Views of what the members brought for this one, in their heaps; its own where it is."""
        dtype, me = own.dtype, self.rank
        parts = []
        for i, row in enumerate(rows):
            start = row[PLACE] if whole else row[PLACE] + row[OFFSETS + me]
            end = start + counts[i] * dtype.itemsize
            parts.append(own if i == me else self.views[i][start:end].view(dtype))
        return parts

    def _small(self, own: Flat, rows: Rows, counts: Counts, out: Flat | None, whole: bool) -> list[Flat]:
        """The parts for this member, all in shared memory: views where they lie, or copies in ``out``."""
        parts = self._in_place(own, rows, counts, whole)
        if out is None:
            return parts
        views = cut(out, counts)
        for view, part in zip(views, parts):
            view[...] = part
        return views

    def _read(self, sends: list[Flat], rows: Rows, counts: Counts, out: Flat | None, whole: bool) -> list[Flat]:
        """The parts for this member: views where they lie, or copies in ``out``."""
        if all(row[PLACE] >= 0 for row in rows):
            return self._small(sends[self.rank], rows, counts, out, whole)
        if out is None:
            out = take(sum(counts), sends[0].dtype)
        targets = cut(out, counts)
        raw = [target.view(np.uint8) for target in targets]
        for start, parts in self._steps(sends, rows, whole):
            for target, part in zip(raw, parts):
                target[start : start + len(part)] = part
        return targets

    def _reduce(self, sends: list[Flat], rows: Rows, counts: Counts, op: str) -> Flat:
        n, dtype = counts[self.rank], sends[0].dtype
        if all(row[PLACE] >= 0 for row in rows):
            return reduce_ordered(self._in_place(sends[self.rank], rows, [n] * self.size, False), op)
        out = take(n, dtype)
        for start, parts in self._steps(sends, rows, False):
            first = start // dtype.itemsize
            target = out[first : first + self.piece // dtype.itemsize]
            reduce_ordered([part[: target.nbytes].view(dtype) for part in parts], op, target)
        return out

    def _steps(self, sends: list[Flat], rows: Rows, whole: bool) -> Iterator[tuple[int, list[Flat]]]:
        """Piece by piece: where it starts (bytes), and each member's piece for this one."""
        piece, me = self.piece, self.rank
        mine = [part.view(np.uint8) for part in sends]
        incoming = [
            (row[PLACE], 0, row[BYTES])
            if whole
            else (row[PLACE], row[OFFSETS + me], row[OFFSETS + me + 1] - row[OFFSETS + me])
            for row in rows
        ]
        if whole:
            longest = max(row[BYTES] for row in rows)
        else:
            longest = max(row[k + 1] - row[k] for row in rows for k in range(OFFSETS, OFFSETS + self.size))
        staged = rows[me][PLACE] < 0
        receivers = [(me + 1) % self.size] if whole else [i for i in range(self.size) if i != me]
        for start in range(0, longest, piece):
            self.epoch += 1
            stage = self.region.stages[self.epoch & 1]
            if staged:
                for i in receivers:
                    part = mine[i][start : start + piece]
                    at = stage if whole else stage + i * piece
                    self.mine[at : at + len(part)] = part
            self._arrive()
            parts = []
            for i, (place, offset, nbytes) in enumerate(incoming):
                length = max(0, min(piece, nbytes - start))
                if i == me:
                    parts.append(mine[i][start : start + length])
                    continue
                own = stage if whole else stage + me * piece
                at = place + offset + start if place >= 0 else own
                parts.append(self.views[i][at : at + length])
            yield start, parts

    def _pipeline(self, send: Flat, rows: Rows, op: str) -> Flat:
        """All-reduce in chunks of a piece per member.

        Between two barriers every rank reduces its piece of one chunk, copies the others' results of the chunk
        before, and stages its data for the chunk after.
        """
        n, dtype, p, me = len(send), send.dtype, self.size, self.rank
        item, piece, stages = dtype.itemsize, self.piece, self.region.stages
        step = piece // item
        out = take(n, dtype)
        places = [row[PLACE] for row in rows]

        def bounds(chunk: int, member: int) -> tuple[int, int]:
            low = chunk * step * p
            high = min(n, low + step * p)
            width = -(-(high - low) // p)
            return min(high, low + member * width), min(high, low + (member + 1) * width)

        def at(member: int, place: int, nbytes: int) -> Flat:
            return self.views[member][place : place + nbytes].view(dtype)

        def stage(chunk: int, half: int) -> None:
            for i in range(p):
                if i != me and places[me] < 0:
                    low, high = bounds(chunk, i)
                    at(me, stages[half] + (i + 1) * piece, (high - low) * item)[...] = send[low:high]

        def source(member: int, low: int, high: int, half: int) -> Flat:
            if member == me:
                return send[low:high]
            place = places[member]
            place = place + low * item if place >= 0 else stages[half] + (me + 1) * piece
            return at(member, place, (high - low) * item)

        def collect(chunk: int, half: int) -> None:
            for i in range(p):
                if i != me:
                    low, high = bounds(chunk, i)
                    out[low:high] = at(i, stages[half], (high - low) * item)

        chunks = -(-n // (step * p))
        self.epoch += 1
        stage(0, self.epoch & 1)
        self._arrive()
        for chunk in range(chunks):
            here, there = self.epoch & 1, (self.epoch + 1) & 1
            low, high = bounds(chunk, me)
            result = at(me, stages[there], (high - low) * item)
            reduce_ordered([source(i, low, high, here) for i in range(p)], op, result)
            out[low:high] = result
            if chunk > 0:
                collect(chunk - 1, here)
            if chunk + 1 < chunks:
                stage(chunk + 1, there)
            self.epoch += 1
            self._arrive()
        collect(chunks - 1, self.epoch & 1)
        return out


def _alike(rows: Rows) -> bool:
    """Every part that any member sends has the same size: seen alike by all."""
    first = rows[0][OFFSETS + 1]
    return all(row[k + 1] - row[k] == first for row in rows for k in range(OFFSETS, OFFSETS + len(rows)))


@lru_cache(maxsize=1024)
def _offsets(counts: tuple[int, ...], item: int) -> tuple[int, ...]:
    return tuple(accumulate((n * item for n in counts), initial=0))


class SharedComm(MPIComm[Group]):
    """One heap per mesh; groups that reach beyond the node, or have no room in it, use MPI alone."""

    def __init__(self, mesh: Mesh, rank: int, parent: MPI.Intracomm) -> None:
        super().__init__(mesh, rank, parent)
        self.heap = Heap(self.comm, mesh.sizes)

    def _make(self, axes: tuple[str, ...], positions: list[int]) -> Group:
        plain = MPIGroup(self.sub(positions))
        mask = sum(1 << i for i, name in enumerate(self.mesh.axis_names) if name in axes)
        region = self.heap.regions.get(mask)
        if region is None or any(position not in self.heap.views for position in positions):
            return plain
        return SharedGroup(plain, self.heap, region, positions)


class SharedWorld(MPIWorld):
    """MPI, with shared memory between the ranks of a node."""

    def _make(self, mesh: Mesh) -> Comm[Group]:
        return SharedComm(mesh, self.rank, self.mpi)
