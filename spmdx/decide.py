"""Deciding a call that was not seen before: its mesh, its moves, the body bound to this rank, the output's spec."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from spmdx import check, context
from spmdx.array import Array
from spmdx.dtypes import checked, read, widens
from spmdx.errors import MeshError, RuleError
from spmdx.mesh import Coordinate, Mesh
from spmdx.plan import Step
from spmdx.propagate import Decision, Traits, propagate
from spmdx.rule import Form, bind
from spmdx.runtime import memory
from spmdx.spec import Interval, Spec, make, place

if TYPE_CHECKING:
    from spmdx.op import Operation

LARGE = 2**16  # elements of a result that is worth another way to it
SCALARS = (bool, int, float, complex)


class Bounds(NamedTuple):
    """What a body may ask about its blocks: global intervals of every dimension, of each input and of the output."""

    inputs: tuple[tuple[tuple[Interval, ...], ...], ...]
    output: tuple[tuple[Interval, ...], ...]
    coordinate: Coordinate

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the output's block."""
        return tuple(sum(b - a for a, b in pieces) for pieces in self.output)

    @staticmethod
    def indices(pieces: tuple[Interval, ...], xp: Any = np) -> Any:
        """The global indices along one dimension, as an int64 vector."""
        return xp.concatenate([xp.arange(a, b, dtype=np.int64) for a, b in pieces] or [xp.empty(0, np.int64)])


class Entry(NamedTuple):
    """What a call comes to: moves, a function of blocks, the output's spec; and the static arguments, canonical."""

    run: Callable[..., Any]
    spec: Spec
    static: Mapping[str, Any]
    plans: tuple[tuple[Step, ...], ...] | None  # None: nothing to move
    decision: Decision


def constants(operands: tuple[Any, ...], name: str) -> tuple[Any, ...]:
    """Operands with NumPy arrays, NumPy scalars and lists made replicated constants on the others' mesh."""
    mesh = next((x.spec.mesh for x in operands if isinstance(x, Array)), None) or default_mesh()
    return tuple(x if isinstance(x, Array) or type(x) in SCALARS else constant(x, mesh) for x in operands)


def constant(value: Any, mesh: Mesh) -> Array:
    """A replicated array of a value that is the same on every rank."""
    block = read(value, make=np.array)
    block = block.astype(checked(block.dtype), copy=False)
    check.same(mesh, "a NumPy operand", block)
    inside = memory.put(mesh.device, block) if mesh.contains_me() else None
    return Array((block,) * mesh.size if mesh.device == "sim" else inside, place(mesh, block.shape, block.dtype))


def default_mesh() -> Mesh:
    """The mesh of `with use_mesh`, else one axis, "world", over all ranks."""
    return context.get().mesh or Mesh(("world",), (context.world().size,))


def asked_mesh(mesh: Any) -> Mesh:
    """The mesh that a call names; the default mesh where it names none."""
    if mesh is None:
        return default_mesh()
    if not isinstance(mesh, Mesh):
        raise MeshError(f"mesh={mesh!r} is no mesh.", 'mesh=sx.make_mesh({"data": -1})')
    return mesh


def decide(operation: Operation, operands: tuple[Any, ...], static: Mapping[str, Any], stay: bool = False) -> Entry:
    """Propagate, and bind the body: the entry for a call not seen before. ``stay``: as a plan wants it."""
    mesh = common_mesh(operation.name, [x.spec for x in operands if isinstance(x, Array)])
    inexact = any(isinstance(x, Array) and x.dtype.kind in "fcV" for x in operands)
    specs = [_on(mesh, x, inexact) for x in operands]
    shapes = [s.shape for s in specs]
    if operation.prepare is not None:
        static = operation.prepare(*shapes, **static)
    form: str | Form = operation.rule if isinstance(operation.rule, str) else operation.rule(*shapes, **static)
    bound = bind(form, shapes, operation.name)
    own = operation.traits._replace(stay=stay)
    kinds = (*(x.dtype if isinstance(x, Array) else type(x) for x in operands), repr([*map(_unsized, static.values())]))
    known = None if mesh.device == "sim" else operation.dtypes.get(kinds)
    for traits in (own, own._replace(finish=True)):
        decision = propagate(bound, specs, traits, mesh)
        output = make(mesh, bound.shape, known or np.dtype("u1"), decision.layouts, decision.partial, decision.op)
        run = _runner(operation, mesh, decision, output, operands, static)
        dry = context.get().dry
        dtype = known or (dry.dtype(operation, bound, operands, static) if dry else None)
        dtype = dtype or _dtype(operation, run, mesh, decision, output, operands)
        partial = [w for w, x in zip(decision.wanted, operands) if w.partial and not _weak(x, dtype)]
        if all(_commutes(w, dtype, traits) for w in partial):
            break
    operation.dtypes[kinds] = dtype
    spec = output if known else output.replace(dtype=dtype)
    plans = decision.plans if any(decision.plans) else None
    return Entry(run, spec, static, plans, decision)


def _unsized(value: Any) -> Any:
    """A static argument as far as a dtype may depend on it: which numbers a shape or an index holds says nothing."""
    if isinstance(value, (tuple, list)):
        return ["n" if type(v) is int else _unsized(v) for v in value]
    return slice if isinstance(value, slice) else value


def _weak(x: Any, dtype: np.dtype[Any]) -> bool:
    """True for a Python number that takes the output's dtype, on the ranks where it is masked as well."""
    return type(x) in SCALARS and dtype.kind != "b"


def _commutes(x: Spec, dtype: np.dtype[Any], traits: Traits) -> bool:
    """True if what a Partial operand stands for may be reduced after the operation as well as before: integers wrap,
    and bools are reduced by `or` and `and`, so these keep their dtype or are finished first. The identities of min and
    max of integers are no mirror images: a falling operation would turn one into no identity at all."""
    if traits.monotone and x.op in ("min", "max"):
        return traits.monotone > 0 or dtype.kind in "fV"
    return x.dtype == dtype or widens(x.dtype, dtype)


def common_mesh(name: str, specs: list[Spec]) -> Mesh:
    """The mesh of an operation: the operands' own; fully replicated operands on a covering mesh are constants."""
    if not specs:
        return default_mesh()
    meshes = {s.mesh: None for s in specs}
    if len(meshes) == 1:
        return specs[0].mesh
    fixed = [s.mesh for s in specs if not s.replicated] or [min(meshes, key=lambda m: m.size)]
    mesh = fixed[0]
    for s in specs:
        if s.mesh is not mesh and not (
            s.replicated and set(mesh.ranks) <= set(s.mesh.ranks) and s.mesh.device == mesh.device
        ):
            raise MeshError(
                f"{name} got arrays on {mesh!r} and {s.mesh!r}, and neither is a constant on the other's mesh.",
                "mesh=x.mesh where y is made, `with use_mesh(x.mesh):` around both, or y.to(x.mesh, placement) now",
            )
    return mesh


def _on(mesh: Mesh, x: Any, inexact: bool) -> Spec:
    """An operand's spec. ``inexact``: it meets an array whose dtype takes integers beyond 64 bits."""
    if not isinstance(x, Array):
        dtype = np.asarray(x).dtype
        if dtype.kind == "O" and not inexact:
            raise OverflowError  # op.py says of what
        return place(mesh, (), dtype)
    return x.spec if x.spec.mesh is mesh else place(mesh, x.spec.shape, x.spec.dtype)


def _runner(
    operation: Operation,
    mesh: Mesh,
    decision: Decision,
    output: Spec,
    operands: tuple[Any, ...],
    static: Mapping[str, Any],
) -> Callable[..., Any]:
    """The function of blocks: for this rank, or, where ranks share the memo, for whichever rank runs it."""

    dtypes = [x.dtype if isinstance(x, Array) else type(x) for x in operands]  # not the arrays: an entry lives on

    def at(coordinate: Coordinate) -> Callable[..., Any]:
        asked: tuple[Any, ...] = ()
        if operation.bounds:
            inputs = tuple(tuple(w.pieces(d, coordinate) for d in range(w.ndim)) for w in decision.wanted)
            outs = tuple(output.pieces(d, coordinate) for d in range(output.ndim))
            asked = (Bounds(inputs, outs, coordinate),)
        if mesh.device == "cuda":
            return partial(memory.on_gpu(operation.name, lambda xp: body_of(operation, asked, dtypes, static, xp)))
        run = body_of(operation, asked, dtypes, static)
        large = math.prod(output.block_shape(coordinate)) >= LARGE
        return partial(operation.large, run) if operation.large and large else run

    if mesh.device == "sim":
        return _for_all(mesh, at)
    if operation.bounds and mesh.size > 1:
        return _for_whoever(mesh, at)
    run = at((0,) * len(mesh.sizes))
    return _zero_d(run) if output.ndim == 0 and mesh.device != "cuda" else run


def body_of(
    operation: Operation, asked: Any, dtypes: list[Any], static: Mapping[str, Any], xp: Any = np
) -> Callable[..., Any]:
    """An operation as a function of blocks alone, quick if there is a quick form. ``asked``: () or one Bounds."""
    quick = None if operation.fast is None else operation.fast(xp, *asked, *dtypes, **static)
    return quick or partial(operation.body, xp, *asked, **static)


def _zero_d(run: Callable[..., Any]) -> Callable[..., Any]:
    """NumPy gives scalars where a 0-d array is meant."""
    asarray = np.asarray
    return lambda *blocks: asarray(run(*blocks))


def _for_all(mesh: Mesh, at: Callable[[Coordinate], Callable[..., Any]]) -> Callable[..., Any]:
    """The simulator: every rank's body, one after another."""
    runs = [at(c) for c in mesh.coordinates()]

    def run(*blocks: Any) -> Any:
        out = []
        for i, body in enumerate(runs):
            with context.use(rank=mesh.ranks[i]):
                block = body(*(b[i] if isinstance(b, tuple) else b for b in blocks))
                out.append(np.asarray(block) if isinstance(block, np.generic) else block)
        return tuple(out)

    return run


def _for_whoever(mesh: Mesh, at: Callable[[Coordinate], Callable[..., Any]]) -> Callable[..., Any]:
    """A body that asks for its bounds: bound once for each rank of this process that comes by."""
    runs: dict[int | None, Callable[..., Any]] = {}
    state = context.get

    def run(*blocks: Any) -> Any:
        rank = state().rank
        body = runs.get(rank)
        if body is None:
            body = runs[rank] = at(mesh.here())
        found = body(*blocks)
        return np.asarray(found) if isinstance(found, np.generic) else found

    return run


def _dtype(
    operation: Operation,
    run: Callable[..., Any],
    mesh: Mesh,
    decision: Decision,
    output: Spec,
    operands: tuple[Any, ...],
) -> np.dtype[Any]:
    """The output's dtype: what the body gives for blocks of zeros with this rank's shapes."""
    inside = mesh.contains_me()
    here = mesh.here() if inside and mesh.device != "sim" else (0,) * len(mesh.sizes)
    blocks, xp = [], memory.space(mesh.device)
    for x, want in zip(operands, decision.wanted):
        if isinstance(x, Array):
            zero = xp.zeros((), want.dtype)
            each = [
                xp.broadcast_to(zero, want.block_shape(c))
                for c in (mesh.coordinates() if mesh.device == "sim" else [here])
            ]
            blocks.append(tuple(each) if mesh.device == "sim" else each[0])
        else:
            blocks.append(x)
    elsewhere = nullcontext() if inside else context.use(rank=mesh.ranks[0])
    with np.errstate(all="ignore"), elsewhere:
        out = run(*blocks)
    for block, c in zip(out, mesh.coordinates()) if mesh.device == "sim" else [(out, here)]:
        if not isinstance(block, (xp.ndarray, np.generic)):
            raise RuleError(
                f"{operation.name}: the body gave a {type(block).__name__}.", "a body that returns an array"
            )
        if block.shape != output.block_shape(c):
            raise RuleError(
                f"{operation.name}: the body gave a block of shape {block.shape} where the rule says "
                f"{output.block_shape(c)}, of an output {list(output.shape)} placed {output.placement!r}.",
                "a rule whose right side is the shape that the body returns",
            )
    found: np.dtype[Any] = (out[0] if mesh.device == "sim" else out).dtype
    return found
