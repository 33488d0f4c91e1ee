"""Joining and repeating: concat, stack, split, pad, flip, roll, diff, repeat, tile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spmdx.array import Array
from spmdx.dtypes import read, result_type
from spmdx.errors import ArgumentError, DtypeError, ShapeError
from spmdx.op import constants, op
from spmdx.ops.arithmetic import subtract
from spmdx.ops.axes import names, one, several, whole
from spmdx.ops.compare import not_equal
from spmdx.ops.index import take
from spmdx.ops.shape import ravel, reshape, squeeze
from spmdx.ops.slice import slicing, unslice
from spmdx.rule import Form

WHOLE = "the joined dimension is whole"


def _alike(shapes: tuple[tuple[int, ...], ...], name: str, but: int | None) -> None:
    first = shapes[0]
    for i, shape in enumerate(shapes):
        same = len(shape) == len(first) and all(n == m for d, (n, m) in enumerate(zip(shape, first)) if d != but)
        if not same:
            where = "" if but is None else f", axis {but} aside"
            raise ShapeError(f"{name}: array 0 has shape {first}, array {i} has shape {shape}.", f"equal shapes{where}")


def _joined(*shapes: tuple[int, ...], axis: int) -> dict[str, Any]:
    dim = one(axis, len(shapes[0]), "concat")
    _alike(shapes, "concat", dim)
    return {"axis": dim}


def _end_to_end(*shapes: tuple[int, ...], axis: int) -> Form:
    d = names(len(shapes[0]))
    ins = [" ".join((*d[:axis], f"[c{i}]", *d[axis + 1 :])) for i in range(len(shapes))]
    out = " ".join((*d[:axis], "[c]", *d[axis + 1 :]))
    return Form(f"{', '.join(ins)} -> {out}", {"c": sum(shape[axis] for shape in shapes)})


@op(_end_to_end, arrays=None, linear="together", monotone=1, prepare=_joined, note=WHOLE)
def _concat(xp: Any, *arrays: Any, axis: int) -> Any:
    """Arrays of one dtype, end to end."""
    return xp.concatenate(arrays, axis)


def concat(arrays: Sequence[Any], /, axis: int | None = 0) -> Any:
    """Arrays joined along a dimension that they have; flattened first where axis is None. Other dimensions stay
    sharded.

    Raises:
        ShapeError: shapes that differ in another dimension.
    """
    given = promoted(arrays, "concat")
    if axis is None:
        given, axis = [ravel(x) for x in given], 0
    return _concat(given, axis=axis)


def promoted(arrays: Sequence[Any], name: str) -> list[Array]:
    """The operands of a join as Arrays of one dtype, the one that they promote to."""
    if isinstance(arrays, Array):
        arrays = unstack(arrays)
    if not isinstance(arrays, (list, tuple, np.ndarray)):
        raise DtypeError(f"{name} takes a list of arrays; got a {type(arrays).__name__}.", f"{name}([x, y])")
    if not len(arrays):
        raise ArgumentError(f"{name} needs at least one array.", f"{name}([x])")
    for x in arrays:
        if not isinstance(x, Array) and read(x).dtype == object:
            raise DtypeError(f"{name} takes arrays of numbers; one operand is a {type(x).__name__}.", f"{name}([x, y])")
    mesh_of = constants(tuple(x if isinstance(x, Array) else read(x) for x in arrays), name)
    dtype = result_type(*mesh_of)
    return [x if x.dtype == dtype else x.astype(dtype) for x in mesh_of]


def _array(x: Any) -> Any:
    """x, or a constant of what NumPy makes of it."""
    return x if isinstance(x, Array) else constants((x,), "an array")[0]


def _stacked(*shapes: tuple[int, ...], axis: int) -> dict[str, Any]:
    _alike(shapes, "stack", None)
    return {"axis": one(axis, len(shapes[0]) + 1, "stack")}


def _side_by_side(*shapes: tuple[int, ...], axis: int) -> Form:
    d = names(len(shapes[0]))
    out = " ".join((*d[:axis], "s", *d[axis:]))
    return Form(f"{', '.join([' '.join(d)] * len(shapes))} -> {out}", {"s": len(shapes)})


@op(_side_by_side, arrays=None, linear="together", monotone=1, prepare=_stacked)
def _stack(xp: Any, *arrays: Any, axis: int) -> Any:
    """Arrays of one shape and dtype, along a new dimension."""
    return xp.stack(arrays, axis)


def stack(arrays: Sequence[Any], /, axis: int = 0) -> Any:
    """Arrays of one shape joined along a new dimension. No communication where they are placed alike."""
    return _stack(promoted(arrays, "stack"), axis=axis)


_concat.vjp_each(
    lambda i, g, out, *arrays, axis: _span(g, axis, sum(x.shape[axis] for x in arrays[:i]), arrays[i].shape[axis])
)
_stack.vjp_each(lambda i, g, out, *arrays, axis: squeeze(_span(g, axis, i, 1), axis))


def _span(x: Array, dim: int, start: int, length: int) -> Any:
    return slicing(x, ((None, None, None),) * dim + ((start, start + length, None),))


def split(x: Array, indices_or_sections: Any, /, axis: int = 0) -> list[Array]:
    """Equal parts along a dimension (a number of them), or the parts between these indices. Nothing moves: the parts
    of a sharded dimension are ragged.

    Raises:
        ShapeError: a dimension that does not divide into so many equal parts.
    """
    x = _array(x)
    dim = one(axis, x.ndim, "split")
    n = x.shape[dim]
    if isinstance(indices_or_sections, (tuple, list, np.ndarray)):
        cuts = [slice(None, whole(i, "split: an index", "[2, 4]")).indices(n)[1] for i in indices_or_sections]
    else:
        parts = whole(indices_or_sections, "split: the number of parts", "split(x, 2)")
        if parts < 1 or n % parts:
            raise ShapeError(
                f"split: dimension {dim} of size {n} does not divide into {parts} equal parts.",
                "a list of the indices to cut at",
            )
        cuts = [n // parts * i for i in range(1, parts)]
    return [_span(x, dim, a, max(b - a, 0)) for a, b in zip([0, *cuts], [*cuts, n])]


def unstack(x: Array, /, *, axis: int = 0) -> tuple[Array, ...]:
    """The slices along a dimension, without it."""
    x = _array(x)
    dim = one(axis, x.ndim, "unstack")
    before = ((None, None, None),) * dim
    return tuple(slicing(x, (*before, i)) for i in range(x.shape[dim]))


# Padding

_BY_INDEX = ("edge", "reflect", "symmetric", "wrap")


def pad(x: Array, pad_width: Any, mode: str = "constant", *, constant_values: Any = 0) -> Array:
    """x with more elements before and after each dimension, as NumPy's.

    Args:
        pad_width: a number, ``(before, after)`` for all dimensions, or such a pair for each.
        mode: constant, which keeps a sharded dimension where it is and moves nothing; or edge, reflect, symmetric or
            wrap, which take the elements at those positions (Partial on a sharded dimension).
        constant_values: one number.
    """
    x = _array(x)
    try:
        pairs = [
            (whole(a, "pad: a width", "pad(x, 1)"), whole(b, "pad: a width", "pad(x, 1)"))
            for a, b in np.broadcast_to(np.asarray(pad_width), (x.ndim, 2))
        ]
    except ValueError:
        raise ShapeError(f"pad: widths {pad_width!r} do not fit {x.ndim} dimensions.", "a pair for each") from None
    if any(n < 0 for pair in pairs for n in pair):
        raise ArgumentError(f"pad: widths are 0 or more; got {pad_width!r}.", "a slice, to cut off")
    if mode == "constant":
        shape = tuple(a + n + b for n, (a, b) in zip(x.shape, pairs))
        index = tuple((a, a + n, 1) if n else (0, 0, 1) for n, (a, _) in zip(x.shape, pairs))
        fill = constant_values if isinstance(constant_values, Array) else np.asarray(constant_values).item()
        return unslice(x, fill, shape, index)  # type: ignore[no-any-return]
    if mode not in _BY_INDEX:
        raise ArgumentError(f"pad: mode {mode!r}.", f"one of constant, {', '.join(_BY_INDEX)}")
    for dim, (n, pair) in enumerate(zip(x.shape, pairs)):
        if pair != (0, 0):
            if n == 0:
                raise ShapeError(f"pad: dimension {dim} is empty, and {mode} needs an element.", 'mode="constant"')
            x = take(x, np.pad(np.arange(n), pair, mode=mode), axis=dim)  # type: ignore[call-overload]
    return x


# The same elements in another order, or more than once


def _flipped(shape: tuple[int, ...], axis: Any = None) -> dict[str, Any]:
    return {"axis": several(axis, len(shape), "flip")}


def _whole(shape: tuple[int, ...], axis: tuple[int, ...], **_: Any) -> str:
    d = " ".join(f"[{name}]" if i in axis else name for i, name in enumerate(names(len(shape))))
    return f"{d} -> {d}"


@op(_whole, linear="each", monotone=1, prepare=_flipped, note="a flipped dimension is whole")
def flip(xp: Any, x: Any, axis: Any = None) -> Any:
    """The order reversed along these dimensions; all of them if left out."""
    return xp.flip(x, axis)


def _rolled(shape: tuple[int, ...], shift: Any, axis: Any = None) -> dict[str, Any]:
    dims = tuple(one(a, len(shape), "roll") for a in (axis if isinstance(axis, (tuple, list)) else (axis,)))
    given = shift if isinstance(shift, (tuple, list)) else (shift,)
    shifts = tuple(whole(n, "roll: a shift", "shift=1") for n in given)
    if len(shifts) == 1:
        shifts *= len(dims)
    elif len(dims) == 1:
        dims *= len(shifts)
    if len(shifts) != len(dims):
        raise ArgumentError(f"roll: {len(shifts)} shifts for {len(dims)} dimensions.", "one shift for each")
    return {"shift": shifts, "axis": dims}


@op(_whole, linear="each", monotone=1, prepare=_rolled, note="a rolled dimension is whole")
def _roll(xp: Any, x: Any, shift: Any, axis: Any) -> Any:
    """Elements moved along dimensions, round the end."""
    return xp.roll(x, shift, axis)


def roll(x: Any, /, shift: Any, axis: Any = None) -> Any:
    """Elements moved by ``shift`` places along dimensions, round the end; of the flattened array if axis is None."""
    if axis is None:
        return reshape(_roll(ravel(x), shift, 0), x.shape)
    return _roll(x, shift, axis)


def diff(x: Any, /, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Any:
    """Each element's difference from the one before it along a dimension, taken ``n`` times; of bools whether they
    differ. ``prepend`` and ``append`` are joined to x first. Blocks exchange the elements at their edges."""
    if whole(n, "diff: n", "n=1") < 0:
        raise ArgumentError(f"diff: differences are taken 0 times or more; got {n}.", "n=1")
    x = _array(x)
    dim = one(axis, x.ndim, "diff")
    parts = [a for a in (prepend, x, append) if a is not None]
    x = concat(parts, axis=dim) if len(parts) > 1 else x
    take_off = not_equal if x.dtype.kind == "b" else subtract
    later, earlier = ((slice(None),) * dim + (part,) for part in (slice(1, None), slice(None, -1)))
    for _ in range(n):
        x = take_off(x[later], x[earlier])
    return x


def _copies(shape: tuple[int, ...], count: int, axis: int) -> dict[str, Any]:
    if whole(count, "repeats", "repeats=2") < 0:
        raise ArgumentError(f"repeat: an element is repeated 0 times or more; got {count}.", "repeats=0")
    return {"count": whole(count, "repeats", "repeats=2"), "axis": one(axis, len(shape), "repeat")}


def _each_again(shape: tuple[int, ...], count: int, axis: int) -> Form:
    d = names(len(shape))
    return Form(f"{' '.join(d)} -> {' '.join((*d[:axis], f'({d[axis]} r)', *d[axis + 1 :]))}", {"r": count})


@op(_each_again, linear="each", monotone=1, prepare=_copies)
def _repeat(xp: Any, x: Any, count: int, axis: int) -> Any:
    """Every element ``count`` times in a row."""
    return xp.repeat(x, count, axis)


def repeat(x: Any, repeats: Any, /, axis: int | None = None) -> Any:
    """Each element ``repeats`` times (one number, or one for each element) along a dimension; of the flattened array
    if axis is None. A dimension repeated by one number stays sharded."""
    if axis is None:
        x, axis = ravel(x), 0
    if isinstance(repeats, Array):
        repeats = repeats.numpy()
    times = np.asarray(repeats)
    if times.dtype.kind not in "iu":
        raise DtypeError(f"repeat: repeats are integers; got dtype {times.dtype}.", "repeats.astype(int)")
    if times.size == 1:
        return _repeat(x, int(times.reshape(())), axis)
    n = x.shape[one(axis, x.ndim, "repeat")]
    if times.shape != (n,):
        raise ShapeError(
            f"repeat: {times.size} numbers of repeats for a dimension of size {n}.", "one for each element"
        )
    return take(x, np.repeat(np.arange(n), times), axis=axis)


def _tiles(shape: tuple[int, ...], reps: Any) -> dict[str, Any]:
    return {"reps": tuple(whole(r, "tile: repetitions", "tile(x, 2)") for r in reps)}


def _tiled(shape: tuple[int, ...], reps: tuple[int, ...]) -> Form:
    d = names(len(shape))
    out = [name if r == 1 else f"(r{name} {name})" for name, r in zip(d, reps)]
    return Form(f"{' '.join(d)} -> {' '.join(out)}", {f"r{name}": r for name, r in zip(d, reps) if r != 1})


@op(_tiled, linear="each", monotone=1, prepare=_tiles, note="a dimension repeated as a whole is whole")
def _tile(xp: Any, x: Any, reps: Any) -> Any:
    """The whole array again and again along each dimension."""
    return xp.tile(x, reps)


def tile(x: Any, repetitions: Any, /) -> Any:
    """The whole array, ``repetitions`` times along each dimension."""
    x = _array(x)
    reps = tuple(repetitions) if isinstance(repetitions, (tuple, list)) else (repetitions,)
    reps = (1,) * (x.ndim - len(reps)) + reps
    if any(whole(r, "tile: repetitions", "tile(x, 2)") < 0 for r in reps):
        raise ArgumentError(f"tile: repetitions are 0 or more; got {repetitions}.", "0 for an empty array")
    return _tile(reshape(x, (1,) * (len(reps) - x.ndim) + x.shape), reps)


def _fold(g: Any, x: Any, reps: Sequence[int], outer: bool) -> Any:
    """The gradient of repeats: the sum over the copies of every element."""
    shape: list[int] = []
    copies = []
    for n, r in zip(x.shape, reps):
        copies.append(len(shape) + (not outer))
        shape += (r, n) if outer else (n, r)
    return g.reshape(tuple(shape)).sum(tuple(copies))


flip.vjp(lambda g, out, x, axis: flip(g, axis=axis))
_roll.vjp(lambda g, out, x, shift, axis: _roll(g, tuple(-s for s in shift), axis))
_repeat.vjp(lambda g, out, x, count, axis: _fold(g, x, [count if d == axis else 1 for d in range(x.ndim)], False))
_tile.vjp(lambda g, out, x, reps: _fold(g, x, reps, True))

__all__ = ["concat", "diff", "flip", "pad", "repeat", "roll", "split", "stack", "tile", "unstack"]
