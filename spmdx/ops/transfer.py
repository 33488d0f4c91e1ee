"""From one mesh to another: the only move between meshes, run by the union of their ranks; and constants, which are on
every mesh of their ranks at no cost, and whose gradients come back with no move between meshes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from spmdx import context
from spmdx.array import Array
from spmdx.decide import common_mesh
from spmdx.errors import GradientError, MeshError
from spmdx.geometry import cut, region
from spmdx.mesh import Coordinate, Mesh
from spmdx.move import pack, record, unpack
from spmdx.ops.place import moved_arrays, redistribute
from spmdx.placement import Placement
from spmdx.plan import plan
from spmdx.runtime import memory
from spmdx.spec import WHOLE, Layout, Spec, place
from spmdx.tape import Rule, Watched, recording


def to(x: Array, mesh: Mesh, placement: Placement | None = None) -> Array:
    """The same value on another mesh; every rank of either mesh makes the call.

    Args:
        mesh: where it goes.
        placement: where the pieces lie there; Replicate if left out.

    A value that is Partial is finished first. Then each new block is sent, piece by piece, by the ranks that hold
    the pieces: one all-to-all over the union of the ranks, with nothing between ranks that have nothing to send.
    The gradient goes back the same way.
    """
    given: Any = mesh
    if not isinstance(given, Mesh):
        raise MeshError(f"an array moves to a mesh; got {given!r}.", "x.to(mesh, placement)")
    if mesh.device != x.mesh.device or mesh.device == "sim":
        raise MeshError(
            f"an array moves between meshes of one real device; got {x.mesh!r} and {mesh!r}.",
            "sx.asarray(x.numpy(), mesh=mesh, placement=placement) to copy it by way of the host",
        )
    if hasattr(x, "level"):  # inside vmap: the batch goes, in one message
        return _batched(x, lambda batch: to(batch, mesh, _around(x, place(mesh, x.shape, x.dtype, placement))))
    if x.spec.partial:
        x = redistribute(x, x.spec.replace(partial=()).placement)
    target = place(mesh, x.shape, x.dtype, placement)
    if mesh is x.mesh:
        return x.redistribute(target.placement)
    block = _transfer(x.spec, target, x._block)
    if context.get().depth and type(x) is Watched:
        return Watched(block, target, _BACK, (x,), {})
    return Array(block, target)


def _batched(x: Any, function: Callable[[Any], Array]) -> Array:
    """An array inside vmap, with a function of the batch that it holds."""
    found: Array = type(x)(x.level, function(x.value))
    return found


def _around(x: Any, target: Spec) -> Placement:
    """Where a batch goes whose examples go to ``target``: it stays divided where that mesh has the axes to spare."""
    axes = x.value.spec.layouts[0].axes
    free = [a for a in target.mesh.axis_names if a not in (*target.sharded_axes, *target.partial)]
    first = Layout(axes) if set(axes) <= set(free) else WHOLE
    return target.replace(shape=x.value.shape, layouts=(first, *target.layouts)).placement


def _transfer(source: Spec, target: Spec, block: Any) -> Any:
    ranks = tuple(dict.fromkeys((*source.mesh.ranks, *target.mesh.ranks)))
    union = Mesh(("union",), (len(ranks),), ranks, target.mesh.device)
    me = context.rank()
    if me not in ranks:
        return None
    send = [_part(source, target, me, other) for other in ranks]
    receive = [_part(source, target, other, me, receiving=True) for other in ranks]
    counts = [0 if part is None else part.elements for part in send]
    incoming = [0 if part is None else part.elements for part in receive]
    group = context.world().comm(union).group(union.axis_names)
    buffer = group.buffer(sum(counts), source.dtype)
    at = 0
    for part, n in zip(send, counts):
        if part is not None:
            pack(part, block, buffer[at : at + n])
        at += n
    copies = target.mesh.size // math.prod(target.mesh.shape[a] for a in target.sharded_axes)
    record("to", ("union",), source.largest_block * copies * source.dtype.itemsize, "to")  # at most, on any rank
    arrived = group.all_to_all(buffer, counts, incoming)
    if not target.mesh.contains_me():
        return None
    out = memory.space(union.device).empty(target.block_shape(target.mesh.here()), source.dtype)
    for part, flat in zip(receive, arrived):
        if part is not None:
            unpack(part, flat, out)
    return out


def _part(source: Spec, target: Spec, giver: int, taker: int, receiving: bool = False) -> Any:
    """What ``giver`` sends to ``taker``: of replicas, one gives (the taker itself where it is one)."""
    if giver not in source.mesh.ranks or taker not in target.mesh.ranks:
        return None
    at, there = source.mesh.coordinate_of(giver), target.mesh.coordinate_of(taker)
    if not _gives(source, at, giver, taker):
        return None
    held, wanted = region(source, at), region(target, there)
    return cut(wanted, held) if receiving else cut(held, wanted)


def _gives(source: Spec, at: Coordinate, giver: int, taker: int) -> bool:
    """True if this replica is the one that serves the taker: the one in the taker's row, or the first."""
    sharded = source.sharded_axes
    spread = [i for i, name in enumerate(source.mesh.axis_names) if name not in sharded]
    own = source.mesh.coordinate_of(taker) if taker in source.mesh.ranks else None
    return all(at[i] == (own[i] if own is not None else 0) for i in spread)


class _To(Rule):
    """The gradient rule of `to`: back to where the value came from."""

    name = "to"

    @staticmethod
    def gradient(i: int, g: Array, out: Array, inputs: tuple[Any, ...], static: Any) -> Array:
        """The gradient, on the input's mesh."""
        return to(g, inputs[0].mesh, inputs[0].spec.replace(partial=()).placement)


_BACK = _To()


# Constants, and their gradients


def brought(grads: Sequence[Array], meshes: Sequence[Mesh]) -> list[Array]:
    """Gradients on the meshes of their values: what is replicated on one mesh is a constant on others, and its
    gradient arises there. Finished there, all in one message, it is the same on every rank: nothing more is sent."""
    if all(g.spec.mesh is mesh for g, mesh in zip(grads, meshes)):
        return list(grads)
    for g, mesh in zip(grads, meshes):
        if not set(mesh.ranks) <= set(g.spec.mesh.ranks):
            raise GradientError(
                f"the gradient of an array on {mesh!r} arises on {g.spec.mesh!r}, which other ranks do not know.",
                "x.to(mesh) inside the function, whose gradient goes back the same way",
            )
    whole = [g.spec if g.spec.mesh is m else place(g.spec.mesh, g.shape, g.dtype) for g, m in zip(grads, meshes)]
    there = moved_arrays(grads, whole, [plan(g.spec, w) for g, w in zip(grads, whole)], "grad")
    return [g if g.spec.mesh is mesh else _remeshed(g, mesh) for g, mesh in zip(there, meshes)]


def together(name: str, *arrays: Array) -> list[Array]:
    """The operands of a call on one mesh: what is a constant there is brought, with no communication."""
    if all(a.spec.mesh is arrays[0].spec.mesh for a in arrays):
        return list(arrays)
    mesh = common_mesh(name, [a.spec for a in arrays])
    return [a if a.spec.mesh is mesh else _remeshed(a, mesh) for a in arrays]


def _remeshed(x: Array, mesh: Mesh) -> Array:
    """A replicated array on a mesh of some of its ranks; or, inside vmap, an array that is the same for all ranks but
    for the batch, which may be divided."""
    if hasattr(x, "level"):
        return _batched(x, lambda batch: _remeshed(batch, mesh))
    if not x.spec.replicated:
        whole = place(x.spec.mesh, x.shape, x.dtype)
        [x] = moved_arrays([x], [whole], [plan(x.spec, whole)], "vmap", implied=False)
    block = x._block[:1] * mesh.size if mesh.device == "sim" else x._block if mesh.contains_me() else None
    spec = place(mesh, x.shape, x.dtype)
    return Watched(block, spec, _REMESHED, (x,), {}) if recording() and type(x) is Watched else Array(block, spec)


class _Remeshed(Rule):
    """The rule of a replicated array on another mesh."""

    name = "remeshed"

    @staticmethod
    def gradient(_: int, g: Any, out: Any, inputs: Any, static: Any) -> Any:
        return brought([g], [inputs[0].spec.mesh])[0]


_REMESHED = _Remeshed()


Array.to = to  # type: ignore[attr-defined]  # a method, defined here to be beside what it does
