"""Waits of MPI that last, because a rank that they wait for has come to the end of its program.

MPI waits for ever then. So a thread looks now and then at what this rank waits for. It sends nothing before a wait has
lasted `PATIENCE`; then it asks the ranks that are waited for, one after another, how many collectives of that group
they have come to. A rank that goes on says nothing; one that has ended does, from within MPI_Finalize
(bindings/farewell.h). The calls that wait stay MPI's own blocking ones. It needs an MPI that several threads may call.
"""

from __future__ import annotations

import atexit
import hashlib
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

import numpy as np

from spmdx.errors import RanksDisagree
from spmdx.runtime.kernels import farewell_at_end, own_count

PATIENCE = 2.0  # seconds of a wait before anybody is asked
LOOK = 0.5  # seconds between two looks
PACE = 0.1  # seconds between two questions: a long wait for a rank at work must not flood it
UNDERWAY = 0.2  # seconds that a message may take which was sent before its sender ended

QUESTION, ANSWER = 1, 2  # tags, as in bindings/farewell.h
FUNCTIONS = ("Comm_create_keyval", "Comm_set_attr", "Ibarrier", "Test", "Improbe", "Mrecv", "Send")


def never_comes(rank: int, what: str) -> RanksDisagree:
    """The error of a rank that waits in a collective for one that has come to the end of its program."""
    return RanksDisagree(
        f"{what}: this rank waits for rank {rank}, which has come to the end of its program.",
        "total = float(x.sum())  # on every rank; then `if mesh.rank == 0:` print it",
    )


class Wait:
    """A context around a call that returns when these ranks (of COMM_WORLD) have come to a group's collective."""

    __slots__ = ("key", "number", "ranks", "what")

    def __init__(self, what: str, ranks: Sequence[int], key: int = 0, number: int = 1) -> None:
        self.what, self.ranks, self.key, self.number = what, ranks, key, number

    def __enter__(self) -> None:
        _now[0] = self

    def __exit__(self, *_: object) -> None:
        _now[0] = None


_now: list[Wait | None] = [None]  # what this process waits for


def _lasts(wait: Wait, number: int) -> bool:
    """Whether this process still waits for that."""
    return _now[0] is wait and wait.number == number


class Members(Wait):
    """The ranks of a group, and how many of its collectives this rank has come to: the context of each of them.

    ``name``: what only this group has, alike on all members.
    """

    __slots__ = ("_count",)

    def __init__(self, ranks: Sequence[int], name: object) -> None:
        digest = hashlib.blake2b(repr((*ranks, name)).encode(), digest_size=8).digest()
        super().__init__("", tuple(ranks), int.from_bytes(digest, "little", signed=True), 0)
        row = np.array([self.key, 0])
        own_count(row)
        self._count = row.data

    def all(self, what: str) -> Wait:
        """This rank comes to the next collective."""
        self.what = what
        self.number = self._count[1] = self.number + 1
        return self

    def later(self, what: str) -> Wait:
        """It begins the next collective, and will wait for it later."""
        self.all(what)
        return Wait(what, self.ranks, self.key, self.number)

    def one(self, what: str, i: int) -> Wait:
        """It waits for one member's part of a message between the two."""
        return Wait(what, self.ranks[i : i + 1])


class Watch(threading.Thread):
    """Asks, when a wait lasts, and ends the run with the error of the line that waits."""

    def __init__(self, mpi: Any, comm: Any) -> None:
        super().__init__(name="spmdx-waits", daemon=True)
        self.mpi, self.comm = mpi, comm
        self.over = threading.Event()
        self.asked: dict[int, Any] = {}  # ranks that have not answered yet, and what was sent

    def run(self) -> None:
        wait, number, since = None, 0, 0.0
        while not self.over.wait(LOOK):
            if wait is None or not _lasts(wait, number):
                wait, since = _now[0], monotonic()
                number = 0 if wait is None else wait.number
            elif monotonic() - since > PATIENCE - LOOK:
                with suppress(self.mpi.Exception):  # that nobody can be asked must not end a run
                    self._ask(wait, number)

    def stop(self) -> None:
        """Before MPI ends."""
        self.over.set()
        self.join(1.0)

    def _ask(self, wait: Wait, number: int) -> None:
        me = self.comm.rank
        at = wait.ranks.index(me) if me in wait.ranks else 0
        left = deque(rank for rank in (*wait.ranks[at:], *wait.ranks[:at]) if rank != me)
        while _lasts(wait, number) and not self.over.wait(PACE):
            if left:
                rank = left.popleft()
                if rank not in self.asked:
                    question = np.array([me, wait.key])
                    self.asked[rank] = self.comm.Isend(question, rank, QUESTION), question
            for rank, key, count in self._answers():
                if rank in wait.ranks and key != wait.key:
                    left.appendleft(rank)  # it was asked during another wait, and has ended since
                elif rank in wait.ranks and count < number and not self.over.wait(UNDERWAY) and _lasts(wait, number):
                    self._end(never_comes(rank, wait.what))

    def _answers(self) -> Iterator[tuple[int, int, int]]:
        status = self.mpi.Status()
        while message := self.comm.Improbe(self.mpi.ANY_SOURCE, ANSWER, status):
            reply = np.empty(2, np.int64)
            message.Recv(reply)
            self.asked.pop(status.source)[0].Wait()
            yield status.source, int(reply[0]), int(reply[1])

    def _end(self, error: RanksDisagree) -> None:
        """End all ranks, as if the error were raised where the wait is: MPI cannot be called off."""
        frames, trace = sys._current_frames(), None
        del frames[threading.get_ident()]
        where = (f for f in frames.values() if f.f_globals.get("__name__", "").startswith("spmdx.runtime."))
        frame = next(where, None)
        while frame is not None:
            trace, frame = types.TracebackType(trace, frame, frame.f_lasti, frame.f_lineno), frame.f_back
        sys.excepthook(RanksDisagree, error, trace)  # which ends all ranks (failing.py), unless it is another one now
        self.over.wait(PATIENCE)
        self.comm.Abort(1)


def watch(mpi: Any, comm: Any, address: Callable[[str], int]) -> None:
    """Learn of ranks that have ended, by messages over a communicator of all ranks that is made for this."""
    try:
        addresses = [address(f"MPI_{name}") for name in FUNCTIONS]
    except (AttributeError, OSError):  # an MPI whose functions are not to be found by name: the others get no answer
        return
    handles = (mpi._handleof(x) for x in (mpi.COMM_SELF, comm, mpi.BYTE))
    if farewell_at_end(addresses, *handles, mpi.ANY_SOURCE) and mpi.Query_thread() == mpi.THREAD_MULTIPLE:
        thread = Watch(mpi, comm)
        thread.start()
        atexit.register(thread.stop)
