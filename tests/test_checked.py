"""SPMDX_CHECK=1 as a program meets it: a fault on one rank, or another operation there, raises on every rank."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
import numpy as np, spmdx as sx
from spmdx.testing import spmd

@spmd(3)
def run():
    mesh = sx.make_mesh()
    x = sx.asarray(np.arange(6.0), placement={"world": sx.Shard(0)})
    try:
        %s
    except sx.SpmdxError as error:
        return type(error).__name__
    return "nothing"

print(run())
"""


def checked(line: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM % line],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "SPMDX_CHECK": "1"},
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_another_operation_on_one_rank() -> None:
    found = checked("(sx.sum if mesh.rank else sx.max)(x)")
    assert found.count("RanksDisagree") == 3


def test_a_fault_in_one_ranks_data() -> None:
    found = checked('x[sx.from_block(np.array([9 if mesh.rank == 2 else 0]), {"world": sx.Shard(0)})]')
    assert found.count("BoundsError") == 1 and found.count("RankFailed") == 2


def test_other_values_on_one_rank() -> None:
    for line in (
        "x * (1.0 + mesh.rank)",
        "sx.roll(x, 1 + mesh.rank)",
        "x + np.full(6, float(mesh.rank))",
        "sx.asarray(np.full(6, float(mesh.rank)))",
    ):
        assert checked(line).count("RanksDisagree") == 3, line


def test_nothing_wrong() -> None:
    assert checked("(x + 1.0).numpy()").count("nothing") == 3
