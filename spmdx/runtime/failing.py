"""Ranks fail together: an error that ends one rank of an MPI run ends them all, with its traceback.

Otherwise the others would wait for ever: MPI's own end, which Python runs on its way out, waits for every rank.
"""

from __future__ import annotations

import atexit
import dis
import io
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any

HEARD = 0.3  # seconds before the end: a launcher throws away what it has not read when a rank aborts


def together(rank: int, size: int, abort: Callable[[int], None], watch_exit: bool) -> None:
    """Hook every way in which an error ends this process; ``abort`` ends all ranks with a status.

    ``watch_exit``: nothing else looks at the status that a ``SystemExit`` leaves with.
    """
    hook, thread_hook, unraisable_hook = sys.excepthook, threading.excepthook, sys.unraisablehook

    def end(status: int = 1) -> None:
        print(f"spmdx: rank {rank} of {size} failed; ending all ranks", file=sys.stderr)
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError, OSError, ValueError):  # None or closed: the end must come all the same
                stream.flush()
        time.sleep(HEARD)
        abort(status)

    def on_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        with _in_one_piece():
            hook(kind, error, trace)
        if not hasattr(sys, "ps1"):  # at a prompt the next line can mend it
            end()

    def on_thread_error(args: threading.ExceptHookArgs) -> None:
        with _in_one_piece():
            thread_hook(args)
        if args.exc_type is not SystemExit:
            end()

    def on_unraisable(args: Any) -> None:
        unraisable_hook(args)
        if "atexit" in (args.err_msg or ""):
            end()

    sys.excepthook, threading.excepthook, sys.unraisablehook = on_error, on_thread_error, on_unraisable
    if watch_exit:
        _watch_exit(end)


@contextmanager
def _in_one_piece() -> Iterator[None]:
    """What is written to stderr meanwhile is written at once: a traceback comes in pieces, which several ranks' mix."""
    stream, text = sys.stderr, io.StringIO()
    sys.stderr = text
    try:
        yield
    finally:
        sys.stderr = stream
        with suppress(AttributeError, OSError, ValueError):  # as above
            stream.write(text.getvalue())
            stream.flush()


def _watch_exit(end: Callable[[int], None]) -> None:
    """Notice ``sys.exit(status)`` with a status that is not 0, unless somebody caught it."""
    leave = sys.exit
    left: list[Any] = []
    frame: Any = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back

    def recording_exit(status: Any = None) -> Any:
        left[:] = [status]
        leave(status)

    def look() -> None:
        last = dis.opname[frame.f_code.co_code[frame.f_lasti]]
        if left and left[0] not in (None, 0) and not last.startswith("RETURN"):  # raised through the program
            end(left[0] if isinstance(left[0], int) else 1)

    sys.exit = recording_exit
    atexit.register(look)
