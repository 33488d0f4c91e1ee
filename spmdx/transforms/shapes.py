"""Shapes without values: a run in which arrays are specs without blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from spmdx import context, tree
from spmdx.array import Array
from spmdx.autodiff import a_function
from spmdx.decide import Bounds, asked_mesh, body_of
from spmdx.mesh import Mesh
from spmdx.op import Operation
from spmdx.propagate import dim_layout, out_layout
from spmdx.rule import Bound
from spmdx.spec import Layout, Spec, make, place

MOST_AXES = 6  # of the mesh that a dtype is found on


def eval_shape(function: Callable[..., Any], *args: Any, mesh: Mesh | None = None, **kwargs: Any) -> Any:
    """What ``function(*args, **kwargs)`` would return, without computing or sending anything.

    Args:
        function: a function of pytrees, whose arrays are used for their shapes, dtypes and placements alone.
        args, kwargs: pytrees of Arrays and :class:`spmdx.Spec`; anything else with a shape and a dtype (an ndarray, a
            ``nn.Param``) stands for a replicated array on ``mesh``, and the rest is passed as it is.
        mesh: the default mesh inside; it may have more ranks than there are.

    Returns:
        the function's pytree, with a :class:`spmdx.Spec` for every array.

    Takes no memory for arrays, however large they are. Collectives that would be made are told to an open trace.

    Raises:
        ArgumentError: a function that asks for a value, as ``float(x)`` and ``if x > 0:`` do.
    """
    a_function(function, "sx.eval_shape(f, x)")
    where = asked_mesh(mesh)
    dry = Dry()
    with context.use(dry=dry, mesh=where):
        given = tree.map(lambda x: _described(dry, x, where), (args, kwargs))
        found = function(*given[0], **given[1])
    return tree.map(lambda x: dry.real(x.spec) if isinstance(x, Array) else x, found)


def _described(dry: Dry, x: Any, mesh: Mesh) -> Any:
    if isinstance(x, (Array, Spec)):
        return Array(None, dry.spec(x if isinstance(x, Spec) else x.spec))
    if not hasattr(x, "shape"):
        return x
    own = getattr(x, "dtype", None)
    return Array(None, place(mesh, tuple(x.shape), np.dtype(np.float64 if own is None else own)))


@lru_cache(maxsize=64)
def _double(mesh: Mesh) -> Mesh:
    """A mesh of the same axes and sizes, of no rank that there is."""
    return Mesh(mesh.axis_names, mesh.sizes, [~r for r in mesh.ranks])


class Dry:
    """A run without blocks. Every mesh has a double in it, that no rank is part of: what lies there has no blocks."""

    def __init__(self) -> None:
        self._meshes: dict[Mesh, Mesh] = {}

    def mesh(self, mesh: Mesh) -> Mesh:
        """The double of a mesh."""
        if mesh in self._meshes:  # is one
            return mesh
        double = _double(mesh)
        self._meshes[double] = mesh
        return double

    def spec(self, spec: Spec) -> Spec:
        """The spec on its mesh's double."""
        return Spec(self.mesh(spec.mesh), spec.shape, spec.dtype, spec.layouts, spec.partial, spec.op)

    def real(self, spec: Spec) -> Spec:
        """The spec on the mesh itself."""
        mesh = self._meshes.get(spec.mesh, spec.mesh)
        return Spec(mesh, spec.shape, spec.dtype, spec.layouts, spec.partial, spec.op)

    def outside(self, x: Any) -> Any:
        """An operand of this run: an array from outside of it, without its block."""
        if not isinstance(x, Array) or x.spec.mesh in self._meshes:
            return x
        return Array(None, self.spec(x.spec))

    @staticmethod
    def dtype(operation: Operation, bound: Bound, operands: tuple[Any, ...], static: Mapping[str, Any]) -> Any:
        """The dtype that a call gives."""
        return dtype_of(operation, bound, operands, static)


def dtype_of(operation: Operation, bound: Bound, operands: tuple[Any, ...], static: Mapping[str, Any]) -> np.dtype[Any]:
    """The dtype that an operation gives, found on empty blocks: those of a rank that got nothing of every dimension
    that may be divided. Bodies know such blocks, for uneven divisions have them; they take no memory."""
    largest = sorted(bound.shardable, key=lambda f: -bound.sizes[f])[:MOST_AXES]
    axes = tuple(f"a{i}" for i in range(len(largest)))
    mesh = Mesh(axes, (2,) * len(axes))
    laid = {f: Layout((axis,), (bound.sizes[f], 0)) for f, axis in zip(largest, axes)}
    last = (1,) * len(axes)
    blocks, pieces = [], []
    for x, dims in zip(operands, bound.inputs):
        layouts = tuple(dim_layout(dim, laid, bound, mesh) for dim in dims)
        shape = x.spec.shape if isinstance(x, Array) else ()
        dtype = x.spec.dtype if isinstance(x, Array) else np.asarray(x).dtype
        spec = make(mesh, shape, dtype, layouts)
        pieces.append(tuple(spec.pieces(d, last) for d in range(spec.ndim)))
        blocks.append(np.broadcast_to(np.zeros((), dtype), spec.block_shape(last)) if isinstance(x, Array) else x)
    out = make(mesh, bound.shape, np.dtype("u1"), tuple(out_layout(dim, laid, bound, mesh) for dim in bound.output))
    asked = (Bounds(tuple(pieces), tuple(out.pieces(d, last) for d in range(out.ndim)), last),)
    kinds = [x.dtype if isinstance(x, Array) else type(x) for x in operands]
    with np.errstate(all="ignore"):
        return np.asarray(body_of(operation, asked if operation.bounds else (), kinds, static)(*blocks)).dtype


__all__ = ["eval_shape"]
