"""Messages that have begun while a program computes: parameters gathered one block ahead, gradients on their way home
while the walk backwards goes on. Between processes, on MPI alone, for on one node nothing is won by it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spmdx.runtime.world import launched

HERE = Path(__file__).parent
MPIEXEC = Path(sys.executable).parent / "mpiexec"


@pytest.mark.skipif(not MPIEXEC.exists(), reason="no mpiexec beside this Python: the extra [mpi] is not installed")
@pytest.mark.skipif(launched() is not None, reason="under a launcher already")
@pytest.mark.parametrize(("words", "n"), [("zero3", 2), ("zero3", 3), ("zero2", 2)])
def test_the_same_bits_by_the_same_messages(words: str, n: int) -> None:
    """Exact. Only the parameters that are named "outer" are waited for where they are gathered; each block but the
    first finds its own on their way when it is entered, and all gradients are brought home without waiting."""
    path = os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    command = [str(MPIEXEC), "-n", str(n), sys.executable, str(HERE / "ahead.py"), words]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": path}, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert tuple(map(int, done.stdout.split())) == ((12, 13, 3) if words == "zero3" else (5, 5, 0))
