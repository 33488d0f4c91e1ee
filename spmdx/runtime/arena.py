"""Memory of each rank that the other ranks of its node have mapped. Large blocks lie in it, so that what one rank has
computed is read from there by plain loads, and results are written to where they go.

It is a file without a name, as large as the rank's share of the node's memory; only what is in use takes memory, and
all of it goes back when the processes end.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from spmdx.runtime import kernels, pool
from spmdx.runtime.mpi import MPI

Window = tuple[int, int, int]  # of a rank: where its arena begins in its memory, the bytes, and where it lies in mine

_first: list[pool.Flat] = []  # what an arena begins with


def share(comm: MPI.Intracomm) -> dict[int, Window]:
    """Open this rank's arena and map those of the others on this node: theirs by their ranks; none, on all of the
    node's ranks alike, where one of them cannot. Collective."""
    node: Any = comm.Split_type(MPI.COMM_TYPE_SHARED)
    ranks = node.group.Translate_ranks(list(range(node.size)), comm.group)
    known = node.allgather(_opened(node.size))
    found = [] if None in known else [_mapped(i == node.rank, *each) for i, each in enumerate(known)]
    works = all(node.allgather(bool(found) and all(here for _, _, here in found)))
    node.Free()
    if not works:
        return {}
    pool.use(kernels.take_shared)
    return dict(zip(ranks, found))


def _opened(ranks: int) -> tuple[int, int, int, int, bytes] | None:
    """This process and its arena: file, address, bytes, and a mark at its beginning. None where the system has no such
    files, or bounds them or the address space of a process, or a user does not want it (SPMDX_ARENA=0)."""
    if os.environ.get("SPMDX_ARENA") == "0":
        return None
    try:
        opened = kernels.open_shared(kernels.memory_of_node() // ranks)
    except (RuntimeError, ValueError):
        return None
    if not _first:
        mark = kernels.take_shared(16, np.dtype(np.uint8))
        if mark is None:  # the system has no memory
            return None
        mark[:] = np.frombuffer(os.urandom(16), np.uint8)
        _first.append(mark)
    return os.getpid(), *opened, _first[0].tobytes()


def _mapped(mine: bool, process: int, file: int, address: int, nbytes: int, mark: bytes) -> Window:
    return address, nbytes, address if mine else kernels.map_arena(process, file, nbytes, mark)
