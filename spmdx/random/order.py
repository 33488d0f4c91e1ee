"""Random order and random choice. The array is never gathered: its elements are sorted by random keys where they lie.

A permutation is the order of n random 64-bit words, ties by index, so it is the same on every mesh and placement; over
a divided dimension it is a distributed sort (:mod:`spmdx.ops.ordering`). Weighted draws add Gumbel noise to logarithms
and take the greatest: a sharded distribution needs no running sum.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from spmdx.array import Array
from spmdx.errors import ArgumentError, DtypeError, ShapeError
from spmdx.mesh import Mesh
from spmdx.ops import elementwise as e
from spmdx.ops.axes import one
from spmdx.ops.create import like
from spmdx.ops.index import take
from spmdx.ops.ordering import INT64, UINT64, ascending, rows, sample_order
from spmdx.ops.place import asarray, moved_arrays, redistribute, spec_for
from spmdx.ops.reduce import count_nonzero
from spmdx.ops.reduce import sum as total
from spmdx.ops.scan import argsort, take_along_axis
from spmdx.ops.shape import reshape
from spmdx.placement import Placement
from spmdx.plan import plan
from spmdx.random.draw import bits, gumbel, randint
from spmdx.random.fill import words_of
from spmdx.random.greatest import greatest
from spmdx.random.key import Key
from spmdx.runtime import kernels, memory
from spmdx.spec import WHOLE, Layout, Spec, make

__all__ = ["categorical", "choice", "permutation", "shuffle"]
TINY = float(np.finfo(np.float64).tiny)


def permutation(
    key: Key,
    x: Any,
    axis: int = 0,
    independent: bool = False,
    *,
    mesh: Mesh | None = None,
    placement: Placement | None = None,
    device: str | None = None,
) -> Array:
    """The numbers 0 to x - 1 in random order; or the array x with its elements along a dimension in random order.

    Args:
        x: a number, or an array (which keeps its placement unless ``placement`` is given).
        axis: the dimension whose slices change places.
        independent: permute every line along the dimension in its own order.
        placement: where the result lies.

    Along a divided dimension the elements are exchanged, about 32 bytes each and themselves; nothing is gathered.
    """
    if not isinstance(x, (Array, np.ndarray, list, tuple)):
        spec = spec_for((_count(x, "x"),), INT64, mesh, placement, device)
        return _placed(_order(_words(key, spec)), spec)
    x = x if isinstance(x, Array) else asarray(x, mesh=mesh, placement=placement, device=device)
    if x.ndim == 0:
        raise ShapeError("a 0-d array has no dimension to permute.", f"permutation(key, {x.item()}) for numbers")
    dim = one(axis, x.ndim, "permutation")
    out = _independent(key, x, dim) if independent else _permuted(key, x, dim)
    return out if placement is None else redistribute(out, placement)


def shuffle(key: Key, x: Any, axis: int = 0, **where: Any) -> Array:
    """A copy of an array, its slices along a dimension in random order: :func:`permutation` of an array."""
    if not isinstance(x, (Array, np.ndarray, list, tuple)):
        raise DtypeError(f"shuffle takes an array; got {type(x).__name__}.", f"permutation(key, {x})")
    return permutation(key, x, axis, **where)


def _count(n: Any, what: str) -> int:
    try:
        number = operator.index(n)
    except TypeError:
        raise DtypeError(f"{what} is a number or an array; got {type(n).__name__} {n!r}.", f"{what}=10") from None
    if number < 0:
        raise ArgumentError(f"{what} is 0 or more; got {number}.", f"{what}=0")
    return number


def _words(key: Key, spec: Spec) -> Array:
    """The random words that a 1-D array with this spec is ordered by, where its elements lie."""
    return bits(key, spec.shape, dtype=UINT64, mesh=spec.mesh, placement=spec.replace(partial=()).placement)


def _order(words: Array) -> Array:
    """The indices in ascending order of words, in default blocks."""
    return sample_order(words, "permutation")


def _placed(x: Array, spec: Spec) -> Array:
    return moved_arrays([x], [spec], [plan(x.spec, spec)], "permutation")[0]


def _permuted(key: Key, x: Array, dim: int) -> Array:
    layout = x.spec.layouts[dim]
    order = _order(_words(key, make(x.mesh, (x.shape[dim],), INT64, (layout,))))
    out: Array = rows(x, order, dim, "permutation") if order.spec.layouts[0].axes else take(x, order, axis=dim)
    return out


def _independent(key: Key, x: Array, dim: int) -> Array:
    home = x.spec.replace(partial=())
    order = argsort(bits(key, x.shape, dtype=UINT64, mesh=x.mesh, placement=home.placement), dim)
    moved = _placed(x, order.spec.replace(dtype=x.dtype))  # where a dimension had to be made whole for the order
    return _placed(take_along_axis(moved, order, dim), home)


# Choice


def choice(
    key: Key,
    a: Any,
    shape: Any = (),
    replace: bool = True,
    p: Any = None,
    axis: int = 0,
    *,
    mesh: Mesh | None = None,
    placement: Placement | None = None,
    device: str | None = None,
) -> Array:
    """Random elements: of the numbers 0 to a - 1, or slices of the array ``a`` along a dimension.

    Args:
        shape: how many are drawn.
        replace: False draws none of them twice.
        p: their probabilities, which sum to 1; equal if left out. With ``replace`` a draw takes one Gumbel number for
            every element that could be drawn.
        placement: where the result lies.

    Raises:
        ArgumentError: more elements than there are (or than have a probability) without ``replace``; probabilities
            that are negative or do not sum to 1.
    """
    pool = None if isinstance(a, (int, np.integer)) else a if isinstance(a, Array) else asarray(a, mesh=mesh)
    if pool is not None and pool.ndim == 0:
        raise ShapeError("choice draws from a number or an array with a dimension.", f"choice(key, {pool.item()})")
    dim = 0 if pool is None else one(axis, pool.ndim, "choice")
    n = _count(a, "a") if pool is None else pool.shape[dim]
    mesh = mesh if mesh is not None or pool is None else pool.mesh
    spec = spec_for(shape, INT64, mesh, placement if pool is None else None, device)
    if not n and spec.shape.count(0) == 0:
        raise ArgumentError("there is nothing to choose from: a has no elements.", "a with elements, or shape=0")
    index = _drawn(key, n, spec, replace, p)
    if pool is None:
        return index
    found: Array = take(pool, index, axis=dim)
    return found if placement is None else redistribute(found, placement)


def _drawn(key: Key, n: int, spec: Spec, replace: bool, p: Any) -> Array:
    where: dict[str, Any] = {"mesh": spec.mesh, "placement": spec.placement}
    k = math.prod(spec.shape)
    logits = None if p is None else _logits(p, n, spec.mesh)
    if not k:
        return randint(key, spec.shape, 0, 1, **where)
    if replace:
        return (
            randint(key, spec.shape, 0, n, **where)
            if logits is None
            else categorical(key, logits, shape=spec.shape, **where)
        )
    if k > n:
        raise ArgumentError(f"{k} different ones cannot be drawn from {n}.", f"shape={n} or less, or replace=True")
    if logits is None:
        axes = tuple(a for a in spec.mesh.axis_names if a in spec.sharded_axes)
        order = _order(_words(key, make(spec.mesh, (n,), INT64, (Layout(axes),))))
    else:
        possible = int(count_nonzero(e.isfinite(logits)).item())
        if k > possible:
            raise ArgumentError(
                f"{k} different ones are asked for, but only {possible} have a probability above 0.",
                f"shape={possible} or less, or replace=True",
            )
        noise = gumbel(key, (n,), dtype=logits.dtype, mesh=spec.mesh, placement=like(logits, None, None).placement)
        order = _order(_blockwise(partial(ascending, descending=True), e.add(noise, logits), UINT64))
    return _placed(reshape(order[:k], spec.shape), spec)


def _logits(p: Any, n: int, mesh: Mesh) -> Array:
    """The logarithms of probabilities, checked."""
    given = p if isinstance(p, Array) else asarray(np.asarray(p, np.float64), mesh=mesh)
    chances = _placed(given.astype(np.float64), given.spec.replace(partial=(), dtype=np.dtype(np.float64)))
    if chances.shape != (n,):
        raise ShapeError(f"{n} elements are given probabilities of shape {chances.shape}.", f"p of shape ({n},)")
    whole = float(total(chances).item())
    negative = bool((chances < 0).any().item())  # type: ignore[attr-defined]  # attached by operators.py
    if negative or not abs(whole - 1) <= 1e-6 + n * 2.0**-50:
        what = "some are negative" if negative else f"these sum to {whole}"
        raise ArgumentError(f"probabilities are 0 or more and sum to 1; {what}.", "p / p.sum()")
    return _blockwise(_log, chances)


def _log(block: Any) -> Any:
    """Logarithms with the same bits on every processor; of what is no normal number, such as 0, -inf."""
    possible = block >= TINY
    xp = memory.of(block)
    return xp.where(possible, kernels.of(xp).log(xp.where(possible, block, 1.0)), -np.inf)


def _blockwise(function: Callable[[Any], Any], x: Array, dtype: Any = None) -> Array:
    """A function of every block, element by element, of an array that is not Partial."""
    spec = x.spec.replace(dtype=dtype or x.dtype)
    blocks = x._block
    if isinstance(blocks, tuple):
        return Array(tuple(map(function, blocks)), spec)
    return Array(None if blocks is None else memory.put(spec.mesh.device, function(blocks)), spec)


def categorical(
    key: Key,
    logits: Any,
    axis: int = -1,
    shape: Any = None,
    *,
    mesh: Mesh | None = None,
    placement: Placement | None = None,
    device: str | None = None,
) -> Array:
    """Random indices along a dimension, index i with a probability proportional to exp(logits[i]).

    Args:
        logits: unnormalised logarithms of probabilities; divided along ``axis`` they stay so, at the cost of two
            small all-reduces.
        shape: of the result; it ends with the other dimensions of ``logits``, which it is if left out.

    The draw is the greatest of logits + Gumbel noise: it takes a number for every element of ``shape`` and index, and
    the time for them, but not their memory.
    """
    x = logits if isinstance(logits, Array) else asarray(np.asarray(logits, dtype=None), mesh=mesh, device=device)
    if x.dtype.kind not in "fV":
        raise DtypeError(f"logits are floating-point numbers, not {x.dtype.name}.", "logits.astype(float)")
    if x.ndim == 0 or not x.shape[one(axis, x.ndim, "categorical")]:
        raise ShapeError(f"logits of shape {x.shape} have nothing to choose from.", "a dimension of 1 or more")
    dim = one(axis, x.ndim, "categorical")
    batch = (*x.shape[:dim], *x.shape[dim + 1 :])
    sizes = batch if shape is None else tuple(np.atleast_1d(np.array(shape, np.int64)).tolist())
    if sizes[len(sizes) - len(batch) :] != batch or len(sizes) < len(batch):
        raise ShapeError(f"a draw of shape {sizes} for logits with other dimensions {batch}.", f"shape=(..., *{batch})")
    before = len(sizes) - len(batch)
    noisy = _noise_spec(x, before, sizes, dim, placement)
    home = noisy.replace(layouts=noisy.layouts[before:], shape=x.shape)
    found = greatest(words_of(key), _placed(x, home), noisy, before + dim)
    return found if placement is None else redistribute(found, placement)


def _noise_spec(x: Array, before: int, sizes: tuple[int, ...], dim: int, placement: Placement | None) -> Spec:
    """Where the noise is drawn: as logits lie, and divided further as the result is asked for."""
    spec = x.spec.replace(partial=())
    used = spec.sharded_axes
    asked = spec_for(sizes, INT64, x.mesh, placement)
    shape = (*sizes[:before], *x.shape)
    front = [lay if not set(lay.axes) & set(used) else WHOLE for lay in asked.layouts[:before]]
    return make(x.mesh, shape, x.dtype, (*front, *spec.layouts))
