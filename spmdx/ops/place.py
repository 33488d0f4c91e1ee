"""Values in and out: asarray, redistribute, and the global value for NumPy and Python."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from spmdx import check, context, dtypes
from spmdx.array import Array
from spmdx.errors import (
    ArgumentError,
    DtypeError,
    GradientError,
    ImpliedMoveError,
    MeshError,
    PlacementError,
    ShapeError,
)
from spmdx.later import made
from spmdx.mesh import Coordinate, Mesh
from spmdx.move import again, begin, count, move, record, remember
from spmdx.op import asked_mesh, op, registry
from spmdx.ops.axes import sizes_of
from spmdx.ops.mapped import copied, reading
from spmdx.placement import AxisPlacement, P, Placement, Replicate, Shard
from spmdx.plan import LOCAL, Step, plan
from spmdx.runtime import memory
from spmdx.spec import WHOLE, Spec, place
from spmdx.tape import Watched, recording


@op("... -> ...", linear="together", monotone=1)
def alias(xp: Any, x: Any) -> Any:
    """The same value: what a watched copy, and a redistributed array, are recorded as."""
    return x


alias.vjp(lambda g, out, x: g)


def spec_for(
    shape: Any, dtype: Any, mesh: Mesh | None = None, placement: Placement | None = None, device: str | None = None
) -> Spec:
    """The spec that a creation function is asked for."""
    mesh = asked_mesh(mesh)
    if device is not None and device != mesh.device:
        if device == "cuda":
            memory.need_gpu()
        mesh = Mesh(mesh.axis_names, mesh.sizes, mesh.ranks, device)
    sizes = sizes_of(shape)
    if math.prod(sizes) * dtype.itemsize >= 2**63:
        raise ShapeError(f"an array of shape {sizes} has more bytes than a computer counts: 2**63.", "smaller sizes")
    return place(mesh, sizes, dtype, placement)


def wrap(spec: Spec, block_at: Any) -> Array:
    """The array whose block at each coordinate of the mesh is ``block_at(coordinate)``; no communication. Along a
    Partial axis, coordinate 0 has the block and the others identities."""
    mesh = spec.mesh
    axes = [mesh.axis_names.index(a) for a in spec.partial]

    def block(coordinate: Coordinate) -> Any:
        if any(coordinate[a] for a in axes):
            return memory.filled(spec.block_shape(coordinate), spec.dtype, spec.op, memory.space(mesh.device))
        return memory.put(mesh.device, block_at(coordinate))

    if mesh.device == "sim":
        return Array(tuple(block(c) for c in mesh.coordinates()), spec)
    return Array(block(mesh.here()) if mesh.contains_me() else None, spec)


def asarray(
    value: Any,
    dtype: Any = None,
    *,
    mesh: Mesh | None = None,
    placement: Placement | None = None,
    device: str | None = None,
    copy: bool | None = None,
) -> Array:
    """The array of a global value that is the same on every rank; each rank keeps its part. No communication.

    Args:
        value: a number, nested sequence, NumPy array, or an Array (which is cast and redistributed as asked).
        placement: a dict or P; Replicate on every axis if left out.
        copy: False hands over ownership of a NumPy array's memory; otherwise it is copied, and so is what is not
            aligned or not in this machine's byte order.

    Raises:
        DtypeError: a dtype that arrays cannot have, such as object.
        PlacementError: a placement that does not fit.
    """
    if isinstance(value, Array):
        made = value if dtype is None else value.astype(dtype)
        if mesh is not None and mesh is not made.mesh:
            raise MeshError(f"the array lies on {made.mesh!r}, not {mesh!r}.", "x.to(mesh, placement)")
        return made if placement is None else made.redistribute(placement)
    if isinstance(value, (list, tuple)) and any(isinstance(v, Array) for v in value):
        raise DtypeError("asarray takes numbers and NumPy arrays, not a sequence of Arrays.", "sx.stack(arrays)")
    xp = memory.of(value) if hasattr(value, "__cuda_array_interface__") else np
    whole = dtypes.read(value, dtype, xp.asarray)
    whole = readable(whole, dtypes.checked(whole.dtype))
    spec = spec_for(whole.shape, whole.dtype, mesh, placement, device)
    check.same(spec.mesh, "asarray", whole)
    everywhere = spec_for(whole.shape, whole.dtype, spec.mesh)
    if not spec.mesh.contains_me():
        return Array(None, spec)
    start = (whole,) * spec.mesh.size if spec.mesh.device == "sim" else whole
    [blocks] = move([plan(everywhere, spec)], [start])  # slices and masks only
    if spec.mesh.device == "cuda" and xp is np:
        with reading(blocks):
            blocks = memory.put("cuda", blocks)
    elif copy is not False:
        blocks = tuple(map(copied, blocks)) if isinstance(blocks, tuple) else copied(blocks)
    return Array(blocks, spec)


def arrays(*operands: Any) -> list[Array]:
    """Operands as arrays: numbers, lists and NumPy's are constants on the mesh of those that are arrays already."""
    mesh = next((x.mesh for x in operands if isinstance(x, Array)), None)
    return [x if isinstance(x, Array) else asarray(x, mesh=mesh) for x in operands]


def redistribute(x: Any, placement: Any = None, /, **axes: AxisPlacement) -> Any:
    """The same value in another placement; several arrays share one collective a step.

    Args:
        x: an Array, or a sequence of them on one mesh.
        placement: the whole placement (a dict or P), or for a sequence of arrays a list of one for each.
        axes: instead of it, new placements for the mesh axes named; the others stay.

    Communicates what ``sx.debug.explain(x, placement)`` prints, and is its own gradient.
    """
    asked = (x.spec, *placement.items()) if isinstance(x, Array) and type(placement) is dict and not axes else None
    if asked and type(x) is Array and (found := again(x, asked)) is not None:
        return found
    dry = context.get().dry
    if isinstance(x, Array):
        if dry is not None:  # there the array lies on another mesh
            x = dry.outside(x)
            asked = asked and (x.spec, *asked[1:])
        target, steps = _asked(x, placement, axes, asked)
        moved = _one(x, target, steps)
        alone = asked and type(x) is Array and len(steps) == 1 and steps[0].verb not in LOCAL
        if alone and x._block is not None and x.device != "sim":
            remember(asked, steps[0])
        return moved
    given = list(x if dry is None else map(dry.outside, x))
    if not all(isinstance(a, Array) for a in given):
        raise DtypeError("redistribute moves Arrays.", "sx.asarray(value, mesh=mesh, placement=placement)")
    each = placement if isinstance(placement, list) else [placement] * len(given)
    if len(each) != len(given):
        raise ArgumentError(f"{len(given)} arrays are given {len(each)} placements.", "one placement for each array")
    targets = [target_spec(a, p, axes) for a, p in zip(given, each)]
    plans = [plan(a.spec, t) for a, t in zip(given, targets)]
    return moved_arrays(given, targets, plans, "redistribute", implied=False)


_known: dict[Any, tuple[Spec, tuple[Step, ...]]] = {}


def _asked(
    x: Array, placement: Placement | None, axes: dict[str, AxisPlacement], asked: Any
) -> tuple[Spec, tuple[Step, ...]]:
    """Where one array is to go, and the plan: remembered, for reading a placement takes longer than a small message."""
    try:
        found = _known.get(asked)
    except TypeError:  # something that is no placement: target_spec says so
        found = None
    if found is None:
        target = target_spec(x, placement, axes)
        found = target, plan(x.spec, target)
        if asked:
            if len(_known) >= 4096:  # bounded: what was asked is cheap to read again
                _known.clear()
            _known[asked] = found
    return found


def _one(x: Array, target: Spec, steps: tuple[Step, ...]) -> Array:
    """One array brought to its target spec, recorded where a gradient watches."""
    if not steps:
        return x
    if context.get().batch:
        return moved_arrays([x], [target], [steps], "redistribute", implied=False)[0]
    block, dry = None, context.get().dry
    if x._block is not None and not dry:
        [block] = move((steps,), (x._block,))
    if dry:
        count((steps,), "redistribute")
    if type(x) is Watched and context.get().depth:
        return Watched(block, target, registry["alias"], (x,), {})
    return Array(block, target)


def moved_arrays(
    arrays: Sequence[Array],
    targets: Sequence[Spec],
    plans: Sequence[tuple[Step, ...]],
    cause: str,
    implied: bool = True,
    wait: bool = True,
    halves: list[Any] | None = None,
) -> list[Array]:
    """Arrays brought to their target specs, recorded where a gradient watches. ``implied``: the user's line did not ask
    for it in so many words, so that it is an error inside `explicit`. Without ``wait`` they may be on their way, and
    with ``halves`` only one half of it, as `move.begin` says."""
    if not any(plans):
        return list(arrays)
    batch = next((type(a) for a in arrays if hasattr(a, "level")), None) if context.get().batch else None
    if batch is not None:
        return batch.moved(arrays, targets, cause, implied)  # type: ignore[attr-defined,no-any-return]
    if implied and context.get().explicit:
        for a, t, steps in zip(arrays, targets, plans):
            if any(step.verb not in LOCAL for step in steps):
                raise ImpliedMoveError(
                    f"{cause} would move an operand, which `with explicit()` forbids.\n  x: {a.spec!r}",
                    f"x.redistribute({t.placement!r}) before it",
                )
    dry, depth = context.get().dry, context.get().depth
    inside = [i for i, a in enumerate(arrays) if plans[i] and a._block is not None and not dry]
    blocks: list[Any] = [None] * len(arrays)
    if dry:
        count(plans, cause)
    run = move if wait or any(type(a) is Watched for a in arrays) else partial(begin, halves=halves)
    for i, block in zip(inside, run([plans[i] for i in inside], [arrays[i]._block for i in inside], cause)):
        blocks[i] = block
    return [
        a if not steps else Watched(b, t, registry["alias"], (a,), {}) if depth and type(a) is Watched else made(b, t)
        for a, b, t, steps in zip(arrays, blocks, targets, plans)
    ]


def target_spec(x: Array, placement: Placement | None, axes: dict[str, AxisPlacement]) -> Spec:
    """The spec that ``redistribute`` is asked for."""
    if placement is None and not axes:
        raise PlacementError("redistribute needs a placement.", f"x.redistribute({x.placement!r}), changed as you need")
    if not axes:
        return place(x.mesh, x.shape, x.dtype, placement)
    if placement is not None:
        raise PlacementError(
            "redistribute takes a whole placement or axis keywords, not both.", "x.redistribute(placement) alone"
        )
    now = x.placement
    if isinstance(now, P):
        now = {a: Replicate() if (d := x.spec.dim_of(a)) is None else Shard(d) for a in x.mesh.axis_names}
    for name in axes:
        x.mesh.axis(name)
    return place(x.mesh, x.shape, x.dtype, {**now, **axes})


def to_numpy(x: Array) -> Any:
    """The global value as a NumPy array on every rank: a collective, unless every rank has it already.

    Raises:
        ImpliedMoveError: inside ``explicit``, where the array is not replicated.
        GradientError: of an array that a gradient watches, for NumPy would make a constant of it.
    """
    if type(x) is Watched and recording():
        raise GradientError(
            f"a gradient would not see what NumPy makes of {x.spec!r}: its value would count as a constant.",
            "stop_gradient(x).numpy() where that is meant, and spmdx's own functions otherwise",
        )
    return _whole(x)


@lru_cache(maxsize=4096)
def _gathering(spec: Spec) -> tuple[Step, ...]:
    return plan(spec, spec.replace(layouts=(WHOLE,) * spec.ndim, partial=()))


def _whole(x: Array) -> Any:
    steps = _gathering(x.spec)
    if x._block is None and context.get().dry:
        raise ArgumentError(
            f"a dry run (eval_shape, estimate) knows shapes and no values; the value of {x.spec!r} is asked for.",
            "sx.where(condition, a, b) in place of `if condition:`, and float(x) outside",
        )
    if x._block is None:
        raise MeshError(
            f"this rank is outside {x.mesh!r}, so it does not know the value.", "`if x.mesh.contains_me():` around it"
        )
    if context.get().explicit and any(s.verb not in LOCAL for s in steps):
        raise ImpliedMoveError(
            f"the global value of {x.spec!r} takes a collective, which `with explicit()` forbids.",
            "x.redistribute({}).numpy(), or x.block for this rank's piece",
        )
    [block] = move([steps], [x._block], "numpy")
    if x.mesh.device == "cuda":
        record("host", (), block.nbytes, "numpy")  # the host waits for it
        return memory.host(block)
    first = block[0] if isinstance(block, tuple) else block
    return first if any(s.verb not in LOCAL for s in steps) else np.array(first)  # what arrived is nobody else's


def held(x: Array) -> Any:
    """The block, or blocks, of an array in host memory."""
    return x._block if isinstance(x._block, tuple) else memory.host(x._block)


def item(x: Array) -> Any:
    """The value of an array with one element, as a Python scalar, the same on every rank."""
    if x.spec.shape and x.size != 1:
        raise ShapeError(
            f"only an array with one element is a Python scalar; this one has shape {x.shape}.", "x.numpy()"
        )
    if x.spec.replicated and isinstance(x._block, np.ndarray):
        return x._block.item()
    steps = _gathering(x.spec)
    if len(steps) == 1 and not context.get().explicit and (made := again(x, steps[0])) is not None:
        return memory.host(made._block).item()
    return _whole(x).item()


def readable(block: Any, dtype: np.dtype[Any]) -> Any:
    """The block, or a copy of one that kernels could not read: in another byte order, or not aligned."""
    aligned = getattr(block.flags, "aligned", True)  # CuPy's always are
    return block if aligned and block.dtype == dtype else np.array(block, dtype)
