"""How an operation runs on batches: derived from its rule, which gets one more leading factor.

A few operations have a way of their own (an einsum gets a new letter). For the others there are three, and the first
that fits is taken:

1. every batched operand and the output begin with ``...``: the batch is one more dimension that broadcasts;
2. the operation is its own batched form once its static arguments name the dimensions anew (``axis`` plus one), which
   is checked: its rule must then be the derived one;
3. otherwise the body runs for one example after another, inside one operation whose rule is the derived one: it is
   sharded, counted and differentiated as any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from spmdx.array import Array
from spmdx.decide import Bounds, body_of
from spmdx.op import Operation, call
from spmdx.ops.contract import canonical, contract, einsum, letter
from spmdx.ops.create import arange
from spmdx.ops.reduce import sum as total
from spmdx.ops.scatter import gather
from spmdx.ops.shape import broadcast_to, moveaxis, reshape
from spmdx.rule import ELLIPSIS, Form, parse
from spmdx.transforms.batched import Batched, Level

FULL = (None, None, None)  # a slice of everything
Flags = tuple[bool, ...]
Static = Mapping[str, Any]


def apply(operation: Operation, operands: tuple[Any, ...], flags: Flags, size: int, static: Static) -> Any:
    """The operation on operands of which those with a flag are batches, along their first dimension."""
    special = SPECIAL.get(operation.name)
    found = special(operation, operands, flags, size, static) if special else None
    if found is None:
        found = _run(operation, operands, flags, size, static)
    return found


def _run(operation: Operation, operands: tuple[Any, ...], flags: Flags, size: int, static: Static) -> Any:
    shapes = [np.shape(x)[1:] if flag else np.shape(x) for x, flag in zip(operands, flags)]
    resolved = operation.prepare(*shapes, **static) if operation.prepare else static
    form = _form(operation, shapes, resolved)
    if _broadcasts(operation, form, flags):
        if operation.name in ALIKE:
            operands, flags = _repeated(form, operands, flags, size)
        return _called(operation, _aligned(form, operands, flags), static)
    shifted = _shifted(operation.name, static, resolved, size)
    if shifted is not None:
        every = tuple(
            broadcast_to(x, (size, *x.shape)) if isinstance(x, Array) and not flag else x
            for x, flag in zip(operands, flags)
        )
        arrays = tuple(isinstance(x, Array) for x in every)
        if _is_own_form(operation, form, [np.shape(x) for x in every], arrays, shifted):
            return _called(operation, every, shifted)
    return _called(one_by_one(operation, flags), operands, static)


def derived(operation: Operation, shapes: list[tuple[int, ...]], static: Static) -> tuple[str, str]:
    """Which way a call with every array batched takes, and the derived rule: for the table in the documentation."""
    resolved = operation.prepare(*shapes, **static) if operation.prepare else static
    form = _form(operation, shapes, resolved)
    flags = tuple(bool(dims) for dims in parse(form.text).inputs)
    text = " ".join(leading(form, flags).text.split()).replace(" ,", ",")
    return _way(operation, shapes, static, form, flags), text


def _way(operation: Operation, shapes: list[tuple[int, ...]], static: Static, form: Form, flags: Flags) -> str:
    if operation.name in SPECIAL:
        return "by a rule of its own"
    resolved = operation.prepare(*shapes, **static) if operation.prepare else static
    if _broadcasts(operation, form, flags):
        return "broadcast"
    shifted = _shifted(operation.name, static, resolved, 2)
    every = [(2, *s) if flag else s for s, flag in zip(shapes, flags)]
    if shifted is not None and _is_own_form(operation, form, every, flags, shifted):
        return "dimensions renumbered"
    return "one by one"


def _called(operation: Operation, operands: tuple[Any, ...], static: Static) -> Any:
    return call(operation, operands, tuple(static.values()), tuple(static))


def _form(operation: Operation, shapes: list[tuple[int, ...]], resolved: Static) -> Form:
    rule = operation.rule
    found = rule if isinstance(rule, str) else rule(*shapes, **resolved)
    return found if isinstance(found, Form) else Form(found)


# 1. The batch broadcasts

# Operations that ask for their blocks' bounds, but only along their last dimensions: for these one more is no matter,
# unless they draw with a key: then every element is numbered.
FROM_THE_END = {"tril", "triu", "attend", "attend_rows_back", "attend_columns_back", "cross_entropy_back"}

# Operations whose bodies take operands that broadcast only as their own callers make them.
ALIKE = {
    *("mix", "mix_square", "adam_step", "norm_back", "sum_exp", "sum_low", "rotate"),
    *("attend", "attend_rows_back", "attend_columns_back", "cross_entropy_back"),
}


def _broadcasts(operation: Operation, form: Form, flags: Flags) -> bool:
    rule = parse(form.text)
    terms = [dims for dims, flag in zip(rule.inputs, flags) if flag] + [rule.output]
    if operation.bounds and (operation.name not in FROM_THE_END or "words" in rule.whole):
        return False
    return all(dims[:1] == (ELLIPSIS,) for dims in terms)


def _repeated(form: Form, operands: tuple[Any, ...], flags: Flags, size: int) -> tuple[tuple[Any, ...], Flags]:
    """The operands with those that all examples share repeated, where their rule lets them have a batch."""
    wanted = [
        not flag and isinstance(x, Array) and ELLIPSIS in dims
        for x, dims, flag in zip(operands, parse(form.text).inputs, flags)
    ]
    repeated = tuple(broadcast_to(x, (size, *x.shape)) if want else x for x, want in zip(operands, wanted))
    return repeated, tuple(flag or want for flag, want in zip(flags, wanted))


def _aligned(form: Form, operands: tuple[Any, ...], flags: Flags) -> tuple[Any, ...]:
    """The operands with dimensions of size 1 after the batch, so that batches broadcast against one another."""
    rule = parse(form.text)
    before = [
        np.ndim(x) - flag - len(dims) + 1 if ELLIPSIS in dims else 0
        for x, dims, flag in zip(operands, rule.inputs, flags)
    ]
    most = max(before)
    return tuple(
        reshape(x, (x.shape[0], *(1,) * (most - n), *x.shape[1:])) if flag and n < most else x
        for x, n, flag in zip(operands, before, flags)
    )


# 2. The operation is its own batched form

OTHERWISE = {"first_index"}  # not only its axis names dimensions

SHIFTS: dict[str, Callable[[Static, Static, int], dict[str, Any]]] = {
    "reshape": lambda static, resolved, size: {**resolved, "shape": (size, *resolved["shape"])},
    "permute_dims": lambda static, resolved, size: {"axes": (0, *(d + 1 for d in resolved["axes"]))},
    "slicing": lambda static, resolved, size: {"index": (FULL, *static["index"])},
    "unslice": lambda static, resolved, size: {
        **resolved,
        "shape": (size, *resolved["shape"]),
        "index": ((0, size, 1), *resolved["index"]),
        "sizes": resolved.get("sizes") and (None, *resolved["sizes"]),
    },
    "blend": lambda static, resolved, size: {"index": ((0, size, 1), *resolved["index"])},
    "blend_with": lambda static, resolved, size: {**resolved, "index": ((0, size, 1), *resolved["index"])},
    "tile": lambda static, resolved, size: {"reps": (1, *resolved["reps"])},
    "diagonal": lambda static, resolved, size: {name: d + 1 for name, d in resolved.items()},
    "on_diagonal": lambda static, resolved, size: {name: d + 1 for name, d in resolved.items()},
}


def _shifted(name: str, static: Static, resolved: Static, size: int) -> Static | None:
    if name in SHIFTS:
        return SHIFTS[name](static, resolved, size)
    axis = None if name in OTHERWISE else resolved.get("axis")
    if isinstance(axis, int) and axis >= 0:
        return {**resolved, "axis": axis + 1}
    if isinstance(axis, tuple) and all(isinstance(d, int) and d >= 0 for d in axis):
        return {**resolved, "axis": tuple(d + 1 for d in axis)}
    return None


def _is_own_form(
    operation: Operation, form: Form, shapes: list[tuple[int, ...]], flags: Flags, shifted: Static
) -> bool:
    """True if the rule of the call with these static arguments is the derived one."""
    try:
        resolved = operation.prepare(*shapes, **shifted) if operation.prepare else shifted
        own = _form(operation, shapes, resolved)
    except (ValueError, TypeError, IndexError):
        return False
    (first, sizes), (second, others) = _renamed(own), _renamed(leading(form, flags))
    return bool(first == second) and all(sizes[f] == others[f] for f in sizes.keys() & others.keys())


def _renamed(form: Form) -> Any:
    """A rule with its factors numbered as they appear, the same for rules that differ in names only; and the sizes of
    these that it tells."""
    rule = parse(form.text)
    number: dict[str, int] = {}
    terms = [
        tuple(tuple(number.setdefault(f, len(number)) for f in dim.factors) for dim in dims)
        for dims in (*rule.inputs, rule.output)
    ]
    resized = {number[f]: n for f, (n, _) in form.resize.items() if f in number}
    sizes = {number[f]: n for f, n in form.sizes.items() if f in number}
    return (terms, {number[f] for f in rule.whole}, resized), sizes


# 3. One example after another


def leading(form: Form, flags: Flags) -> Form:
    """The derived rule: a new factor leads the output and the operands that are batches."""
    ins, _, out = form.text.partition("->")
    name = "b"
    while name in form.text:
        name += "_"
    terms = [f"{name} {term}" if flag else term for term, flag in zip(ins.split(","), flags)]
    return Form(f"{', '.join(terms)} -> {name} {out}", form.sizes, form.resize)


@lru_cache(maxsize=1024)
def one_by_one(operation: Operation, flags: Flags) -> Operation:
    """The operation on batches, whose body runs the operation's own for each example."""

    def one(shapes: tuple[tuple[int, ...], ...]) -> list[tuple[int, ...]]:
        return [shape[1:] if flag else shape for shape, flag in zip(shapes, flags)]

    def prepare(*shapes: tuple[int, ...], **static: Any) -> Static:
        return operation.prepare(*one(shapes), **static) if operation.prepare else static

    def rule(*shapes: tuple[int, ...], **static: Any) -> Form:
        return leading(_form(operation, one(shapes), static), flags)

    def body(xp: Any, bounds: Bounds, *blocks: Any, **static: Any) -> Any:
        inputs = tuple(pieces[flag:] for pieces, flag in zip(bounds.inputs, flags))
        asked = (Bounds(inputs, bounds.output[1:], bounds.coordinate),) if operation.bounds else ()
        kinds = [getattr(x, "dtype", type(x)) for x in blocks]
        run = body_of(operation, asked, kinds, static, xp)
        count = next(len(x) for x, flag in zip(blocks, flags) if flag)
        if not count:  # what is the dtype of nothing?
            none = [xp.zeros(x.shape[1:], x.dtype) if flag else x for x, flag in zip(blocks, flags)]
            return xp.empty((0, *bounds.shape[1:]), xp.asarray(run(*none)).dtype)
        return xp.stack([run(*(x[i] if flag else x for x, flag in zip(blocks, flags))) for i in range(count)])

    def gradient(i: int, g: Any, out: Any, *operands: Any, **static: Any) -> Any:
        level = Level(out.shape[0], [out])
        up = tuple(level.up(x) if flag else x for x, flag in zip(operands, flags))
        with level.on():
            found = operation.gradient(i, level.up(g), level.up(out), up, static)
        if found is None:
            return None
        return level.down(found) if flags[i] else total(level.down(found), 0)

    made = Operation(body, rule, operation.traits, operation.arrays, True, None, prepare, operation.note)
    made.name = operation.name
    if operation.differentiable:
        made.vjp_each(gradient)
    return made


# Operations with another way of their own, which may decline with None


def _contract(_: Operation, operands: tuple[Any, ...], flags: Flags, size: int, static: Static) -> Any:
    """A new letter for the batch."""
    ins, _, out = static["subscripts"].partition("->")
    new = next(c for c in map(letter, range(10_000)) if c not in static["subscripts"])
    terms = [new + term if flag else term for term, flag in zip(ins.split(","), flags)]
    return contract(*operands, canonical(f"{','.join(terms)}->{new}{out}"))


def _matmul(operation: Operation, operands: tuple[Any, ...], flags: Flags, size: int, static: Static) -> Any:
    """Vectors are contracted: a batch of them would look like a matrix."""
    x, y = (np.ndim(x) - flag for x, flag in zip(operands, flags))
    if min(x, y) > 1 or 0 in (x, y):
        return None
    left, right = "k" if x == 1 else "...mk", "k" if y == 1 else "...kn"
    rest = f"{'...' if x > 1 or y > 1 else ''}{'m' if x > 1 else ''}{'n' if y > 1 else ''}"
    if max(x, y) > 2:
        return None
    terms = [f"b{t}" if flag else t for t, flag in zip((left, right), flags)]
    return einsum(f"{','.join(terms)}->b{rest}".replace("...", ""), *operands)


def _broadcast(operation: Operation, operands: tuple[Any, ...], flags: Flags, size: int, static: Static) -> Any:
    """Dimensions of size 1 stand between the batch and the old ones."""
    [x] = operands
    shape = static["shape"] if isinstance(static["shape"], (tuple, list)) else (static["shape"],)
    more = len(shape) - (x.ndim - 1)
    if more < 0:
        return None
    return broadcast_to(reshape(x, (size, *(1,) * more, *x.shape[1:])) if more else x, (size, *shape))


def _gather(_: Operation, operands: tuple[Any, ...], flags: Flags, size: int, static: Static) -> Any:
    """A batch of arrays is indexed by the number of the example as well; a batch of indices is a larger index."""
    x, *indices = operands
    dims, at = tuple(static["dims"]), static["at"]
    if not any(flags[1:]):
        return gather(operands, dims=tuple(d + 1 for d in dims), at=at + 1)
    example, *full = _by_example(indices, flags[1:], size, x)
    if flags[0]:
        full, dims = [example, *full], (0, *(d + 1 for d in dims))
    return moveaxis(gather((x, *full), dims=dims, at=at), at, 0)


def _scatter(operation: Operation, operands: tuple[Any, ...], flags: Flags, size: int, static: Static) -> Any:
    """The opposites of gather, in the same two ways."""
    x, values = (x if f else broadcast_to(x, (size, *x.shape)) for x, f in zip(operands[:2], flags))
    indices, dims, at = operands[2:], tuple(d + 1 for d in static["dims"]), static["at"]
    more = {name: value for name, value in static.items() if name not in ("dims", "at", "lengths")}
    if not any(flags[2:]):
        return _called(operation, (x, values, *indices), {**more, "dims": dims, "at": at + 1})
    full = (x, moveaxis(values, 0, at), *_by_example(indices, flags[2:], size, x))
    return _called(operation, full, {**more, "dims": (0, *dims), "at": at})


def _by_example(indices: Any, flags: Flags, size: int, like: Array) -> list[Any]:
    """Index arrays with the batch before all of their other dimensions; first the numbers of the examples."""
    most = max(np.ndim(i) - flag for i, flag in zip(indices, flags))
    full = [
        reshape(i, (size, *(1,) * (most + 1 - i.ndim), *i.shape[1:])) if flag else i for i, flag in zip(indices, flags)
    ]
    return [reshape(arange(size, mesh=like.mesh), (size, *(1,) * most)), *full]


SPECIAL: dict[str, Callable[..., Any]] = {
    "contract": _contract,
    "matmul": _matmul,
    "broadcast_to": _broadcast,
    "gather": _gather,
    "accumulate": _scatter,
    "put": _scatter,
    "put_with": _scatter,
}

Batched.apply = staticmethod(apply)

__all__ = ["apply", "derived", "one_by_one"]
