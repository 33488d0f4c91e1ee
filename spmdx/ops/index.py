"""x[index], x.at[index] and take: an index is read here; slice.py, scatter.py and mask.py do the work."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from spmdx import dtypes
from spmdx.array import Array
from spmdx.errors import BoundsError, DtypeError
from spmdx.op import constant, default_mesh
from spmdx.ops import mask as masks
from spmdx.ops.axes import one
from spmdx.ops.place import moved_arrays
from spmdx.ops.scatter import accumulate, check, gather, put, put_with, template
from spmdx.ops.shape import broadcast_to, common_shape, ravel, reshape
from spmdx.ops.slice import blend, blend_with, block_sizes, resolve, slicing, unslice
from spmdx.ops.transfer import together
from spmdx.plan import plan
from spmdx.runtime import memory

_seen = slicing.op.memo.get
FULL = (None, None, None)


def getitem(x: Array, index: Any) -> Any:
    """``x[index]``, as NumPy's: ints, slices, None and Ellipsis; integer and boolean arrays."""
    kind = type(index)
    if kind is slice:
        key: Any = ((index.start, index.stop, index.step),)
    elif kind is int:
        key = (index,)
    elif kind is tuple and len(index) == 2 and type(index[0]) is slice and type(index[1]) is slice:
        rows, columns = index  # written out, for it is a third of what the call costs
        key = (rows.start, rows.stop, rows.step), (columns.start, columns.stop, columns.step)
    else:
        key = basic(index if kind is tuple else (index,))
        if key is None:
            return _advanced(x, index if kind is tuple else (index,))
    if type(x) is Array:
        found = _seen((x.spec, key))
        if found is not None:
            return Array(found[0](x._block), found[1])
    return slicing(x, key)


def basic(index: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """An index as slicing takes it: hashable; None if it holds an array, a list or a bool."""
    key: list[Any] = []
    for entry in index:
        kind = type(entry)
        if kind is slice:
            key.append((entry.start, entry.stop, entry.step))
        elif kind is int or entry is None or entry is Ellipsis:
            key.append(entry)
        elif isinstance(entry, (int, np.integer)) and kind is not bool:
            key.append(int(entry))
        else:
            return None
    return tuple(key)


class Reading(NamedTuple):
    """An index in two steps: a basic one, then integer arrays along dimensions of its result."""

    key: tuple[Any, ...]
    arrays: tuple[Any, ...]
    dims: tuple[int, ...]
    at: int  # where the arrays' dimensions stand in the result


def read(x: Array, index: tuple[Any, ...]) -> Reading:
    """Read an index with arrays in it. Ints beside arrays count as arrays for where the result's dimensions go, as in
    NumPy, but are taken in the basic step."""
    entries = [entry for given in index for entry in _entries(x, given)]
    used = sum(entry is not None and entry is not Ellipsis for entry in entries)
    if used > x.ndim:
        raise BoundsError(f"{used} indices for an array of shape {x.shape}.", f"at most {x.ndim}")
    at = next((i for i, entry in enumerate(entries) if entry is Ellipsis), len(entries))
    full = [slice(None)] * (x.ndim - used)
    entries = [*entries[:at], *full, *(entry for entry in entries[at + 1 :] if entry is not Ellipsis)]
    key: list[Any] = []
    arrays: list[Any] = []
    dims: list[int] = []
    places: list[int] = []
    position = dim = 0
    for i, entry in enumerate(entries):
        if isinstance(entry, (Array, np.ndarray)):
            arrays.append(entry)
            dims.append(dim)
            key.append(FULL)
        else:
            key.append((entry.start, entry.stop, entry.step) if isinstance(entry, slice) else entry)
        if isinstance(entry, (Array, np.ndarray, int)):
            if not places:
                position = dim
            places.append(i)
        dim += not isinstance(entry, int)
    together = places == list(range(places[0], places[0] + len(places))) and (at >= len(index) or _beside(index))
    return Reading(tuple(key), tuple(arrays), tuple(dims), position if together else 0)


def _beside(index: tuple[Any, ...]) -> bool:
    """True if no Ellipsis stands between two advanced entries, not even one that stands for no dimension."""
    kinds = [entry is Ellipsis or entry is None or isinstance(entry, slice) for entry in index]
    first, last = kinds.index(False), len(kinds) - kinds[::-1].index(False)
    return not any(kinds[first:last])


def _entries(x: Array, entry: Any) -> list[Any]:
    """An entry of an index, checked: lists made arrays, masks made the positions of what is true."""
    if entry is None or entry is Ellipsis or isinstance(entry, slice):
        return [entry]
    if isinstance(entry, (int, np.integer)) and not isinstance(entry, bool):
        return [int(entry)]
    found = entry if isinstance(entry, Array) else dtypes.read(entry)
    if not isinstance(entry, (Array, np.ndarray)) and found.size == 0:
        found = found.astype(np.int64)  # an empty list
    if found.dtype.kind == "b" and found.ndim == 0:
        raise BoundsError("a 0-d mask is an index of its own, not a part of one.", "x[mask][:, ...]")
    if found.dtype.kind == "b":
        return list(masks.nonzero(found, x.mesh))
    if found.dtype.kind not in "iu":
        raise DtypeError(f"an index array holds integers or bools; got dtype {found.dtype}.", "index.astype(int)")
    return [found]


def _advanced(x: Array, index: tuple[Any, ...]) -> Any:
    if len(index) == 1 and _is_mask(index[0]):
        return masks.compress(x, index[0])
    reading = read(x, index)
    return gather((_part(x, reading), *reading.arrays), dims=reading.dims, at=reading.at)


def _is_mask(entry: Any) -> bool:
    return isinstance(entry, (bool, list, np.bool_, np.ndarray, Array)) and (
        (entry if isinstance(entry, Array) else dtypes.read(entry)).dtype.kind == "b"
    )


def _part(x: Array, reading: Reading) -> Array:
    """The basic step. Indices that every rank knows are checked on every rank."""
    part = x if all(entry == FULL for entry in reading.key) else slicing(x, reading.key)
    for index, dim in zip(reading.arrays, reading.dims):
        if isinstance(index, np.ndarray):
            check(index, part.shape[dim], dim)
    return part


def take(x: Array, indices: Any, /, axis: int | None = None) -> Any:
    """The elements of x along a dimension at integer indices, which may repeat and come in any order.

    ``axis`` may be left out for 1-D x (otherwise x is flattened first, as NumPy). A sharded axis gives a Partial sum.
    """
    x = x if isinstance(x, Array) else constant(x, default_mesh())
    if axis is None:
        x, axis = (x if x.ndim == 1 else ravel(x)), 0
    dim = one(axis, x.ndim, "take")
    [found] = _entries(x, indices if isinstance(indices, Array) else dtypes.read(indices))
    if isinstance(found, np.ndarray):
        check(found, x.shape[dim], dim)
    return gather((x, found), dims=(dim,), at=dim)


class At:
    """``x.at``: ``x.at[index].set(values)`` and the like give a changed copy."""

    __slots__ = ("x",)

    def __init__(self, x: Array) -> None:
        self.x = x

    def __getitem__(self, index: Any) -> Changes:
        return Changes(self.x, index)

    def __repr__(self) -> str:
        return f"<at of {self.x.spec!r}: write x.at[index].set(values)>"


class Changes:
    """What can be done with the elements at an index; each returns a new array in the placement of the old."""

    __slots__ = ("index", "x")

    def __init__(self, x: Array, index: Any) -> None:
        self.x = x
        self.index = index if isinstance(index, tuple) else (index,)

    def __repr__(self) -> str:
        return f"<{self.index!r} of {self.x.spec!r}: write x.at[index].set(values)>"

    def get(self) -> Any:
        """The elements."""
        return getitem(self.x, self.index)

    def set(self, values: Any) -> Array:
        """x with these elements replaced; of repeated indices the last wins."""
        return self._change(values, "set")

    def add(self, values: Any) -> Array:
        """x with values added; repeated indices add up."""
        return self._change(values, "add")

    def multiply(self, values: Any) -> Array:
        """x with elements multiplied; repeated indices one after another. Its first and second derivatives are exact;
        a third one with respect to three values of one element that are all 0 comes out as 0."""
        return self._change(values, "multiply")

    def min(self, values: Any) -> Array:
        """x with the lesser of element and value."""
        return self._change(values, "min")

    def max(self, values: Any) -> Array:
        """x with the greater of element and value."""
        return self._change(values, "max")

    def _change(self, values: Any, how: str) -> Array:
        given = values if isinstance(values, Array) else _constant(values, self.x)
        x, given, *arrays = together("at", self.x, given, *(i for i in self.index if isinstance(i, Array)))
        left = iter(arrays)
        index = tuple(next(left) if isinstance(entry, Array) else entry for entry in self.index)
        return _kept_at(Changes(x, index)._changed(given, how), x)

    def _changed(self, values: Array, how: str) -> Any:
        x, key = self.x, basic(self.index)
        if key is not None:
            index = resolve(x.shape, key)
            return _change_slice(x, index, self._values(values, _shape(index)), how)
        reading = read(x, self.index)
        left = _shape(resolve(x.shape, reading.key))
        rest = [n for d, n in enumerate(left) if d not in reading.dims]
        shape = common_shape(*(i.shape for i in reading.arrays))
        given = self._values(values, (*rest[: reading.at], *shape, *rest[reading.at :]))
        part = _part(x, reading)
        where = {"dims": reading.dims, "at": reading.at}
        if how == "add":
            changed = accumulate((template(part), given, *reading.arrays), **where, neutral=True)
            if part is x:
                return x + _kept_at(changed, x)
            return _change_slice(x, resolve(x.shape, reading.key), changed, "add")
        if how == "set":
            changed = put((part, given, *reading.arrays), **where)
        else:
            changed = put_with((part, given, *reading.arrays), how=how, **where)
        return changed if part is x else _change_slice(x, resolve(x.shape, reading.key), changed, "set")

    def _values(self, given: Array, shape: tuple[int, ...]) -> Any:
        """The values in the dtype of x, broadcast to what the index takes (leading ones dropped, as NumPy)."""
        x = self.x
        if given.dtype != x.dtype:
            if given.dtype.kind == "c" != x.dtype.kind:
                raise DtypeError(f"complex values do not fit into {x.dtype.name}.", "values.real")
            given = given.astype(x.dtype)
        if given.ndim > len(shape) and all(n == 1 for n in given.shape[: given.ndim - len(shape)]):
            given = reshape(given, given.shape[given.ndim - len(shape) :])
        return broadcast_to(given, shape)


def _constant(value: Any, x: Array) -> Array:
    """A NumPy value as an array beside x: numbers take its dtype."""
    weak = isinstance(value, (bool, int, float)) or (isinstance(value, complex) and x.dtype.kind == "c")
    return constant(dtypes.read(value, x.dtype if weak else None), x.mesh)


def _kept_at(changed: Array, x: Array) -> Array:
    """Brought to where x lies: what is written into an array does not move it, however often. (A value that is not
    finished has no such place, but for sums.)"""
    if x.spec.partial and x.spec.op != "sum":
        return changed
    target = x.spec.replace(dtype=changed.dtype)
    return moved_arrays([changed], [target], [plan(changed.spec, target)], "at")[0]


def _change_slice(x: Array, index: tuple[Any, ...], values: Array, how: str) -> Any:
    kept = tuple(entry for entry in index if entry is not None)
    shape = [n for n, entry in zip(values.shape, _shown(index)) if entry is not None]
    values = values if len(shape) == values.ndim else reshape(values, tuple(shape))
    neutral = memory.identity(x.dtype, "sum").item()  # x + -0.0 is x, also where that is -0.0
    spread = _kept_at(unslice(values, neutral, x.shape, kept, block_sizes(x)), x)
    if how == "add":
        return x + spread
    kept = tuple(_ascending(entry) for entry in kept)
    return blend(x, spread, kept) if how == "set" else blend_with(x, spread, kept, how)


def _ascending(entry: Any) -> Any:
    """A slice with a positive step that takes the same elements."""
    if isinstance(entry, int) or entry[2] > 0:
        return entry
    return range(*entry)[-1], entry[0] + 1, -entry[2]


def _shape(index: tuple[Any, ...]) -> tuple[int, ...]:
    """Of what a resolved index takes: known before anything is moved."""
    return tuple(1 if entry is None else len(range(*entry)) for entry in _shown(index))


def _shown(index: tuple[Any, ...]) -> list[Any]:
    """The entries that have a dimension in the result."""
    return [entry for entry in index if entry is None or isinstance(entry, tuple)]


for _name, _value in {"__getitem__": getitem, "at": property(At), "take": take}.items():
    setattr(Array, _name, _value)

__all__ = ["take"]
