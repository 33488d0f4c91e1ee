"""Blocks in memory: identities of reductions, and the user's line that an operation came from."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np

from spmdx.errors import MeshError

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def identity(dtype: Any, op: str | None) -> Any:
    """The value that changes nothing under a reduction, exactly: -0.0 for sums of floats, so that -0.0 stays -0.0."""
    dtype = np.dtype(dtype)
    if op == "sum":
        if dtype.kind == "c":
            return np.asarray(complex(-0.0, -0.0), dtype)[()]
        return dtype.type(0 if dtype.kind in "biu" else -0.0)
    if op == "prod":
        return dtype.type(1)
    high = op == "min"
    if dtype.kind == "b":
        return np.bool_(high)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return dtype.type(limits.max if high else limits.min)
    return dtype.type(np.inf if high else -np.inf)


def filled(shape: tuple[int, ...], dtype: Any, op: str | None) -> Any:
    """A new block of a reduction's identity."""
    return np.full(shape, identity(dtype, op), dtype)


def filled_like(block: Any, op: str | None) -> Any:
    """The identity in the shape and dtype of a block or of a Python scalar."""
    if isinstance(block, (bool, int, float, complex)):
        if op == "sum":
            return type(block)(0) if isinstance(block, (bool, int)) else type(block)(-0.0)
        return identity(np.asarray(block).dtype, op).item()
    return filled(block.shape, block.dtype, op)


def need_gpu() -> None:
    """Say clearly that blocks cannot lie on a GPU here.

    Raises:
        MeshError: always, until blocks on GPUs are there; with the reason where CuPy or a GPU is missing already.
    """
    reason = "blocks on GPUs are not there yet"
    try:
        import cupy

        if not cupy.cuda.runtime.getDeviceCount():
            reason = "CuPy finds no GPU"
    except Exception as error:  # CuPy is not installed, or finds no driver: one clear error for all of it
        reason = f"it needs CuPy and a GPU ({error})"
    raise MeshError(f'device="cuda" cannot be used: {reason}.', 'device="cpu"')


def users_line() -> str:
    """The file and line, outside this package, that the running operation was called from."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(_PACKAGE) and not code.co_filename.startswith("<spmdx"):
            return f"{code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return "?"
