"""Collectives that have begun and are not waited for yet: a request, and what makes blocks of what arrives.

MPI moves nothing by itself: `progress` looks after the requests, from wherever a program comes by often. They end in
the order in which they began, on whichever rank is asked first.
"""

from __future__ import annotations

import atexit
import ctypes
import threading
from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter, sleep
from typing import Any, Protocol

from spmdx.runtime import kernels
from spmdx.runtime.message import Block, Message, flat_message
from spmdx.runtime.pool import Flat, take
from spmdx.runtime.reduction import reduce_ordered

PAUSE = 1e-4  # seconds between two looks: a look costs about a microsecond
AT_THE_END = 5.0  # seconds that a process waits for what has begun


class Request(Protocol):
    """What a transport has of something begun."""

    def test(self) -> bool:
        """True if it is done; moves it on where nothing else does."""

    def wait(self) -> object:
        """Return when it is done."""


class Arrived:
    """What every member sent, as a group that gives it: the verbs of `runtime.comm.Group`."""

    take = staticmethod(take)

    def __init__(self, parts: Sequence[Flat]) -> None:
        self.parts = parts

    def all_gather(self, send: Flat, counts: Sequence[int], out: Flat | None = None) -> list[Flat]:
        """Every member's message; one after another in ``out``, where they may lie already."""
        if out is not None:
            at = 0
            for part in self.parts:
                out[at : at + len(part)] = part
                at += len(part)
        return list(self.parts)

    def all_to_all(self, send: Flat, counts: Any, incoming: Any, out: Flat | None = None) -> list[Flat]:
        """What every member packed for this one."""
        return self.all_gather(send, counts, out)

    def reduce_scatter(self, send: Flat, counts: Sequence[int], op: str) -> Flat:
        """The reduction, in member order, of what every member packed for this one."""
        return reduce_ordered(self.parts, op)

    def all_reduce(self, send: Flat, op: str) -> Flat:
        """What was reduced on its way."""
        return self.parts[0]


class Pending:
    """One collective that has begun. It holds the memory that is being sent until it is done."""

    def __init__(
        self, message: Message, sent: Flat, parts: Sequence[Flat], request: Request, group: Any = None
    ) -> None:
        self._left: tuple[Any, ...] | None = (message, sent, request, group or Arrived(parts))
        self._blocks: list[Block] = []
        self._done = False  # and no longer in the order
        self._order = here.going
        self._order.append(self)
        kernels.underway(1)
        atexit.unregister(finish)  # to come before what ends MPI, which was registered meanwhile
        atexit.register(finish)

    def look(self) -> bool:
        """True if it is done."""
        return self._left is None or self._left[2].test()

    def _next(self) -> Pending:
        """The oldest, which is none of those on their way any more."""
        kernels.underway(-1)
        return self._order.popleft()

    def wait(self) -> list[Block]:
        """The blocks, when they have come."""
        while self._left is not None:
            oldest = self if self._done else self._next()
            if oldest._left is not None:
                message, sent, request, group = oldest._left
                request.wait()
                oldest._blocks = message.sent(sent, group)
                oldest._left = None
        return self._blocks


class Halves:
    """An all-reduce in two collectives that begin: the first brings every member the sums of its share, the second all
    shares to all. Members begin a communicator's collectives in one order, so that the second waits for a line of the
    program that all come to, and not for the first to be done."""

    def __init__(self, group: Any, message: Message, flat: Flat, counts: Sequence[int]) -> None:
        self.group, self.message, self.counts = group, message, tuple(counts)
        own = (counts[group.rank],)
        first = flat_message("reduce_scatter", message.op, message.dtype, self.counts, own, message.what)
        self._shares: Pending | None = group.begin(first, [flat])
        self._whole: Pending | None = None
        self._blocks: list[Block] = []

    def gather(self) -> None:
        """Begin the second, once the first is done; nothing if it has begun."""
        if self._shares is not None:
            [share], what = self._shares.wait(), self.message.what
            second = flat_message("all_gather", None, self.message.dtype, (len(share),), self.counts, what)
            self._shares, self._whole = None, self.group.begin(second, [share])

    def wait(self) -> list[Block]:
        """The blocks, when they have come."""
        self.gather()
        if self._whole is not None:
            [flat] = self._whole.wait()
            self._blocks, self._whole = self.message.split(flat, self.group.take), None
        return self._blocks


class _Here(threading.local):
    """Of one rank, which may be a thread: what has begun, in order, and when it was looked after."""

    def __init__(self) -> None:
        self.going: deque[Pending] = deque()
        self.looked = 0.0


here = _Here()


def progress() -> None:
    """Let what has begun go on, at most every 100 microseconds; nothing if nothing has. What is done stays with those
    alone who want it."""
    if here.going:
        now = perf_counter()
        if now - here.looked > PAUSE:
            here.looked = now
            while here.going and here.going[0].look():
                here.going[0]._next()._done = True


kernels.tell_progress(progress, PAUSE)


def settle() -> None:
    """Wait for all that has begun, for the same on every rank."""
    while here.going:
        here.going[0].wait()


def finish() -> None:
    """Wait for all that has begun, though not for ever: a rank that fails must not wait for others to do their part.
    What is left is never freed."""
    until = perf_counter() + AT_THE_END
    while here.going and perf_counter() < until:
        progress()
        sleep(PAUSE)
    for pending in here.going:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(pending))


class Coming:
    """One block of a pending collective, and what is still to be done with it."""

    def __init__(self, pending: Pending | Halves, number: int, finish: Callable[[Block], Block]) -> None:
        self.pending, self.number, self.finish = pending, number, finish

    def wait(self) -> Block:
        """The block, when it has come."""
        return self.finish(self.pending.wait()[self.number])
