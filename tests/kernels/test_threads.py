"""Threads that share a loop, and what one of them throws."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import resource
import numpy as np
from spmdx.runtime import kernels

kernels.set_threads(2)
q, out = np.ones((2, 1, 1, 8)), np.empty((2, 1, 1, 8))

def attended(columns):
    k = np.broadcast_to(np.ones(8), (2, columns, 8))
    kernels.attend(q, k, k, None, None, 1.0, None, out, None, None, None)
    return out

attended(9_000)  # on both threads
have = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (have + 2**28,) * 2)
for _ in range(3):
    try:
        attended(10_000_000)
    except MemoryError:
        print("no memory")
print((attended(9_000) == 1).all())
"""


def test_memory_that_is_missing_is_an_error() -> None:
    """On whichever thread it is missing; and the next call finds the threads at work."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "no memory\n" * 3 + "True\n"), done.stderr
