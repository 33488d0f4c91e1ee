"""Basic indexing (ints, slices, None, ...), and its opposite: an array put into a larger one.

A slice with a positive step leaves the elements where they are, so its result is ragged and nothing moves. An int
on a sharded dimension gives a Partial: the owner holds the value and the others the identity.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from spmdx.errors import BoundsError
from spmdx.op import op
from spmdx.ops import elementwise as e
from spmdx.ops.axes import names
from spmdx.ops.create import zeros_like
from spmdx.ops.fit import fit
from spmdx.rule import Form
from spmdx.runtime import memory

Steps = tuple[int, int, int]  # start, stop, step of a slice, resolved: every index that it takes is in range


def resolve(shape: tuple[int, ...], index: tuple[Any, ...]) -> tuple[Any, ...]:
    """An index as one entry for each dimension (an int or resolved :data:`Steps`), with a None for each new one."""
    used = sum(entry is not None and entry is not Ellipsis for entry in index)
    if used > len(shape):
        raise BoundsError(f"{used} indices for an array of shape {shape}.", f"at most {len(shape)}")
    if sum(entry is Ellipsis for entry in index) > 1:
        raise BoundsError("an index holds `...` at most once.", "x[..., i]")
    at = next((i for i, entry in enumerate(index) if entry is Ellipsis), len(index))
    full = ((None, None, None),) * (len(shape) - used)
    out: list[Any] = []
    dim = 0
    for entry in (*index[:at], *full, *index[at + 1 :]):
        if entry is None:
            out.append(None)
            continue
        out.append(_entry(entry, shape[dim], dim, shape))
        dim += 1
    return tuple(out)


def _entry(entry: Any, n: int, dim: int, shape: tuple[int, ...]) -> Any:
    if isinstance(entry, tuple):
        if entry[2] == 0:
            raise BoundsError("a slice's step cannot be 0.", "x[::1]")
        try:
            start, stop, step = slice(*entry).indices(n)
        except TypeError:
            raise BoundsError(f"slice{entry} has a bound that is not an int.", "x[int(start):int(stop)]") from None
        return (start, stop, step) if len(range(start, stop, step)) else (0, 0, 1)
    i = operator.index(entry)
    if not -n <= i < n:
        raise BoundsError(
            f"index {i} is out of range for dimension {dim}, which has size {n} (shape {shape}).",
            f"an index from {-n} to {n - 1}" if n else "a slice: an empty dimension has no elements",
        )
    return i % n


def counts(steps: Steps, sizes: Sequence[int]) -> tuple[int, ...]:
    """How many elements of each block a slice with a positive step takes, given the blocks' lengths."""
    start, stop, step = steps
    out, at, before = [], 0, 0
    for n in sizes:
        at += n
        upto = len(range(start, min(stop, at), step))
        out.append(upto - before)
        before = upto
    return tuple(out)


def _here(steps: Steps, pieces: tuple[tuple[int, int], ...]) -> slice:
    """The slice of a block, which holds these global indices, that a slice of the whole dimension takes."""
    start, stop, step = steps
    if step < 0:
        return slice(start, stop if stop >= 0 else None, step)  # its dimension is whole
    if len(pieces) != 1:  # empty, or interleaved, which only a slice of everything is allowed to be
        return slice(None)
    a, b = pieces[0]
    first = start if start >= a else start + -(-(a - start) // step) * step
    return slice(first - a, max(min(stop, b), first) - a, step)


def _local(index: tuple[Any, ...], bounds: tuple[tuple[tuple[int, int], ...], ...]) -> tuple[Any, ...] | None:
    """The index into a block with these bounds; None if an int lies outside it."""
    out: list[Any] = []
    dims = iter(bounds)
    for entry in index:
        if entry is None:
            out.append(None)
            continue
        pieces = next(dims)
        if isinstance(entry, tuple):
            out.append(_here(entry, pieces))
            continue
        offset = 0
        for a, b in pieces:
            if a <= entry < b:
                out.append(offset + entry - a)
                break
            offset += b - a
        else:
            return None
    return tuple(out)


def _dims(shape: tuple[int, ...], index: tuple[Any, ...]) -> Iterator[tuple[str, Any, int]]:
    """Name, entry and length of every dimension."""
    entries = [entry for entry in index if entry is not None]
    return ((f"d{i}", entry, n) for i, (entry, n) in enumerate(zip(entries, shape)))


def _sliced(shape: tuple[int, ...], index: tuple[Any, ...], **_: Any) -> Form:
    ins, sizes, resize, after = [], {}, {}, []
    for name, entry, n in _dims(shape, index):
        ins.append(name)
        if not isinstance(entry, tuple):
            continue
        after.append(name)
        length = len(range(*entry))
        if entry[2] < 0:
            ins[-1], after[-1] = f"[{name}]", f"e{name}"
            sizes[f"e{name}"] = length
        elif entry != (0, n, 1):
            resize[name] = length, lambda blocks, entry=entry: counts(entry, blocks)
    rest = iter(after)
    out = ["1" if entry is None else next(rest) for entry in index if entry is None or isinstance(entry, tuple)]
    return Form(f"{' '.join(ins)} -> {' '.join(out)}", sizes, resize)


def _resolved(shape: tuple[int, ...], index: tuple[Any, ...]) -> dict[str, Any]:
    return {"index": resolve(shape, index)}


def _getter(xp: Any, bounds: Any, dtype: Any, index: tuple[Any, ...]) -> Callable[[Any], Any]:
    """The block function of a slice: the local index worked out once, then NumPy's own indexing and nothing else."""
    local = _local(index, bounds.inputs[0])
    if local is None:
        out = bounds.shape
        return lambda x: memory.filled(out, dtype, "sum", xp)
    return operator.itemgetter(local[0] if len(local) == 1 else local)


@op(
    _sliced,
    linear="each",
    monotone=1,
    bounds=True,
    prepare=_resolved,
    fast=_getter,
    note="a negative step needs its dimension whole",
)
def slicing(xp: Any, bounds: Any, x: Any, index: Any) -> Any:
    """Basic indexing: ``index`` is a tuple of ints, (start, stop, step), None and Ellipsis."""
    return _getter(xp, bounds, x.dtype, index)(x)


def as_given(index: tuple[Any, ...]) -> tuple[Any, ...]:
    """A resolved index as :func:`slicing` takes it, where a stop of -1 counts from the end."""
    return tuple((e[0], None, e[2]) if isinstance(e, tuple) and e[1] < 0 else e for e in index)


# The opposite


def _spread(x: tuple[int, ...], fill: tuple[int, ...], shape: Any, index: Any, sizes: Any = None) -> Form:
    ins, out, lengths, resize = [], [], {}, {}
    for d, (name, entry, n) in enumerate(_dims(shape, index)):
        out.append(name)
        if not isinstance(entry, tuple):
            out[-1] = f"e{name}"
            lengths[f"e{name}"] = n
            continue
        ins.append(name)
        if entry[2] < 0 or len(range(*entry)) == 0:
            ins[-1], out[-1] = f"[{name}]", f"e{name}"
            lengths[f"e{name}"] = n
        elif entry != (0, n, 1):
            wish = sizes[d] if sizes else None
            resize[name] = n, lambda blocks, entry=entry, n=n, wish=wish: _widened(entry, n, blocks, wish)
    return Form(f"{' '.join(ins)}, -> {' '.join(out)}", lengths, resize)


def _widened(steps: Steps, n: int, blocks: tuple[int, ...], wish: tuple[int, ...] | None) -> tuple[int, ...]:
    """Lengths of the blocks of a dimension of length n around the blocks of its slice: those wished for, if the slice
    of them is divided so; otherwise cut right before the first element of each block."""
    if wish is not None and len(wish) == len(blocks) and counts(steps, wish) == blocks:
        return wish
    out, at, cut, total = [], 0, 0, sum(blocks)
    for m in blocks:
        at += m
        end = n if at == total else 0 if at == 0 else steps[0] + at * steps[2]
        out.append(end - cut)
        cut = end
    return tuple(out)


@op(_spread, arrays=2, linear=((0, 1),), monotone=1, bounds=True)
def unslice(xp: Any, bounds: Any, x: Any, fill: Any, shape: Any, index: Any, sizes: Any = None) -> Any:
    """An array of ``fill`` with x at a resolved index: what slicing undoes.

    Args:
        x: an array of the shape that the index takes.
        fill: a number.
        shape: shape of the result.
        index: an int or resolved slice for every dimension of the result.
        sizes: for each dimension, lengths of the blocks that the result should have, if they suit x.
    """
    out = xp.full(bounds.shape, fill, x.dtype)
    local = _local(index, bounds.output)
    if local is not None:
        out[local] = x
    return out


def block_sizes(x: Any) -> tuple[Any, ...]:
    """The lengths of all blocks of every sharded dimension."""
    return tuple(x.spec.sizes(d) if lay.axes and lay.interleave == 1 else None for d, lay in enumerate(x.spec.layouts))


def _back(g: Any, out: Any, x: Any, index: Any) -> Any:
    added = tuple(i for i, entry in enumerate(e for e in index if e is None or isinstance(e, tuple)) if entry is None)
    flat = g.reshape(tuple(n for i, n in enumerate(g.shape) if i not in added)) if added else g
    kept = tuple(entry for entry in index if entry is not None)
    return unslice(flat, 0, x.shape, kept, block_sizes(x))


def _inside(g: Any, out: Any, x: Any, fill: Any, shape: Any, index: Any, sizes: Any) -> Any:
    return slicing(g, as_given(index))


def _outside(g: Any, out: Any, x: Any, fill: Any, shape: Any, index: Any, sizes: Any) -> Any:
    return fit(g.sum() - slicing(g, as_given(index)).sum(), fill)


slicing.vjp(_back)
unslice.vjp(_inside, _outside)


# Elementwise: another array's elements at an index


def _each(x: tuple[int, ...], y: tuple[int, ...], index: Any, **_: Any) -> Form:
    d = " ".join(names(len(x)))
    cut = [(name, n) for name, entry, n in _dims(x, index) if isinstance(entry, tuple) and entry != (0, n, 1)]
    stay = {name: (n, lambda blocks: blocks) for name, n in cut}  # keeps interleaved blocks out
    return Form(f"{d}, {d} -> {d}", {}, stay)


def _blended(xp: Any, x: Any, y: Any, index: Any, bounds: Any, combine: Callable[[Any, Any], Any]) -> Any:
    out = xp.array(x)
    local = _local(index, bounds.output)
    if local is not None:
        out[local] = combine(x[local], y[local])
    return out


@op(_each, arrays=2, linear="together", bounds=True)
def blend(xp: Any, bounds: Any, x: Any, y: Any, index: Any) -> Any:
    """``y`` at the resolved index, ``x`` elsewhere: two arrays of one shape."""
    return _blended(xp, x, y, index, bounds, lambda a, b: b)


COMBINE = {"multiply": "multiply", "min": "minimum", "max": "maximum"}


@op(_each, arrays=2, bounds=True)
def blend_with(xp: Any, bounds: Any, x: Any, y: Any, index: Any, how: str) -> Any:
    """``how(x, y)`` at the resolved index, ``x`` elsewhere; how is multiply, min or max."""
    return _blended(xp, x, y, index, bounds, getattr(xp, COMBINE[how]))


blend.vjp(
    lambda g, out, x, y, index: blend(g, zeros_like(g), index),
    lambda g, out, x, y, index: blend(zeros_like(g), g, index),
)


def _combined(which: int) -> Callable[..., Any]:
    """The gradient of one operand of blend_with: the combination's own at the index; elsewhere g goes to x alone."""

    def rule(g: Any, out: Any, x: Any, y: Any, index: Any, how: str) -> Any:
        part = getattr(e, COMBINE[how]).op.gradient(which, g, out, (x, y), {})
        return blend(zeros_like(g) if which else g, part, index)

    return rule


blend_with.vjp(_combined(0), _combined(1))
