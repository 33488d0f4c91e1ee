"""Ranks that are MPI processes. Every message travels as bytes, so every dtype does, bfloat16 included."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from spmdx.mesh import Mesh
from spmdx.runtime.comm import Comm, Counts, Group, World, cut
from spmdx.runtime.ending import MPI as MPI
from spmdx.runtime.ending import meet, watch
from spmdx.runtime.kernels import set_threads
from spmdx.runtime.message import Block, Message
from spmdx.runtime.pending import Pending
from spmdx.runtime.pool import Flat, take
from spmdx.runtime.waiting import Members, Wait

LARGE_COUNTS: bool = MPI.Get_version() >= (4, 0)  # before MPI 4 a count is a C int
LARGEST = 2**31 - 1
PIECE = 2**30  # bytes of one message where counts are C ints

GroupT = TypeVar("GroupT", bound=Group)


def library() -> str:
    """The name and version of the MPI library, in a line."""
    return MPI.Get_library_version().split("\n")[0].split(",")[0].strip(" \0").replace("\t", " ")


class MPIGroup(Group):
    """One MPI communicator."""

    def __init__(self, comm: MPI.Intracomm, name: object) -> None:
        self.comm = comm
        self.rank, self.size = comm.rank, comm.size
        ranks = comm.group.Translate_ranks(list(range(comm.size)), MPI.COMM_WORLD.group)
        self.members = Members(ranks, name)

    @property
    def begins(self) -> bool:  # type: ignore[override]
        """Where counts are C ints, long messages go by pieces, which are waited for."""
        return self.size > 1 and LARGE_COUNTS

    def _gather(self, send: Flat, counts: Counts, out: Flat | None, what: str) -> list[Flat]:
        dtype = send.dtype
        if out is None:
            out = take(sum(counts), dtype)
        source, target = send.view(np.uint8), out.view(np.uint8)
        with self.members.all(what):
            if not LARGE_COUNTS and out.nbytes > LARGEST:
                self._by_pieces([source] * self.size, cut(target, [n * dtype.itemsize for n in counts]))
            elif min(counts) == max(counts):
                self.comm.Allgather(source, target)
            else:
                self.comm.Allgatherv(source, [target, [n * dtype.itemsize for n in counts]])
        return cut(out, counts)

    def _exchange(
        self, send: Flat, send_counts: Counts, recv_counts: Counts, out: Flat | None, what: str
    ) -> list[Flat]:
        # A reduction's parts are the same on all ranks; where they are of one size too, MPI is faster.
        alike = what != "all_to_all" and min(send_counts) == max(send_counts)
        dtype = send.dtype
        if out is None:
            out = take(sum(recv_counts), dtype)
        source, target = send.view(np.uint8), out.view(np.uint8)
        sends, receives = ([n * dtype.itemsize for n in counts] for counts in (send_counts, recv_counts))
        with self.members.all(what):
            if not LARGE_COUNTS and not (alike and self.size * max(sends) <= LARGEST):
                # Other ranks' sizes are unknown, and one that has to go by pieces needs all to.
                self._by_pieces(cut(source, sends), cut(target, receives))
            elif alike:
                self.comm.Alltoall(source, target)
            else:
                self.comm.Alltoallv([source, sends], [target, receives])
        return cut(out, recv_counts)

    def begin(self, message: Message, blocks: Sequence[Block]) -> Pending | None:
        """An exchange or a gathering without waiting; sums are made when it has come."""
        if message.verb == "all_reduce" or not self.begins:
            return None
        gathers, itemsize = message.verb == "all_gather", message.dtype.itemsize
        counts = [message.counts[self.rank]] * self.size if message.reduces else message.incoming
        flat = message.packed(blocks, self.buffer)
        out = self.take(sum(counts), message.dtype)
        source, target = flat.view(np.uint8), [out.view(np.uint8), [n * itemsize for n in counts]]
        wait = self.members.later(message.what)
        if gathers:
            request = self.comm.Iallgatherv(source, target)
        else:
            request = self.comm.Ialltoallv([source, [n * itemsize for n in message.counts]], target)
        return Pending(message, flat, cut(out, counts), _Request(request, wait))

    def _by_pieces(self, sources: list[Flat], targets: list[Flat]) -> None:
        """Exchange by point-to-point messages small enough for C ints."""
        requests = []
        for shift in range(1, self.size):
            source, to = (self.rank - shift) % self.size, (self.rank + shift) % self.size
            for start in range(0, len(targets[source]), PIECE):
                requests.append(self.comm.Irecv(targets[source][start : start + PIECE], source))
            for start in range(0, len(sources[to]), PIECE):
                requests.append(self.comm.Isend(sources[to][start : start + PIECE], to))
        np.copyto(targets[self.rank], sources[self.rank])
        MPI.Request.Waitall(requests)

    def broadcast(self, buf: Flat, root: int) -> None:
        flat = buf.view(np.uint8)
        step = len(flat) if LARGE_COUNTS else PIECE
        with self.members.all("broadcast"):
            for start in range(0, len(flat), max(1, step)):
                self.comm.Bcast(flat[start : start + step], root)

    def send(self, buf: Flat, to: int) -> None:
        flat = buf.view(np.uint8)
        step = len(flat) if LARGE_COUNTS else PIECE
        with self.members.one("send", to):
            for start in range(0, max(1, len(flat)), max(1, step)):
                self.comm.Send(flat[start : start + step], to)

    def recv(self, buf: Flat, source: int) -> None:
        flat = buf.view(np.uint8)
        step = len(flat) if LARGE_COUNTS else PIECE
        with self.members.one("recv", source):
            for start in range(0, max(1, len(flat)), max(1, step)):
                self.comm.Recv(flat[start : start + step], source)

    def barrier(self) -> None:
        with self.members.all("a barrier"):
            self.comm.Barrier()


class _Request:
    """MPI's, by the names that `runtime.pending` has for it."""

    def __init__(self, request: MPI.Request, waits: Wait) -> None:
        self.request, self.waits = request, waits

    def test(self) -> bool:
        return self.request.Test()

    def wait(self) -> None:
        with self.waits:
            self.request.Wait()


class MPIComm(Comm[GroupT]):
    """One communicator per mesh, and one more per set of its axes, each made once."""

    def __init__(self, mesh: Mesh, rank: int, parent: MPI.Intracomm) -> None:
        super().__init__(mesh, rank)
        self.comm = _sub(parent, list(mesh.ranks))

    def sub(self, positions: list[int]) -> MPI.Intracomm:
        """A communicator of the ranks at some positions of the mesh, in that order."""
        return self.comm if len(positions) == self.comm.size else _sub(self.comm, positions)

    def name(self, axes: tuple[str, ...]) -> object:
        """What only the groups over these axes of this mesh have."""
        return self.mesh.axis_names, self.mesh.sizes, self.mesh.ranks, axes


class PlainComm(MPIComm[MPIGroup]):
    def _make(self, axes: tuple[str, ...], positions: list[int]) -> MPIGroup:
        return MPIGroup(self.sub(positions), self.name(axes))


def _sub(parent: MPI.Intracomm, ranks: list[int]) -> MPI.Intracomm:
    """A new communicator, made by its members alone."""
    meet(parent, ranks, "the first message between these ranks")
    group = parent.group.Incl(ranks)
    try:
        made = parent.Create_group(group)
    finally:
        group.Free()
    made.Set_errhandler(MPI.ERRORS_RETURN)
    return made


class MPIWorld(World[Any]):
    """The ranks of an MPI communicator."""

    kind = "mpi"

    def __init__(self, comm: MPI.Intracomm) -> None:
        super().__init__(comm.rank, comm.size)
        self.mpi = comm
        node = comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.local = node.rank
        node.Free()
        watch()

    def _make(self, mesh: Mesh) -> Comm[Any]:
        return PlainComm(mesh, self.rank, self.mpi)

    def abort(self, status: int) -> None:
        """End every rank of the run, now."""
        self.mpi.Abort(status)


def limit_threads(comm: MPI.Intracomm) -> int:
    """Give each rank of a node its share of the cores for BLAS and OpenMP; returns the share.

    SPMDX_THREADS says another number; OMP_NUM_THREADS, where the user has set it, is left to count.
    """
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    mine = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores: set[int] = set().union(*node.allgather(mine))
    share = max(1, min(len(mine), len(cores) // node.size))
    node.Free()
    for name in ("SPMDX_THREADS", "OMP_NUM_THREADS"):
        if os.environ.get(name, "").isdecimal():
            share = max(1, int(os.environ[name]))
            break
    set_threads(share)
    os.environ["OMP_NUM_THREADS"] = str(share)  # for libraries that are loaded later
    try:
        import threadpoolctl
    except ImportError:
        return share
    threadpoolctl.threadpool_limits(share)
    return share
