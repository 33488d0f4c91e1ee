"""Memory that is used again, and that other processes of the node can map: what is handed out, what is used again, what
goes back to the system, and what a forked child has. Exact."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from spmdx.runtime import kernels, pool

# A process has one shared arena: each of these tests is a process of its own.
HEAD = """
import ctypes
import os
import numpy as np
from spmdx.runtime.kernels import map_arena, open_shared, take_shared
MIB = 2**20
file, begin, nbytes = open_shared({} * MIB)
def take(n):
    return take_shared(n, np.dtype(np.uint8))
def used():
    return os.fstat(file).st_blocks * 512
"""


def run(program: str, megabytes: int = 16) -> str:
    command = [sys.executable, "-c", HEAD.format(megabytes) + program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if "cannot make shared memory" in done.stderr:
        pytest.skip("this system has no files without names")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_memory_is_handed_out_once_and_used_again() -> None:
    """In any order; pieces that lie side by side become one."""
    run("""
assert used() == 0 and nbytes == 16 * MIB and begin % (2 * MIB) == 0
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
    whole = take(16 * MIB)
    assert whole is not None and take(1) is None
    del whole
assert take(17 * MIB) is None and take(2**62) is None
""")


def test_memory_at_rest_is_bounded() -> None:
    """It stays with the process for the next one that wants it; what is beyond 512 MiB goes back to the system."""
    run(
        """
for _ in range(3):
    blocks = [take(100 * MIB) for _ in range(6)]
    assert 600 * MIB <= used() <= 612 * MIB  # and what is left between
    del blocks
    assert used() == 512 * MIB
""",
        1024,
    )


def test_small_pieces_at_rest_give_way_to_a_large_one() -> None:
    run("""
pieces = [take(MIB) for _ in range(16)]
del pieces[::2]
assert take(2 * MIB) is None
del pieces[:]
assert take(16 * MIB) is not None
""")


def test_pages_are_there_when_memory_is_handed_out() -> None:
    """So that a system without memory says so here, and does not end the process later."""
    out = run("""
block = take(3 * MIB)
print(used() == 4 * MIB, len(block))  # whole large pages
""")
    assert out.split() == ["True", str(3 * 2**20)]


def test_small_pieces_in_use_stay_where_their_neighbours_go() -> None:
    """Whole large pages between them go back to the system, and nothing else."""
    run(
        """
rng = np.random.default_rng(1)
for _ in range(2):
    large, small = [], []
    for i in range(9):
        large.append(take(int(rng.integers(68 * MIB, 72 * MIB))))
        small.append(take(int(rng.integers(1, MIB))))
        small[-1][:] = i
    before = used()
    del large
    assert 512 * MIB <= used() <= 512 * MIB + 2 * 9 * MIB < before
    assert all((s == i).all() for i, s in enumerate(small))
    again = [take(70 * MIB) for _ in range(9)]
    for block in again:
        block[:] = 255
    assert all((s == i).all() for i, s in enumerate(small))
    del again, block, small
    assert used() == 512 * MIB
whole = take(1024 * MIB - 16)  # all of it is one piece again
assert whole is not None and take(1) is None
""",
        1024,
    )


def test_pages_are_large_where_the_system_makes_them() -> None:
    """As many of the mapping's pages as a file beside it gets by the same request; none of them where that has none."""
    out = run("""
def mapped(begin):
    found = None
    for line in open("/proc/self/smaps"):
        if line.split()[0].startswith(f"{begin:x}-"):
            found = 0
        elif found is not None and line.startswith("ShmemPmdMapped:"):
            return int(line.split()[1])
block = take(4 * MIB)
print(mapped(begin))
import mmap
beside = os.memfd_create("beside")
os.ftruncate(beside, 6 * MIB)
room = mmap.mmap(beside, 6 * MIB)
start = ctypes.addressof(ctypes.c_char.from_buffer(room))
offset = -start % (2 * MIB)
room[:] = bytes(6 * MIB)
failed = ctypes.CDLL(None).madvise(ctypes.c_void_p(start + offset), ctypes.c_size_t(2 * MIB), 25)
print("no" if failed or start % (2 * MIB) else "yes")
""")
    large, system = out.split()
    if system == "no":
        pytest.skip("this system makes no large pages of shared memory when asked")
    assert large == "4096"


def test_a_view_keeps_its_memory() -> None:
    run("""
view = take(MIB)[5:9]
view[:] = 7
other = take(MIB)
other[:] = 1
assert view.tolist() == [7] * 4 and not np.shares_memory(view, other)
place = view.ctypes.data - 5
del view
assert take(MIB).ctypes.data == place
""")


def test_memory_that_is_mapped_is_the_same() -> None:
    run("""
block = take(MIB)
block[:] = 3
assert map_arena(os.getpid(), file, nbytes, bytes([3]) * 15 + bytes([4])) == 0  # another file, it seems
assert map_arena(os.getpid(), file, nbytes - 65536, bytes([3]) * 16) == 0
assert map_arena(os.getpid(), 0, nbytes, bytes([3]) * 16) == 0
here = map_arena(os.getpid(), file, nbytes, bytes([3]) * 16)
assert here != begin and ctypes.string_at(here + block.ctypes.data - begin, MIB) == bytes([3]) * MIB
ctypes.memset(here + block.ctypes.data - begin, 4, MIB)
assert (block == 4).all()
""")


def test_a_forked_child_has_a_copy() -> None:
    """Neither sees what the other writes, and what the child frees stays the parent's."""
    out = run("""
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
""")
    assert out.strip() == "done"


def test_a_child_that_cannot_have_a_copy_ends() -> None:
    """It would write to its parent's memory: as here, where the parent has no files left to wait by."""
    out = run("""
block = take(MIB)
block[:] = 1
files = []
try:
    while True:
        files.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
child = os.fork()
if child == 0:
    block[:] = 2
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
assert (block == 1).all()
print("done")
""")
    assert out.strip() == "done"


@pytest.mark.parametrize(
    ("limit", "name"),
    [("RLIMIT_AS", "shared"), ("RLIMIT_FSIZE", "shared"), ("RLIMIT_AS", "arena"), ("RLIMIT_DATA", "arena")],
)
def test_a_bound_on_address_space_or_files_is_an_error(limit: str, name: str) -> None:
    """And no signal that ends the process, nor a file that stays open. Where there is room too: what is reserved is
    missing elsewhere."""
    program = (
        f"import os, resource\nresource.setrlimit(resource.{limit}, (2**36, 2**36))\n"
        f"from spmdx.runtime.kernels import _kernels\n"
        "files = os.listdir('/proc/self/fd') if os.path.isdir('/proc/self/fd') else None\n"
        f"try:\n    _kernels.open_{name}({'2**40' if limit == 'RLIMIT_FSIZE' else '2**24'})\n"
        "except RuntimeError as error:\n    print(error)\n"
        "assert files is None or os.listdir('/proc/self/fd') == files"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("cannot ")


# Memory of this process's own


def test_memory_of_a_result_is_used_again_when_its_views_are_gone() -> None:
    first = pool.take(500_000, np.float64)
    view = first[10:20].reshape(2, 5)
    place = first.ctypes.data
    del first
    other = pool.take(500_000, np.float64)
    assert not np.shares_memory(view, other)
    del view
    third = pool.take(700_000, np.float32)
    assert place <= third.ctypes.data < place + 4_000_000 or other.ctypes.data < place  # the best place was elsewhere
    assert third.dtype == np.float32 and third.flags.writeable and third.flags.c_contiguous


def test_small_memory_is_numpys() -> None:
    assert pool.take(10, np.int8).base is None


def test_every_dtype_and_none_at_all() -> None:
    for dtype in (np.int8, np.float16, kernels.ml_dtypes.bfloat16, np.complex128, bool):
        block = kernels.take_own(300_000, np.dtype(dtype))
        assert block.dtype == np.dtype(dtype) and block.shape == (300_000,) and block.flags.aligned
    assert kernels.take_own(0, np.dtype(float)).shape == (0,)


def test_without_a_bound_that_the_system_gives_there_is_numpys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the arena has no room."""
    monkeypatch.setattr(pool, "_source", lambda count, dtype: None)
    assert pool.take(2**20, np.float64).base is None
