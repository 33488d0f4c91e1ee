"""Blocks in memory: whose they are, identities of reductions, and the user's line that an operation came from."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from spmdx.runtime import pool

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def space(device: str) -> Any:
    """The namespace of the blocks of a kind of device."""
    return np if device != "cuda" else gpu().xp


def of(block: Any) -> Any:
    """The namespace that a block belongs to."""
    return np if isinstance(block, PLAIN) else gpu().xp


def gpu() -> Any:
    """This process's GPU: its device, streams and kernels."""
    from spmdx.runtime.gpu import here  # only where it is wanted: most programs have none

    return here()


def on_gpu(name: str, body: Any) -> Any:
    """``body(namespace)``, a function of blocks, for blocks on the GPU: with the host to fall back on."""
    return gpu().guarded(name, body(gpu().xp), lambda *blocks: body(np)(*blocks))


PLAIN = (np.ndarray, np.generic, bool, int, float, complex)


def on_device(block: Any) -> bool:
    """True for a block on a GPU."""
    return not isinstance(block, PLAIN)


def put(device: str, block: Any) -> Any:
    """A NumPy array on a kind of device, where it is not there yet."""
    if device != "cuda" or on_device(block):
        return block
    return gpu().constant(block) if isinstance(block, np.ndarray) else space(device).asarray(block)


def host(block: Any) -> Any:
    """A block as a NumPy array. From a GPU it is copied, and the host waits for it."""
    if isinstance(block, PLAIN):
        return block
    try:
        return block.get()
    except RuntimeError as error:  # of whatever came before: the host waits here
        from spmdx.runtime.gpu import failure

        raise failure("what a copy to the host waits for", error) from error


def empty(shape: Sequence[int], dtype: Any, xp: Any = np) -> Any:
    """A new block, not filled."""
    return pool.empty(shape, dtype) if xp is np else xp.empty(shape, dtype)


def room(like: Any, count: int, dtype: Any = None) -> Any:
    """A new flat array beside another one, not filled."""
    dtype = like.dtype if dtype is None else dtype
    return pool.take(count, dtype) if isinstance(like, np.ndarray) else of(like).empty(count, dtype)


def copied(block: Any) -> Any:
    """A copy of a block or a NumPy array, C-contiguous."""
    if not isinstance(block, np.ndarray) or block.nbytes < pool.LEAST:  # small: NumPy's memory, without the way to it
        return of(block).array(block, order="C")
    out = pool.empty(block.shape, block.dtype)
    np.copyto(out, block)
    return out


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


def neutral(dtype: Any, op: str | None) -> Any:
    """The same as a Python number, which every namespace takes."""
    return identity(dtype, op).item()


def filled(shape: tuple[int, ...], dtype: Any, op: str | None, xp: Any = np) -> Any:
    """A new block of a reduction's identity."""
    return xp.full(shape, identity(dtype, op) if xp is np else neutral(dtype, op), dtype)


def filled_like(block: Any, op: str | None) -> Any:
    """The identity in the shape and dtype of a block or of a Python scalar."""
    if isinstance(block, (bool, int, float, complex)):
        if op == "sum":
            return type(block)(0) if isinstance(block, (bool, int)) else type(block)(-0.0)
        return identity(np.asarray(block).dtype, op).item()
    return filled(block.shape, block.dtype, op, of(block))


def need_gpu() -> None:
    """Find this process's GPU.

    Raises:
        MeshError: CuPy or a GPU is missing, and why.
    """
    gpu()


def users_line() -> str:
    """The file and line, outside this package, that the running operation was called from."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(_PACKAGE) and not code.co_filename.startswith("<spmdx"):
            return f"{code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return "?"
