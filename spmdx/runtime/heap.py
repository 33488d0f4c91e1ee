"""Memory that the ranks of one node share: one MPI window per mesh, divided once among the groups of the mesh.

The window is never freed: freeing is collective, and finalisers run when they like. The system takes it back when
the processes end.
"""

from __future__ import annotations

import ctypes
import errno
import math
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from spmdx.runtime.kernels import reads
from spmdx.runtime.mpi import MPI
from spmdx.runtime.pool import Flat

SHARE = 8  # a mesh takes at most this part of the shared memory that is free
LARGEST = 2**26  # and a rank at most these bytes of it
LEAST = 2**16  # a heap with less than this is not worth it
PIECE = 2**18  # bytes that travel at once to one member: written and read again while still in a cache,
IN_FLIGHT = 2**24  # as long as the pieces of all members together are no more than this. Each piece costs a barrier, so
# that it is a page at least, and each of very many members has its pieces in its own core's cache.
LINE = 64  # a cache line: what different ranks write must not share one
PAGE = 4096
POPULATE = 23  # Linux's MADV_POPULATE_WRITE


@dataclass(frozen=True)
class Region:
    """Where one group's part lies, the same in every rank's heap (bytes from its start)."""

    control: int  # in the first member's heap: a slot per member; then, in every member's own, two headers
    row: int  # numbers in a header: bindings/channel.h counts them
    piece: int
    stages: tuple[int, int]  # two staging areas, each of members + 1 pieces


def divide(total: int, sizes: tuple[int, ...]) -> dict[int, Region]:
    """Regions of the groups of a mesh, by the set of axes as a bit mask; without those that have too little room."""
    members = {mask: math.prod(n for i, n in enumerate(sizes) if mask >> i & 1) for mask in range(1, 1 << len(sizes))}
    members = {mask: p for mask, p in members.items() if p > 1}
    rows = {mask: _up(2 * p + 5, LINE // 8) for mask, p in members.items()}
    at, controls = 0, {}
    for mask, p in members.items():
        controls[mask] = at
        at += p * LINE + 2 * rows[mask] * 8
    at = _up(at, PAGE)
    each = (total - at) // max(1, len(members)) // PAGE * PAGE
    regions = {}
    for mask, p in members.items():
        piece = min(PIECE, max(PAGE, IN_FLIGHT // p**2), each // (2 * (p + 1))) // LINE * LINE
        if piece >= PAGE:
            regions[mask] = Region(controls[mask], rows[mask], piece, (at, at + (p + 1) * piece))
        at += each
    return regions


def _up(n: int, unit: int) -> int:
    return -(-n // unit) * unit


class Heap:
    """The heaps of a mesh's ranks on this node, each a flat array of bytes that every one of them can touch."""

    def __init__(self, comm: MPI.Intracomm, sizes: tuple[int, ...]) -> None:
        node: Any = comm.Split_type(MPI.COMM_TYPE_SHARED)
        self.views: dict[int, Flat] = {}
        self.regions: dict[int, Region] = {}
        self.processes: dict[int, int] = {}  # their numbers, where these processes may read each other's memory
        mine_only: set[int] = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else {0}
        cores: set[int] = set().union(*node.allgather(mine_only))  # a launcher may bind each rank to its own
        self.crowded = node.size > len(cores)
        each = node.bcast(self._affordable(node.size) if node.rank == 0 else 0)
        if node.size == 1 or each < LEAST:
            return
        self.window: Any = MPI.Win.Allocate_shared(each, 1, comm=node)
        self.window.Lock_all(MPI.MODE_NOCHECK)
        places = node.group.Translate_ranks(list(range(node.size)), comm.group)
        for rank, place in enumerate(places):
            memory, _ = self.window.Shared_query(rank)
            shared: Any = memory
            self.views[place] = np.frombuffer(shared, np.uint8)
        regions, mine = divide(each, sizes), self.views[comm.rank]
        control = min((r.stages[0] for r in regions.values()), default=0)
        stages = [(r.stages[0], 2 * r.stages[1] - r.stages[0]) for r in regions.values()]
        if all(node.allgather(all(_hold(mine[a:b]) for a, b in [(0, control), *stages]))):
            mine[:control] = 0
            self.regions = regions
        node.Barrier()
        self.processes = dict(zip(places, _readable(node)))

    @staticmethod
    def _affordable(ranks: int) -> int:
        try:
            disk = os.statvfs("/dev/shm")
            free = disk.f_bavail * disk.f_frsize
        except OSError:  # no such place: the system's shared memory has no bound of its own
            free = SHARE * LARGEST
        return max(0, min(LARGEST, free // SHARE // ranks)) // PAGE * PAGE


def _readable(node: Any) -> list[int]:
    """The processes of this node's ranks if each can read the next one's memory, and so all each other's; or none."""
    mark = os.urandom(16)
    place = ctypes.create_string_buffer(mark, len(mark))
    known = node.allgather((os.getpid(), ctypes.addressof(place), mark))
    works = all(node.allgather(reads(*known[(node.rank + 1) % node.size])))  # the mark stays until all have looked
    return [process for process, _, _ in known] if works else []


def _hold(memory: Flat) -> bool:
    """Have the system give these pages now: False if it has no more. Later it would end the process (SIGBUS)."""
    ask = ctypes.CDLL(None, use_errno=True).madvise
    ask.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    start = memory.ctypes.data // PAGE * PAGE
    refused = ask(start, memory.ctypes.data + memory.nbytes - start, POPULATE)
    return not refused or ctypes.get_errno() == errno.EINVAL  # an older Linux cannot be asked
