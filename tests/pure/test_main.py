"""``python -m spmdx``: every line comes, whatever is missing, and once, whatever the ranks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from spmdx.__main__ import LINES, line

LAUNCHER_VARIABLES = re.compile(r"^(PMI|PMIX|OMPI|SLURM|HYDRA|MPI)_?")
MPIEXEC = Path(sys.executable).with_name("mpiexec")


def report(*command: str, **environment: str) -> dict[str, str]:
    """Run the command outside any launcher of our own, and read its report: label to text."""
    clean = {k: v for k, v in os.environ.items() if not LAUNCHER_VARIABLES.match(k)} | environment
    run = subprocess.run(
        [*command, sys.executable, "-m", "spmdx"], env=clean, capture_output=True, text=True, timeout=100
    )
    assert run.returncode == 0, run.stderr
    lines = [text.split(maxsplit=1) for text in run.stdout.splitlines()]
    assert [label for label, _ in lines] == [label for label, _ in LINES]
    return dict(lines)


def test_every_line_has_something_to_say() -> None:
    told = report()
    for label in ("spmdx", "numpy", "optree", "ml_dtypes", "opt_einsum"):
        assert re.match(r"\d+\.\d+", told[label]), told
    assert "instruction set" in told["kernels"], told
    assert "threads" in told["kernels"], told
    assert told["products"].startswith(("by NumPy: ", "Intel(R) oneAPI Math Kernel Library")), told
    assert told["devices"].startswith("cpu"), told
    assert told["ranks"].startswith("1, no launcher"), told


def test_a_broken_mpi_costs_only_its_own_line(tmp_path: Path) -> None:
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").touch()
    (tmp_path / "mpi4py" / "MPI.py").write_text("raise RuntimeError('cannot load MPI library')\n")
    told = report(PYTHONPATH=str(tmp_path))
    assert told["mpi"] == "cannot be told: RuntimeError: cannot load MPI library"
    assert told["ranks"] == "1, no launcher"


@pytest.mark.skipif(not MPIEXEC.exists(), reason="the mpi extra, which brings mpiexec, is not installed here")
def test_two_ranks_report_once() -> None:
    told = report(str(MPIEXEC), "-n", "2")
    assert told["ranks"] == "2 by PMI_SIZE; 2 by MPI"


def test_a_line_that_fails_says_why() -> None:
    def broken() -> str:
        raise OSError("no such\n  library")

    assert line("nccl", broken) == "nccl        cannot be told: OSError: no such library"
