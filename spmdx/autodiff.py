"""Gradients: walk the records backwards. Gradient rules are ordinary operation calls, so nothing here knows sharding.

Transforms follow JAX: pure functions of pytrees. Recording is on inside them; the outermost walk backwards is not
recorded itself, inner ones are, which is what gradients of gradients need.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, wraps
from heapq import heappop, heappush
from operator import index
from typing import Any

import numpy as np

from spmdx import context, tree
from spmdx.array import Array
from spmdx.errors import ArgumentError, GradientError, ShapeError
from spmdx.move import progress
from spmdx.op import call, registry
from spmdx.ops.create import full, zeros_like
from spmdx.ops.elementwise import add
from spmdx.ops.place import asarray, moved_arrays
from spmdx.ops.transfer import brought
from spmdx.plan import plan
from spmdx.spec import Spec
from spmdx.tape import Bundle, Rule, Watched, plain
from spmdx.transforms.batched import Level, level_of, watched


def watch(x: Array) -> Watched:
    """A fresh leaf with the value of ``x``; recorded as coming from x if x itself is watched."""
    if type(x) is Watched:
        return Watched(x._block, x.spec, registry["alias"], (x,), {})
    return Watched(x._block, x.spec, None, (), {})


def pull(outputs: Sequence[Any], cotangents: Sequence[Any], leaves: Sequence[Watched]) -> list[Array | None]:
    """The gradients of the leaves, given those of the outputs; None for a leaf that no output depends on."""
    held: dict[int, Any] = {}  # cotangents, by the place of their node in the order of making
    own: set[int] = set()  # those that an operation with `onto` has made, and nothing else has
    nodes: dict[int, Any] = {}
    queue: list[int] = []  # places, negated: the latest first
    wanted = {leaf.order for leaf in leaves}
    oldest = min(wanted, default=0)

    def give(node: Any, g: Any) -> None:
        order = node.order
        before = held.get(order)
        if before is None:
            held[order] = g
            if order not in wanted:
                nodes[order] = node
                heappush(queue, -order)
        elif type(node) is Bundle:
            held[order] = [a if b is None else b if a is None else add(a, b) for a, b in zip(before, g)]
        else:
            same = before.spec.mesh is g.spec.mesh
            held[order] = add(before, g) if same else add(*brought([before, g], [node.spec.mesh] * 2))

    for out, g in zip(outputs, cotangents):
        if type(out) is Watched and out.order >= oldest and g is not None:
            give(out, g)
    while queue:
        progress()
        order = -heappop(queue)
        node, g = nodes.pop(order), held.pop(order)
        rule = node.rule
        if rule is None:
            continue
        if type(node) is Watched and g.spec.mesh is not node.spec.mesh and not _constants(node.inputs):
            [g] = brought([g], [node.spec.mesh])
        for i, x in enumerate(node.inputs):
            kind = type(x)
            if ((kind is Watched and x.spec.dtype.kind in "fcV") or kind is Bundle) and x.order >= oldest:
                if not rule.differentiable and rule.name not in ("alias", "pick"):
                    raise GradientError(
                        f"{rule.name} has no gradient.",
                        f"stop_gradient(x) around its operand {i}, or a custom_vjp",
                    )
                onto = rule.onto
                if onto is not None and x.order in own and onto(held[x.order], i, g, *node.inputs, **node.static):
                    continue
                found = rule.gradient(i, g, node, node.inputs, node.static)
                if found is not None:
                    give(x, found)
                    if onto is not None and held[x.order] is found:
                        own.add(x.order)
    return [held.get(leaf.order) for leaf in leaves]


def _constants(inputs: Sequence[Any]) -> bool:
    """True if all are constants on any mesh of their ranks: their gradients may go on where they are."""
    return not any(isinstance(x, Bundle) or (isinstance(x, Array) and not x.spec.replicated) for x in inputs)


def _run(
    function: Callable[..., Any], leaves: list[Any], treedef: tree.TreeDef, tell: Callable[[Any], None] | None = None
) -> tuple[Any, list[Watched]]:
    """Run a function of a tuple of arguments with its leaves watched, of which somebody may be told."""
    watched = [watch(x) for x in leaves]
    if tell is not None:
        tell(watched)
    args = tree.unflatten(treedef, list(watched))
    with context.use(depth=context.get().depth + 1):
        return function(*args), watched


class PullBack:
    """From cotangents of a function's value to the gradients of its primals: all the way, or in two steps. ``nested``:
    inside another gradient, where a running plan has no say."""

    def __init__(self, value: Any, watched: Any, leaves: list[Array], treedef: tree.TreeDef, nested: bool) -> None:
        self.outputs, self.out_def = tree.flatten(value)
        self.watched, self.leaves, self.treedef, self.nested = watched, leaves, treedef, nested

    def __call__(self, cotangents: Any) -> Any:
        """The gradients, each at home: in the placement of its primal."""
        return self.at_home(self.apart(cotangents))

    def apart(self, cotangents: Any) -> list[Array | None]:
        """The gradients of the leaves where they arose, such as Partial; None for those that nothing depends on."""
        given = tree.match(cotangents, self.out_def, "the cotangent")
        for out, g in zip(self.outputs, given):
            if isinstance(out, Array) and (g.shape if isinstance(g, Array) else np.shape(g)) != out.shape:
                raise ShapeError(
                    f"a cotangent of shape {tuple(np.shape(g))} is given for an output of shape {out.shape}.",
                    "one cotangent of the same shape for every output",
                )
        return pull(self.outputs, given, self.watched)

    def at_home(self, found: list[Array | None]) -> Any:
        """These gradients, or sums of such, brought home in as few messages as they need."""
        places = [home(x.spec) for x in self.leaves]
        running = context.get().plan
        if running is not None and not self.nested:
            places = running.homes(lambda: [p.partition(".")[2] for p in tree.paths_of(self.treedef)], places)
            running.end()
        return tree.unflatten(self.treedef, _at_home(found, self.leaves, places))


def vjp(function: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """The value of ``function(*primals)`` and the function that takes cotangents of it to gradients of the primals.

    Returns:
        ``(value, pull_back)``, or ``(value, pull_back, aux)``; ``pull_back(cotangents)`` gives a tuple of gradients,
        each with the placement of its primal (Replicate where that is Partial).
    """
    if context.get().batch:
        return _of_each_example(context.get().batch[-1], function, primals, has_aux)
    leaves, treedef = tree.flatten(primals)
    leaves = [_checked(x) for x in leaves]
    nested, running = context.get().depth > 0, context.get().plan
    result, watched = _run(function, leaves, treedef, None if nested or running is None else running.begin)
    value, aux = result if has_aux else (result, None)
    pull_back = PullBack(value, watched, leaves, treedef, nested)
    value = value if nested else plain(value) if isinstance(value, Array) else tree.map(plain, value)
    return (value, pull_back, aux if nested else tree.map(plain, aux)) if has_aux else (value, pull_back)


def _of_each_example(level: Level, function: Callable[..., Any], primals: tuple[Any, ...], has_aux: bool) -> Any:
    """vjp inside vmap: that of the whole batch, with respect to primals of which every example has its own."""
    with level.off():
        whole = tree.map(lambda x: level.down(_checked(x)), primals)
        value, pull_whole, *aux = vjp(level.lowered(function), *whole, has_aux=has_aux)
    value, aux = tree.map(level.up, (value, aux))

    def pull_back(cotangents: Any) -> Any:
        with level.off():
            found = pull_whole(tree.map(level.down, cotangents))
        return tree.map(level.up, found)

    return value, pull_back, *aux


def value_and_grad(
    function: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """A function that gives ``function``'s value (a real scalar) and its gradient with respect to some arguments.

    Args:
        function: a pure function of pytrees that returns a 0-d real array, or ``(array, aux)`` with ``has_aux``.
        argnums: which positional argument or arguments to differentiate.

    Each gradient has the placement of the value that it belongs to: an all-reduce brings it to a replicated one, a
    reduce-scatter to a sharded one, all of one kind in one message.

    Raises:
        GradientError: the value is not a real scalar, or a leaf is not of a floating dtype.
    """

    @wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        numbers = which(argnums, len(args))

        def chosen(*some: Any) -> Any:
            full_args = list(args)
            for i, x in zip(numbers, some):
                full_args[i] = x
            return function(*full_args, **kwargs)

        result = vjp(chosen, *(args[i] for i in numbers), has_aux=has_aux)
        value, pull_back = result[:2]
        scalar(value)
        grads = pull_back(one_like(value))
        grads = grads[0] if one(argnums) else grads
        return ((value, result[2]) if has_aux else value), grads

    return wrapped


def one(argnums: Any) -> bool:
    """Whether this is a number, not a sequence of them."""
    return hasattr(argnums, "__index__")


def which(argnums: int | Sequence[int], count: int) -> tuple[int, ...]:
    """The numbers of the arguments that ``argnums`` names, of a call that has so many."""
    try:
        numbers = tuple(map(index, [argnums] if one(argnums) else argnums))  # type: ignore[arg-type]
    except TypeError:
        raise ArgumentError(f"argnums={argnums!r} names no arguments.", "argnums=0, or (0, 2)") from None
    for i in numbers:
        if not -count <= i < count:
            raise ArgumentError(f"argnums={argnums} needs argument {i}; there are {count}.", f"argnums below {count}")
    return tuple(i % count for i in numbers)


def grad(function: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """The gradient function of ``function``: as :func:`value_and_grad`, without the value."""
    both = value_and_grad(function, argnums, has_aux)

    @wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        value, grads = both(*args, **kwargs)
        return (grads, value[1]) if has_aux else grads

    return wrapped


def stop_gradient(x: Any) -> Any:
    """The same value, as a constant for every gradient around it. Pytrees."""
    return tree.map(plain, x)


def scalar(value: Any) -> None:
    """Raise a GradientError for a value that is no loss."""
    if not isinstance(value, Array) or value.shape != () or value.dtype.kind not in "fV":
        shown = f"a {value.dtype.name} array of shape {value.shape}" if isinstance(value, Array) else repr(type(value))
        raise GradientError(f"grad needs a function with a real scalar value; this one gave {shown}.", "loss.sum()")


def one_like(value: Array) -> Array:
    if type(value) in (Array, Watched) and type(value._block) is np.ndarray:
        return _one(home(value.spec))
    return full((), 1, dtype=value.dtype, mesh=value.mesh)


@lru_cache(maxsize=256)
def _one(spec: Spec) -> Array:
    return Array(np.ones((), spec.dtype), spec)


def _checked(leaf: Any) -> Array:
    x: Array = leaf if isinstance(leaf, Array) else asarray(leaf)
    if x.dtype.kind not in "fcV":
        raise GradientError(
            f"a gradient needs floating-point leaves; one is {x.spec!r}.",
            "argnums for the arguments that have gradients, or x.astype(float)",
        )
    return x


@lru_cache(maxsize=4096)
def home(spec: Spec) -> Spec:
    """Where the gradient of a value lies: as the value, Replicate where it is Partial."""
    return spec.replace(partial=()) if spec.partial else spec


def _at_home(found: list[Array | None], leaves: Sequence[Array], places: Sequence[Spec]) -> list[Array]:
    """Gradients moved to their places, in as few messages as they need."""
    if all(g is not None and g.spec is place for g, place in zip(found, places)):
        return found  # type: ignore[return-value]  # none is None
    grads = [zeros_like(x) if g is None else g for g, x in zip(found, leaves)]
    grads = brought(grads, [p.mesh for p in places])
    targets = [place.replace(dtype=g.dtype) for g, place in zip(grads, places)]
    return moved_arrays(
        grads, targets, [plan(g.spec, t) for g, t in zip(grads, targets)], "grad", implied=False, wait=False
    )


class _Rule(Rule):
    """The gradient rule of a bundle: what stands in for an operation where several outputs are recorded at once."""

    def __init__(self, name: str, gradients: Callable[[Any], list[Any]]) -> None:
        self.name, self.gradients = name, gradients
        self._last: tuple[Any, list[Any]] | None = None

    def gradient(self, i: int, g: Any, out: Any, inputs: tuple[Any, ...], static: Any) -> Any:
        if self._last is None or self._last[0] is not g:
            self._last = g, self.gradients(g)
        found = self._last[1][i]
        if i == len(inputs) - 1:
            self._last = None
        return found


class _Pick(Rule):
    """The rule of one output of a bundle: its cotangent is one entry of the bundle's list."""

    name = "pick"

    def __init__(self, i: int, n: int) -> None:
        self.i, self.n = i, n

    def gradient(self, _: int, g: Any, out: Any, inputs: Any, static: Any) -> Any:
        return [g if k == self.i else None for k in range(self.n)]


def bundled(outputs: Sequence[Any], inputs: list[Any], name: str, gradients: Callable[[Any], list[Any]]) -> list[Any]:
    """Arrays recorded as the outputs of one rule with these inputs."""
    if not any(type(x) is Watched for x in inputs) or not context.get().depth:
        return [plain(x) for x in outputs]
    bundle, n = Bundle(_Rule(name, gradients), tuple(inputs), {}), len(outputs)
    return [
        Watched(x._block, x.spec, _Pick(i, n), (bundle,), {}) if isinstance(x, Array) else x
        for i, x in enumerate(outputs)
    ]


def _filled(given: list[Any], outputs: list[Any]) -> list[Any]:
    return [zeros_like(out) if g is None and isinstance(out, Array) else g for g, out in zip(given, outputs)]


class custom_vjp:  # noqa: N801  # JAX's name, used as a function
    """A function with a gradient of its own, as JAX's: ``f.defvjp(forward, backward)``.

    ``forward(*args)`` returns ``(value, residuals)``; ``backward(residuals, cotangent)`` returns one gradient (or
    None) for each argument.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.forward: Callable[..., Any] | None = None
        self.backward: Callable[..., Any] | None = None
        self.__doc__ = function.__doc__

    def defvjp(self, forward: Callable[..., Any], backward: Callable[..., Any]) -> None:
        """Name the functions that compute value and residuals, and the gradients."""
        self.forward, self.backward = forward, backward

    def __call__(self, *args: Any) -> Any:
        if self.forward is None or self.backward is None:
            raise GradientError(
                f"custom_vjp {getattr(self.function, '__name__', '')} has no gradient yet.",
                "f.defvjp(forward, backward)",
            )
        leaves = tree.leaves(args)
        if not context.get().depth or not any(map(watched, leaves)):
            return self.function(*args)
        forward, backward = self.forward, self.backward
        level = level_of(leaves)
        if level is not None:
            with level.off():
                whole = custom_vjp(level.lowered(self.function))
                whole.defvjp(level.lowered(forward), level.lowered(backward))
                return tree.map(level.up, whole(*tree.map(level.down, args)))
        made = forward(*args)  # recorded: a second derivative goes through the residuals
        if not isinstance(made, tuple) or len(made) != 2:
            raise GradientError(f"a custom_vjp's forward gave {type(made).__name__}.", "return value, residuals")
        value, residuals = made
        outputs, out_def = tree.flatten(value)

        def gradients(g: list[Any]) -> list[Any]:
            back = backward(residuals, tree.unflatten(out_def, _filled(g, outputs)))
            found: list[Any] = []
            for arg, of_arg in zip(args, back if isinstance(back, (tuple, list)) else ()):
                if of_arg is None:
                    found += [None] * len(tree.leaves(arg))
                else:
                    found += [of_arg] if isinstance(of_arg, Array) else tree.leaves(of_arg)
            for slope, x in zip(found, leaves):
                shape = getattr(x, "shape", ())
                if isinstance(slope, Array) and slope.shape != shape:
                    raise GradientError(
                        f"a custom_vjp's backward gave shape {slope.shape} for an argument of {shape}.",
                        "a gradient of the argument's shape: sums over what was broadcast",
                    )
            if len(found) != len(leaves):
                raise GradientError(
                    f"a custom_vjp's backward gave {len(found)} gradients for {len(leaves)} arrays of its arguments.",
                    "a tuple with one gradient, or None, for each argument",
                )
            return found

        return tree.unflatten(out_def, bundled(outputs, leaves, "custom_vjp", gradients))


__all__ = ["call", "custom_vjp", "grad", "stop_gradient", "value_and_grad", "vjp"]
