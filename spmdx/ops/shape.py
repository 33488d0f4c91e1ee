"""Shapes: reshape, transpose, added, dropped and broadcast dimensions. Views of the blocks; nothing is copied."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from spmdx.array import Array
from spmdx.errors import ArgumentError, ShapeError
from spmdx.op import op
from spmdx.ops.axes import names, one, several, sizes_of
from spmdx.ops.fit import fit
from spmdx.rule import Form


def _new_shape(old: tuple[int, ...], shape: Any, **_: Any) -> dict[str, Any]:
    new, size = sizes_of(shape), math.prod(old)
    if new.count(-1) > 1 or any(n < -1 for n in new):
        raise ShapeError(f"reshape: {new} is not a shape.", "sizes of 0 or more, with at most one -1")
    if -1 in new:
        rest = math.prod(n for n in new if n != -1)
        if rest == 0 or size % rest:
            raise ShapeError(
                f"reshape: {size} elements of shape {old} do not divide into {new}: the other sizes hold {rest}.",
                f"sizes whose product divides {size}" if size else "every size",
            )
        new = tuple(size // rest if n == -1 else n for n in new)
    if math.prod(new) != size:
        raise ShapeError(f"reshape: {old} has {size} elements, {new} has {math.prod(new)}.", "-1 for one of the sizes")
    return {"shape": new}


class _Factors:
    """The factors of every dimension before and after a reshape. A factor on both sides can carry a sharding."""

    def __init__(self, old: tuple[int, ...], new: tuple[int, ...]) -> None:
        self.old: list[list[str]] = [[] for _ in old]
        self.new: list[list[str]] = [[] for _ in new]
        self.sizes: dict[str, int] = {}

    def add(self, size: int, *sides: list[str]) -> None:
        """A factor of this size at the end of these dimensions; one on a single side never carries anything."""
        name = f"{'f' if len(sides) == 2 else 'w'}{len(self.sizes)}"
        self.sizes[name] = size
        for side in sides:
            side.append(name)

    def text(self) -> str:
        """The rule."""

        def dim(factors: list[str]) -> str:
            if len(factors) == 1:
                return f"[{factors[0]}]" if factors[0][0] == "w" else factors[0]
            return f"({' '.join(factors)})" if factors else "1"

        return f"{' '.join(map(dim, self.old))} -> {' '.join(map(dim, self.new))}"


def regroup(old: tuple[int, ...], shape: tuple[int, ...], **_: Any) -> Form:
    """The rule of a reshape: walks both shapes from the left, cutting off the greatest common factor."""
    new, made = shape, _Factors(old, shape)
    if math.prod(old) == 0:
        return _regroup_empty(old, new, made)
    i = j = 0
    a = b = 1  # what is left of dimensions i - 1 and j - 1
    while True:
        while a == 1 and i < len(old):
            a, i = old[i], i + 1
        while b == 1 and j < len(new):
            b, j = new[j], j + 1
        if a == b == 1:
            return Form(made.text(), made.sizes)
        common = math.gcd(a, b)
        if common > 1:
            made.add(common, made.old[i - 1], made.new[j - 1])
        a, b = a // common, b // common
        if a > 1 and b > 1:  # neither divides the other: nothing in common until the products meet again
            made.add(a, made.old[i - 1])
            made.add(b, made.new[j - 1])
            while a != b:
                if a < b:
                    a, i = a * old[i], i + 1
                    made.add(old[i - 1], made.old[i - 1])
                else:
                    b, j = b * new[j], j + 1
                    made.add(new[j - 1], made.new[j - 1])
            a = b = 1


def _regroup_empty(old: tuple[int, ...], new: tuple[int, ...], made: _Factors) -> Form:
    """Nothing to carry: dimensions that both begin with stay, the others are whole."""
    same = next((k for k, (n, m) in enumerate(zip(old, new)) if n != m), min(len(old), len(new)))
    for k in range(same):
        made.add(old[k], made.old[k], made.new[k])
    for k in range(same, len(old)):
        made.add(old[k], made.old[k])
    for k in range(same, len(new)):
        made.add(new[k], made.new[k])
    return Form(made.text(), made.sizes)


def _fast_reshape(xp: Any, bounds: Any, dtype: Any, shape: Any) -> Any:
    local = bounds.shape
    return lambda x: x.reshape(local)


@op(regroup, linear="each", monotone=1, bounds=True, prepare=_new_shape, fast=_fast_reshape)
def reshape(xp: Any, bounds: Any, x: Any, shape: Any, *, copy: bool | None = None) -> Any:
    """The same elements, in C order, in another shape; one size may be -1.

    The leading factor of every group of dimensions that merge or split may stay sharded. ``copy`` is accepted and
    means nothing: arrays are immutable.
    """
    return x.reshape(bounds.shape)


def ravel(x: Any) -> Any:
    """All elements in one dimension, in C order."""
    return reshape(x, (-1,))


# Order of the dimensions


def _order(shape: tuple[int, ...], axes: Any = None) -> dict[str, Any]:
    ndim = len(shape)
    dims = tuple(reversed(range(ndim))) if axes is None else several(axes, ndim, "permute_dims")
    if len(dims) != ndim:
        raise ShapeError(f"permute_dims: axes {dims} do not name each of {ndim} dimensions.", "one entry for each")
    return {"axes": dims}


def _permuted(shape: tuple[int, ...], axes: tuple[int, ...]) -> str:
    d = names(len(shape))
    return f"{' '.join(d)} -> {' '.join(d[i] for i in axes)}"


def _fast_permute(xp: Any, dtype: Any, axes: tuple[int, ...]) -> Any:
    if axes == tuple(reversed(range(len(axes)))):
        return lambda x: x.T
    return lambda x: x.transpose(axes)


@op(_permuted, linear="each", monotone=1, prepare=_order, fast=_fast_permute)
def permute_dims(xp: Any, x: Any, axes: Any = None) -> Any:
    """The dimensions in another order: dimension ``axes[i]`` becomes dimension i. Reversed if left out."""
    return x.transpose(axes)


def transpose(x: Any, axes: Any = None) -> Any:
    """permute_dims, under NumPy's name."""
    return permute_dims(x, axes)


def matrix_transpose(x: Any) -> Any:
    """The last two dimensions exchanged."""
    return swapaxes(x, -1, -2)


def swapaxes(x: Any, axis1: int, axis2: int) -> Any:
    """Two dimensions exchanged."""
    ndim = np.ndim(x)
    a, b = one(axis1, ndim, "swapaxes"), one(axis2, ndim, "swapaxes")
    order = list(range(ndim))
    order[a], order[b] = b, a
    return permute_dims(x, tuple(order))


def moveaxis(x: Any, source: Any, destination: Any) -> Any:
    """Dimensions moved to new positions, the others in their order."""
    ndim = np.ndim(x)
    start, end = several(source, ndim, "moveaxis"), several(destination, ndim, "moveaxis")
    if len(start) != len(end):
        raise ArgumentError(f"moveaxis: {len(start)} dimensions to {len(end)} positions.", "as many of each")
    order = [d for d in range(ndim) if d not in start]
    for to, d in sorted(zip(end, start)):
        order.insert(to, d)
    return permute_dims(x, tuple(order))


# Dimensions of size 1


def _added(shape: tuple[int, ...], axis: Any = 0) -> dict[str, Any]:
    count = len(axis) if isinstance(axis, (tuple, list)) else 1
    return {"axis": tuple(sorted(several(axis, len(shape) + count, "expand_dims")))}


def _expanded(shape: tuple[int, ...], axis: tuple[int, ...]) -> str:
    d = iter(names(len(shape)))
    out = ["1" if i in axis else next(d) for i in range(len(shape) + len(axis))]
    return f"{' '.join(names(len(shape)))} -> {' '.join(out)}"


@op(_expanded, linear="each", monotone=1, prepare=_added)
def expand_dims(xp: Any, x: Any, axis: Any = 0) -> Any:
    """New dimensions of size 1 at these positions of the result."""
    index = [slice(None)] * (x.ndim + len(axis))
    for i in axis:
        index[i] = None  # type: ignore[call-overload]  # np.newaxis
    return x[tuple(index)]


def _dropped(shape: tuple[int, ...], axis: Any = None) -> dict[str, Any]:
    dims = tuple(i for i, n in enumerate(shape) if n == 1) if axis is None else several(axis, len(shape), "squeeze")
    for i in dims:
        if shape[i] != 1:
            raise ShapeError(f"squeeze: dimension {i} of shape {shape} has size {shape[i]}, not 1.", "take to pick one")
    return {"axis": tuple(sorted(dims))}


def _squeezed(shape: tuple[int, ...], axis: tuple[int, ...]) -> str:
    d = names(len(shape))
    ins = ["1" if i in axis else n for i, n in enumerate(d)]
    return f"{' '.join(ins)} -> {' '.join(n for i, n in enumerate(d) if i not in axis)}"


@op(_squeezed, linear="each", monotone=1, prepare=_dropped)
def squeeze(xp: Any, x: Any, axis: Any = None) -> Any:
    """Without these dimensions, which have size 1. Without an axis: all such, as NumPy."""
    return x[tuple(0 if i in axis else slice(None) for i in range(x.ndim))]


# Broadcasting


def _target(old: tuple[int, ...], shape: Any) -> dict[str, Any]:
    new = sizes_of(shape)
    fits = len(new) >= len(old) and all(n in (1, m) for n, m in zip(reversed(old), reversed(new)))
    if not fits or any(n < 0 for n in new):
        raise ShapeError(f"broadcast_to: {old} does not broadcast to {new}.", "sizes that agree or are 1, from the end")
    return {"shape": new}


def _broadcast(old: tuple[int, ...], shape: tuple[int, ...]) -> Form:
    extra = len(shape) - len(old)
    stays = [n == m for n, m in zip(old, shape[extra:])]
    ins = [f"d{i}" if same else "1" for i, same in enumerate(stays)]
    out = [f"n{i}" for i in range(extra)] + [f"d{i}" if same else f"m{i}" for i, same in enumerate(stays)]
    sizes = {name: n for name, n in zip(out, shape) if name[0] != "d"}
    return Form(f"{' '.join(ins)} -> {' '.join(out)}", sizes)


@op(_broadcast, linear="each", monotone=1, bounds=True, prepare=_target)
def broadcast_to(xp: Any, bounds: Any, x: Any, shape: Any) -> Any:
    """The value repeated along new dimensions and along those of size 1, as a view."""
    return xp.broadcast_to(x, bounds.shape)


def broadcast_arrays(*arrays: Any) -> list[Array]:
    """The arrays broadcast to their common shape."""
    shape = common_shape(*(np.shape(x) for x in arrays))
    return [broadcast_to(x, shape) for x in arrays]


def common_shape(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that these broadcast to."""
    try:
        return tuple(np.broadcast_shapes(*shapes))
    except ValueError:
        shown = " and ".join(map(str, shapes))
        raise ShapeError(f"shapes {shown} do not broadcast.", "sizes that agree or are 1, from the last dim") from None


reshape.vjp(lambda g, out, x, shape: reshape(g, x.shape))
permute_dims.vjp(lambda g, out, x, axes: permute_dims(g, tuple(axes.index(i) for i in range(len(axes)))))
expand_dims.vjp(lambda g, out, x, axis: squeeze(g, axis))
squeeze.vjp(lambda g, out, x, axis: expand_dims(g, axis))
broadcast_to.vjp(lambda g, out, x, shape: fit(g, x))


def _method_reshape(x: Array, *shape: Any) -> Any:
    """The same elements in another shape: ``x.reshape(2, -1)`` or ``x.reshape((2, -1))``."""
    return reshape(x, shape[0] if len(shape) == 1 else shape)


def _method_transpose(x: Array, *axes: Any) -> Any:
    """The dimensions in another order, reversed if none is given."""
    return permute_dims(x, None if not axes else axes[0] if len(axes) == 1 else axes)


for _name, _value in {
    "reshape": _method_reshape,
    "transpose": _method_transpose,
    "T": property(permute_dims, doc="The dimensions reversed."),
    "mT": property(matrix_transpose, doc="The last two dimensions exchanged."),
    "swapaxes": swapaxes,
    "ravel": ravel,
    "flatten": ravel,
    "squeeze": squeeze,
}.items():
    setattr(Array, _name, _value)

__all__ = [
    "broadcast_arrays",
    "broadcast_to",
    "expand_dims",
    "matrix_transpose",
    "moveaxis",
    "permute_dims",
    "ravel",
    "reshape",
    "squeeze",
    "swapaxes",
    "transpose",
]
