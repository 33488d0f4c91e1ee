"""SPMDX_CHECK=1: ranks compare notes at every operation, so that a fault on one rank raises on all.

It costs one small all-gather an operation, and is meant for finding the rank that does something else.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from spmdx import context
from spmdx.errors import RanksDisagree, SpmdxError
from spmdx.mesh import Mesh

RUNNING, FAILED = 0, 1


@cache
def on() -> bool:
    """True if the environment asks for checks; read once, at the first operation."""
    return os.environ.get("SPMDX_CHECK", "") not in ("", "0")


class RankFailed(SpmdxError, RuntimeError):
    """Another rank's part of an operation raised."""


def together(mesh: Mesh, what: str, run: Callable[[], Any]) -> Any:
    """Run one rank's part of an operation; raise on every rank if it raises on one, or if ranks came to different
    operations (``what`` names this rank's)."""
    if mesh.size == 1 or mesh.device == "sim":
        return run()
    group = context.world().comm(mesh).group(mesh.axis_names)
    name = zlib.crc32(what.encode())
    names = np.concatenate(group.all_gather(np.array([name], np.int64), [1] * mesh.size))
    if (names != name).any():
        other = int(np.argmax(names != name))
        raise RanksDisagree(
            f"rank {mesh.rank} has come to {what}; rank {mesh.ranks[other]} to something else.",
            "the same operations, with the same arguments, on every rank (no collective inside `if rank == 0:`)",
        )
    error: BaseException | None = None
    result = None
    try:
        result = run()
    except Exception as raised:  # told to the other ranks, then raised again
        error = raised
    flag = np.array([RUNNING if error is None else FAILED], np.int64)
    flags = np.concatenate(group.all_gather(flag, [1] * mesh.size))
    if error is not None:
        raise error
    if flags.any():
        raise RankFailed(f"{what} raised on rank {mesh.ranks[int(np.argmax(flags))]}; its message has the reason.")
    return result
