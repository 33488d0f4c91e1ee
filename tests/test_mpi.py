"""tests/ranks again, on MPI processes; and what happens when one of these fails."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spmdx.runtime.world import launched

HERE = Path(__file__).parent
DAY = 24 * 3600.0
MPIEXEC = Path(sys.executable).parent / "mpiexec"
pytestmark = [
    pytest.mark.skipif(not MPIEXEC.exists(), reason="no mpiexec beside this Python: the extra [mpi] is not installed"),
    pytest.mark.skipif(launched() is not None, reason="under a launcher already"),
]


def mpiexec(n: int, *args: str, timeout: float, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [str(MPIEXEC), "-n", str(n), sys.executable, *args]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")]), **environ}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, env=env, cwd=HERE.parent, check=False
    )


@pytest.mark.timeout(600)
@pytest.mark.parametrize("n", [1, 2, 3, 4, *(pytest.param(n, marks=pytest.mark.slow) for n in (7, 8))])
def test_ranks(n: int) -> None:
    """The files that ran on threads, on MPI."""
    check_ranks(n, "not slow", 580)


@pytest.mark.slow
@pytest.mark.timeout(DAY)
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_slow_ranks(n: int) -> None:
    """Their slow half: whole products of placements, some hours of them."""
    check_ranks(n, "slow", DAY)


def check_ranks(n: int, chosen: str, timeout: float, *more: str, **environ: str) -> None:
    command = ("-m", "pytest", "tests/ranks", "-q", "-x", "-p", "no:cacheprovider", "-m", chosen, *more)
    done = mpiexec(n, *command, timeout=timeout, **environ)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-4000:]
    assert " passed" in done.stdout
    assert done.stdout.count(" passed") == 1, "only rank 0 prints"


# Programs in which rank 1 of 3 does something, and the others wait for it in a collective.
PROGRAM = """
import sys, threading, time, atexit
{before}
import numpy as np
from spmdx.mesh import Mesh
from spmdx.runtime import world
here = world.current()
group = here.comm(Mesh(("x",), (here.size,))).group(("x",))
group.barrier()
def fail():
    raise ValueError("this went wrong")
if here.rank == 1:
    print("since", time.time(), flush=True)
    {does}
else:
    group.all_reduce(np.ones(4), "sum")
"""
IMPORTED = "from mpi4py import MPI"
WAYS = {
    "error": ("fail()", "ValueError: this went wrong"),
    "sys.exit": ("sys.exit(3)", None),
    "message": ('sys.exit("no more of this")', "no more of this"),
    "thread": ("threading.Thread(target=fail).start(); time.sleep(60)", "ValueError: this went wrong"),
    "at exit": ("atexit.register(fail)", "ValueError: this went wrong"),
}


@pytest.mark.parametrize("before", ["", IMPORTED], ids=["", "MPI imported first"])
@pytest.mark.parametrize("way", WAYS)
def test_one_rank_fails(way: str, before: str) -> None:
    """The whole run ends within 5 seconds, with a status that is not 0, and the error can be read."""
    does, message = WAYS[way]
    check_fails(PROGRAM.format(before=before, does=does), message)


def test_one_rank_raises_system_exit() -> None:
    """A status that only the C library is told of."""
    pytest.importorskip("spmdx.runtime.kernels", reason="the compiled module knows the exit status")
    check_fails(PROGRAM.format(before="", does="raise SystemExit(3)"), None)


LAST_LINES = """
{before}
import time
import numpy as np
import spmdx as sx
mesh = sx.make_mesh({{"x": 4}})
x = sx.arange(8.0, mesh=mesh, placement=sx.P("x"))
{first}
if mesh.rank == {rank}:
    print("since", time.time(), flush=True)
    {does}
"""
WAITING = {
    "value": ("float(x.sum())", ""),
    "first message": ("", ""),
    "checked": ("float(x.sum())", "1"),
    "after others have left": ("float(x.sum())", ""),
}


@pytest.mark.parametrize("before", ["", IMPORTED], ids=["", "MPI imported first"])
@pytest.mark.parametrize("way", WAITING)
def test_one_rank_goes_on_alone(way: str, before: str) -> None:
    """A rank that waits for those that have come to the end of the program says so, and the run ends."""
    first, checks = WAITING[way]
    wait = "time.sleep(1); " if "left" in way else ""
    program = LAST_LINES.format(before=before, first=first, rank=2, does=wait + "print(float(x.sum()))")
    done = ended_soon(4, program, SPMDX_CHECK=checks)
    assert "which has come to the end of its program" in done.stderr
    assert "total = float(x.sum())" in done.stderr
    assert "rank 2 of 4 failed" in done.stderr


@pytest.mark.parametrize("before", ["", IMPORTED], ids=["", "MPI imported first"])
def test_one_rank_leaves_with_a_status(before: str) -> None:
    """SystemExit raised by hand, its status known to the C library alone or not at all."""
    first = "float(x.sum())\nif mesh.rank == 0: raise SystemExit(3)"
    program = LAST_LINES.format(before=before, first=first, rank=2, does="float(x.sum())")
    ended_soon(4, program)


def ended_soon(n: int, program: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a program that fails: within 5 seconds of the moment that it prints, however long it took to start."""
    done = mpiexec(n, "-c", program, timeout=60, **environ)
    assert done.returncode != 0
    said, moment = done.stdout.split()
    assert said == "since"
    assert time.time() - float(moment) < 5
    return done


def check_fails(program: str, message: str | None) -> None:
    done = ended_soon(3, program)
    if message:
        assert message in done.stderr
        if "ValueError" in message:
            assert "rank 1 of 3" in done.stderr
            assert "in fail" in done.stderr


@pytest.mark.parametrize("before", ["", IMPORTED], ids=["", "MPI imported first"])
@pytest.mark.parametrize(
    "ending",
    [
        "pass",
        "sys.exit(0)",
        "raise SystemExit",
        "sys.exit(None)",
        "here.rank or time.sleep(1.5)",  # the others leave long before rank 0
        "exec('try: sys.exit(3)\\nexcept SystemExit: pass')",
        "threading.Thread(target=sys.exit, args=(1,)).start()",
    ],
)
def test_a_clean_exit_stays_clean(ending: str, before: str) -> None:
    program = PROGRAM.format(before=before, does='group.all_reduce(np.ones(4), "sum")')
    done = mpiexec(3, "-c", program + ending + "\n", timeout=30)
    assert (done.returncode, done.stderr) == (0, "")


def test_ranks_that_disagree_end_the_test_run(tmp_path: Path) -> None:
    """The agreement of the ranks after each test: one that fails alone ends the run with its report."""
    (tmp_path / "conftest.py").write_text((HERE / "conftest.py").read_text())
    (tmp_path / "agree.py").write_text((HERE / "agree.py").read_text())
    (tmp_path / "test_it.py").write_text(
        "from spmdx.runtime import world\n"
        "def test_fine(): pass\n"
        "def test_alone():\n"
        "    assert world.current().rank != 1, 'only here'\n"
        "    world.process().mpi.Barrier() if WAIT else None\n".replace("WAIT", "True")
    )
    done = mpiexec(3, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path), timeout=60)
    assert done.returncode != 0
    assert "only here" in done.stderr and "rank 1 of 3" in done.stderr
    (tmp_path / "test_it.py").write_text((tmp_path / "test_it.py").read_text().replace("if True", "if False"))
    done = mpiexec(3, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path), timeout=60)
    assert done.returncode != 0
    assert "do not agree" in done.stderr and "only here" in done.stderr


def test_a_launcher_of_another_mpi() -> None:
    """A launcher that says more ranks than MPI has is an error, and says what to do."""
    env = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"}
    done = alone("from spmdx.runtime import world; world.current()", **env)
    assert done.returncode != 0
    assert "started 4 ranks (OMPI_COMM_WORLD_SIZE), but MPI.COMM_WORLD has 1" in done.stderr
    assert "mpiexec -n 4 python" in done.stderr


def test_a_launcher_without_mpi4py() -> None:
    """N ranks and no mpi4py are an error too, not N programs that each think they are alone."""
    block = "import sys; sys.modules['mpi4py'] = None; "
    done = alone(block + "from spmdx.runtime import world; world.current()", PMI_RANK="0", PMI_SIZE="2")
    assert done.returncode != 0
    assert "started 2 ranks (PMI_SIZE), but MPI cannot be used here" in done.stderr
    assert 'pip install "spmdx[mpi]"' in done.stderr


def test_alone_needs_no_mpi() -> None:
    block = "import sys; sys.modules['mpi4py'] = None; "
    done = alone(block + "from spmdx.runtime import world as w; print(w.current().kind, w.current().size)")
    assert (done.returncode, done.stdout, done.stderr) == (0, "self 1\n", "")


def test_spmdx_world_self_overrules_a_launcher() -> None:
    # In one write: the launcher mixes what its ranks write, piece by piece.
    says = "os.write(1, f'{w.current().kind} {w.current().size}\\n'.encode())"
    program = f"import os; from spmdx.runtime import world as w; {says}"
    done = mpiexec(2, "-c", program, timeout=30, SPMDX_WORLD="self")
    assert done.stdout == "self 1\n" * 2


@pytest.mark.parametrize(
    ("environ", "want"), [({"SPMDX_THREADS": "3"}, "3"), ({"OMP_NUM_THREADS": "2"}, "2"), ({}, None)]
)
def test_threads_per_rank(environ: dict[str, str], want: str | None) -> None:
    """Cores shared among the ranks of the node, unless told."""
    program = (
        "import os, numpy\nfrom spmdx.runtime import world\nfrom threadpoolctl import threadpool_info\n"
        "world.current()\nos.write(1, f\"{max(p['num_threads'] for p in threadpool_info())} \".encode())"
    )
    pytest.importorskip("threadpoolctl")
    done = mpiexec(2, "-c", program, timeout=30, **environ)
    share = str(max(1, len(os.sched_getaffinity(0)) // 2)) if want is None else want
    assert done.stdout.split() == [share] * 2, done.stderr


def alone(program: str, **environ: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")]), **environ}
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, env=env, check=False
    )


LARGE = """
import numpy as np
from spmdx.mesh import Mesh
from spmdx.runtime import mpi, world
here = world.current()
group = mpi.PlainComm(Mesh(("x",), (2,)), here.rank, mpi.MPI.COMM_WORLD).group(("x",))
mpi.LARGE_COUNTS = mpi.LARGE_COUNTS and {native}
n = 2**31 // 2 + 5
mine = np.full(n, here.rank + 1, np.int8)
whole = np.empty(2 * n, np.int8)
group.all_gather(mine, [n, n], whole)
assert whole[0] == whole[n - 1] == 1 and whole[n] == whole[-1] == 2 and whole.sum(dtype=np.int64) == 3 * n
half = [n // 2, n - n // 2]
got = group.all_to_all(mine, half, [half[here.rank]] * 2)
assert [int(g[0]) + int(g[-1]) for g in got] == [2, 4]
buf = whole if here.rank == 0 else np.zeros(2 * n, np.int8)
group.broadcast(buf, 0)
assert buf[0] == 1 and buf[-1] == 2
if here.rank == 0: group.send(whole, 1)
else: group.recv(buf, 0); assert buf[n - 1] == 1 and buf[n] == 2
"""


@pytest.mark.slow
@pytest.mark.parametrize("native", [True, False])
def test_counts_above_two_to_31(native: bool) -> None:
    """By MPI 4's large counts, and in pieces where MPI has none."""
    done = mpiexec(2, "-c", LARGE.format(native=native), timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
