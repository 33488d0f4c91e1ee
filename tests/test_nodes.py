"""Ranks of several nodes, which share no memory: MPICH can take each rank of one node for a node of its own."""

from __future__ import annotations

import pytest
from test_mpi import IMPORTED, LAST_LINES, check_ranks, ended_soon, mpiexec, pytestmark

__all__ = ["pytestmark"]

FAR = {"MPIR_CVAR_NOLOCAL": "1"}
GROUP = """
import time
import numpy as np
import spmdx as sx
from spmdx.runtime import waiting, world
waiting.PATIENCE, waiting.LOOK, waiting.PACE = 0.3, 0.1, 0.02
here = world.current()
mesh = sx.make_mesh()
group = here.comm(mesh).group(("world",))
v = np.ones(here.size)
group.barrier()
"""


@pytest.mark.parametrize(
    ("n", "rank", "before"), [(2, 0, ""), (4, 0, IMPORTED), (4, 2, "")], ids=["2", "4, MPI imported first", "4"]
)
def test_one_rank_goes_on_alone(n: int, rank: int, before: str) -> None:
    """It says so, where it waits, and the run ends within seconds."""
    first = "" if n == 2 else "from spmdx.runtime import waiting; waiting.PATIENCE = 0.6"
    program = LAST_LINES.replace("4", str(n)).format(before=before, first=first, rank=rank, does="float(x.sum())")
    check(ended_soon(n, program, **FAR).stderr, rank, n)


TOLD_ON_ONE_NODE = "not different_ways and not disagree"  # elsewhere with SPMDX_CHECK alone


@pytest.mark.timeout(300)
@pytest.mark.parametrize("n", [2, 3])
def test_ranks(n: int) -> None:
    """The files that run on threads and on the ranks of one node."""
    own = ("--ignore", "tests/ranks/test_shared_memory.py", "-k", TOLD_ON_ONE_NODE)
    check_ranks(n, "not slow", 280, *own, **FAR)


WAITS = {
    "recv": "group.recv(v, 1)",
    "a barrier": "group.barrier()",
    "begun": "y = sx.asarray(np.arange(8.0), placement=sx.P('world')).redistribute({}); y.numpy()",
    "the first message": "sx.ones(4, mesh=sx.make_mesh({'a': 2, 'b': 1}), placement=sx.P('a')).sum().numpy()",
}


@pytest.mark.parametrize("way", WAITS)
def test_each_way_to_wait(way: str) -> None:
    lines = f"if here.rank == 0:\n    print('since', time.time(), flush=True)\n    {WAITS[way]}\n"
    said = check(ended_soon(2, GROUP + lines, **FAR).stderr, 0, 2)
    assert way == "begun" or f"RanksDisagree: {way}" in said


def check(said: str, rank: int, n: int) -> str:
    assert "Traceback" in said and 'File "<string>"' in said
    assert "which has come to the end of its program" in said
    assert f"rank {rank} of {n} failed" in said
    return said


def test_who_has_done_its_part_may_end() -> None:
    """Rank 3 gets from rank 2, which is late, what rank 0 sends: that rank 0 has ended since is no fault.

    Then it waits for all of them, and asks again those that it has asked before.
    """
    late = "if here.rank == 2: time.sleep(1.5)\ngroup.broadcast(v, 0)\n"
    alone = "if here.rank == 3:\n    print('since', time.time(), flush=True)\n    group.barrier()\n"
    check(ended_soon(4, GROUP + late + alone, **FAR).stderr, 3, 4)


ON_ITS_WAY = """
w, x = sx.ones((4000, 1000)), sx.ones((8, 1000), placement=sx.P("world"))
if here.rank == 1: {late}
with sx.Plan(grads={{"*": {{"world": sx.Shard(0)}}}}).on(mesh):
    g = sx.grad(lambda params: sx.sum(x @ params["w"].T))({{"w": w}})["w"]
print(type(g).__name__)
"""


def test_a_gradient_on_its_way_at_the_end() -> None:
    """Nobody looks at it, and the other rank is late: its memory is not freed before it has come."""
    done = mpiexec(2, "-c", GROUP + ON_ITS_WAY.format(late="time.sleep(0.5)"), timeout=30, **FAR)
    assert (done.returncode, done.stdout.replace("\n", ""), done.stderr) == (0, "LaterLater", "")


def test_a_gradient_on_its_way_when_a_rank_fails() -> None:
    """It ends the run, though the other rank never does its part."""
    lines = "from spmdx.runtime import pending\npending.AT_THE_END = 0.3\n"
    program = GROUP + lines + ON_ITS_WAY.format(late="group.recv(v, 0)") + "raise SystemExit(3)\n"
    done = mpiexec(2, "-c", program, timeout=30, **FAR)
    assert done.returncode and done.stdout.startswith("Later")


def test_a_long_wait_for_one_at_work() -> None:
    """Ranks that were asked while they worked go on as before, and nobody is left waiting at the end.

    Nor any question or answer, of which UCX would tell on stdout.
    """
    lines = "if here.rank == 1: time.sleep(1)\ngroup.barrier()\nif here.rank == 0: time.sleep(1)\ngroup.barrier()\n"
    done = mpiexec(3, "-c", GROUP + lines + "if here.rank == 2: time.sleep(0.5)\n", timeout=30, **FAR)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
