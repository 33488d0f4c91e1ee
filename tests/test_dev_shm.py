"""A node whose shared memory is small, or becomes so: the ranks go on, by MPI where they must. Each program runs in a
namespace of its own, with a /dev/shm of a chosen size; tests/ranks/test_shared_memory.py tries the choices."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_mpi import MPIEXEC, pytestmark

CAN = 'mount -t tmpfs -o size={} tmpfs /dev/shm && exec "$@"'
UNSHARE = ["unshare", "--mount", "--map-root-user", "sh", "-c"]
if os.geteuid() == 0:
    UNSHARE.remove("--map-root-user")


def can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*UNSHARE, CAN.format("4m"), "sh", "true"], capture_output=True, check=False).returncode == 0


pytestmark = [*pytestmark, pytest.mark.skipif(not can_mount(), reason="no namespace to mount a small /dev/shm in")]

# Somebody else fills the shared memory once the ranks have theirs: what they were given must be theirs.
PROGRAM = """
import numpy as np
import spmdx as sx
from spmdx.runtime import world
here = world.current()
mesh = sx.make_mesh()
group = here.comm(mesh).group(("world",))
here.mpi.Barrier()
if here.rank == 0:
    print(type(group).__name__)
    try:
        with open("/dev/shm/somebody", "wb", 0) as file:
            while True:
                file.write(bytes(2**16))
    except OSError:
        pass
here.mpi.Barrier()
v = np.arange(60_001.0)
for target in ({}, {"world": sx.Shard(0)}):
    total = sx.from_block(v, {"world": sx.Partial("sum")}).redistribute(target)
    assert np.array_equal(total.numpy(), v * here.size)
"""


# MPICH itself needs about 3 MB for three ranks.
@pytest.mark.parametrize(("size", "kind"), [("4m", "MPIGroup"), ("8m", "SharedGroup")])
def test_small_shared_memory(size: str, kind: str) -> None:
    command = [*UNSHARE, CAN.format(size), "sh", str(MPIEXEC), "-n", "3", sys.executable, "-c", PROGRAM]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=100, cwd=Path(__file__).parents[1], check=False
    )
    assert (done.returncode, done.stdout.split()) == (0, [kind]), done.stdout[-2000:] + done.stderr[-4000:]
