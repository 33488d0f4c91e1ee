"""The registry of operations, and the one pipeline that every call goes through.

A call that was seen before costs one look-up: ``memo`` maps what it depends on (specs, types of Python scalars,
static arguments) to the function of blocks and the output's spec. A call that has to move operands, or one that is
recorded for a gradient, takes the long way.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from spmdx import context
from spmdx.array import Array
from spmdx.errors import ImpliedMoveError, MeshError, RuleError
from spmdx.mesh import Coordinate, Mesh
from spmdx.move import move
from spmdx.plan import LOCAL, Step
from spmdx.propagate import Decision, Traits, propagate
from spmdx.rule import Form, bind
from spmdx.runtime import memory
from spmdx.spec import Interval, Spec, make, place
from spmdx.tape import Watched

SCALARS = (bool, int, float, complex)
MEMO_SIZE = 4096
registry: dict[str, Operation] = {}


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
    def indices(pieces: tuple[Interval, ...]) -> Any:
        """The global indices along one dimension, as an int64 vector."""
        return np.concatenate([np.arange(a, b, dtype=np.int64) for a, b in pieces] or [np.empty(0, np.int64)])


class Entry(NamedTuple):
    """What a call comes to: moves, a function of blocks, the output's spec; and the static arguments, canonical."""

    run: Callable[..., Any]
    spec: Spec
    static: Mapping[str, Any]
    plans: tuple[tuple[Step, ...], ...] | None  # None: nothing to move
    decision: Decision


class Operation:
    """One registered operation: body, rule, traits, gradient, and the memo of its calls."""

    def __init__(
        self,
        body: Callable[..., Any],
        rule: Any,
        traits: Traits,
        arrays: int | None,
        bounds: bool,
        fast: Callable[..., Any] | None,
        prepare: Callable[..., Mapping[str, Any]] | None,
        note: str,
    ) -> None:
        self.name = body.__name__.strip("_")
        self.body, self.rule, self.traits, self.bounds = body, rule, traits, bounds
        self.arrays, self.fast, self.prepare, self.note = arrays, fast, prepare, note
        self.gradients: tuple[Callable[..., Any], ...] | None = None
        self.gradient_of_each: Callable[..., Any] | None = None
        self.memo: dict[Any, Any] = {}  # calls that move nothing: (function of blocks, spec)
        self.entries: dict[Any, Entry] = {}

    @property
    def differentiable(self) -> bool:
        """True if a gradient rule is registered."""
        return self.gradients is not None or self.gradient_of_each is not None

    def vjp(self, *rules: Callable[..., Any]) -> Any:
        """Register gradient rules, one for each array operand: ``rule(g, out, *operands, **static)``. One rule used
        as a decorator on an operation with one operand reads well too."""
        self.gradients = rules
        return rules[0]

    def vjp_each(self, rule: Callable[..., Any]) -> Any:
        """Register one gradient rule for any number of operands: ``rule(i, g, out, *operands, **static)``."""
        self.gradient_of_each = rule
        return rule

    def gradient(self, i: int, g: Any, out: Any, inputs: tuple[Any, ...], static: Mapping[str, Any]) -> Any:
        """The gradient with respect to operand ``i``."""
        if self.gradient_of_each is not None:
            return self.gradient_of_each(i, g, out, *inputs, **static)
        return self.gradients[i](g, out, *inputs, **static) if self.gradients else None

    def entry(self, operands: tuple[Any, ...], static: tuple[Any, ...], names: tuple[str, ...]) -> Entry:
        """The entry for a call, made if need be."""
        key = (*(x.spec if isinstance(x, Array) else type(x) for x in operands), *map(_hashable, static))
        found = self.entries.get(key)
        if found is None:
            found = decide(self, operands, dict(zip(names, static)))
            if len(self.entries) >= MEMO_SIZE:  # bounded: an entry is cheap to make again
                self.entries.clear()
                self.memo.clear()
            self.entries[key] = found
            if found.plans is None and found.spec.mesh.contains_me():
                short = key if len(key) != 1 else key[0]
                self.memo[short] = (found.run, found.spec)
        return found


def _hashable(value: Any) -> Any:
    if isinstance(value, slice):
        return (slice, value.start, value.stop, value.step)
    if isinstance(value, (list, tuple)):
        return tuple(_hashable(v) for v in value)
    return value


def op(
    rule: Any,
    *,
    linear: Any = (),
    reduce: str = "sum",
    monotone: int = 0,
    arrays: int | None = -1,
    bounds: bool = False,
    fast: Callable[..., Any] | None = None,
    prepare: Callable[..., Mapping[str, Any]] | None = None,
    note: str = "",
) -> Callable[[Callable[..., Any]], Any]:
    """Register an operation: the decorated body computes on blocks, ``body(xp, *blocks, **static)``.

    Args:
        rule: a factor string, or a function ``(*shapes, **static)`` that returns one (or a :class:`spmdx.rule.Form`).
        linear: "each" if it is linear in every operand, the others fixed; "together" if jointly linear in all; or
            a tuple of groups of operand numbers, each jointly linear.
        reduce: what a factor that stands only on the left is reduced by: sum, prod, min or max.
        monotone: +1 or -1 if Partial min and max may pass (as they are, or swapped).
        arrays: number of array operands; None for any number, given as one sequence. Default: as the rule string.
        bounds: the body gets a :class:`Bounds` after ``xp``.
        fast: ``fast(xp, *dtypes, **static)`` returns a quicker function of the blocks alone.
        prepare: ``prepare(*shapes, **static)`` checks the static arguments and returns them in canonical form.
        note: for the table of operations: what the rule costs today.
    """

    def register(body: Callable[..., Any]) -> Any:
        n = rule.partition("->")[0].count(",") + 1 if isinstance(rule, str) and arrays == -1 else arrays
        count = 1 if n == -1 else n
        groups = linear
        if linear == "each":
            groups = tuple((i,) for i in range(count or 0))
        elif linear == "together":
            groups = (tuple(range(count if count is not None else 64)),)
        operation = Operation(body, rule, Traits(groups, reduce, monotone), count, bounds, fast, prepare, note)
        if operation.name in registry:
            raise RuleError(f"an operation {operation.name!r} is already registered.", "another name")
        registry[operation.name] = operation
        return _caller(operation)

    return register


def _caller(operation: Operation) -> Any:
    """The public function: the body's signature without ``xp``, and the short way for calls seen before."""
    parameters = list(inspect.signature(operation.body).parameters.values())[2 if operation.bounds else 1 :]
    n = operation.arrays
    if n is None:
        operands, static = [parameters[0].name], parameters[1:]
    else:
        operands, static = [p.name for p in parameters[:n]], parameters[n:]
    names = [p.name for p in static]
    signature, starred = [], False
    for p in parameters:
        if p.kind is p.KEYWORD_ONLY and not starred:
            signature.append("*")
            starred = True
        default = "" if p.default is p.empty else f"=_default_{p.name}"
        signature.append(p.name + default)
    scope: dict[str, Any] = {f"_default_{p.name}": p.default for p in parameters}
    scope |= {"Array": Array, "get": operation.memo.get, "call": partial(call, operation), "names": tuple(names)}
    packed = f"({', '.join(names)}{',' if len(names) == 1 else ''})"
    lines = [f"def {operation.name}({', '.join(signature)}):"]
    if n is not None:
        key = ", ".join([f"{x}.spec" for x in operands] + names)
        if n == 2:
            a, b = operands
            key = ", ".join([f"{a}.spec if ta is Array else ta", f"{b}.spec if tb is Array else tb", *names])
            lines += [f"    ta = type({a}); tb = type({b})", "    if ta is Array or tb is Array:"]
        else:
            lines += [f"    if {' and '.join(f'type({x}) is Array' for x in operands)}:"]
        blocks = ", ".join(f"{x}._block" for x in operands)
        look = f"get(({key}))" if len(operands) + len(names) > 1 else f"get({key})"
        if names:
            lines += ["        try:", f"            found = {look}", "        except TypeError:", "            found = None"]
        else:
            lines += [f"        found = {look}"]
        if n == 2:
            blocks = f"{a}._block if ta is Array else {a}, {b}._block if tb is Array else {b}"
        lines += ["        if found is not None:", f"            return Array(found[0]({blocks}), found[1])"]
        passed = f"({', '.join(operands)}{',' if n == 1 else ''})"
    else:
        passed = f"tuple({operands[0]})"
    lines += [f"    return call({passed}, {packed}, names)"]
    exec(compile("\n".join(lines), f"<spmdx operation {operation.name}>", "exec"), scope)
    function = scope[operation.name]
    function.__doc__, function.__module__ = operation.body.__doc__, operation.body.__module__
    function.op, function.vjp, function.vjp_each = operation, operation.vjp, operation.vjp_each
    return function


def call(operation: Operation, operands: tuple[Any, ...], static: tuple[Any, ...], names: tuple[str, ...]) -> Array:
    """The long way: constants made arrays, moves made and counted, the result recorded if anything watches."""
    if not all(isinstance(x, Array) or type(x) in SCALARS for x in operands):
        operands = constants(operands, operation.name)
    entry = operation.entry(operands, static, names)
    mesh = entry.spec.mesh
    if not mesh.contains_me():
        result = None
    else:
        blocks = [x._block if isinstance(x, Array) else x for x in operands]
        if entry.plans is not None:
            blocks = moved(operation, entry, operands, blocks)
        result = entry.run(*blocks)
    if context.get().depth and any(type(x) is Watched for x in operands):
        return Watched(result, entry.spec, operation, operands, entry.static)
    return Array(result, entry.spec)


def moved(operation: Operation, entry: Entry, operands: tuple[Any, ...], blocks: list[Any]) -> list[Any]:
    """The blocks where the body needs them."""
    plans = entry.plans or ()
    if context.get().explicit and any(step.verb not in LOCAL for steps in plans for step in steps):
        raise implied(operation, entry, operands)
    return move(plans, blocks, operation.name)


def implied(operation: Operation, entry: Entry, operands: tuple[Any, ...]) -> ImpliedMoveError:
    """The error for a move inside `with explicit()`, with the lines to write."""
    mesh = entry.spec.mesh
    lines = []
    for i, (x, steps, want) in enumerate(zip(operands, entry.plans or (), entry.decision.wanted)):
        if any(step.verb not in LOCAL for step in steps):
            verbs = ", ".join(f"{s.verb}, {s.bytes / 2**20:.2f} MiB sent per rank" for s in steps if s.verb not in LOCAL)
            lines.append(f"operand {i}, {x.spec!r}: operand.redistribute({want.placement!r})   {verbs}")
    return ImpliedMoveError(
        f"{operation.name} would move its operands, which `with explicit()` forbids on {mesh!r}.", "\n     and ".join(lines)
    )


def constants(operands: tuple[Any, ...], name: str) -> tuple[Any, ...]:
    """Operands with NumPy arrays, NumPy scalars and lists made replicated constants on the others' mesh."""
    mesh = next((x.spec.mesh for x in operands if isinstance(x, Array)), None) or default_mesh()
    return tuple(x if isinstance(x, Array) or type(x) in SCALARS else constant(x, mesh) for x in operands)


def constant(value: Any, mesh: Mesh) -> Array:
    """A replicated array of a value that is the same on every rank."""
    block = np.array(value)
    if block.dtype == object:
        raise RuleError(f"{type(value).__name__} is not an array: it has dtype object.", "numbers, or an array of them")
    block = block.astype(block.dtype.newbyteorder("="), copy=False)
    inside = block if mesh.contains_me() else None
    return Array((block,) * mesh.size if mesh.device == "sim" else inside, place(mesh, block.shape, block.dtype))


def default_mesh() -> Mesh:
    """The mesh of `with use_mesh`, else one axis, "world", over all ranks."""
    return context.get().mesh or Mesh(("world",), (context.world().size,))


def decide(operation: Operation, operands: tuple[Any, ...], static: Mapping[str, Any]) -> Entry:
    """Propagate, and bind the body: the entry for a call not seen before."""
    mesh = common_mesh(operation.name, [x.spec for x in operands if isinstance(x, Array)])
    specs = [_on(mesh, x) for x in operands]
    shapes = [s.shape for s in specs]
    if operation.prepare is not None:
        static = operation.prepare(*shapes, **static)
    rule = operation.rule
    form: str | Form = rule if isinstance(rule, str) else rule(*shapes, **static)
    bound = bind(form, shapes, operation.name)
    decision = propagate(bound, specs, operation.traits, mesh)
    output = make(mesh, bound.shape, np.dtype("u1"), decision.layouts, decision.partial, decision.op)
    run = _runner(operation, mesh, decision, output, operands, static)
    dtype = _dtype(operation, run, mesh, decision, output, operands)
    spec = output.replace(dtype=dtype)
    plans = decision.plans if any(decision.plans) else None
    return Entry(run, spec, static, plans, decision)


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
        if s.mesh is not mesh and not (s.replicated and set(mesh.ranks) <= set(s.mesh.ranks) and s.mesh.device == mesh.device):
            raise MeshError(
                f"{name} got arrays on {mesh!r} and {s.mesh!r}, and neither is a constant on the other's mesh.",
                "y.to(x.mesh, placement) to bring one array to the other's mesh",
            )
    return mesh


def _on(mesh: Mesh, x: Any) -> Spec:
    if not isinstance(x, Array):
        return place(mesh, (), np.asarray(x).dtype)
    return x.spec if x.spec.mesh is mesh else place(mesh, x.spec.shape, x.spec.dtype)


def _runner(
    operation: Operation, mesh: Mesh, decision: Decision, output: Spec, operands: tuple[Any, ...], static: Mapping[str, Any]
) -> Callable[..., Any]:
    """The function of blocks: for this rank, or, where ranks share the memo, for whichever rank runs it."""

    def at(coordinate: Coordinate) -> Callable[..., Any]:
        if operation.bounds:
            inputs = tuple(tuple(w.pieces(d, coordinate) for d in range(w.ndim)) for w in decision.wanted)
            outs = tuple(output.pieces(d, coordinate) for d in range(output.ndim))
            return partial(operation.body, np, Bounds(inputs, outs, coordinate), **static)
        quick = None
        if operation.fast is not None:
            quick = operation.fast(np, *(x.dtype if isinstance(x, Array) else type(x) for x in operands), **static)
        return quick or partial(operation.body, np, **static)

    if mesh.device == "sim":
        return _for_all(mesh, at, output.ndim == 0)
    if operation.bounds and mesh.size > 1:
        return _for_whoever(mesh, at)
    run = at((0,) * len(mesh.sizes))
    return _zero_d(run) if output.ndim == 0 else run


def _zero_d(run: Callable[..., Any]) -> Callable[..., Any]:
    """NumPy gives scalars where a 0-d array is meant."""
    asarray = np.asarray
    return lambda *blocks: asarray(run(*blocks))


def _for_all(mesh: Mesh, at: Callable[[Coordinate], Callable[..., Any]], zero_d: bool) -> Callable[..., Any]:
    """The simulator: every rank's body, one after another."""
    runs = [at(c) for c in mesh.coordinates()]

    def run(*blocks: Any) -> Any:
        out = []
        for i, body in enumerate(runs):
            with context.use(rank=mesh.ranks[i]):
                out.append(np.asarray(body(*(b[i] if isinstance(b, tuple) else b for b in blocks))))
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
        return np.asarray(body(*blocks))

    return run


def _dtype(
    operation: Operation, run: Callable[..., Any], mesh: Mesh, decision: Decision, output: Spec, operands: tuple[Any, ...]
) -> np.dtype[Any]:
    """The output's dtype: what the body gives for blocks of zeros with this rank's shapes."""
    inside = mesh.contains_me()
    here = mesh.here() if inside and mesh.device != "sim" else (0,) * len(mesh.sizes)
    blocks = []
    for x, want in zip(operands, decision.wanted):
        if isinstance(x, Array):
            zero = np.zeros((), want.dtype)
            each = [np.broadcast_to(zero, want.block_shape(c)) for c in (mesh.coordinates() if mesh.device == "sim" else [here])]
            blocks.append(tuple(each) if mesh.device == "sim" else each[0])
        else:
            blocks.append(x)
    with np.errstate(all="ignore"), context.use(rank=context.rank() if inside else mesh.ranks[0]):
        out = run(*blocks)
    for block, c in zip(out, mesh.coordinates()) if mesh.device == "sim" else [(out, here)]:
        if block.shape != output.block_shape(c):
            raise RuleError(
                f"{operation.name}: the body gave a block of shape {block.shape} where the rule says "
                f"{output.block_shape(c)} (output {output!r}).",
                "a rule whose right side is the shape that the body returns",
            )
    return np.dtype((out[0] if mesh.device == "sim" else out).dtype)


