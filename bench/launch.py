"""Starts the ranks of a benchmark, and keeps them together while they run.

A script calls :func:`on_ranks`, which runs the script again under mpiexec with ``--worker FILE``; rank 0 writes what
it found to that file. Every library lives in the same processes, so that all are measured in one run: torch takes its
rank from MPI, and JAX, which is one process with several devices, runs on rank 0 while the others sleep.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def environment(ranks: int, threads: int = 1) -> dict[str, str]:
    """So many threads per rank; a port for torch; as many JAX devices as ranks, with one thread each unless told."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    eigen = str(threads > 1).lower()
    devices = f"--xla_force_host_platform_device_count={ranks} --xla_cpu_multi_thread_eigen={eigen}"
    return {
        **os.environ,
        **dict.fromkeys(THREADS, str(threads)),
        "OPENBLAS_THREAD_TIMEOUT": "4",  # as spmdx sets it, which here comes after NumPy
        "XLA_FLAGS": devices,
        "JAX_PLATFORMS": "cpu",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
    }


def on_ranks(script: str, ranks: int, words: list[str], limit: float, threads: int = 1) -> dict[str, Any]:
    """Run ``script`` on ``ranks`` ranks; what its rank 0 found. Ends them all after ``limit`` seconds."""
    mpiexec = Path(sys.executable).with_name("mpiexec")
    starter = str(mpiexec) if mpiexec.exists() else "mpiexec"
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "found.json"
        line = [starter, "-n", str(ranks), sys.executable, script, "--worker", str(out), *words]
        subprocess.run(line, env=environment(ranks, threads), check=True, timeout=limit, stdin=subprocess.DEVNULL)
        return dict(json.loads(out.read_text()))


class Ranks:
    """The ranks of this run. Waiting sleeps: a rank that spins would take a core from the one that works."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self.comm: Any = MPI.COMM_WORLD.Dup()
        self.rank, self.size = self.comm.rank, self.comm.size

    def settle(self) -> None:
        """Keep every rank on a core of its own, and where there are not enough, equally many on each: else the loops
        that meet three ranks on one of two cores, and one on the other, take half as long again, whoever runs them."""
        if hasattr(os, "sched_setaffinity"):
            cores = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(0, {cores[self.rank % len(cores)]})

    def rest(self) -> None:
        """Wait, asleep, until every rank has come here."""
        request = self.comm.Ibarrier()
        while not request.Test():
            time.sleep(0.0005)

    def together(self) -> None:
        """Begin at once on every rank."""
        self.rest()
        self.comm.Barrier()

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, on every rank."""
        return list(self.comm.allgather(value))
