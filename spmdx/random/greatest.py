"""The greatest of logits + Gumbel noise along a dimension: the noise is drawn tile by tile, and never whole.

A draw of n indices out of m categories needs n * m numbers, but no memory for them: each tile is reduced to the
greatest so far and its index before the next one is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from spmdx.array import Array
from spmdx.mesh import Coordinate
from spmdx.ops.extremes import NOWHERE
from spmdx.ops.place import moved_arrays
from spmdx.plan import plan
from spmdx.runtime import kernels, memory
from spmdx.spec import Spec, make

__all__ = ["TILE", "greatest"]
TILE = 2**16  # numbers drawn at a time
GPU_TILE = 2**24
INT64 = np.dtype(np.int64)

Pieces = list[tuple[int, int]]


def greatest(words: Any, x: Array, spec: Spec, dim: int) -> Array:
    """The first index along ``dim`` of the greatest of x + Gumbel noise of ``spec``, which ends as the spec of x does.

    Where the dimension is divided: one all-reduce of the greatest, and a Partial("min") of indices.
    """
    mesh, axes = spec.mesh, spec.layouts[dim].axes
    sim = mesh.device == "sim"
    coordinates: list[Coordinate] = mesh.coordinates() if sim else [mesh.here()] if mesh.contains_me() else []
    blocks = x._block if isinstance(x._block, tuple) else (x._block,)
    found = [_of_block(words, block, spec, c, dim) for block, c in zip(blocks, coordinates)]

    def held(parts: list[Any], dtype: np.dtype[Any], op: str) -> Array:
        shape, layouts = (t[:dim] + t[dim + 1 :] for t in (spec.shape, spec.layouts))
        of = make(mesh, shape, dtype, layouts, axes, op)  # type: ignore[arg-type]  # slices of tuples are tuples
        return Array(tuple(parts) if sim else parts[0] if parts else None, of)

    if not axes:
        return held([index for _, index in found], INT64, "min")
    value = held([best for best, _ in found], x.dtype, "max")
    whole = value.spec.replace(partial=())
    [most] = moved_arrays([value], [whole], [plan(value.spec, whole)], "categorical")
    tops = most._block if sim else (most._block,)
    xp = memory.space(mesh.device)
    hits = [xp.where((best == top) | (best != best), index, NOWHERE) for (best, index), top in zip(found, tops)]
    return held(hits, INT64, "min")


def _of_block(words: Any, x: Any, spec: Spec, coordinate: Coordinate, dim: int) -> tuple[Any, Any]:
    """The greatest of each line of a block, and its global index: the first one, and the first NaN."""
    pieces = [list(spec.pieces(d, coordinate)) for d in range(spec.ndim)]
    size = spec.block_shape(coordinate)
    out = size[:dim] + size[dim + 1 :]
    xp = memory.of(x)
    best, index = xp.full(out, -np.inf, x.dtype), xp.full(out, NOWHERE, INT64)
    numbers = xp.concatenate([xp.arange(a, b) for a, b in pieces[dim]] or [xp.empty(0, INT64)])
    before = spec.ndim - x.ndim
    for cut in _tiles(size, TILE if xp is np else GPU_TILE) if 0 not in size else ():
        inside = [_within(p, s) for p, s in zip(pieces, cut)]
        noisy = kernels.of(xp).continuous("gumbel", words, spec.shape, inside, x.dtype) + x[tuple(cut[before:])]
        comparable = noisy if noisy.dtype.kind == "f" else noisy.astype(np.float32)  # NumPy's argmax knows no bfloat16
        first = comparable.argmax(dim)[(slice(None),) * dim + (None,)]
        value, at = xp.take_along_axis(noisy, first, dim).squeeze(dim), numbers[cut[dim]][first.squeeze(dim)]
        where = tuple(cut[:dim] + cut[dim + 1 :])
        old = best[where]
        better = (index[where] == NOWHERE) | (value > old) | ((value != value) & (old == old))
        best[where], index[where] = xp.where(better, value, old), xp.where(better, at, index[where])
    return best, index


def _tiles(size: tuple[int, ...], tile: int) -> Iterator[list[slice]]:
    """Boxes of at most ``tile`` elements that cover a block, in C order."""
    cut = next((d for d in range(len(size)) if math.prod(size[d + 1 :]) <= tile), 0)  # inner dimensions stay together
    many = max(1, tile // math.prod(size[cut + 1 :]))
    for lead in np.ndindex(*size[:cut]):
        for start in range(0, size[cut], many):
            stop = min(start + many, size[cut])
            yield [*(slice(i, i + 1) for i in lead), slice(start, stop), *(slice(0, n) for n in size[cut + 1 :])]


def _within(pieces: Pieces, cut: slice) -> Pieces:
    """The intervals of elements ``cut`` of a dimension of a block."""
    out, at = [], 0
    for start, stop in pieces:
        low, high = max(cut.start - at, 0), min(cut.stop - at, stop - start)
        if low < high:
            out.append((start + low, start + high))
        at += stop - start
    return out
