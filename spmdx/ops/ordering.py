"""Order along a divided dimension without a gather: a sample sort, and the rows of an array by their indices.

Only keys, indices and the rows that change places travel. How much goes where depends on the data: one small counted
all-gather of sizes comes before each exchange that needs it. A dimension that no axis divides needs none of this.

Shi and Schaeffer, "Parallel sorting by regular sampling", 1992.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from spmdx import context
from spmdx.array import Array
from spmdx.decide import Bounds
from spmdx.errors import DtypeError, ImpliedMoveError, ShapeError
from spmdx.mesh import Coordinate, Mesh
from spmdx.move import record
from spmdx.ops.place import moved_arrays
from spmdx.plan import plan
from spmdx.runtime import memory
from spmdx.spec import Layout, Spec, make
from spmdx.tape import Rule, Watched, plain

INT64, UINT64 = np.dtype(np.int64), np.dtype(np.uint64)


# Exchanges between the ranks of one group, on ranks and in the simulator


class Ranks(NamedTuple):
    """The ranks whose blocks this process holds, and the groups along some axes that they exchange in."""

    mesh: Mesh
    axes: tuple[str, ...]  # in mesh order, as members are counted
    here: list[Coordinate]

    @property
    def size(self) -> int:
        """Members of a group."""
        return math.prod(self.mesh.shape[a] for a in self.axes)

    def blocks(self, x: Array) -> list[Any]:
        """The blocks of an array that this process holds."""
        return list(x._block) if self.mesh.device == "sim" else [memory.host(x._block)]  # of a GPU: sorted on the host

    def array(self, blocks: Sequence[Any], spec: Spec) -> Array:
        """The array of these blocks."""
        if self.mesh.device == "sim":
            return Array(tuple(blocks), spec)
        return Array(memory.put(self.mesh.device, blocks[0]), spec)

    def members(self, c: Coordinate) -> list[Coordinate]:
        """The group of a rank."""
        return self.mesh.members(self.axes, c)

    def gather(self, parts: Sequence[Any], counts: Sequence[Sequence[int]], cause: str) -> list[list[Any]]:
        """What the members of each rank's group give: ``parts[r]`` is what rank r gives, flat, ``counts[r]`` the
        lengths of what it gets."""
        sent = max(map(max, counts)) * parts[0].itemsize * (self.size - 1)
        record("all_gather", self.axes, sent, cause)
        if self.mesh.device == "sim":
            return [[parts[self.here.index(m)] for m in self.members(c)] for c in self.here]
        group = context.world().comm(self.mesh.host).group(self.axes)
        return [group.all_gather(parts[0], counts[0], out=np.empty(sum(counts[0]), parts[0].dtype))]

    def agree(self, parts: Sequence[Sequence[Any]], cause: str) -> list[Any]:
        """For each rank the table of sizes: [i, j] elements go from member i of its group to member j."""
        p = self.size
        own = [np.array([len(part) for part in each], np.int64) for each in parts]
        return [np.concatenate(rows).reshape(p, p) for rows in self.gather(own, [[p] * p] * len(own), cause)]

    def exchange(self, parts: Sequence[Sequence[Any]], tables: Sequence[Any], cause: str) -> list[list[Any]]:
        """Send ``parts[r][j]`` from rank r to member j of its group; what each rank gets, in member order."""
        sent = max(int((t.sum(1) - t.diagonal()).max()) for t in tables) * parts[0][0].itemsize
        record("all_to_all", self.axes, sent, cause)
        if self.mesh.device == "sim":
            out = []
            for c in self.here:
                members = self.members(c)
                out.append([parts[self.here.index(m)][members.index(c)] for m in members])
            return out
        group = context.world().comm(self.mesh.host).group(self.axes)
        send, incoming = np.concatenate(parts[0]), tables[0][:, group.rank].tolist()
        space = np.empty(sum(incoming), send.dtype)
        return [group.all_to_all(send, [len(part) for part in parts[0]], incoming, out=space)]


def ranks(mesh: Mesh, axes: Sequence[str], cause: str) -> Ranks:
    """The ranks of this process for exchanges along these axes.

    Raises:
        ImpliedMoveError: inside ``explicit``.
    """
    if context.get().explicit:
        raise ImpliedMoveError(
            f"{cause} along a divided dimension exchanges elements, which `with explicit()` forbids.",
            "x.redistribute({}) before it, or the call outside `with explicit()`",
        )
    here = mesh.coordinates() if mesh.device == "sim" else [mesh.here()]
    return Ranks(mesh, tuple(a for a in mesh.axis_names if a in axes), here)


# Sorting


def sample_sort(keys: Array, cause: str = "sort") -> tuple[Array, Array]:
    """The keys of a 1-D uint64 array in ascending order, and where each of them was: equal keys by their index.

    Both lie in default blocks over the axes that divide ``keys``. Each rank sorts its own keys, the ranks agree on
    splitters from regular samples, send every key (with its index: 16 bytes) to the rank whose range it lies in, sort
    again, and level the blocks. No rank holds more than twice its share on the way. Not differentiable.
    """
    found, index = _in_ranges(keys, cause)
    return _level(found, cause), _level(index, cause)


def sample_order(keys: Array, cause: str = "argsort") -> Array:
    """The second result of :func:`sample_sort` alone."""
    return _level(_in_ranges(keys, cause)[1], cause)


def _level(x: Array, cause: str) -> Array:
    """A 1-D array in default blocks over its axes."""
    spec = make(x.mesh, x.shape, x.dtype, (Layout(x.spec.layouts[0].axes),))
    return moved_arrays([x], [spec], [plan(x.spec, spec)], cause)[0]


def _in_ranges(keys: Array, cause: str) -> tuple[Array, Array]:
    """Keys in order and their indices, in the uneven blocks that the ranges of the ranks give."""
    if keys.ndim != 1 or keys.dtype != UINT64:
        raise DtypeError(f"sample_sort takes a 1-D array of uint64 keys; got {keys.spec!r}.", "ascending(x)")
    spec = keys.spec.replace(partial=())
    [keys] = moved_arrays([plain(keys)], [spec], [plan(keys.spec, spec)], cause)
    mesh, (layout,) = spec.mesh, spec.layouts
    axes = tuple(a for a in mesh.axis_names if a in layout.axes)
    if not mesh.contains_me():  # the sizes are not known here, but those of level blocks are
        specs = [make(mesh, spec.shape, dtype, (Layout(axes),)) for dtype in (UINT64, INT64)]
        return Array(None, specs[0]), Array(None, specs[1])
    if axes:
        crew = ranks(mesh, axes, cause)
        found, sizes = _exchanged(crew, spec, keys, cause)
    else:
        crew, sizes = Ranks(mesh, (), mesh.coordinates() if mesh.device == "sim" else [mesh.here()]), None
        found = [_sorted(k, np.arange(len(k))) for k in crew.blocks(keys)]
    ragged = [make(mesh, spec.shape, dtype, (Layout(axes, sizes),)) for dtype in (UINT64, INT64)]
    return crew.array([f[0] for f in found], ragged[0]), crew.array([f[1] for f in found], ragged[1])


def _exchanged(crew: Ranks, spec: Spec, keys: Array, cause: str) -> tuple[list[Any], tuple[int, ...]]:
    """Each rank's keys and indices in the range that is its own, in order; and how many every member has."""
    own = [_sorted(k, Bounds.indices(spec.pieces(0, c))) for k, c in zip(crew.blocks(keys), crew.here)]
    cuts = _cuts(crew, spec, own, cause)
    parts = [[np.concatenate([k[a:b], i[a:b].view(UINT64)]) for a, b in pairwise(at)] for (k, i), at in zip(own, cuts)]
    tables = crew.agree(parts, cause)
    arrived = crew.exchange(parts, tables, cause)
    return [_merged(pieces) for pieces in arrived], tuple(int(n) // 2 for n in tables[0].sum(0))


def _sorted(keys: Any, index: Any, kind: Any = None) -> tuple[Any, Any]:
    """Keys in order with their indices, equal keys by index."""
    order = np.argsort(keys, kind=kind)
    found = keys[order]
    if (found[1:] == found[:-1]).any():
        order = np.lexsort((index, keys))
        found = keys[order]
    return found, index[order]


def _merged(pieces: Sequence[Any]) -> tuple[Any, Any]:
    """The keys that arrived, in order; each piece is keys and then as many indices."""
    keys = np.concatenate([p[: len(p) // 2] for p in pieces])
    index = np.concatenate([p[len(p) // 2 :] for p in pieces]).view(INT64)
    return _sorted(keys, index, "stable")  # which merges what is in order already


def _cuts(crew: Ranks, spec: Spec, own: Sequence[tuple[Any, Any]], cause: str) -> list[list[int]]:
    """Where each rank cuts its sorted keys into what goes to member 0, 1, ...: at splitters that all agree on."""
    p = crew.size
    samples = []
    for keys, index in own:
        s = min(p, len(keys))
        at = (2 * np.arange(s) + 1) * len(keys) // (2 * max(s, 1))
        samples.append(np.concatenate([keys[at], index[at].view(UINT64)]))
    counts = [[2 * min(p, spec.block_shape(m)[0]) for m in crew.members(c)] for c in crew.here]
    out = []
    for (keys, index), pieces in zip(own, crew.gather(samples, counts, cause)):
        some, where = _merged(pieces)
        cut = [0]
        for j in range(1, p):
            if len(some):
                k = j * len(some) // p
                first, last = (int(np.searchsorted(keys, some[k], side)) for side in ("left", "right"))
                cut.append(first + int(np.searchsorted(index[first:last], where[k])))
            else:
                cut.append(0)
        out.append([*cut, len(keys)])
    return out


def ascending(block: Any, descending: bool = False) -> Any:
    """uint64 keys in the order of a block's elements (or the reverse): numbers of any real dtype, NaN last."""
    block = np.asarray(memory.host(block))
    if block.dtype.kind in "ub":
        keys = block.astype(UINT64)
    elif block.dtype.kind == "i":
        keys = block.astype(INT64).view(UINT64) ^ UINT64.type(2**63)
    else:
        wide = block.astype(np.float64) + 0.0  # -0.0 is 0.0
        raw = wide.view(UINT64)
        keys = np.where(raw >> UINT64.type(63), ~raw, raw | UINT64.type(2**63))
    keys = ~keys if descending else keys
    return np.where(np.isnan(block), UINT64.type(2**64 - 1), keys) if block.dtype.kind in "fV" else keys


# Rows by their indices


def rows(x: Array, index: Array, dim: int, cause: str = "rows") -> Array:
    """``take(x, index, axis=dim)`` for a permutation ``index`` of a divided dimension: each rank asks the ranks that
    hold the rows which belong in its block of the result, and they send these. The result lies as x does, finished.

    Its gradient takes the rows of g by the inverse permutation, in the same way.
    """
    spec = x.spec.replace(partial=())
    layout = spec.layouts[dim]
    if index.shape != (spec.shape[dim],):
        raise ShapeError(f"{cause}: {index.size} indices for dimension {dim} of shape {x.shape}.", "a permutation")
    like = make(spec.mesh, index.shape, INT64, (layout,))
    [x] = moved_arrays([x], [spec], [plan(x.spec, spec)], cause)
    [index] = moved_arrays([index], [like], [plan(index.spec, like)], cause)
    out = _rows(x, index, dim, cause) if x._block is not None else Array(None, spec)
    if context.get().depth and type(x) is Watched:
        return Watched(out._block, spec, _RULE, (x, index), {"dim": dim, "cause": cause})
    return out


def _rows(x: Array, index: Array, dim: int, cause: str) -> Array:
    spec = x.spec
    crew = ranks(spec.mesh, spec.layouts[dim].axes, cause)
    asked, orders = [], []
    for wanted in crew.blocks(index):
        member, place = holders(spec, dim, wanted)
        order = np.argsort(member, kind="stable")
        at = np.searchsorted(member[order], np.arange(crew.size + 1))
        asked.append([place[order[a:b]] for a, b in pairwise(at)])
        orders.append(order)
    tables = crew.agree(asked, cause)
    requests = crew.exchange(asked, tables, cause)
    sent = []
    for block, pieces in zip(crew.blocks(x), requests):
        front = np.moveaxis(block, dim, 0)
        sent.append([front[places].reshape(-1) for places in pieces])
    shapes = [np.moveaxis(block, dim, 0).shape[1:] for block in crew.blocks(x)]
    back = [t.T * math.prod(shape) for t, shape in zip(tables, shapes)]
    out = []
    for pieces, order, shape in zip(crew.exchange(sent, back, cause), orders, shapes):
        block = np.empty((len(order), *shape), spec.dtype)
        block[order] = np.concatenate(pieces).reshape(block.shape)
        out.append(np.ascontiguousarray(np.moveaxis(block, 0, dim)))
    return crew.array(out, spec)


def holders(spec: Spec, dim: int, index: Any) -> tuple[Any, Any]:
    """Which member of the group along a dimension's axes holds each global index, and where in its block."""
    layout, mesh = spec.layouts[dim], spec.mesh
    sizes = np.array(spec.sizes(dim))
    ends = np.cumsum(sizes)
    group, offset = np.divmod(index, max(1, spec.shape[dim] // layout.interleave))
    number = np.searchsorted(ends, offset, "right")
    place = group * sizes[number] + offset - (ends - sizes)[number]
    ways = [mesh.shape[a] for a in layout.axes]
    order = sorted(range(len(ways)), key=lambda k: mesh.axis_names.index(layout.axes[k]))
    member = np.arange(len(sizes)).reshape([ways[k] for k in order]).transpose(np.argsort(order)).reshape(-1)
    return member[number], place


class _Rows(Rule):
    """The gradient of rows."""

    name = "rows"

    def gradient(self, i: int, g: Any, out: Any, inputs: Any, static: Mapping[str, Any]) -> Any:
        if i:
            return None
        x, index = inputs
        spec = x.spec.replace(dtype=g.dtype)
        [g] = moved_arrays([g], [spec], [plan(g.spec, spec)], "rows")
        return rows(g, inverse(index), static["dim"], static["cause"])


_RULE = _Rows()


def inverse(index: Array) -> Array:
    """The inverse of a permutation: where each number stands in it."""
    blocks = index._block
    keys = tuple(b.view(UINT64) for b in blocks) if isinstance(blocks, tuple) else blocks
    keys = keys if keys is None or isinstance(keys, tuple) else keys.view(UINT64)
    return sample_order(Array(keys, index.spec.replace(dtype=UINT64)), "inverse")
