"""Ranks that are threads of one process: the same collective code, for tests and notebooks.

Ranks meet at a table under one lock. Nobody waits in vain: a rank that ends, fails, or comes to another verb than
the others is noticed at once, and everyone who waits is told.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from spmdx import context
from spmdx.errors import RanksDisagree
from spmdx.mesh import Mesh
from spmdx.runtime import memory
from spmdx.runtime.comm import Comm, Counts, Group, World, cut
from spmdx.runtime.pool import Flat


class Broken(RanksDisagree):
    """Told to the ranks that wait when another one has failed; never the first error."""


@dataclass
class Meeting:
    """One collective while its members arrive: what each brings, and, once all are there, leave to go on."""

    members: tuple[int, ...]
    brought: dict[int, tuple[str, Any]] = field(default_factory=dict)
    complete: bool = False
    error: str | None = None


class Table:
    """What the thread ranks of one world share."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.lock = threading.Condition()
        self.meetings: dict[Any, Meeting] = {}
        self.mail: dict[Any, deque[tuple[str, Flat]]] = {}
        self.waiting: dict[int, tuple[str, Callable[[], bool], tuple[int, ...]]] = {}
        self.ended: set[int] = set()
        self.broken: str | None = None

    def break_up(self, reason: str) -> None:
        """Tell every rank that waits, and every rank that comes later, that the run is over."""
        with self.lock:
            self.broken = self.broken or reason
            self.lock.notify_all()

    def end(self, rank: int) -> None:
        """A rank has returned: ranks that wait for it learn so."""
        with self.lock:
            self.ended.add(rank)
            self._look_for_stuck()
            self.lock.notify_all()

    def meet(self, key: Any, members: tuple[int, ...], rank: int, what: str, value: Any) -> list[Any]:
        """Bring a value and a description to the other members; returns their values, in member order."""
        with self.lock:
            self._check()
            meeting = self.meetings.setdefault(key, Meeting(members))
            meeting.brought[rank] = (what, value)
            if len(meeting.brought) == len(members):
                del self.meetings[key]
                if len({said for said, _ in meeting.brought.values()}) > 1:
                    each = "".join(f"\n  rank {r}: {meeting.brought[r][0]}" for r in members)
                    meeting.error = f"the ranks came to different collectives:{each}"
                meeting.complete = True
                self.lock.notify_all()
            else:
                self._wait(rank, what, lambda: meeting.complete, members)
            if meeting.error:
                raise RanksDisagree(meeting.error, "the same calls on every rank")
            return [meeting.brought[r][1] for r in members]

    def post(self, key: Any, what: str, data: Flat) -> None:
        """Leave a message for one rank."""
        with self.lock:
            self._check()
            self.mail.setdefault(key, deque()).append((what, data))
            self.lock.notify_all()

    def collect(self, key: Any, rank: int, source: int, what: str) -> Flat:
        """Wait for a message from one rank."""
        with self.lock:
            self._check()
            box = self.mail.setdefault(key, deque())
            if not box:
                self._wait(rank, what, lambda: bool(box), (source,))
            said, data = box.popleft()
            if said != what:
                message = f"rank {rank} waits for {what}, and rank {source} sent {said}."
                raise RanksDisagree(message, "x.to(mesh, placement) with the same arguments on every rank")
            return data

    def _check(self) -> None:
        if self.broken:
            raise Broken(self.broken)

    def _wait(self, rank: int, what: str, ready: Callable[[], bool], on: tuple[int, ...]) -> None:
        self.waiting[rank] = (what, ready, on)
        try:
            self._look_for_stuck()
            while not ready():
                self._check()
                self.lock.wait()
        finally:
            del self.waiting[rank]

    def _look_for_stuck(self) -> None:
        """Break up when somebody waits for a rank that has ended, or when everybody waits."""
        if self.broken:
            return
        stuck = {r: (what, on) for r, (what, ready, on) in self.waiting.items() if not ready()}
        gone = {r for _, on in stuck.values() for r in on if r in self.ended}
        if gone or (stuck and len(stuck) + len(self.ended) == self.size):
            each = "".join(f"\n  rank {r} waits in {what}" for r, (what, _) in sorted(stuck.items()))
            each += "".join(f"\n  rank {r} has returned" for r in sorted(gone))
            self.broken = f"ranks wait for one another for ever:{each}\n  Write the same calls on every rank"
            self.lock.notify_all()


class ThreadGroup(Group):
    """Members of one table. Messages are copied once, so the views handed out stay good."""

    def __init__(self, table: Table, name: Any, ranks: tuple[int, ...], rank: int) -> None:
        self.table, self.name, self.ranks, self.me = table, name, ranks, rank
        self.size, self.rank = len(ranks), ranks.index(rank)
        if name[0].device == "cuda":
            self.take = memory.space("cuda").empty
        self._turn = 0

    def _meet(self, what: str, value: Any) -> list[Any]:
        if self.size == 1:
            return [value]
        self._turn += 1
        return self.table.meet((self.name, self.ranks, self._turn), self.ranks, self.me, what, value)

    def _gather(self, send: Flat, counts: Counts, out: Flat | None, what: str) -> list[Flat]:
        said = f"{what} of {send.dtype.name} {list(counts)}"
        if len(send) != counts[self.rank]:
            said += f" with {len(send)} elements from member {self.rank}"
        return _placed(self._meet(said, send.copy()), out)

    def _exchange(
        self, send: Flat, send_counts: Counts, recv_counts: Counts, out: Flat | None, what: str
    ) -> list[Flat]:
        said = f"{what} of {send.dtype.name}"
        if what != "all_to_all":
            said += f" {list(send_counts)}"  # a reduction's counts are the same on every rank
        met = self._meet(said, (cut(send.copy(), send_counts), tuple(send_counts), tuple(recv_counts)))
        sends, receives = [m[1] for m in met], [m[2] for m in met]
        pairs = [(i, j) for i in range(self.size) for j in range(self.size) if sends[i][j] != receives[j][i]]
        if pairs:  # seen alike by every member
            i, j = pairs[0]
            raise RanksDisagree(
                f"{what}: rank {self.ranks[i]} sends {sends[i][j]} elements to rank {self.ranks[j]}, which "
                f"expects {receives[j][i]}.",
                "the same calls with arrays of the same shapes, on every rank",
            )
        return _placed([m[0][self.rank] for m in met], out)

    def broadcast(self, buf: Flat, root: int) -> None:
        said = f"broadcast of {buf.dtype.name} [{len(buf)}] from member {root}"
        given = self._meet(said, buf.copy() if self.rank == root else None)
        if self.rank != root:
            buf[...] = given[root]

    def barrier(self) -> None:
        self._meet("barrier", None)

    def send(self, buf: Flat, to: int) -> None:
        self.table.post((self.name, self.me, self.ranks[to]), _message(buf), buf.copy())

    def recv(self, buf: Flat, source: int) -> None:
        sender = self.ranks[source]
        buf[...] = self.table.collect((self.name, sender, self.me), self.me, sender, _message(buf))


def _message(buf: Flat) -> str:
    return f"a message of {buf.dtype.name} [{len(buf)}]"


def _placed(parts: list[Flat], out: Flat | None) -> list[Flat]:
    if out is None:
        return parts
    views = cut(out, [len(part) for part in parts])
    for view, part in zip(views, parts):
        view[...] = part
    return views


class ThreadComm(Comm[ThreadGroup]):
    def __init__(self, mesh: Mesh, rank: int, table: Table) -> None:
        super().__init__(mesh, rank)
        self.table, self.me = table, rank

    def _make(self, axes: tuple[str, ...], positions: list[int]) -> ThreadGroup:
        ranks = tuple(self.mesh.ranks[i] for i in positions)
        return ThreadGroup(self.table, (self.mesh, axes), ranks, self.me)


class ThreadWorld(World[ThreadComm]):
    """One thread rank's world."""

    kind = "threads"

    def __init__(self, table: Table, rank: int) -> None:
        super().__init__(rank, table.size)
        self.table = table
        self.of_gpu = lambda world, mesh: world._make(mesh)  # ranks of one process hand each other their blocks

    def _make(self, mesh: Mesh) -> ThreadComm:
        return ThreadComm(mesh, self.rank, self.table)


class ThreadRun:
    """One run of a function on ``n`` thread ranks: results by rank, and errors in the order in which they came."""

    def __init__(self, n: int) -> None:
        self.table = Table(n)
        self.results: list[Any] = [None] * n
        self.errors: list[tuple[int, BaseException]] = []

    def work(self, rank: int, call: Callable[[], Any]) -> None:
        """What the thread of one rank does."""
        context.enter(context.State(world=ThreadWorld(self.table, rank), rank=rank))
        try:
            self.results[rank] = call()
        except BaseException as error:  # handed to the caller by `first_error`
            self.errors.append((rank, error))
            self.table.break_up(f"rank {rank} failed with {type(error).__name__}: {error}")
        finally:
            self.table.end(rank)

    def first_error(self) -> tuple[int, BaseException] | None:
        """The error that began it: not one that only tells of another rank's. Of several, the lowest rank's."""
        firsts = [e for e in self.errors if not isinstance(e[1], Broken)] or self.errors
        return min(firsts, key=lambda e: e[0]) if firsts else None
