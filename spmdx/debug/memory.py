"""How much a gradient keeps."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np

from spmdx.autodiff import vjp


def kept_bytes(function: Callable[..., Any], *primals: Any) -> int:
    """Bytes of blocks that this process holds after ``function(*primals)`` until its gradient is taken: what it made
    and the backward pass needs, with its value, without the primals. Runs the function once, and measures.

    On thread ranks it counts all of them together; on a simulated mesh, all ranks' blocks.
    """
    running = tracemalloc.is_tracing()
    if not running:
        tracemalloc.start()
    try:
        before = _blocks()
        held = vjp(function, *primals)
        after = _blocks()
        del held
    finally:
        if not running:
            tracemalloc.stop()
    return after - before


def _blocks() -> int:
    gc.collect()
    of_numpy = tracemalloc.DomainFilter(inclusive=True, domain=np.lib.tracemalloc_domain)
    return sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces([of_numpy]).traces)
