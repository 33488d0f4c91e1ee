"""Boolean masks: x[mask] and nonzero. The size of the result depends on the data: one counted collective of sizes.

Every rank takes what is true in its own block, so the result is ragged on its first dimension and nothing but the
sizes is sent, where mask and x are divided alike on dimension 0 (and not on the mask's other dimensions).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from spmdx import context
from spmdx.array import Array
from spmdx.errors import ArgumentError, BoundsError, ImpliedMoveError, ShapeError
from spmdx.mesh import Coordinate, Mesh
from spmdx.move import record
from spmdx.op import asked_mesh, constant
from spmdx.ops.place import moved_arrays
from spmdx.ops.shape import reshape
from spmdx.ops.transfer import brought, together
from spmdx.plan import plan
from spmdx.runtime import memory
from spmdx.spec import WHOLE, Layout, Spec, make
from spmdx.tape import Rule, Watched


def compress(x: Array, mask: Any) -> Array:
    """The elements of x where the mask is true, in C order; the mask covers the first dimensions of x."""
    mask = mask if isinstance(mask, Array) else constant(mask, x.mesh)
    x, mask = together("mask", x, mask)
    if mask.ndim > x.ndim or mask.shape != x.shape[: mask.ndim]:
        raise BoundsError(
            f"a mask of shape {mask.shape} does not fit an array of shape {x.shape}.", f"a mask of shape {x.shape}"
        )
    if mask.ndim == 0:
        x, mask = reshape(x, (1, *x.shape)), reshape(mask, (1,))
    x, mask = _aligned([x, mask], mask.ndim)
    blocks = _each(lambda c, a, m: a[m], x, mask)
    sizes = _sizes(mask.spec, blocks, "compress")
    shape = (sum(sizes), *x.shape[mask.ndim :])
    layouts = (Layout(x.spec.layouts[0].axes, sizes), *x.spec.layouts[mask.ndim :])
    spec = make(x.mesh, shape, x.dtype, layouts)
    if context.get().depth and type(x) is Watched:
        return Watched(blocks, spec, _Compress(), (x, mask), {})
    return Array(blocks, spec)


def _expand(g: Array, mask: Array, spec: Spec, given: Spec) -> Array:
    """Zeros with g where the mask is true: the opposite of compress."""
    [g] = moved_arrays([g], [given.replace(dtype=g.dtype)], [plan(g.spec, given.replace(dtype=g.dtype))], "compress")

    def put(c: Coordinate, a: Any, m: Any) -> Any:
        out = memory.of(a).zeros(spec.block_shape(c), a.dtype)
        out[m] = a
        return out

    blocks, spec = _each(put, g, mask), spec.replace(dtype=g.dtype)
    if context.get().depth and type(g) is Watched:
        return Watched(blocks, spec, _Expand(), (g, mask), {})
    return Array(blocks, spec)


class _Compress(Rule):
    """The gradient of compress."""

    name = "compress"

    def gradient(self, i: int, g: Any, out: Any, inputs: Any, static: Mapping[str, Any]) -> Any:
        x, mask = inputs
        return _expand(brought([g], [out.spec.mesh])[0], mask, x.spec, out.spec) if i == 0 else None


class _Expand(Rule):
    """The gradient of expand."""

    name = "expand"

    def gradient(self, i: int, g: Any, out: Any, inputs: Any, static: Mapping[str, Any]) -> Any:
        return compress(g, inputs[1]) if i == 0 else None


def nonzero(x: Any, mesh: Mesh | None = None) -> tuple[Array, ...]:
    """The indices of the elements that are not zero, one array for each dimension, in C order.

    Raises:
        ShapeError: a 0-d array.
    """
    x = x if isinstance(x, Array) else constant(x, asked_mesh(mesh))
    if x.ndim == 0:
        raise ShapeError("nonzero: a 0-d array has no indices.", "nonzero(x[None]), or bool(x)")
    [x] = _aligned([x], x.ndim)
    layout = x.spec.layouts[0]

    def positions(c: Coordinate, block: Any) -> Any:
        xp = memory.of(block)
        found = xp.stack(xp.nonzero(block), axis=1)
        pieces = x.spec.pieces(0, c)
        found[:, 0] += pieces[0][0] if pieces else 0
        return found

    blocks = _each(positions, x)
    sizes = _sizes(x.spec, blocks, "nonzero")
    spec = make(x.mesh, (sum(sizes),), np.dtype(np.int64), (Layout(layout.axes, sizes),))
    if isinstance(blocks, tuple):
        return tuple(Array(tuple(b[:, d] for b in blocks), spec) for d in range(x.ndim))
    return tuple(Array(blocks[:, d], spec) for d in range(x.ndim))


def _aligned(arrays: list[Array], ndim: int) -> list[Array]:
    """The arrays finished, divided alike on dimension 0 and whole on the other dimensions of a mask of ndim."""
    mesh = arrays[0].mesh
    later = {a for lay in arrays[0].spec.layouts[ndim:] for a in lay.axes}
    first = next(
        (s.layouts[0] for s in (a.spec for a in arrays) if s.layouts[0].axes and s.layouts[0].interleave == 1), WHOLE
    )
    if set(first.axes) & later:
        first = WHOLE
    targets = []
    for array in arrays:
        layouts = (first, *(WHOLE,) * (ndim - 1), *array.spec.layouts[ndim:])
        targets.append(make(mesh, array.shape, array.dtype, layouts))
    return moved_arrays(arrays, targets, [plan(a.spec, t) for a, t in zip(arrays, targets)], "mask")


def _each(function: Callable[..., Any], *arrays: Array) -> Any:
    """``function(coordinate, *blocks)`` on every block of this process."""
    mesh = arrays[0].mesh
    if context.get().dry is not None and any(a._block is None for a in arrays):
        raise ArgumentError(
            "a dry run (eval_shape, estimate) knows shapes and no values, and the size of this result is one.",
            "sx.where(mask, x, 0), whose size is known",
        )
    blocks = [a.block for a in arrays]  # raises on a rank outside the mesh, which cannot learn the size
    if mesh.device == "sim":
        return tuple(function(c, *(b[i] for b in blocks)) for i, c in enumerate(mesh.coordinates()))
    return function(mesh.here(), *blocks)


def _sizes(spec: Spec, blocks: Any, cause: str) -> tuple[int, ...]:
    """The lengths of all ranks' blocks, outermost axis first: one small all-gather along the axes of dimension 0."""
    mesh, axes = spec.mesh, spec.layouts[0].axes
    if mesh.device == "sim":
        coordinates, counts = mesh.coordinates(), [len(b) for b in blocks]
    elif not axes:
        return (len(blocks),)
    else:
        if context.get().explicit:
            raise ImpliedMoveError(
                f"{cause} has to agree on the size of its result, a collective that `with explicit()` forbids.",
                "sx.where(mask, x, 0), whose size is known, or the call outside `with explicit()`",
            )
        coordinates = mesh.members(axes, mesh.here())
        group = context.world().comm(mesh.host).group(tuple(a for a in mesh.axis_names if a in axes))
        record("all_gather", axes, 8 * (len(coordinates) - 1), cause)
        parts = group.all_gather(np.array([len(blocks)], np.int64), [1] * len(coordinates))
        counts = [int(part[0]) for part in parts]
    ways = [mesh.shape[a] for a in axes]
    sizes = [0] * math.prod(ways)
    for c, n in zip(coordinates, counts):
        at = [c[mesh.axis_names.index(a)] for a in axes]
        sizes[int(np.ravel_multi_index(at, ways)) if axes else 0] = n
    return tuple(sizes)


__all__ = ["nonzero"]
