"""Every way to place an array, and what each rank then holds.

Written from the definitions, with none of spmdx's geometry: the suites compare spmdx against this.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import permutations, product
from typing import Any

import numpy as np

import spmdx.runtime.world
from spmdx.mesh import Coordinate, Mesh
from spmdx.spec import Layout, Spec, make

assert spmdx.runtime.world  # importing it is what lets a mesh find its world
OPS = ("sum", "prod", "min", "max")
KINDS = ("default", "ragged", "interleaved")
NUMPY = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}
LOGICAL = {"sum": np.logical_or, "max": np.logical_or, "prod": np.logical_and, "min": np.logical_and}
NAMES = ("a", "b", "c")


def simulated(*sizes: int) -> Mesh:
    """A mesh with all of its blocks in this process."""
    return Mesh(NAMES[: len(sizes)], sizes, None, "sim")


# Which placements there are


def ragged(n: int, ways: int) -> tuple[int, ...]:
    """An uneven division: the last of three or more blocks has half, the first nothing."""
    sizes = [0] * ways
    for k in range(n):
        sizes[-1 if k % 2 == 0 or ways < 3 else 1 + k % (ways - 2)] += 1
    if ways == 2 and n > 2:
        sizes = [1, n - 1]
    return tuple(sizes)


def groups(n: int) -> int:
    """The number of groups that an interleaved dimension of this length has in the suites; 1 if it cannot have more."""
    return next((k for k in (3, 2) if n and n % k == 0), 1)


def _layouts(mesh: Mesh, n: int, axes: tuple[str, ...], kinds: Sequence[str]) -> Iterator[Layout]:
    """Every division of a dimension of length n over these axes, in every order of nesting."""
    ways = math.prod(mesh.shape[a] for a in axes)
    for order in permutations(axes):
        for kind in kinds:
            if kind == "default":
                yield Layout(order)
            elif kind == "ragged":
                yield Layout(order, ragged(n, ways))
            elif groups(n) > 1:
                yield Layout(order, None, groups(n))


def specs(
    mesh: Mesh, shape: tuple[int, ...], dtype: Any = "float64", ops: Sequence[str] = OPS, kinds: Sequence[str] = KINDS
) -> list[Spec]:
    """Every placement: each axis unused, Partial, or dividing some dimension, in each kind of division and nesting."""
    dtype = np.dtype(dtype)
    if dtype.kind == "c":
        ops = [op for op in ops if op in ("sum", "prod")]
    found: dict[Spec, None] = {}
    for uses in product(("whole", "partial", *range(len(shape))), repeat=len(mesh.axis_names)):
        partial = tuple(a for a, use in zip(mesh.axis_names, uses) if use == "partial")
        by_dim = [tuple(a for a, use in zip(mesh.axis_names, uses) if use == d) for d in range(len(shape))]
        for laid in product(
            *(_layouts(mesh, n, axes, kinds) if axes else [Layout()] for n, axes in zip(shape, by_dim))
        ):
            for op in ops if partial else (None,):
                found[make(mesh, shape, dtype, laid, partial, op)] = None
    return list(found)


# What every rank holds


@lru_cache(maxsize=65536)
def owned(spec: Spec, dim: int, coordinate: Coordinate) -> tuple[int, ...]:
    """The global indices of one dimension that the block at a coordinate holds."""
    layout, n = spec.layouts[dim], spec.shape[dim]
    at, size = dict(zip(spec.mesh.axis_names, coordinate)), spec.mesh.shape
    if layout.sizes is not None:
        cuts = np.cumsum(layout.sizes)[:-1]
        number = np.ravel_multi_index([at[a] for a in layout.axes], [size[a] for a in layout.axes])
        return tuple(np.split(np.arange(n), cuts)[int(number)].tolist())
    each = np.split(np.arange(n), layout.interleave)
    for axis in layout.axes:
        each = [np.array_split(group, size[axis])[at[axis]] for group in each]
    return tuple(np.concatenate(each).tolist())


@lru_cache(maxsize=65536)
def where(spec: Spec, coordinate: Coordinate) -> tuple[Any, ...]:
    """The index of the block at a coordinate in the global array."""
    return np.ix_(*(np.array(owned(spec, d, coordinate), int) for d in range(spec.ndim))) if spec.ndim else ()


def piece(spec: Spec, value: Any, coordinate: Coordinate) -> Any:
    """The part of the value that the block at a coordinate stands for, Partial or not."""
    return value[where(spec, coordinate)] if spec.ndim else value


@lru_cache(maxsize=1024)
def holders(shape: tuple[int, ...], ways: int) -> Any:
    """For every element, which of so many ranks holds it."""
    return np.random.default_rng(7).integers(0, ways, shape)


def nothing(dtype: Any, op: str | None) -> Any:
    """What changes no value under a reduction, by the table of semantics.md."""
    dtype = np.dtype(dtype)
    if op == "sum":
        return np.asarray(complex(-0.0, -0.0) if dtype.kind == "c" else 0 if dtype.kind in "biu" else -0.0).astype(
            dtype
        )
    if op == "prod":
        return np.asarray(1).astype(dtype)
    if dtype.kind == "b":
        return np.asarray(op == "min")
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return np.asarray(limits.max if op == "min" else limits.min, dtype)
    return np.asarray(np.inf if op == "min" else -np.inf).astype(dtype)


def blocks(spec: Spec, value: Any, split: str = "scatter", here: Sequence[Coordinate] | None = None) -> tuple[Any, ...]:
    """What all ranks hold, or those at some coordinates; read-only, so that a write to a source is an error.

    Along Partial axes: "scatter" puts each element, whole, on a rank drawn at random, and identities on the others:
    finishing is exact for every value. "mixed" gives every rank a share that means nothing alone (twice the value and
    its negative; less than the maximum), as far as that is exact too.
    """
    value = np.asarray(value)
    mesh = spec.mesh
    axes = [mesh.axis_names.index(a) for a in spec.partial]
    holder = holders(value.shape, math.prod(mesh.sizes[i] for i in axes))
    shares = _mixed(value, spec.op) if split == "mixed" and spec.partial else None
    out = []
    for c in mesh.coordinates() if here is None else here:
        block = piece(spec, value, c)
        if spec.partial:
            me = int(np.ravel_multi_index([c[i] for i in axes], [mesh.sizes[i] for i in axes]))
            if shares is None:
                block = np.where(piece(spec, holder, c) == me, block, nothing(value.dtype, spec.op))
            else:
                block = piece(spec, shares[me], c) if me < 2 else np.full(block.shape, nothing(value.dtype, spec.op))
        block = np.array(block, value.dtype, order="C")
        block.flags.writeable = False
        out.append(block)
    return tuple(out)


def _mixed(value: Any, op: str | None) -> tuple[Any, Any]:
    """Two shares that make up the value exactly, where it is an ordinary number; else the value and an identity."""
    rest = np.broadcast_to(nothing(value.dtype, op), value.shape)
    if value.dtype.kind == "b":
        return value, rest
    with np.errstate(all="ignore"):
        plain = np.isfinite(value) & (value != 0)
        one = np.ones((), value.dtype)
        if op == "sum":
            shares = value + value, -value
        elif op == "prod":
            shares = (-value, np.broadcast_to(-one, value.shape)) if value.dtype.kind != "u" else (value, rest)
        else:
            less = value - one if op == "max" else value + one
            plain &= less < value if op == "max" else less > value  # not where it wraps
            shares = value, less
        return np.where(plain, shares[0], value), np.where(plain, shares[1], rest)


def finished(spec: Spec, held: Sequence[Any]) -> list[Any]:
    """What the blocks stand for, rank by rank: reduced over the Partial axes in the order of the ranks."""
    if not spec.partial:
        return list(held)
    everyone = spec.mesh.coordinates()
    ufunc = (LOGICAL if spec.dtype.kind == "b" else NUMPY)[spec.op or ""]
    out: dict[Coordinate, Any] = {}
    with np.errstate(all="ignore"):
        for c in everyone:
            if c not in out:
                members = spec.mesh.members(spec.partial, c)
                first, *rest = (held[everyone.index(m)] for m in members)
                for block in rest:
                    first = ufunc(first, block)
                out |= dict.fromkeys(members, np.asarray(first))
    return [out[c] for c in everyone]


def same_bits(a: Any, b: Any) -> bool:
    """Exact: shape, dtype and every bit."""
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def holds(spec: Spec, held: Sequence[Any], value: Any) -> bool:
    """True if the blocks are this value in this placement, to the last bit."""
    return all(
        same_bits(
            mine,
            np.ascontiguousarray(piece(spec, value, c)).reshape(mine.shape) if mine.size else piece(spec, value, c),
        )
        for mine, c in zip(finished(spec, held), spec.mesh.coordinates())
    )


def assembled(spec: Spec, held: Sequence[Any]) -> Any:
    """The global value that the blocks make; every rank must hold the same bits of it."""
    done = finished(spec, held)
    out = np.empty(spec.shape, done[0].dtype)
    for block, c in zip(done, spec.mesh.coordinates()):
        out[where(spec, c)] = block
    assert holds(spec, held, out), f"ranks hold different values of {spec}"
    return out
