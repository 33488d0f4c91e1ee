"""The registry of operations, and the one pipeline that every call goes through.

A call that was seen before costs one look-up: ``memo`` maps what it depends on (specs, types of Python scalars,
static arguments) to the function of blocks and the output's spec. A call that has to move operands, or one that is
recorded for a gradient, takes the long way.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

from spmdx import check, context
from spmdx.array import Array
from spmdx.decide import SCALARS, Bounds, Entry, asked_mesh, constant, constants, decide, default_mesh
from spmdx.dtypes import unfit
from spmdx.errors import DtypeError, ImpliedMoveError, RuleError
from spmdx.move import count, move
from spmdx.placement import P
from spmdx.plan import LOCAL
from spmdx.propagate import Traits
from spmdx.runtime import kernels
from spmdx.spec import Spec
from spmdx.tape import Watched

__all__ = ["Bounds", "Operation", "asked_mesh", "call", "constant", "constants", "default_mesh", "op", "registry"]
MEMO_SIZE = 4096
registry: dict[str, Operation] = {}


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
        large: Callable[..., Any] | None = None,
    ) -> None:
        self.name = body.__name__.strip("_")
        self.body, self.rule, self.traits, self.bounds = body, rule, traits, bounds
        self.arrays, self.fast, self.prepare, self.note, self.large = arrays, fast, prepare, note, large
        self.gradients: tuple[Callable[..., Any], ...] | None = None
        self.gradient_of_each: Callable[..., Any] | None = None
        self.differentiable = False  # until a gradient rule is registered
        # Its gradient rules call operations alone, by specs and not by values: what they call may be remembered.
        self.pure = False
        # onto(before, i, g, *operands, **static): adds the gradient with respect to operand i to one that this
        # operation has made before, in its place, and says whether it could.
        self.onto: Callable[..., bool] | None = None
        self.memo: dict[Any, Any] = {}  # calls that move nothing: (function of blocks, spec, static)
        self.entries: dict[Any, Entry] = {}
        self.planned: dict[Any, Entry] = {}  # entries as a running plan wants them
        self.dtypes: dict[Any, Any] = {}  # what operands' dtypes and static arguments give, whatever the shapes
        self.names: tuple[str, ...] = ()  # of the static arguments

    def vjp(self, *rules: Callable[..., Any]) -> Any:
        """Register gradient rules, one for each array operand: ``rule(g, out, *operands, **static)``. One rule used
        as a decorator on an operation with one operand reads well too."""
        self.gradients, self.differentiable, self.pure = rules, True, all(map(_is_ours, rules))
        kernels.forget_rules()  # this may take another's place
        return rules[0]

    def vjp_each(self, rule: Callable[..., Any]) -> Any:
        """Register one gradient rule for any number of operands: ``rule(i, g, out, *operands, **static)``."""
        self.gradient_of_each = rule
        return self.vjp(rule)

    def gradient(self, i: int, g: Any, out: Any, inputs: tuple[Any, ...], static: Mapping[str, Any]) -> Any:
        """The gradient with respect to operand ``i``."""
        if self.gradient_of_each is not None:
            return self.gradient_of_each(i, g, out, *inputs, **static)
        return self.gradients[i](g, out, *inputs, **static) if self.gradients else None

    def short_way(self, otherwise: Callable[..., Any]) -> Callable[..., Any]:
        """The operation as a function of its operands and static arguments by position: what was seen before is
        computed at once, and all else is ``otherwise(operation, operands, static, names)``."""
        return kernels.short_way(self, self.memo, self.arrays, self.names, otherwise)  # type: ignore[no-any-return]

    def entry(
        self, specs: tuple[Any, ...], operands: tuple[Any, ...], static: tuple[Any, ...], names: tuple[str, ...]
    ) -> Entry:
        """The entry for a call on operands with these specs (or types of Python scalars), made if need be."""
        entries = self.entries if context.get().plan is None else self.planned
        try:
            key = specs + static
            found = entries.get(key)
        except TypeError:  # lists and slices do not hash
            key = specs + tuple(map(hashable, static))
            found = entries.get(key)
        if found is None:
            found = self._decided(key, operands, dict(zip(names, static)))
            if len(entries) >= MEMO_SIZE:  # bounded: an entry is cheap to make again
                entries.clear()
                self.memo.clear()
                self.dtypes.clear()
            entries[key] = found
        return found

    def _decided(self, key: tuple[Any, ...], operands: tuple[Any, ...], static: Mapping[str, Any]) -> Entry:
        """An entry made; it may take the short way if it moves nothing, and would be the same without a plan."""
        found = decide(self, operands, static, stay=context.get().plan is not None)
        quick = found.plans is None and found.spec.mesh.contains_me() and not check.on()
        if quick and (found.decision.bytes == 0 or decide(self, operands, static).spec is found.spec):
            with context.remembering:  # a thread rank outside the mesh must not find this
                if not found.spec.mesh.divided:
                    self.memo[key if len(key) != 1 else key[0]] = (found.run, found.spec, found.static)
        return found


def _is_ours(rule: Callable[..., Any]) -> bool:
    return getattr(rule, "__module__", "").startswith("spmdx.ops.")


def _forget() -> None:
    """Forget the calls on meshes that some thread rank is outside: others are not decided again, so they stay."""
    for memo in (operation.memo for operation in registry.values()):
        for key in [key for key, (_, spec, _) in memo.copy().items() if spec.mesh.divided]:
            memo.pop(key, None)


context.on_forget(_forget)


def hashable(value: Any) -> Any:
    """A static argument as part of a key."""
    if isinstance(value, slice):
        return (slice, value.start, value.stop, value.step)
    if isinstance(value, (list, tuple)):
        return tuple(hashable(v) for v in value)
    if value.__hash__ is None:
        raise DtypeError(f"an argument is a number, or a list of them; got {type(value).__name__} {value!r}.", "(0, 1)")
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
    large: Callable[..., Any] | None = None,
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
        fast: ``fast(xp, *dtypes, **static)`` (with bounds: ``fast(xp, bounds, *dtypes, **static)``) returns a quicker
            function of the blocks alone, or None.
        prepare: ``prepare(*shapes, **static)`` checks the static arguments and returns them in canonical form.
        note: for the table of operations: what the rule costs today.
        large: ``large(run, *blocks)`` is what runs in place of ``run(*blocks)`` where results are large.
    """

    def register(body: Callable[..., Any]) -> Any:
        n = rule.partition("->")[0].count(",") + 1 if isinstance(rule, str) and arrays == -1 else arrays
        count = 1 if n == -1 else n
        every = tuple(range(count or 0))  # together, and no numbers: every operand, however many
        groups = tuple((i,) for i in every) if linear == "each" else (every,) if linear == "together" else linear
        operation = Operation(body, rule, Traits(groups, reduce, monotone), count, bounds, fast, prepare, note, large)
        if not operation.name.isidentifier():
            raise RuleError(
                f"an operation is called by its name; {body.__name__!r} is none.", "def my_operation(xp, x): ..."
            )
        before = registry.get(operation.name)
        if before is not None and _home(before.body) != _home(body):
            raise RuleError(
                f"an operation {operation.name!r} is already registered.", f"def my_{operation.name}(xp, ...)"
            )
        registry[operation.name] = operation
        return _caller(operation)

    return register


def _home(body: Callable[..., Any]) -> tuple[str, str]:
    """Where a body is written: the same place again (a notebook's cell, a thread rank) replaces the operation."""
    return body.__module__, body.__qualname__


def _caller(operation: Operation) -> Any:
    """The public function: the body's signature without ``xp``, and the short way for calls seen before.

    It is written out as source, for functions that read ``*args`` take longer and tell a reader less.
    """
    parameters = list(inspect.signature(operation.body).parameters.values())[2 if operation.bounds else 1 :]
    variadic = operation.arrays is None
    operands = [p.name for p in parameters[: 1 if variadic else operation.arrays]]
    operation.names = tuple(p.name for p in parameters[len(operands) :])
    passed = ", ".join([*operands, *operation.names])
    if variadic:
        passed = f"operation, tuple({operands[0]}), ({''.join(f'{n}, ' for n in operation.names)}), operation.names"
    source = f"def operation_({_signature(parameters)}):\n    return way({passed})"
    scope: dict[str, Any] = {f"_default_{p.name}": p.default for p in parameters}
    scope |= {"operation": operation, "way": call if variadic else operation.short_way(call)}
    exec(_compiled(source), scope)
    function = scope["operation_"]
    function.__name__ = function.__qualname__ = operation.name
    function.__doc__, function.__module__ = operation.body.__doc__, operation.body.__module__
    function.op, function.vjp, function.vjp_each = operation, operation.vjp, operation.vjp_each
    return function


@cache
def _compiled(source: str) -> Any:
    """Operations with the same parameters have the same source: most are compiled once."""
    return compile(source, "<spmdx operation>", "exec")


def _signature(parameters: list[inspect.Parameter]) -> str:
    parts: list[str] = []
    for p in parameters:
        if p.kind is p.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        parts.append(p.name if p.default is p.empty else f"{p.name}=_default_{p.name}")
    return ", ".join(parts)


def call(operation: Operation, operands: tuple[Any, ...], static: tuple[Any, ...], names: tuple[str, ...]) -> Array:
    """The long way: constants made arrays, moves made and counted, the result recorded if anything watches."""
    key: list[Any] = []
    blocks: list[Any] = []
    watched = outside = False
    dry = context.get().dry
    for x in operands if dry is None else (operands := tuple(map(dry.outside, operands))):
        kind = type(x)
        if kind is Array or kind is Watched:
            key.append(x.spec)
            blocks.append(x._block)
            watched = watched or kind is Watched
            outside = outside or x._block is None
        elif kind in SCALARS:
            key.append(kind)
            blocks.append(x)
        elif issubclass(kind, Array):  # it knows what operations do with it, as vmap's arrays
            return kind.interpret(operation, operands, static, names)  # type: ignore[attr-defined,no-any-return]
        else:
            return call(operation, constants(operands, operation.name), static, names)
    state = context.get()
    try:
        entry = operation.entry(tuple(key), operands, static, names)
        saving = state.saving if watched and state.depth else None
        result = None if saving is None else saving.recall()
        if result is not None:
            pass  # saved when it was computed first
        elif not outside:
            if check.on():
                numbers = [x for x in operands if not isinstance(x, Array)]
                said = f"{operation.name} of {key} {numbers} {dict(entry.static)}, to {entry.spec!r}"
                check.same(entry.spec.mesh, said)
            if entry.plans is not None:
                blocks = moved(operation, entry, operands, blocks)
            if check.on():
                result = check.together(entry.spec.mesh, operation.name, partial(entry.run, *blocks))
            else:
                result = entry.run(*blocks)
        elif entry.plans is not None and dry is not None:
            count(entry.plans, operation.name)
    except OverflowError as error:  # a Python number that the dtype does not hold
        raise unfit(operation.name, operands, error) from None
    if not watched or not state.depth:
        return Array(result, entry.spec)
    made = Watched(result, entry.spec, operation, operands, entry.static)
    if saving is not None:
        saving.offer(operation.name, made)
    return made


def moved(operation: Operation, entry: Entry, operands: tuple[Any, ...], blocks: list[Any]) -> list[Any]:
    """The blocks where the body needs them."""
    plans = entry.plans or ()
    if context.get().explicit and any(step.verb not in LOCAL for steps in plans for step in steps):
        raise implied(operation, entry, operands)
    for x in operands:
        if type(x) is int and entry.spec.dtype.kind in "iu":
            entry.spec.dtype.type(x)  # out of range: raises on every rank, not only on those that keep the number
    return move(plans, blocks, operation.name)


def implied(operation: Operation, entry: Entry, operands: tuple[Any, ...]) -> ImpliedMoveError:
    """The error for a move inside `with explicit()`, with the line to write."""
    given = operand_names(operation, len(operands))
    shown, arguments, moves = [], [], []
    for name, x, steps, want in zip(given, operands, entry.plans or (), entry.decision.wanted):
        far = [step for step in steps if step.verb not in LOCAL]
        arguments.append(_redistributed(name, x.spec, want) if far else name)
        if far:
            shown.append(f"\n  {name}: {x.spec!r}")
            moves += [f"{step.verb}, {amount(step.bytes)} sent per rank" for step in far]
    return ImpliedMoveError(
        f"{operation.name} would move {' and '.join(n for n, a in zip(given, arguments) if n != a)}, which "
        f"`with explicit()` forbids.{''.join(shown)}",
        f"{operation.name}({', '.join(arguments)})   {', '.join(moves)}",
    )


def operand_names(operation: Operation, count: int) -> list[str]:
    """What the body calls its operands."""
    names = list(inspect.signature(operation.body).parameters)[2 if operation.bounds else 1 :]
    return names[:count] if operation.arrays is not None else [f"{names[0]}[{i}]" for i in range(count)]


def _redistributed(name: str, now: Spec, then: Spec) -> str:
    before, after = now.placement, then.placement
    if isinstance(before, P) or isinstance(after, P):
        return f"{name}.redistribute({after!r})"
    changed = ", ".join(f"{axis}={p!r}" for axis, p in after.items() if p != before[axis])
    return f"{name}.redistribute({changed})"


def amount(count: int) -> str:
    """Bytes, to be read."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024  # type: ignore[assignment]  # a float from here on
    return f"{count:.3g} GiB"
