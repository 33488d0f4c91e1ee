"""The boxes of a message as tables for one kernel that copies them all: index arithmetic, for cuda/pack.cu."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

MOST = 16  # blocks of one launch
LOOPS = 8
WORDS = 5 + 2 * LOOPS  # numbers of a box
BASES = np.dtype([("at", "u8", (MOST,))])


class Plan:
    """All boxes of one side of a message, in the order of the stream; blocks in groups of MOST."""

    def __init__(self, parts: Sequence[Sequence[Any]], shapes: Sequence[tuple[int, ...]], itemsize: int) -> None:
        """``parts[j][i]``: what member j has of block i, whose shape is ``shapes[i]``."""
        self.itemsize = itemsize
        groups = -(-len(shapes) // MOST)
        self.boxes: list[list[Any]] = [[] for _ in range(groups)]
        at = 0
        for own in parts:
            for i, part in enumerate(own):
                for box, size in zip(part.boxes, part.shapes):
                    n = math.prod(size)
                    if n:
                        starts = [s.start for s in box]
                        self.boxes[i // MOST].append((at, i % MOST, *_loops(starts, size, shapes[i])))
                    at += n
        self.fits = all(len(loops) < LOOPS for boxes in self.boxes for *_, loops in boxes)
        self._tables: dict[tuple[int, int], Any] = {}

    def unit(self, group: int, pointers: Sequence[int]) -> int:
        """How many bytes are copied at once: as many, up to 16, as divide all that the boxes begin and step by."""
        found = 16
        for pointer in pointers:
            found = math.gcd(found, pointer)
        for at, _, offset, run, loops in self.boxes[group]:
            found = math.gcd(found, self.itemsize * math.gcd(at, offset, run, *(s for _, s in loops)))
        return found

    def table(self, group: int, unit: int, upload: Callable[[Any], Any]) -> tuple[Any, int]:
        """The boxes in units, on the device, and how many units are copied."""
        known = self._tables.get((group, unit))
        if known is None:
            rows, begin = [], 0
            for at, block, offset, run, loops in self.boxes[group]:
                scale = [(run * self.itemsize // unit, 1), *((n, s * self.itemsize // unit) for n, s in loops)]
                counts, strides = ([pair[k] for pair in scale] + [0] * (LOOPS - len(scale)) for k in (0, 1))
                here, there = (n * self.itemsize // unit for n in (at, offset))
                rows.append([begin, block, there, here, len(scale), *counts, *strides])
                begin += math.prod(n for n, _ in scale)
            known = self._tables[group, unit] = upload(np.array(rows, np.uint64).reshape(-1)), begin
        return known


def _loops(starts: Sequence[int], size: Sequence[int], shape: Sequence[int]) -> tuple[int, int, list[tuple[int, int]]]:
    """Of a box of a C-contiguous block, in elements: where it begins, the run of those that lie side by side, and loops
    (count, stride) over such runs, the innermost first."""
    offset, run, step, whole = 0, 1, 1, True
    loops: list[tuple[int, int]] = []
    for d in reversed(range(len(shape))):
        offset += starts[d] * step
        if whole:
            run *= size[d]
        elif loops and loops[-1][0] * loops[-1][1] == step:
            loops[-1] = loops[-1][0] * size[d], loops[-1][1]
        elif size[d] != 1:
            loops.append((size[d], step))
        whole = whole and size[d] == shape[d]
        step *= shape[d]
    return offset, run, loops
