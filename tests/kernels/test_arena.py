"""Memory that other processes of the node can map: what is handed out, what goes back, and what a forked child has.
Each test is a process of its own, for a process has one arena."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAD = """
import os
import numpy as np
from spmdx.runtime.kernels import map_arena, open_arena, take_from_arena as take
MIB = 2**20
file, begin, nbytes = open_arena(16 * MIB)
def used():
    return os.fstat(file).st_blocks * 512
"""


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", HEAD + program], capture_output=True, text=True, timeout=60, check=False
    )
    if "cannot make shared memory" in done.stderr:
        pytest.skip("this system has no files without names")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_goes_back_is_handed_out_again() -> None:
    """In any order; pieces that lie side by side become one, and their pages are the system's again."""
    run("""
assert used() == 0 and nbytes == 16 * MIB and begin % 4096 == 0
rng = np.random.default_rng(0)
for round in range(20):
    mine = []
    while (block := take(int(rng.integers(1, 2 * MIB)))) is not None:
        block[:] = len(mine)
        mine.append(block)
    assert len(mine) > 8
    places = sorted((b.ctypes.data, b.nbytes) for b in mine)
    assert all(a + n <= b for (a, n), (b, _) in zip(places, places[1:]))  # they do not overlap
    assert begin <= places[0][0] and sum(places[-1]) <= begin + nbytes
    assert all((b == i).all() for i, b in enumerate(mine))
    del block
    for i in rng.permutation(len(mine)):
        mine[i] = None
    assert used() == 0
    whole = take(16 * MIB)
    assert whole is not None and take(1) is None
    del whole
""")


def test_pages_are_there_when_memory_is_handed_out() -> None:
    """So that a system without memory says so here, and does not end the process later."""
    out = run("""
block = take(3 * MIB)
print(used() == 3 * MIB, len(block))
""")
    assert out.split() == ["True", str(3 * 2**20)]


def test_a_view_keeps_its_memory() -> None:
    run("""
view = take(MIB)[5:9]
view[:] = 7
other = take(MIB)
other[:] = 1
assert view.tolist() == [7] * 4 and used() == 2 * MIB
""")


def test_memory_that_is_mapped_is_the_same() -> None:
    run("""
block = take(MIB)
block[:] = 3
import ctypes
assert map_arena(os.getpid(), file, nbytes, bytes([3]) * 15 + bytes([4])) == 0  # another file, it seems
assert map_arena(os.getpid(), 0, nbytes, bytes([3]) * 16) == 0
here = map_arena(os.getpid(), file, nbytes, bytes([3]) * 16)
assert here != begin and ctypes.string_at(here + block.ctypes.data - begin, MIB) == bytes([3]) * MIB
ctypes.memset(here + block.ctypes.data - begin, 4, MIB)
assert (block == 4).all()
""")


def test_a_forked_child_has_a_copy() -> None:
    """Neither sees what the other writes, and what the child frees stays the parent's."""
    out = run(
        """
blocks = [take(MIB + i) for i in range(3)]
for i, block in enumerate(blocks):
    block[:] = i
ready, write_ready = os.pipe()
child = os.fork()
if child == 0:
    os.read(ready, 1)  # the parent has written, and used what it freed again
    assert [b[0] for b in blocks] == [0, 1, 2] and all((b == b[0]).all() for b in blocks)
    blocks[0][:] = 9
    del blocks[1]
    assert take(1) is None  # no child hands out what is its parent's
    os._exit(0)
blocks[1][:] = 11
del blocks[2], block
again = take(MIB)
again[:] = 12
os.write(write_ready, b"1")
assert os.waitpid(child, 0)[1] == 0
assert (blocks[0] == 0).all() and (blocks[1] == 11).all() and (again == 12).all()
print("done")
"""
    )
    assert out.strip() == "done"
