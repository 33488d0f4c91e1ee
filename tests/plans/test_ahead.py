"""Messages that have begun while a program computes: parameters gathered one block ahead, gradients on their way home
while the walk backwards goes on. Between processes, on MPI alone, for on one node nothing is won by it."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
from tiny_gpt import TINY, model, plans, tokens

import spmdx as sx
from spmdx import nn
from spmdx.runtime.world import launched

HERE = Path(__file__).parent
MPIEXEC = Path(sys.executable).parent / "mpiexec"


def needs_mpiexec(test: Any) -> Any:
    for condition, reason in (
        (not MPIEXEC.exists(), "no mpiexec beside this Python: the extra [mpi] is not installed"),
        (launched() is not None, "under a launcher already"),
    ):
        test = pytest.mark.skipif(condition, reason=reason)(test)
    return test


def printed(n: int, script: str, *words: str) -> str:
    """What a script here prints on n ranks."""
    path = os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    command = [str(MPIEXEC), "-n", str(n), sys.executable, str(HERE / script), *words]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": path}, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@needs_mpiexec
@pytest.mark.parametrize(
    ("words", "n", "told"),
    [
        ("zero3 - -", 2, (12, 13, 3)),
        ("zero3 - -", 3, (12, 13, 3)),
        ("zero3 bfloat16 -", 2, (12, 13, 3)),
        ("zero3 bfloat16 -", 3, (12, 13, 3)),
        ("zero2 - -", 2, (5, 5, 0)),
        ("zero1 - -", 2, (1, 1, 0)),
        ("dp - -", 2, (0, 1, 0)),
        ("megatron - -", 2, (0, 20, 0)),
        ("megatron+sp - -", 2, (18, 39, 0)),
        ("dp - 10000", 2, (8, 5, 0)),
        ("dp - 10000", 3, (8, 5, 0)),
        ("dp bfloat16 10000", 2, (4, 3, 0)),
        ("zero1 - 10000", 3, (5, 5, 0)),
    ],
)
def test_the_same_bits_by_the_same_messages(words: str, n: int, told: tuple[int, int, int]) -> None:
    """Exact. How many messages begin without being waited for, how many there are, and how many blocks find their
    parameters on their way: under ZeRO-3 all but the first, and "outer" is waited for; also where they have been
    cast before, and travel in half of the bytes. Reductions to all, which are most of tensor parallelism's messages,
    begin where they are a bucket of gradients and others are still to come: in two halves, two here and one in the
    trace."""
    assert tuple(map(int, printed(n, "ahead.py", *words.split()).split())) == told


@needs_mpiexec
@pytest.mark.parametrize("n", [2, 3])
def test_nobody_hangs_on_what_one_rank_reads(n: int) -> None:
    """A gradient's second half has begun on every rank before any can read it."""
    assert float(printed(n, "one_reads.py"))


@pytest.mark.parametrize("dtype", ["float64", "float32"], ids=["as they are", "cast"])
def test_nothing_of_a_gradient_stays_when_it_has_ended(dtype: str) -> None:
    """Of the parameters that were gathered for it the plan keeps the order alone: the blocks go with the arrays."""
    mesh = sx.make_mesh({"data": 2}, device="sim")
    with plans.plan("zero3").on(mesh) as running:
        params = nn.init(model.parameters(TINY), sx.random.key(1))
        step = sx.value_and_grad(lambda p, batch: model.loss(nn.cast(p, dtype), batch, TINY))
        value, grads = step(params, sx.asarray(tokens()))
        assert [entered.name for entered in running.order] == ["block"] * TINY.layers
        assert (running.groups, running.leaves, running.known) == ([], [], {})
        blocks = [weakref.ref(b if b.base is None else b.base) for p in sx.tree.leaves(params) for b in p._block]
        del value, grads, params
        running.held = None
        gc.collect()
        assert blocks and not [b for b in blocks if b() is not None]
