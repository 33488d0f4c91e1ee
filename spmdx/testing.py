"""Tools for tests: ranks as threads of this process."""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from spmdx.runtime.threads import ThreadRun

P = ParamSpec("P")
T = TypeVar("T")

GRACE = 2.0  # seconds that the other ranks get to notice, once one has failed


def spmd(n: int) -> Callable[[Callable[P, T]], Callable[P, list[T]]]:
    """Run a function on ``n`` thread ranks: ``spmd(4)(function)(*args)`` returns their results as a list.

    Each rank has its own world, default mesh and settings; collectives work as they do between processes. An error
    on one rank ends the run and is raised here, with its traceback and a note that names the rank. Ranks that
    come to different collectives, or wait for one that has returned, get `RanksDisagree`. Also a decorator.
    """
    if not isinstance(n, int) or n < 1:
        raise ValueError(f"spmd needs a number of ranks of at least 1; got {n!r}.\n  Write spmd(2)(function)")

    def on_ranks(function: Callable[P, T]) -> Callable[P, list[T]]:
        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> list[T]:
            return _run(n, lambda: function(*args, **kwargs))

        return run

    return on_ranks


def _run(n: int, call: Callable[[], T]) -> list[T]:
    run = ThreadRun(n)
    threads = [
        threading.Thread(target=run.work, args=(rank, call), name=f"rank {rank}", daemon=True) for rank in range(n)
    ]
    for thread in threads:
        thread.start()
    failed_at = None
    try:
        while alive := [t for t in threads if t.is_alive()]:
            if run.errors:
                failed_at = failed_at or time.monotonic()
                if time.monotonic() - failed_at > GRACE:
                    break  # a rank that is busy outside any collective is left to end with the process
            alive[0].join(0.05 if run.errors else 0.5)
    except BaseException:
        run.table.break_up("the run was interrupted")
        raise
    first = run.first_error()
    if first is None:
        return run.results
    rank, error = first
    note = f"raised on rank {rank} of {n}"
    if sys.version_info >= (3, 11):
        error.add_note(note)
    else:
        print(note, file=sys.stderr)
    raise error
