"""Python's objects and the C library's heap in large pages: where they lie, what goes back, and who does without."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from spmdx.runtime.pages import SET, promises_are_kept

LARGE = Path("/sys/kernel/mm/transparent_hugepage/enabled")
if not LARGE.exists() or not Path("/proc/self/smaps").exists():
    pytest.skip("this system has no large pages, or does not tell of them", allow_module_level=True)
if platform.libc_ver()[0] != "glibc":
    pytest.skip("the heap of another C library grows as it does", allow_module_level=True)
BOUNDED = any(
    resource.getrlimit(what)[0] != resource.RLIM_INFINITY for what in (resource.RLIMIT_AS, resource.RLIMIT_DATA)
)
if BOUNDED or promises_are_kept():
    pytest.skip("address space is not to be had for nothing here", allow_module_level=True)
ALONE = {name: value for name, value in os.environ.items() if name not in (*SET, "SPMDX_ARENA", "PYTHONMALLOC")}

HEAD = """
import gc, os, resource, sys
import numpy as np

def large():
    "Addresses for which large pages are wished: pairs of first and last."
    found, here = [], None
    with open("/proc/self/smaps") as lines:
        for line in lines:
            first = line.split()[0]
            if first == "VmFlags:" and "hg" in line.split():
                found.append(here)
            elif "-" in first and not first.endswith(":"):
                here = tuple(int(n, 16) for n in first.split("-"))
    return found

def lies(address):
    return any(low <= address < high for low, high in large())

class Thing:
    __slots__ = ("next",)

def things(count):
    made = [Thing() for _ in range(count)]
    for each, other in zip(made, made[1:]):
        each.next = other
    return made
"""


def run(program: str, **environ: str) -> None:
    command = [sys.executable, "-c", HEAD + program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env={**ALONE, **environ})
    assert done.returncode == 0, done.stderr


def test_objects_and_short_arrays_lie_in_large_pages() -> None:
    run("""
before = things(100_000)
assert not lies(id(before[0]))
import spmdx
made = things(300_000)
addresses = [id(x) for x in made]
arrays = [np.empty(20_000) for _ in range(200)]  # the first may lie where there was room before
assert lies(addresses[-1]) and lies(arrays[-1].ctypes.data)
walk = made[0]
for x in made[1:]:
    walk = walk.next
    assert walk is x
assert len(set(addresses)) == len(addresses)
""")


def test_the_heap_grows_where_much_of_it_is_free() -> None:
    """As it is when arrays came and went before the import."""
    run("""
x = np.ones(3_900_000)  # the C library's own threshold: from here on what is shorter lies in the heap
del x
arrays = [np.ones(1_000_000) for _ in range(7)]
del arrays
import spmdx
arrays = [np.empty(20_000) for _ in range(800)]
assert lies(arrays[-1].ctypes.data)
""")


def test_frames_take_no_pages() -> None:
    """Python keeps the frames of calls in pieces of 16 KiB, which it asks the same allocator for; here first, for there
    is room yet for objects. If pages were cut up for them none would be left for objects."""
    run("""
import threading
before = [Thing() for _ in range(1_000_000)][::2000]
import spmdx
def deep(n):
    return n and 1 + deep(n - 1)
thread = threading.Thread(target=deep, args=(900,))
thread.start()
thread.join()
made = things(1_500_000)
assert lies(id(made[-1]))
""")


def test_pages_go_back_when_nothing_lies_there() -> None:
    """But for a few; and objects from before the import go to where they came from."""
    run("""
def bytes_of_pages():
    return sum(b - a for a, b in large() if b - a < 2**28)
before = things(100_000)
import spmdx
first = bytes_of_pages()
for _ in range(3):
    made = things(1_000_000)
    assert bytes_of_pages() > first + 2**24
    del made
    gc.collect()
    assert bytes_of_pages() < first + 2**24, (bytes_of_pages(), first)
del before
gc.collect()
assert len(things(200_000)) == 200_000
""")


def test_who_does_without() -> None:
    """A wish, a bound on address space, and an allocator that is set already."""
    run(
        "import spmdx\nassert not lies(id(things(300_000)[-1])) and not lies(np.empty(1000).ctypes.data)",
        SPMDX_ARENA="0",
    )
    bound = "resource.setrlimit(resource.RLIMIT_{0}, ({1}, resource.getrlimit(resource.RLIMIT_{0})[1]))\n"
    for what in ("AS", "DATA"):
        run(
            bound.format(what, 2**32)
            + "import spmdx\nassert not lies(id(things(300_000)[-1])) and not lies(np.empty(1000).ctypes.data)"
        )
    run("import spmdx\nassert not lies(np.empty(1000).ctypes.data)", MALLOC_TOP_PAD_="131072")


def test_a_forked_process_has_its_own() -> None:
    run("""
import spmdx
made = things(300_000)
child = os.fork()
if not child:
    for x in made:
        x.next = None
    del made
    gc.collect()
    os._exit(0 if len(things(300_000)) == 300_000 else 1)
assert os.waitpid(child, 0)[1] == 0
assert all(x.next is y for x, y in zip(made, made[1:]))
""")
