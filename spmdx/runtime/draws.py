"""What kernels of random values on the GPU are given: which kernel a distribution is, its parameters as bytes, and
where a block's elements lie. Pure functions; the structs are those of cuda/random.h, jax.h and kernels.cu.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from spmdx.errors import ArgumentError

PLACE = np.dtype([("table", "u8"), ("first", "u8"), ("count", "u8")])
KEY = np.dtype([("k0", "u4"), ("k1", "u4"), ("s0", "u4"), ("s1", "u4"), ("threefry", "u1")], align=True)
TRUNCATION = np.dtype([*((n, "f8") for n in ("low", "high", "from", "width")), ("mirrored", "u1")], align=True)
WORD = 2**64

Pieces = tuple[tuple[int, int], ...]


@lru_cache(maxsize=1024)
def key(words: tuple[int, ...]) -> Any:
    """A key as the argument of a kernel."""
    found = np.zeros(1, KEY)
    found[0] = (*words, *(0,) * (4 - len(words)), len(words) == 2)
    return found


def place(shape: tuple[int, ...], intervals: tuple[Pieces, ...]) -> tuple[int, int, int, int, list[int] | None]:
    """Where a block's elements lie: of a single run the first global index and the length; the number of rows and the
    longest run; and, for more than one run, the numbers of the table that kernels.cu describes."""
    cut, inner = len(shape) - 1, 1
    while cut > 0 and tuple(intervals[cut]) == ((0, shape[cut]),):
        inner *= shape[cut]
        cut -= 1
    if cut < 0:
        return 0, 1, 1, 1, None
    runs = [(a * inner, (b - a) * inner) for a, b in intervals[cut] if a < b]
    lengths = [sum(b - a for a, b in pieces) for pieces in intervals[:cut]]
    strides = [math.prod(shape[d + 1 :]) for d in range(cut)]
    rows, longest = math.prod(lengths), max((n for _, n in runs), default=0)
    if rows == 1 and len(runs) == 1:
        base = sum(next(a for a, b in pieces if a < b) * s for pieces, s in zip(intervals, strides))
        return base + runs[0][0], runs[0][1], 1, longest, None
    table = [cut, len(runs), rows, sum(n for _, n in runs)]
    at = 4 + 4 * cut + 3 * len(runs)
    pieces = [[n for a, b in own if a < b for n in (a, b)] for own in intervals[:cut]]
    for length, stride, own in zip(lengths, strides, pieces):
        table += [length, stride, len(own) // 2, at]
        at += len(own)
    stand = 0
    for start, count in runs:
        table += [start, count, stand]
        stand += count
    return 0, 0, rows, longest, [*table, *(n for own in pieces for n in own)]


@lru_cache(maxsize=1024)
def distribution(
    kind: str, element: str, threefry: bool, real: tuple[float, ...], low: int, span: int
) -> tuple[str, Any, int]:
    """The kernel, the distribution as its argument, and how many elements one block of the generator gives."""
    wide = element in ("f64", "c128", "u64")
    each = {"complex_normal": 1 if wide else 2, "randint": 2}.get(kind, 2 if wide else 4)
    jax = "jax_" if threefry and kind in ("bits", "uniform", "randint") else ""
    if kind == "open64":
        each = 2
    elif kind == "open32":
        each = 4
    if kind == "randint":
        return _integers(element, threefry, low, span)
    if kind == "uniform":
        argument: Any = np.array(real, np.float64 if wide else np.float32).view("V24" if wide else "V12")
    elif kind == "unit":
        argument = np.array([0, 1, 1], np.float32).view("V12")
    elif kind == "bernoulli":
        argument = np.array(real[:1], np.float32)
    elif kind == "truncated_normal":
        argument = _truncation(*real[:2])
    else:
        argument = np.zeros(1, np.uint8)  # an empty struct
    return f"{jax}{kind}_{element}", argument, each


def _integers(element: str, threefry: bool, low: int, span: int) -> tuple[str, Any, int]:
    bits = max(32, int(element[1:]))
    narrow = span % 2**bits
    if not threefry or narrow == 1:
        return f"randint_{element}", np.array([low, span], np.uint64).view("V16"), 2
    kind = f"u{bits // 8}"
    fields = [(n, kind) for n in ("low", "times", "divisor", "magic")]
    found = np.zeros(1, np.dtype([*fields, ("shift", "i4")], align=True))
    each = 128 // (2 * bits)
    if narrow == 0:
        found[0] = (low % 2**bits, 0, 0, 0, 0)
        return f"jax_randint_all_{element}", found, each
    root = 2 ** (bits // 2) % narrow
    found[0] = (low % 2**bits, root * root % 2**bits % narrow, *modulus(narrow, bits))
    return f"jax_randint_{element}", found, each


def modulus(divisor: int, bits: int) -> tuple[int, int, int]:
    """What cuda/jax.h divides by: the divisor, 2 or more, its magic number and its shift."""
    log = divisor.bit_length() - 1
    if divisor & (divisor - 1) == 0:
        return divisor, 0, log - 1
    return divisor, (-(-(2 ** (bits + log + 1)) // divisor)) % 2**bits, log


def _truncation(low: float, high: float) -> Any:
    """`truncation` of cuda/special.h: the distribution function is the CPU's, which has the same bits."""
    from spmdx.runtime import kernels  # here: it imports what imports this

    if not low < high:
        raise ArgumentError(
            f"a truncated normal lies between low < high; got {low} and {high}.", "lower=-2.0, upper=2.0"
        )
    mirrored = low + high > 0
    bottom, top = (-high, -low) if mirrored else (low, high)
    below, above = kernels.apply("ndtr", np.array([bottom, top])).tolist()
    found = np.zeros(1, TRUNCATION)
    found[0] = (bottom, top, below, above - below, mirrored)
    return found
