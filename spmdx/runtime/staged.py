"""Messages between GPUs by way of host memory: copied down, sent as the host's messages are, and copied up again.

Sums are made on the host, by the code and in the order that blocks in host memory have: the results are the same bits.
"""

from __future__ import annotations

from typing import Any

from spmdx.mesh import Mesh
from spmdx.runtime import gpu
from spmdx.runtime.comm import Comm, Counts, Group, cut

Flat = Any  # CuPy's on the one side, NumPy's on the other


class StagedGroup(Group):
    """A group whose members' blocks lie on GPUs, and the group of the same ranks that sends from host memory."""

    def __init__(self, plain: Group) -> None:
        self.plain, self.rank, self.size = plain, plain.rank, plain.size
        self.device = gpu.here()
        self.take: Any = self.device.xp.empty

    def _down(self, send: Flat) -> Flat:
        """The host's copy, when it has arrived."""
        with self.device.sending() as stream:
            out = self.device.pinned(len(send), send.dtype)
            send.get(stream=stream, out=out, blocking=False)
        stream.synchronize()
        return out

    def _up(self, found: Flat, out: Flat | None = None) -> Flat:
        """The device's copy: nothing waits for it but what is enqueued later."""
        out = self.take(len(found), found.dtype) if out is None else out  # before: memory belongs to a stream
        staged = self.device.pinned(len(found), found.dtype)
        staged[...] = found
        with self.device.sending() as stream:
            out.set(staged)
            self.device.keep(stream, staged)
        return out

    def _gather(self, send: Flat, counts: Counts, out: Flat | None, what: str) -> list[Flat]:
        whole = self.device.pinned(sum(counts), send.dtype)
        self.plain.all_gather(self._down(send), counts, out=whole)
        return cut(self._up(whole, out), counts)

    def _exchange(
        self, send: Flat, send_counts: Counts, recv_counts: Counts, out: Flat | None, what: str
    ) -> list[Flat]:
        whole = self.device.pinned(sum(recv_counts), send.dtype)
        self.plain.all_to_all(self._down(send), send_counts, recv_counts, out=whole)
        return cut(self._up(whole, out), recv_counts)

    def reduce_scatter(self, send: Flat, counts: Counts, op: str) -> Flat:
        return self._up(self.plain.reduce_scatter(self._down(send), counts, op))

    def all_reduce(self, send: Flat, op: str) -> Flat:
        return self._up(self.plain.all_reduce(self._down(send), op))

    def broadcast(self, buf: Flat, root: int) -> None:
        """By the host."""
        staged = self._down(buf)
        self.plain.broadcast(staged, root)
        self._up(staged, buf)

    def send(self, buf: Flat, to: int) -> None:
        """By the host."""
        self.plain.send(self._down(buf), to)

    def recv(self, buf: Flat, source: int) -> None:
        """By the host."""
        staged = self.device.pinned(len(buf), buf.dtype)
        self.plain.recv(staged, source)
        self._up(staged, buf)

    def barrier(self) -> None:
        """Of the hosts."""
        self.plain.barrier()


class StagedComm(Comm[StagedGroup]):
    """The groups of a mesh of GPUs, each beside the host's group of the same axes."""

    def __init__(self, mesh: Mesh, rank: int, plain: Any) -> None:
        super().__init__(mesh, rank)
        self.plain = plain

    def _make(self, axes: tuple[str, ...], positions: list[int]) -> StagedGroup:
        return StagedGroup(self.plain.group(axes))
