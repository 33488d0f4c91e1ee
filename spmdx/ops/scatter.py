"""Integer-array indexing: gather, and its opposites accumulate (add) and put (set, multiply, min, max).

An indexed dimension may be sharded: every rank serves the indices that lie in its block. gather then gives a Partial
sum (vocabulary-parallel embedding), the others keep the sharding. The index arrays broadcast against each other; their
dimensions stand at ``at`` in the result of gather and in the values of the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from spmdx import check as checks
from spmdx import context
from spmdx.array import Array
from spmdx.errors import BoundsError
from spmdx.op import op
from spmdx.ops import elementwise as e
from spmdx.ops.axes import names
from spmdx.ops.create import ones_like, zeros_like
from spmdx.ops.place import wrap
from spmdx.runtime import kernels, memory
from spmdx.spec import Interval, Spec

Pieces = tuple[Interval, ...]


def check(index: Any, n: int, dim: int) -> None:
    """Every index in range, negative ones counting from the end.

    Raises:
        BoundsError: with the first that is not.
    """
    if not isinstance(index, np.ndarray) and not checks.on():
        return  # to look would make the host wait for the GPU
    index = memory.host(index)
    if index.size and (int(index.min()) < -n or int(index.max()) >= n):
        bad = index.ravel()[np.argmax((index.ravel() < -n) | (index.ravel() >= n))]
        raise BoundsError(f"index {bad} is out of range for dimension {dim}, which has size {n}.", f"indices below {n}")


def locate(index: Any, pieces: Pieces, n: int) -> tuple[Any, Any]:
    """Where in a block with these global intervals every index lies (0 if it does not), and whether it does."""
    xp = memory.of(index)
    index = index.astype(np.int64)
    index = xp.where(index < 0, index + n, index)
    if not pieces:
        return xp.zeros_like(index), xp.zeros(index.shape, bool)
    if len(pieces) == 1:
        [(start, stop)] = pieces
        inside = (index >= start) & (index < stop)
        return xp.where(inside, index - start, 0), inside
    starts, stops = (xp.asarray(np.array(ends)) for ends in zip(*pieces))
    piece = xp.searchsorted(starts, index, "right") - 1
    inside = (piece >= 0) & (index < stops[piece])
    before = xp.cumsum(stops - starts) - (stops - starts)
    return xp.where(inside, index - starts[piece] + before[piece], 0), inside


def _located(indices: Sequence[Any], pieces: Sequence[Pieces], lengths: Sequence[int], dims: Any) -> tuple[Any, Any]:
    """Local indices, broadcast together, and the mask of those in this block."""
    found, inside = [], None
    for index, own, n, dim in zip(indices, pieces, lengths, dims):
        check(index, n, dim)
        local, here = locate(index, own, n)
        found.append(local)
        inside = here if inside is None else inside & here
    return memory.of(inside).broadcast_arrays(*found), inside


def _lengths(x: tuple[int, ...], *others: tuple[int, ...], dims: Any, **more: Any) -> dict[str, Any]:
    return {**more, "dims": dims, "lengths": tuple(x[d] for d in dims)}


def _names(ndim: int, dims: Sequence[int]) -> tuple[list[str], list[str]]:
    """Factors of all dimensions, and of those that are not indexed."""
    d = names(ndim)
    return d, [name for i, name in enumerate(d) if i not in dims]


def _gathered(x: tuple[int, ...], *indices: tuple[int, ...], dims: Any, at: int, **_: Any) -> str:
    d, rest = _names(len(x), dims)
    return f"{' '.join(d)}, {', '.join(['...'] * len(indices))} -> {' '.join((*rest[:at], '...', *rest[at:]))}"


@op(_gathered, arrays=None, linear=((0,),), bounds=True, prepare=_lengths)
def gather(xp: Any, bounds: Any, *operands: Any, dims: Any, at: int, lengths: Any = None) -> Any:
    """``x`` at integer arrays, one for each of ``dims``: ``operands`` are x and these."""
    x, *indices = operands
    pieces = [bounds.inputs[0][d] for d in dims]
    front = xp.moveaxis(x, dims, range(len(dims)))
    if all(own == ((0, n),) for own, n in zip(pieces, lengths)):
        try:
            if len(dims) == 1 and at == dims[0]:
                return x.take(indices[0], at)
            found = front[tuple(indices)]
        except IndexError:
            for index, n, dim in zip(indices, lengths, dims):
                check(index, n, dim)
            raise
    else:
        local, inside = _located(indices, pieces, lengths, dims)
        if not all(front.shape[: len(dims)]):
            return memory.filled(bounds.shape, x.dtype, "sum", xp)
        found = xp.asarray(front[tuple(local)])  # of 0-d indices NumPy makes a scalar
        found[~inside] = memory.neutral(x.dtype, "sum")
    ndim = found.ndim - (x.ndim - len(dims))
    return xp.moveaxis(found, range(ndim), range(at, at + ndim))


def _accumulated(
    x: tuple[int, ...], values: tuple[int, ...], *indices: tuple[int, ...], dims: Any, at: int, **_: Any
) -> str:
    d, rest = _names(len(x), dims)
    inputs = [" ".join(d), " ".join((*rest[:at], "...", *rest[at:])), *["..."] * len(indices)]
    return f"{', '.join(inputs)} -> {' '.join(d)}"


@op(_accumulated, arrays=None, linear=((1,),), bounds=True, prepare=_lengths)
def accumulate(
    xp: Any, bounds: Any, *operands: Any, dims: Any, at: int, lengths: Any = None, neutral: bool = False
) -> Any:
    """Zeros (``neutral``: -0.0, which changes nothing it is added to), with values added at integer arrays; repeated
    indices add up. ``operands`` are an array that only gives the shape and placement of the result, the values, and the
    index arrays."""
    _, values, *indices = operands
    narrow = values.dtype.itemsize == 2 and values.dtype.kind in "fV"
    local, inside = _located(indices, [bounds.output[d] for d in dims], lengths, dims)
    own = [bounds.shape[d] for d in dims]
    rest = [n for d, n in enumerate(bounds.shape) if d not in dims]
    shape, dtype = (math.prod(own), math.prod(rest)), xp.float32 if narrow else values.dtype
    out = memory.filled(shape, dtype, "sum", xp) if neutral else xp.zeros(shape, dtype)
    if out.size and xp is not np:
        out = _added_on_gpu(xp, out, values, local, inside, own, at, len(rest))
    elif out.size:
        ndim = values.ndim - len(rest)
        front = xp.moveaxis(values, range(at, at + ndim), range(ndim))[inside]
        rows = np.ravel_multi_index([i[inside] for i in local], own)
        _add_rows(xp, out, rows, front.reshape(len(rows), out.shape[1]).astype(out.dtype, copy=False))
    return xp.moveaxis(out.reshape(own + rest), range(len(dims)), dims).astype(values.dtype, copy=False)


def _added_on_gpu(xp: Any, out: Any, values: Any, local: Any, inside: Any, own: Any, at: int, rest: int) -> Any:
    """The same where how many indices lie in this block is not to be known on the host: what belongs to other blocks
    goes to a row more. The order of addition is the GPU's own."""
    ndim = values.ndim - rest
    front = xp.moveaxis(values, range(at, at + ndim), range(ndim))
    number = _numbers(xp, local, inside, own)
    wide = {"b": np.uint32, "i": np.uint64, "u": np.uint64}.get(out.dtype.kind, out.dtype)  # what CuPy's add.at knows
    more = xp.concatenate([out, xp.zeros((1, out.shape[1]), out.dtype)]).astype(wide)
    xp.add.at(more, number, front.reshape(len(number), out.shape[1]).astype(wide))
    return more[:-1].astype(out.dtype)


def _add_rows(xp: Any, out: Any, rows: Any, values: Any) -> None:
    """``out[rows[i]] += values[i]`` in order, by flat indices: add.at is seven times slower on whole rows."""
    if xp is np and out.dtype.char in "fd":
        kernels.add_rows(out, np.ascontiguousarray(rows, np.int64), np.ascontiguousarray(values))
        return
    add = xp.logical_or if out.dtype.kind == "b" else xp.add
    width = out.shape[1]
    several = max(1, 2**20 // width)  # rows at a time, so that the indices stay small
    for start in range(0, len(rows), several):
        some = slice(start, start + several)
        add.at(out.reshape(-1), (rows[some, None] * width + xp.arange(width)).ravel(), values[some].ravel())


def _at(
    apply: Any, out: Any, values: Any, indices: Sequence[Any], bounds: Any, dims: Any, at: int, lengths: Sequence[int]
) -> None:
    """``apply(target, local indices, values)`` for the indices that lie in this block."""
    local, inside = _located(indices, [bounds[d] for d in dims], lengths, dims)
    ndim = values.ndim - (out.ndim - len(dims))
    front = np.moveaxis(values, range(at, at + ndim), range(ndim))
    apply(np.moveaxis(out, dims, range(len(dims))), tuple(i[inside] for i in local), front[inside])


def _putted(
    x: tuple[int, ...], values: tuple[int, ...], *indices: tuple[int, ...], dims: Any, at: int, **_: Any
) -> str:
    """The dimensions of the index arrays are whole: the last of several values for one element wins."""
    d, rest = _names(len(x), dims)
    ndim = len(values) - len(rest)
    whole = [f"[i{k}]" for k in range(ndim)]
    sizes = values[at : at + ndim]
    inputs = [" ".join(d), " ".join((*rest[:at], *whole, *rest[at:]))]
    for shape in indices:
        own = range(ndim - len(shape), ndim)
        inputs.append(" ".join("1" if n == 1 != sizes[k] else whole[k] for k, n in zip(own, shape)))
    return f"{', '.join(inputs)} -> {' '.join(d)}"


def _assign(target: Any, index: Any, values: Any) -> None:
    target[index] = values


@op(_putted, arrays=None, linear=((0, 1),), bounds=True, prepare=_lengths)
def put(xp: Any, bounds: Any, *operands: Any, dims: Any, at: int, lengths: Any = None) -> Any:
    """``x`` with values set at integer arrays; of repeated indices the last wins. ``operands``: x, values, indices."""
    x, values, *indices = operands
    if xp is not np:
        return _put_on_gpu(xp, x, values, _located(indices, [bounds.output[d] for d in dims], lengths, dims), dims, at)
    out = xp.array(x)
    _at(_assign, out, values, indices, bounds.output, dims, at, lengths)
    return out


def _put_on_gpu(xp: Any, x: Any, values: Any, located: Any, dims: Any, at: int) -> Any:
    """The same where assignments run at once: of every element the last value is found first."""
    local, inside = located
    ndim = values.ndim - (x.ndim - len(dims))
    front = xp.moveaxis(x, dims, range(len(dims)))
    own, rest = front.shape[: len(dims)], front.shape[len(dims) :]
    rows = xp.empty((math.prod(own) + 1, math.prod(rest)), x.dtype)
    rows[:-1] = front.reshape(rows[:-1].shape)
    number = _numbers(xp, local, inside, own)
    given = xp.moveaxis(values, range(at, at + ndim), range(ndim)).reshape(len(number), rows.shape[1])
    last = xp.zeros(len(rows), np.uint64)
    xp.maximum.at(last, number, xp.arange(1, len(number) + 1, dtype=np.uint64))
    rows[number] = given[last[number].astype(np.int64) - 1]
    return xp.moveaxis(rows[:-1].reshape(front.shape), range(len(dims)), dims)


def _numbers(xp: Any, local: Any, inside: Any, own: Any) -> Any:
    """Flat numbers of elements from their indices; one past the last for those of other blocks."""
    number = xp.zeros(inside.shape, np.int64)
    for index, n in zip(local, own):
        number = number * n + index
    return xp.where(inside, number, math.prod(own)).ravel()


COMBINE = {"multiply": "multiply", "min": "minimum", "max": "maximum"}


@op(_putted, arrays=None, bounds=True, prepare=_lengths)
def put_with(xp: Any, bounds: Any, *operands: Any, dims: Any, at: int, how: str, lengths: Any = None) -> Any:
    """``x`` multiplied with values, or the lesser or greater of both, at integer arrays, one value after another."""
    x, values, *indices = operands
    out = xp.array(x)
    _at(getattr(xp, COMBINE[how]).at, out, values, indices, bounds.output, dims, at, lengths)
    return out


def template(x: Array) -> Array:
    """An array of zeros that stands for the shape and placement of x alone, with no memory behind it."""
    spec = x.spec
    if spec.mesh.device == "cpu" and context.get().dry is None:
        return _zeros(spec, context.rank())
    return _stand_in(spec)


@lru_cache(maxsize=4096)
def _zeros(spec: Spec, rank: int) -> Array:
    """The template of arrays on the host, as this rank sees it: made once, for it is never written to."""
    made = _stand_in(spec)
    kernels.keep_constant(made)
    return made


def _stand_in(spec: Spec) -> Array:
    finished = spec.replace(partial=())
    xp = memory.space(spec.mesh.device)
    return wrap(finished, lambda c: xp.broadcast_to(xp.zeros((), spec.dtype), finished.block_shape(c)))


def _gather_back(i: int, g: Any, out: Any, x: Any, *indices: Any, dims: Any, at: int, lengths: Any) -> Any:
    return accumulate((template(x), g, *indices), dims=dims, at=at) if i == 0 else None


def _accumulate_back(
    i: int, g: Any, out: Any, x: Any, values: Any, *indices: Any, dims: Any, at: int, lengths: Any, neutral: bool
) -> Any:
    return gather((g, *indices), dims=dims, at=at) if i == 1 else None


def _put_back(i: int, g: Any, out: Any, x: Any, values: Any, *indices: Any, dims: Any, at: int, lengths: Any) -> Any:
    if i == 0:
        return put((g, zeros_like(values), *indices), dims=dims, at=at)
    if i > 1:
        return None
    # a value that a later one overwrote has no part in the result: find who won
    ndim = values.ndim - (x.ndim - len(dims))
    shape = values.shape[at : at + ndim]
    number = np.arange(int(np.prod(shape, dtype=np.int64))).reshape(shape)
    owner = put((np.full(lengths, -1), number, *indices), dims=tuple(range(len(dims))), at=0)
    won = gather((owner, *indices), dims=tuple(range(len(dims))), at=0) == number
    won = won.reshape((*(1,) * at, *shape, *(1,) * (values.ndim - at - ndim)))
    return gather((g, *indices), dims=dims, at=at) * won.astype(g.dtype)


def _put_with_back(
    i: int, g: Any, out: Any, x: Any, values: Any, *indices: Any, dims: Any, at: int, how: str, lengths: Any
) -> Any:
    if i > 1:
        return None
    where = {"dims": dims, "at": at}
    if how != "multiply":  # ties share equally
        kept, given = (x == out).astype(g.dtype), (values == gather((out, *indices), **where)).astype(g.dtype)
        ties = kept + accumulate((template(kept), given, *indices), **where)
        share = g / e.maximum(ties, 1)
        return share * kept if i == 0 else gather((share, *indices), **where) * given
    if i == 0:
        return g * put_with((ones_like(x), values, *indices), how=how, **where)
    # All other factors of the element: the product over the value; or, where the value is 0, of what is not, if it is
    # the only 0, and that times the other 0 if there are two. The product of the zeros, and the other 0, are for the
    # derivatives of this.
    none = values == 0
    rest = put_with((x, e.where(none, 1, values), *indices), how=how, **where)
    zeros = put_with((ones_like(x), e.where(none, values, 1), *indices), how=how, **where)
    many = accumulate((template(x), none.astype(x.dtype), *indices), **where)
    own = e.where(none, values, 0)
    pair = accumulate((template(x), own, *indices), **where)
    rest, zeros, many, pair = (gather((a, *indices), **where) for a in (rest, zeros, many, pair))
    of_zero = rest * e.where(many == 1, 1, e.where(many == 2, pair - own, 0))
    others = e.where(none, of_zero, rest / e.where(none, 1, values) * zeros)
    return gather((g, *indices), **where) * others


gather.vjp_each(_gather_back)
accumulate.vjp_each(_accumulate_back)
put.vjp_each(_put_back)
put_with.vjp_each(_put_with_back)
