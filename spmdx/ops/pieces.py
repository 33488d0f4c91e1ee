"""from_block: the array whose pieces the ranks hand in."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from spmdx import context, dtypes
from spmdx.array import Array
from spmdx.errors import ArgumentError, DtypeError, RanksDisagree, ShapeError
from spmdx.mesh import Mesh
from spmdx.move import record
from spmdx.op import asked_mesh
from spmdx.ops.place import readable
from spmdx.placement import P, Placement, Shard
from spmdx.runtime import memory
from spmdx.spec import Spec, default_sizes, place

AGREED = {1: "dtype", 2: "number of dimensions"}  # columns of a record that are the same on every rank
GIVEN = {3: "placement", 4: "shape"}  # and those of what from_block is called with
MAX_DIMS = 64


def from_block(
    block: Any,
    placement: Placement,
    *,
    mesh: Mesh | None = None,
    shape: tuple[int, ...] | None = None,
    copy: bool | None = None,
) -> Array:
    """The array whose pieces the ranks hand in, each its own. Unequal pieces give a ragged placement.

    Args:
        block: this rank's NumPy array (on a simulated mesh, a list of all ranks').
        placement: which axes divide which dimension.
        shape: the global shape, to be checked; worked out from the blocks if left out.
        copy: False hands over ownership of the block's memory; otherwise it is copied, and so is what is not aligned
            or not in this machine's byte order.

    One small all-gather agrees on shapes, dtype, placement and validity, so that every rank raises or none does.
    """
    mesh = asked_mesh(mesh)
    sim = mesh.device == "sim"
    if sim and (not isinstance(block, (list, tuple)) or len(block) != mesh.size):
        got = f"{len(block)} of them" if isinstance(block, (list, tuple)) else f"a {type(block).__name__}"
        raise ArgumentError(
            f"from_block on {mesh!r} takes the blocks of all its {mesh.size} ranks; got {got}.",
            "from_block([block of rank 0, block of rank 1, ...], placement, mesh=mesh)",
        )
    xp = memory.space(mesh.device)
    blocks = [xp.asarray(b) for b in (block if sim else [block])]
    given = _summary(placement), _summary(shape)
    records = np.concatenate([_record(b, given) for b in blocks])
    if not sim and mesh.size > 1:
        group = context.world().comm(mesh.host).group(mesh.axis_names)
        record("all_gather", mesh.axis_names, records.nbytes * (mesh.size - 1), "from_block")
        parts = group.all_gather(records, [len(records)] * mesh.size)
        records = np.concatenate(parts)
    spec = _agreed(records.reshape(mesh.size, -1), placement, mesh, shape, blocks[0].dtype)
    own = [readable(b, spec.dtype) for b in blocks]
    if copy is not False:
        own = [memory.copied(b) for b in own]
    return Array(tuple(own) if sim else own[0], spec)


def _holds_numbers(dtype: np.dtype[Any]) -> bool:
    try:
        dtypes.checked(dtype)
    except DtypeError:
        return False
    return True


def _summary(given: Any) -> int:
    """A number that tells what is given apart from anything else."""
    text = repr(sorted(given.items(), key=repr) if isinstance(given, Mapping) else given)
    return zlib.crc32(text.encode())


def _record(block: Any, given: tuple[int, int]) -> Any:
    out = np.zeros(5 + MAX_DIMS, np.int64)
    out[:5] = _holds_numbers(block.dtype), zlib.crc32(block.dtype.name.encode()), block.ndim, *given
    out[5 : 5 + block.ndim] = block.shape
    return out


def _agreed(records: Any, placement: Placement, mesh: Mesh, shape: Any, dtype: Any) -> Spec:
    """The spec that all ranks' records agree on. Every rank sees the same records, so all raise alike."""
    if not records[:, 0].all():
        bad = int(np.argmin(records[:, 0]))
        raise DtypeError(
            f"the block of rank {mesh.ranks[bad]} does not hold numbers.", "np.asarray(block, dtype=float)"
        )
    for column, what in (AGREED | GIVEN).items():
        if (records[:, column] != records[0, column]).any():
            bad = int(np.argmax(records[:, column] != records[0, column]))
            first, other = mesh.ranks[0], mesh.ranks[bad]
            if column in GIVEN:
                raise RanksDisagree(
                    f"from_block is given another {what} on rank {other} than on rank {first}.",
                    f"the same {what} on every rank",
                )
            raise ShapeError(
                f"the blocks of ranks {first} and {other} differ in {what}.", f"blocks of one {what} on every rank"
            )
    shapes = records[:, 5 : 5 + records[0, 2]]
    probe = place(mesh, tuple(0 for _ in range(shapes.shape[1])), dtype, _without_sizes(placement))
    lengths, layouts = [], []
    grid = shapes.reshape(*mesh.sizes, shapes.shape[1])
    for dim, layout in enumerate(probe.layouts):
        order = [mesh.axis_names.index(a) for a in layout.axes]
        rest = [i for i in range(len(mesh.sizes)) if i not in order]
        table = grid[..., dim].transpose(order + rest).reshape(math.prod(mesh.sizes[i] for i in order), -1)
        if (table != table[:, :1]).any():
            raise ShapeError(
                f"blocks that hold the same part of dimension {dim} have different lengths: "
                f"{sorted(set(table[np.argmax((table != table[:, :1]).any(1))].tolist()))}.",
                f"blocks of equal length along axes that do not divide dimension {dim}",
            )
        sizes = tuple(int(n) for n in table[:, 0])
        said = _said(placement, dim, probe.ndim)
        if said not in (None, sizes):
            raise ShapeError(
                f"blocks of lengths {sizes} along dimension {dim}, and the placement says sizes={said}.",
                f"Shard({dim}), whose sizes are those of the blocks",
            )
        groups = _interleave(placement, dim, probe.ndim)
        if any(n % groups for n in sizes):
            raise ShapeError(
                f"blocks of lengths {sizes} do not hold {groups} interleaved groups of equal length.",
                f"blocks whose dimension {dim} divides by {groups}",
            )
        lengths.append(sum(sizes))
        if groups > 1 and sizes != tuple(groups * n for n in default_sizes(sum(sizes) // groups, (len(sizes),))):
            raise ShapeError(
                f"interleaved blocks divide their groups by default sizes; got lengths {sizes}.",
                "blocks as numpy.array_split makes them of every group",
            )
        layouts.append(type(layout)(layout.axes, None if groups > 1 else sizes, groups) if layout.axes else layout)
    if shape is not None and tuple(shape) != tuple(lengths):
        raise ShapeError(f"the blocks make an array of shape {tuple(lengths)}, not {tuple(shape)}.", "shape=None")
    from_blocks = Spec(mesh, tuple(lengths), dtypes.checked(dtype), tuple(layouts), probe.partial, probe.op)
    return from_blocks.replace()


def _said(placement: Placement, dim: int, ndim: int) -> tuple[int, ...] | None:
    shards = () if isinstance(placement, P) else placement.values()
    return next((p.sizes for p in shards if isinstance(p, Shard) and p.dim % ndim == dim and p.sizes), None)


def _interleave(placement: Placement, dim: int, ndim: int) -> int:
    shards = () if isinstance(placement, P) else placement.values()
    return max((p.interleave for p in shards if isinstance(p, Shard) and p.dim % ndim == dim), default=1)


def _without_sizes(placement: Placement) -> Placement:
    if isinstance(placement, P):
        return placement
    return {a: Shard(p.dim) if isinstance(p, Shard) else p for a, p in placement.items()}
