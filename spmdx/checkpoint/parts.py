"""What of a tensor a rank reads, so that all ranks together read it about once.

A rank's block may be a strip of each row, and lie all over the file; and what is to be whole on many ranks would be
read as often. Then a rank reads another part, that lies together, and ranks send each other what they are to hold. A
part is as large as the tensor divided among all ranks: no rank has a whole tensor that is not to be whole there.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from spmdx.array import Array
from spmdx.checkpoint import file as files
from spmdx.mesh import Coordinate
from spmdx.ops.mapped import room, turned
from spmdx.ops.place import moved_arrays, wrap
from spmdx.plan import cost, plan
from spmdx.spec import Layout, Spec

GRAIN = 2**18  # bytes: what lies elsewhere in a file costs as much more. One number on all machines: ranks decide alike
NEARLY = 1.25  # times the least that a rank can read is little enough, if less is sent
MOST = 256  # ways to divide a tensor that are tried


def source(target: Spec, view: Any) -> Spec:
    """How ranks divide an array in a file that is to lie as ``target``, to read it: of the ways in which they read
    little, the one that sends least."""
    return _source(target.replace(partial=()), view.strides, view.itemsize, GRAIN)


@lru_cache(maxsize=4096)
def _source(target: Spec, strides: tuple[int, ...], itemsize: int, grain: int) -> Spec:
    options = [target, *_others(target)]
    costs = [_touched(option, strides, itemsize, grain) for option in options]
    enough = [option for option, n in zip(options, costs) if n <= NEARLY * min(costs)]
    return target if target in enough else min(enough, key=lambda option: cost(plan(option, target)))


def _others(target: Spec) -> Iterator[Spec]:
    """The ways to divide an array by all axes of its mesh."""
    axes = [name for name, size in target.mesh.shape.items() if size > 1]
    dims = range(target.ndim)
    all_ways = product(dims, repeat=len(axes)) if target.ndim ** len(axes) <= MOST else ((d,) * len(axes) for d in dims)
    for way in all_ways if axes else ():
        layouts = list(target.layouts)
        for d, layout in enumerate(layouts):
            here, own = [axis for axis, to in zip(axes, way) if to == d], layout.axes
            if {*here} != {*own}:  # as far as it can be inside the target's division: so less is sent
                layouts[d] = Layout((*(a for a in own if a in here), *(a for a in here if a not in own)))
        yield target.replace(layouts=tuple(layouts))


def _touched(spec: Spec, strides: tuple[int, ...], itemsize: int, grain: int) -> int:
    """What the rank reads that reads most: gaps are read over, or cost as much as they may have."""
    dims, length, runs = [], itemsize, 1
    for d, layout in enumerate(spec.layouts):
        dims.append((abs(strides[d]), max(spec.sizes(d))))
        if layout.interleave > 1:
            dims.append((abs(strides[d]) * (spec.shape[d] // layout.interleave), layout.interleave))
    for stride, n in sorted((stride, n) for stride, n in dims if n != 1):
        if n == 0:
            return 0
        if runs == 1 and stride <= length + grain:
            length += stride * (n - 1)
        else:
            runs *= n
    return runs * (length + grain)


class Part(NamedTuple):
    """What a rank has read of an array, and how the array is to lie."""

    array: Array  # with its dimensions as they lie in the file, so that what is sent is made of rows
    order: tuple[int, ...]  # which of the target's dimensions they are
    target: Spec

    def astype(self, dtype: Any) -> Part:
        """The same in another dtype."""
        return Part(self.array.astype(dtype), self.order, self.target.replace(dtype=dtype))


def read(view: Any, spec: Spec, target: Spec) -> Part:
    """An array in a file, of which each rank reads its block of ``spec``. No communication."""
    kept = spec is target
    order = tuple(range(view.ndim) if kept else np.argsort([-abs(n) for n in view.strides], kind="stable").tolist())
    lies, laid = _permuted(spec, order), view.transpose(order)

    def block(coordinate: Coordinate) -> Any:
        out = room(lies.block_shape(coordinate), lies.dtype)
        files.read(out, laid, tuple(lies.pieces(d, coordinate) for d in range(lies.ndim)))
        return out

    return Part(wrap(lies, block), order, target)


def sent(part: Part) -> Array:
    """The array where it is to lie: a collective of the ranks of its mesh, unless it lies there."""
    array, order, target = part
    there = _permuted(target, order)
    array = moved_arrays([array], [there], [plan(array.spec, there)], "reading", implied=False)[0]
    if order == tuple(range(target.ndim)):
        return array
    back = tuple(np.argsort(order).tolist())
    blocks = array._block
    if isinstance(blocks, tuple):
        return Array(tuple(turned(block, back) for block in blocks), target)
    return Array(None if blocks is None else turned(blocks, back), target)


def _permuted(spec: Spec, order: tuple[int, ...]) -> Spec:
    return spec.replace(shape=tuple(spec.shape[d] for d in order), layouts=tuple(spec.layouts[d] for d in order))
