"""Spec: mesh, global shape, dtype and where every piece lies. Canonical, interned, equal and hashed by value."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from functools import lru_cache
from itertools import accumulate
from threading import Lock
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from spmdx import context
from spmdx.errors import PlacementError, ShapeError
from spmdx.mesh import Coordinate, Mesh
from spmdx.placement import AxisPlacement, P, Partial, Placement, Replicate, Shard

Interval = tuple[int, int]


class Layout(NamedTuple):
    """How one dimension is divided: by which mesh axes (outermost first), into which sizes, in how many groups."""

    axes: tuple[str, ...] = ()
    sizes: tuple[int, ...] | None = None
    interleave: int = 1


WHOLE = Layout()


@lru_cache(maxsize=4096)
def default_sizes(length: int, ways: tuple[int, ...]) -> tuple[int, ...]:
    """Lengths of all blocks of a default division, nested over ``ways``; each level as ``numpy.array_split``."""
    sizes: tuple[int, ...] = (length,)
    for p in ways:
        sizes = tuple(n // p + (c < n % p) for n in sizes for c in range(p))
    return sizes


@lru_cache(maxsize=4096)
def _starts(sizes: tuple[int, ...]) -> tuple[int, ...]:
    return (0, *accumulate(sizes))


_interned: WeakValueDictionary[tuple[Any, ...], Spec] = WeakValueDictionary()
_lock = Lock()
_recent: deque[Spec] = deque(maxlen=4096)  # kept alive, so that a program's specs are not made at every call


class Spec:
    """Everything that ranks agree on about an array, without its data. Make one with :func:`make` or :func:`place`.

    Specs are interned: two equal specs are one object, so comparing and hashing them costs what it costs for an id.
    """

    mesh: Mesh
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    layouts: tuple[Layout, ...]
    partial: tuple[str, ...]
    op: str | None
    ndim: int
    _geometry: dict[Any, Any]  # memoised block bounds

    __slots__ = ("__weakref__", "_geometry", "dtype", "layouts", "mesh", "ndim", "op", "partial", "shape")

    def __new__(
        cls,
        mesh: Mesh,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        layouts: tuple[Layout, ...],
        partial: tuple[str, ...] = (),
        op: str | None = None,
    ) -> Spec:
        key = (mesh, shape, dtype, layouts, partial, op)
        found = _interned.get(key)
        if found is None:
            found = super().__new__(cls)
            found.mesh, found.shape, found.dtype, found.layouts = mesh, shape, dtype, layouts
            found.partial, found.op, found.ndim, found._geometry = partial, op, len(shape), {}
            with _lock:  # thread ranks make equal specs at once, and must get one object
                found = _interned.setdefault(key, found)
                _recent.append(found)
        return found

    # Where the pieces lie

    def sizes(self, dim: int) -> tuple[int, ...]:
        """Lengths of all blocks of one dimension, outermost axis first (of one group, if interleaved)."""
        layout = self.layouts[dim]
        if layout.sizes is not None:
            return layout.sizes
        return default_sizes(self.shape[dim] // layout.interleave, tuple(self.mesh.shape[a] for a in layout.axes))

    def pieces(self, dim: int, coordinate: Coordinate) -> tuple[Interval, ...]:
        """The global intervals of one dimension that the block at a mesh coordinate holds, in order; empty ones are
        left out."""
        key = (dim, coordinate)
        found: tuple[Interval, ...] | None = self._geometry.get(key)
        if found is None:
            found = self._geometry[key] = self._pieces(dim, coordinate)
        return found

    def _pieces(self, dim: int, coordinate: Coordinate) -> tuple[Interval, ...]:
        layout = self.layouts[dim]
        mesh = self.mesh
        start, length = 0, self.shape[dim] // layout.interleave
        if layout.sizes is not None:
            index = 0
            for name in layout.axes:
                index = index * mesh.shape[name] + coordinate[mesh.axis_names.index(name)]
            start, length = _starts(layout.sizes)[index], layout.sizes[index]
        else:
            for name in layout.axes:
                c, p = coordinate[mesh.axis_names.index(name)], mesh.shape[name]
                each, more = divmod(length, p)
                start, length = start + c * each + min(c, more), each + (c < more)
        if not length:
            return ()
        stride = self.shape[dim] // layout.interleave
        return tuple((g * stride + start, g * stride + start + length) for g in range(layout.interleave))

    def block_shape(self, coordinate: Coordinate) -> tuple[int, ...]:
        """Shape of the block at a mesh coordinate."""
        key = ("shape", coordinate)
        found: tuple[int, ...] | None = self._geometry.get(key)
        if found is None:
            found = self._geometry[key] = tuple(
                sum(stop - start for start, stop in self.pieces(d, coordinate)) for d in range(self.ndim)
            )
        return found

    @property
    def largest_block(self) -> int:
        """Elements of the largest block."""
        return math.prod(layout.interleave * max(self.sizes(d)) for d, layout in enumerate(self.layouts))

    @property
    def smallest_block(self) -> int:
        """Elements of the smallest block."""
        return math.prod(layout.interleave * min(self.sizes(d)) for d, layout in enumerate(self.layouts))

    @property
    def sharded_axes(self) -> tuple[str, ...]:
        """Mesh axes that divide some dimension."""
        return tuple(a for layout in self.layouts for a in layout.axes)

    @property
    def replicated(self) -> bool:
        """True if every rank holds the whole value."""
        return not self.partial and not any(layout.axes for layout in self.layouts)

    def dim_of(self, axis: str) -> int | None:
        """The dimension that a mesh axis divides, or None."""
        for d, layout in enumerate(self.layouts):
            if axis in layout.axes:
                return d
        return None

    # Other specs like this one

    def replace(self, **changes: Any) -> Spec:
        """This spec with some fields changed, made canonical."""
        return make(**{n: getattr(self, n) for n in ("mesh", "shape", "dtype", "layouts", "partial", "op")} | changes)

    @property
    def placement(self) -> Placement:
        """The placement as a dict of every axis; as a P where a dimension nests its axes in another order than the
        mesh's, which a dict cannot say."""
        names = self.mesh.axis_names
        if any(list(lay.axes) != sorted(lay.axes, key=names.index) for lay in self.layouts):
            dims = [None if not lay.axes else lay.axes[0] if len(lay.axes) == 1 else lay.axes for lay in self.layouts]
            return P(*dims, partial=self.partial, op=self.op or "sum")
        out: dict[str, AxisPlacement] = {}
        for name in names:
            dim = self.dim_of(name)
            if dim is not None:
                out[name] = Shard(dim, self.layouts[dim].sizes, self.layouts[dim].interleave)
            else:
                out[name] = Partial(self.op or "sum") if name in self.partial else Replicate()
        return out

    def __repr__(self) -> str:
        placement = self.placement
        axes = ", ".join(f"{n}={s}" for n, s in self.mesh.shape.items())
        where = repr(placement) if isinstance(placement, P) else ", ".join(map(repr, placement.values()))
        return f"{self.dtype.name}{list(self.shape)} on ({axes}): {where or 'Replicate()'}"

    def __reduce__(self) -> tuple[Any, ...]:
        return Spec, (self.mesh, self.shape, self.dtype, self.layouts, self.partial, self.op)


def make(
    mesh: Mesh,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    layouts: tuple[Layout, ...],
    partial: tuple[str, ...] = (),
    op: str | None = None,
) -> Spec:
    """The canonical spec of what is given: axes of size 1 left out, sizes None where they are the default's."""
    canonical = tuple(WHOLE if not layout.axes else _canonical(mesh, n, layout) for n, layout in zip(shape, layouts))
    kept = tuple(a for a in mesh.axis_names if a in partial and mesh.shape[a] > 1) if partial else ()
    return Spec(mesh, shape, dtype, canonical, kept, op if kept else None)


def _canonical(mesh: Mesh, length: int, layout: Layout) -> Layout:
    axes = tuple(a for a in layout.axes if mesh.shape[a] > 1)
    if not axes:
        return WHOLE
    sizes, interleave = layout.sizes, layout.interleave
    if sizes is not None and sizes == default_sizes(length // interleave, tuple(mesh.shape[a] for a in axes)):
        sizes = None
    if interleave > 1 and length == 0:
        interleave = 1
    return Layout(axes, sizes, interleave)


def place(mesh: Mesh, shape: tuple[int, ...], dtype: Any, placement: Placement | None = None) -> Spec:
    """The spec of an array with this shape, dtype and placement on a mesh.

    Raises:
        PlacementError: an axis or dimension that does not exist, sizes that do not add up, mixed Partial ops.
    """
    shape = tuple(int(n) for n in shape)
    if any(n < 0 for n in shape):
        raise ShapeError(f"a shape has no negative sizes; got {shape}.", "sizes of 0 or more")
    dtype = np.dtype(dtype)
    layouts, partial, op = [WHOLE] * len(shape), [], None
    for name, p in _by_axis(mesh, placement if placement is not None else {}, len(shape)):
        if isinstance(p, Partial):
            if op not in (None, p.op):
                raise PlacementError(
                    f"all Partial axes of one array have one op; got {op!r} and {p.op!r}.", f'Partial("{op}") for both'
                )
            op = p.op
            partial.append(name)
        elif isinstance(p, Shard):
            dim = _dim(p, shape, name)
            before = layouts[dim]
            if before.axes and (before.sizes, before.interleave) != (p.sizes, p.interleave):
                raise PlacementError(
                    f"axes that share a dimension share its sizes and interleave; dimension {dim} is given {p!r} on "
                    f"axis {name!r}, and sizes={before.sizes}, interleave={before.interleave} on {before.axes}.",
                    "the same sizes (all blocks, outermost axis first) and interleave on each of these axes",
                )
            layouts[dim] = Layout((*before.axes, name), p.sizes, p.interleave)
    for dim, layout in enumerate(layouts):
        _check(mesh, dim, shape[dim], layout)
    if op is not None and dtype.kind == "c" and op in ("min", "max"):
        raise PlacementError(f"complex values have no {op}.", 'Partial("sum")')
    dry = context.get().dry
    return make(dry.mesh(mesh) if dry else mesh, shape, dtype, tuple(layouts), tuple(partial), op)


def _by_axis(mesh: Mesh, placement: Placement, ndim: int) -> list[tuple[str, AxisPlacement]]:
    if isinstance(placement, P):
        if len(placement) > ndim:
            raise PlacementError(
                f"{placement!r} names {len(placement)} dimensions; the array has {ndim}.", f"at most {ndim} entries"
            )
        out: list[tuple[str, AxisPlacement]] = []
        for dim, entry in enumerate(placement):
            for name in (entry,) if isinstance(entry, str) else entry or ():
                out.append((name, Shard(dim)))
        out += [(name, Partial(placement.op)) for name in placement.partial]
        for name, _ in out:
            mesh.axis(name)
            if sum(name == other for other, _ in out) > 1:
                raise PlacementError(f"mesh axis {name!r} is used twice in {placement!r}.", "each axis once")
        return out
    if not isinstance(placement, Mapping):
        raise PlacementError(
            f"a placement is a dict of mesh axis to Replicate, Shard or Partial, or a P; got {placement!r}.",
            f"{{{mesh.axis_names[0]!r}: Shard(0)}}" if mesh.axis_names else "{}",
        )
    for name, p in placement.items():
        mesh.axis(name)
        if not isinstance(p, (Replicate, Shard, Partial)):
            raise PlacementError(
                f"axis {name!r} is given {p!r}, which is not a placement.", f"{{{name!r}: Shard(0)}} or Replicate()"
            )
    return [(name, placement[name]) for name in mesh.axis_names if name in placement]


def _dim(p: Shard, shape: tuple[int, ...], name: str) -> int:
    dim = p.dim + len(shape) if p.dim < 0 else p.dim
    if not 0 <= dim < len(shape):
        raise PlacementError(
            f"{p!r} on axis {name!r} needs dimension {p.dim}; the array has {len(shape)}: shape {shape}.",
            f"Shard({len(shape) - 1}) or less" if shape else "Replicate(): a 0-d array has no dimension to divide",
        )
    return dim


def _check(mesh: Mesh, dim: int, length: int, layout: Layout) -> None:
    ways = math.prod(mesh.shape[a] for a in layout.axes)
    if layout.sizes is not None and (len(layout.sizes) != ways or sum(layout.sizes) != length):
        raise PlacementError(
            f"sizes={layout.sizes} has {len(layout.sizes)} blocks that hold {sum(layout.sizes)}; dimension {dim} has "
            f"{length} elements and is divided in {ways} over {layout.axes}.",
            f"sizes={default_sizes(length, (ways,))}, or leave sizes out",
        )
    if length % layout.interleave:
        raise PlacementError(
            f"interleave={layout.interleave} needs groups of equal length; dimension {dim} has {length} elements.",
            f"an interleave that divides {length}",
        )


def refines(inner: Layout, outer: Layout, length: int, mesh: Mesh) -> bool:
    """True if every block of ``inner`` lies in the block of ``outer`` at the same coordinate."""
    if not outer.axes or inner == outer:
        return True
    k = len(outer.axes)
    if inner.axes[:k] != outer.axes or inner.interleave != outer.interleave:
        return False
    if inner.sizes is None and outer.sizes is None:
        return True
    ways = tuple(mesh.shape[a] for a in inner.axes)
    below = math.prod(ways[k:])
    fine = inner.sizes if inner.sizes is not None else default_sizes(length // inner.interleave, ways)
    coarse = outer.sizes if outer.sizes is not None else default_sizes(length // outer.interleave, ways[:k])
    return all(sum(fine[i * below : (i + 1) * below]) == n for i, n in enumerate(coarse))
