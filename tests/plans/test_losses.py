"""The losses of the GPT stay those of one rank under every plan. Close: 1e-10 relative in float64, 1e-5 in float32."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_gpt import TINY, run

import spmdx as sx
from spmdx.runtime.world import launched

LLAMA = TINY._replace(form="llama", width=16)
BOUND = {np.float64: 1e-10, np.float32: 1e-5}
STEPS = 20
ALL = [
    *((words, {"data": n}) for words in ("dp", "zero1", "zero2", "zero3") for n in (2, 3, 4)),
    *((words, {"model": n}) for words in ("megatron", "megatron+sp") for n in (2, 3, 4)),  # 4 heads on 3: 2, 1, 1
    *((words, {"data": 2, "model": 2}) for words in ("megatron+dp", "megatron+sp+dp", "megatron+sp+zero3", "2d")),
]
HERE = Path(__file__).parent
MPIEXEC = Path(sys.executable).with_name("mpiexec")


@cache
def alone(dtype: Any, config: Any) -> list[float]:
    """The same on one rank."""
    return run("", sx.make_mesh({"all": 1}, device="sim"), STEPS, dtype, config)


def same(words: str, axes: dict[str, int], dtype: Any, config: Any = TINY) -> None:
    expected = alone(dtype, config)
    losses = run(words, sx.make_mesh(axes, device="sim"), STEPS, dtype, config)
    np.testing.assert_allclose(losses, expected, rtol=BOUND[dtype], atol=0)
    assert expected[-1] < 0.9 * expected[0]  # it learns something


@pytest.mark.parametrize(("words", "axes"), ALL, ids=str)
def test_float64(words: str, axes: dict[str, int]) -> None:
    same(words, axes, np.float64)


@pytest.mark.parametrize(("words", "axes"), ALL, ids=str)
def test_float32(words: str, axes: dict[str, int]) -> None:
    same(words, axes, np.float32)


@pytest.mark.parametrize(
    ("words", "axes"), [("megatron+sp+zero3", {"data": 2, "model": 2}), ("megatron", {"model": 3})], ids=str
)
def test_llama(words: str, axes: dict[str, int]) -> None:
    same(words, axes, np.float64, LLAMA)


@pytest.mark.parametrize("words", ["megatron+sp", "zero3"])
def test_thread_ranks(words: str) -> None:
    expected = alone(np.float32, TINY)
    axis = "data" if words == "zero3" else "model"
    each = sx.testing.spmd(3)(lambda: run(words, sx.make_mesh({axis: 3}), STEPS, np.float32))()
    for losses in each:
        assert losses == each[0]  # exact: the same bits on every rank
    np.testing.assert_allclose(each[0], expected, rtol=1e-5, atol=0)


@pytest.mark.skipif(not MPIEXEC.exists(), reason="no mpiexec beside this Python: the extra [mpi] is not installed")
@pytest.mark.skipif(launched() is not None, reason="under a launcher already")
@pytest.mark.parametrize(("n", "way"), [(2, "shared"), (3, "shared"), (4, "shared"), (2, "sent"), (3, "sent")])
def test_processes(n: int, way: str) -> None:
    """On MPI's ranks, which share memory or, as those of several nodes, do not."""
    path = os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    far = {"MPIR_CVAR_NOLOCAL": "1"} if way == "sent" else {}
    command = [str(MPIEXEC), "-n", str(n), sys.executable, str(HERE / "processes.py"), way]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": path, **far}, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert int(done.stdout) >= 8  # runs that were compared
