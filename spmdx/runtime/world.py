"""Which ranks run this program: threads, MPI, or this process alone. Decided once, when something first asks."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from spmdx import context
from spmdx.errors import WorldError
from spmdx.mesh import Mesh
from spmdx.runtime import memory
from spmdx.runtime.comm import Comm, Counts, Group, World
from spmdx.runtime.pool import Flat


class Launched(NamedTuple):
    """What a launcher says of this process."""

    rank: int
    size: int
    by: str  # the variable that says so


# (rank, size) variables. Slurm's job variables are also set for a plain python inside a job, so its step's count.
LAUNCHERS = (
    ("PMI_RANK", "PMI_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("PMIX_RANK", "SLURM_STEP_NUM_TASKS"),
)


def launched(environ: Mapping[str, str] = os.environ) -> Launched | None:
    """The rank and number of ranks that a launcher gave this process, or None."""
    for rank, size in LAUNCHERS:
        if environ.get(rank, "").isdecimal() and environ.get(size, "").isdecimal():
            return Launched(int(environ[rank]), int(environ[size]), size)
    return None


def make() -> World[Any]:
    """The world of this process. SPMDX_WORLD=self keeps it alone whatever a launcher says."""
    forced = os.environ.get("SPMDX_WORLD", "")
    if forced not in ("", "self", "mpi"):
        raise WorldError(f"SPMDX_WORLD={forced} is not a kind of world.", "SPMDX_WORLD=self or SPMDX_WORLD=mpi")
    said = launched()
    several = said is not None and said.size > 1
    loaded = "mpi4py.MPI" in sys.modules
    if forced == "self" or not (several or loaded or forced == "mpi"):
        return SelfWorld()
    try:
        from spmdx.runtime import ending, failing, mpi, shared
    except (ImportError, RuntimeError) as error:  # mpi4py: ImportError without it, RuntimeError without an MPI
        raise WorldError(_without_mpi(said, error), 'pip install "spmdx[mpi]"') from error
    size = mpi.MPI.COMM_WORLD.size
    if said is not None and said.size != size and forced != "mpi":
        raise WorldError(_mismatch(said, size, mpi.library()), _mismatch_hint(said))
    if size == 1:
        return SelfWorld()
    world = shared.SharedWorld(mpi.MPI.COMM_WORLD)
    world.of_gpu = of_gpu
    failing.together(world.rank, world.size, world.abort, watch_exit=not ending.KNOWS_STATUS)
    mpi.limit_threads(mpi.MPI.COMM_WORLD)
    return world


def of_gpu(world: Any, mesh: Mesh) -> Comm[Any]:
    """The communicator of a mesh of GPUs between processes: NCCL's, or by way of host memory where there is none."""
    from spmdx.runtime import nccl, staged

    host = world.comm(mesh.host)
    library, _ = nccl.agreed(host.group(mesh.axis_names))
    if library is None:
        return staged.StagedComm(mesh, world.rank, host)
    return nccl.NcclComm(mesh, world.rank, host, library, nccl.told(world.rank, world.abort))


def _without_mpi(said: Launched | None, error: BaseException) -> str:
    ranks = f"the launcher started {said.size} ranks ({said.by})" if said else "SPMDX_WORLD=mpi asks for MPI"
    return f"{ranks}, but MPI cannot be used here: {type(error).__name__}: {error}"


def _mismatch(said: Launched, size: int, library: str) -> str:
    return (
        f"the launcher started {said.size} ranks ({said.by}), but MPI.COMM_WORLD has {size} under {library}: "
        "the launcher belongs to another MPI than the library that mpi4py loads."
    )


def _mismatch_hint(said: Launched) -> str:
    if said.by.startswith("SLURM"):
        return "srun --mpi=pmix or srun --mpi=pmi2, whichever the library was built for (srun --mpi=list)"
    here = os.path.join(os.path.dirname(sys.executable), "mpiexec")
    return f'{here} -n {said.size} python ..., after pip install "spmdx[mpi]" has put one there'


class SelfGroup(Group):
    """One member: the base class answers nearly everything without a transport."""

    rank, size = 0, 1

    def _gather(self, send: Flat, counts: Counts, out: Flat | None, what: str) -> list[Flat]:
        return self.all_gather(send, counts, out)

    def _exchange(
        self, send: Flat, send_counts: Counts, recv_counts: Counts, out: Flat | None, what: str
    ) -> list[Flat]:
        return self.all_to_all(send, send_counts, recv_counts, out)

    def broadcast(self, buf: Flat, root: int) -> None:
        pass

    def barrier(self) -> None:
        pass

    def __init__(self, device: str = "cpu") -> None:
        self._sent: list[Flat] = []
        if device == "cuda":
            self.take = memory.space(device).empty

    def send(self, buf: Flat, to: int) -> None:
        self._sent.append(buf.copy())

    def recv(self, buf: Flat, source: int) -> None:
        if not self._sent:
            raise WorldError(
                "recv on the only rank waits for what nobody sends.", "send before recv, or mpiexec -n 2 python ..."
            )
        buf[...] = self._sent.pop(0)


class SelfComm(Comm[SelfGroup]):
    def _make(self, axes: tuple[str, ...], positions: list[int]) -> SelfGroup:
        return SelfGroup(self.mesh.device)


class SelfWorld(World[SelfComm]):
    """This process alone; needs no MPI."""

    kind = "self"

    def __init__(self) -> None:
        super().__init__(0, 1)
        self.of_gpu = lambda world, mesh: world._make(mesh)  # nothing is sent

    def _make(self, mesh: Mesh) -> SelfComm:
        return SelfComm(mesh, 0)


_process: list[World[Any]] = []


def process() -> World[Any]:
    """The world of this process, made once."""
    if not _process:
        _process.append(make())
    return _process[0]


context.provide_world(process)
current = context.world
