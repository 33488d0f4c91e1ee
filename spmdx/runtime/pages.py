"""Where Python's objects and NumPy's short arrays lie: in large pages, from here on.

The package imports this before all else, for what is there already stays where it is. docs/decisions.rst says what it
is for.
"""

from __future__ import annotations

import os
from contextlib import suppress
from importlib import import_module

# The C library's allocator, which NumPy uses. Bytes that it may keep, or they would go back to the system after every
# step of a training loop; what is larger has pages of its own, which go back at once; and what its heap grows by.
KEPT, LARGEST_OF_HEAP, GROWTH = 2**29, 2**25, 2**28
# Who has set it is left alone.
SET = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")


def promises_are_kept() -> bool:
    """Whether this system counts as taken what nobody has written to yet."""
    try:
        with open("/proc/sys/vm/overcommit_memory") as file:
            return file.read().strip() == "2"
    except OSError:
        return False


def is_main() -> bool:
    """Whether this is the process's main interpreter."""
    for name in ("_interpreters", "_xxsubinterpreters"):  # from Python 3.13 on, and before
        with suppress(ImportError, AttributeError):
            interpreters = import_module(name)
            return bool(interpreters.get_current() == interpreters.get_main())
    return True


if not is_main():  # the compiled module would wait for ever
    raise ImportError(
        "spmdx works in the main interpreter of a process alone, as NumPy does.\n"
        "  Write sx.testing.spmd(n)(function) for ranks in one process, or mpiexec -n N python program.py"
    )
with suppress(ImportError):  # kernels.py says what to do then
    from spmdx._kernels import hold_objects, keep_freed

    large = os.environ.get("SPMDX_ARENA") != "0" and not promises_are_kept()
    if large:
        hold_objects()
    if not any(name in os.environ for name in SET):
        keep_freed(KEPT, LARGEST_OF_HEAP, GROWTH if large else 0)
