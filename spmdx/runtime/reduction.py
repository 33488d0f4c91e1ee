"""Reductions over the messages of several ranks: always in member order, so that the bits are the same on every rank.

MPI's own are not used: its order is its own, its MAX loses a NaN on some ranks, and it cannot add bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spmdx.dtypes import NARROW
from spmdx.errors import ArgumentError, DtypeError
from spmdx.runtime import kernels, memory
from spmdx.runtime.pool import Flat

OPS: dict[str, np.ufunc] = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}
LOGICAL: dict[str, np.ufunc] = {
    "sum": np.logical_or,
    "max": np.logical_or,
    "prod": np.logical_and,
    "min": np.logical_and,
}
BLOCK_BYTES = 128 * 1024  # what stays in the second-level cache while the members' pieces are added to it


def combine(dtype: np.dtype[Any], op: str) -> Callable[..., Any]:
    """The ufunc that combines two values of ``dtype``."""
    if op not in OPS:
        raise ArgumentError(f"there is no reduction {op!r}.", 'op="sum", "prod", "min" or "max"')
    if dtype.kind == "c" and op in ("min", "max"):
        raise DtypeError(f"{op} of {dtype.name} is not defined: complex numbers have no order.", f"{op}(abs(x))")
    if dtype.kind == "c" and op == "prod":
        return _complex_product
    return LOGICAL[op] if dtype.kind == "b" else OPS[op]


def _complex_product(x: Flat, y: Flat, out: Flat) -> None:
    """x * y with one rounding per real operation: np.multiply fuses some, depending on where an element lies."""
    real = x.real * y.real - x.imag * y.imag
    out.imag = x.real * y.imag + x.imag * y.real
    out.real = real


def reduce_ordered(parts: Sequence[Flat], op: str, out: Flat | None = None) -> Flat:
    """Combine equally long flat arrays, first to last; the result is ``out`` or a new array.

    NaN propagates through min and max. Sums and products of float16 and bfloat16 are made in float32 and rounded
    once. Of 0.0 and -0.0, min and max may give either, the same on every rank. No warning is given for overflow or
    NaN: it would come on the one rank that holds the element.
    """
    first = parts[0]
    dtype = first.dtype
    ufunc = combine(dtype, op)
    if out is None:
        out = memory.room(first, len(first))
    if len(parts) == 1:
        out[...] = first
        return out
    if memory.on_device(first):
        _on_gpu(parts, ufunc.__name__, out)
        return out
    if dtype in kernels.REDUCED:  # one pass over all parts
        kernels.reduce_ordered(parts, op, out)
        return out
    with np.errstate(all="ignore"):
        if dtype in NARROW and op in ("sum", "prod"):
            _reduce_wide(parts, ufunc, out)
        elif len(parts) == 2:
            ufunc(first, parts[1], out=out)
        else:
            step = max(1, BLOCK_BYTES // dtype.itemsize)
            for start in range(0, len(first), step):
                piece = out[start : start + step]
                ufunc(first[start : start + step], parts[1][start : start + step], out=piece)
                for part in parts[2:]:
                    ufunc(piece, part[start : start + step], out=piece)
    return out


def _on_gpu(parts: Sequence[Any], name: str, out: Any) -> None:
    """The same with CuPy, in the same order."""
    xp, dtype = memory.of(out), out.dtype
    combined = _complex_product if name == "_complex_product" else getattr(xp, name)
    wide = np.float32 if dtype in NARROW and name in ("add", "multiply") else dtype
    total = parts[0].astype(wide)
    for part in parts[1:]:
        combined(total, part.astype(wide, copy=False), out=total)
    out[...] = total


def _reduce_wide(parts: Sequence[Flat], ufunc: Callable[..., Any], out: Flat) -> None:
    """The same through a float32 accumulator, one block at a time."""
    step = BLOCK_BYTES // 4
    for start in range(0, len(out), step):
        total = parts[0][start : start + step].astype(np.float32)
        for part in parts[1:]:
            ufunc(total, part[start : start + step].astype(np.float32), out=total)
        out[start : start + step] = total
