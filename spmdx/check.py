"""SPMDX_CHECK=1: ranks compare notes at every operation, so that a fault on one rank raises on all.

It costs one small all-gather an operation, and is meant for finding the rank that does something else.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from spmdx import context
from spmdx.errors import RanksDisagree, SpmdxError
from spmdx.mesh import Mesh
from spmdx.runtime import memory

RUNNING, FAILED = 0, 1
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


@cache
def on() -> bool:
    """True if the environment asks for checks; read once, at the first operation."""
    return os.environ.get("SPMDX_CHECK", "") not in ("", "0")


class RankFailed(SpmdxError, RuntimeError):
    """Another rank's part of an operation raised."""


def same(mesh: Mesh, what: str, value: Any = None) -> None:
    """With checks on: raise on every rank if ranks came here with something else, or with other values of it.

    Args:
        what: what this rank is at, in words that do not depend on the process.
        value: a NumPy array that should be the same on every rank.
    """
    if not on() or mesh.size == 1 or mesh.device == "sim" or not mesh.contains_me():
        return
    code = zlib.crc32(_ADDRESS.sub("", what).encode())
    if value is not None:
        code = zlib.crc32(
            np.ascontiguousarray(memory.host(value)).tobytes(),
            zlib.crc32(f"{value.dtype} {value.shape}".encode(), code),
        )
    group = context.world().comm(mesh.host).group(mesh.axis_names)
    codes = np.concatenate(group.all_gather(np.array([code], np.int64), [1] * mesh.size))
    if (codes != code).any():
        other = int(np.argmax(codes != code))
        raise RanksDisagree(
            f"rank {mesh.rank} has come to {what}; rank {mesh.ranks[other]} to something else, or with other values.",
            "the same operations, with the same arguments, on every rank (no collective inside `if rank == 0:`)",
        )


def together(mesh: Mesh, what: str, run: Callable[[], Any]) -> Any:
    """Run one rank's part of an operation; raise on every rank if it raises on one."""
    if mesh.size == 1 or mesh.device == "sim":
        return run()
    error: BaseException | None = None
    result = None
    try:
        result = run()
    except Exception as raised:  # told to the other ranks, then raised again
        error = raised
    group = context.world().comm(mesh.host).group(mesh.axis_names)
    flag = np.array([RUNNING if error is None else FAILED], np.int64)
    flags = np.concatenate(group.all_gather(flag, [1] * mesh.size))
    if error is not None:
        raise error
    if flags.any():
        failed = mesh.ranks[int(np.argmax(flags))]
        raise RankFailed(f"{what} raised on rank {failed}.", f"what the message of rank {failed} says")
    return result
