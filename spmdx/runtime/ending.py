"""The end of a process that is one rank of several, and how those learn of it that would wait for it for ever.

Whoever ends with an error ends all ranks (failing.py). Whoever ends well says so in memory that the ranks of its node
share, before MPI's own end, which waits for every rank; others ask by messages (waiting.py).
"""

from __future__ import annotations

import atexit
import ctypes
import sys
import time
from typing import Any

import mpi4py
import numpy as np

from spmdx.runtime import waiting
from spmdx.runtime.kernels import end_together, own_slot, say_ended
from spmdx.runtime.pool import Flat
from spmdx.runtime.waiting import UNDERWAY, never_comes

LOADED_BEFORE = "mpi4py.MPI" in sys.modules
if not LOADED_BEFORE:
    mpi4py.rc.finalize = False  # MPI's end is ours, for it depends on the exit status

from mpi4py import MPI as MPI  # noqa: E402 - after the line above

ENDED = 63  # the bit of a slot whose rank has ended


def _address(function: str) -> int:
    return ctypes.cast(getattr(ctypes.CDLL(MPI.__file__), function), ctypes.c_void_p).value or 0


def _take_the_end() -> bool:
    """Finalize MPI when this process ends, or abort every rank where its status is not 0: True if both are done."""
    if LOADED_BEFORE:
        return False  # mpi4py finalizes
    try:
        addresses = [_address(name) for name in ("MPI_Abort", "MPI_Finalize", "MPI_Finalized")]
        if end_together(*addresses, MPI._handleof(MPI.COMM_WORLD)):
            return True
    except (AttributeError, OSError):
        pass  # an MPI whose functions are not to be found by name
    atexit.register(MPI.Finalize)
    return False


KNOWS_STATUS = _take_the_end()

_slots: dict[int, Flat] = {}  # of the ranks of this node, by rank in COMM_WORLD; a slot is never freed
_comm: list[MPI.Intracomm] = []  # for messages of our own, which no receive of the program can catch


def watch() -> None:
    """Let ranks learn who of them has come to its end. Collective over COMM_WORLD, once."""
    if _comm:
        return
    world = MPI.COMM_WORLD
    node: Any = world.Split_type(MPI.COMM_TYPE_SHARED)
    window = MPI.Win.Allocate_shared(64, 1, comm=node)
    for rank, place in enumerate(node.group.Translate_ranks(list(range(node.size)), world.group)):
        shared: Any = window.Shared_query(rank)[0]
        _slots[place] = np.frombuffer(shared, np.uint64)
    _slots[world.rank][0] = 0
    node.Barrier()
    own_slot(_slots[world.rank])
    if not KNOWS_STATUS:
        atexit.register(say_ended)
    _comm.append(world.Dup())
    waiting.watch(MPI, _comm[0], _address)


def meet(comm: MPI.Intracomm, members: list[int], what: str) -> None:
    """Return when all members have come here, and raise on those that wait for one that has ended.

    MPI's own collectives would wait for ever, so this goes before those that make a communicator. In each round a rank
    hears of twice as many as before.
    """
    if not _comm:
        return
    ranks = comm.group.Translate_ranks(members, MPI.COMM_WORLD.group)
    me, nothing, shift = members.index(comm.rank), np.empty(0, np.uint8), 1
    while shift < len(ranks):
        source = ranks[(me - shift) % len(ranks)]
        sent = _comm[0].Isend(nothing, ranks[(me + shift) % len(ranks)])
        heard, tries, since = _comm[0].Irecv(nothing, source, 0), 0, 0.0
        with waiting.Wait(what, [source]):
            while not heard.Test():
                tries += 1
                time.sleep(0 if tries < 1000 else 1e-4)
                if source in _slots and int(_slots[source][0]) >> ENDED:
                    since = since or time.monotonic()
                    if time.monotonic() - since > UNDERWAY:
                        raise never_comes(source, what)
        sent.Wait()
        shift *= 2
