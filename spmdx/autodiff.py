"""Gradients: walk the records backwards. Gradient rules are ordinary operation calls, so nothing here knows sharding.

Transforms follow JAX: pure functions of pytrees. Recording is on inside them; the outermost walk backwards is not
recorded itself, inner ones are, which is what gradients of gradients need.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache, wraps
from operator import index
from typing import Any

import numpy as np

from spmdx import context, tree
from spmdx.array import Array
from spmdx.errors import ArgumentError, BatchError, GradientError, ShapeError
from spmdx.later import arrive
from spmdx.op import Operation, call, registry
from spmdx.ops.create import full
from spmdx.ops.elementwise import add
from spmdx.ops.place import asarray
from spmdx.ops.transfer import brought
from spmdx.runtime import kernels
from spmdx.spec import Spec
from spmdx.tape import Bundle, Watched, plain
from spmdx.transforms.batched import Level, level_of
from spmdx.transforms.homeward import Homeward, home


def pull(
    outputs: Sequence[Any], cotangents: Sequence[Any], leaves: Sequence[Watched], done: Any = None
) -> list[Array | None]:
    """The gradients of the leaves, given those of the outputs; None for a leaf that no output depends on, and for those
    that ``done(k, g)`` was told of, because nothing was to be added to them any more. The compiled module walks the
    records, the latest first; the rest of this page is what it asks on its way."""
    if level_of(outputs) is not None:
        raise BatchError(
            "a gradient is asked of what depends on an example of a vmap that has ended: it left the mapped function "
            "otherwise than as its result.",
            "what is wanted outside into the result, a pytree of arrays",
        )
    return kernels.walk(outputs, cotangents, leaves, done)  # type: ignore[no-any-return]


def _joined(node: Any, before: Any, g: Any) -> Any:
    """The sum of two cotangents of a node."""
    if type(node) is Bundle:
        return [a if b is None else b if a is None else add(a, b) for a, b in zip(before, g)]
    return add(before, g) if before.spec.mesh is g.spec.mesh else add(*brought([before, g], [node.spec.mesh] * 2))


def _settled(node: Watched, g: Array) -> Array:
    """The cotangent on the mesh of its node, unless all that it goes on to are constants."""
    return g if _constants(node.inputs) else brought([g], [node.spec.mesh])[0]


def _gradient(node: Any, i: int, g: Any) -> Any:
    """The gradient with respect to the operand ``i`` of a node."""
    rule = node.rule
    if not rule.differentiable and rule.name not in ("alias", "pick"):
        raise GradientError(
            f"{rule.name} has no gradient.", f"stop_gradient(x) around its operand {i}, or a custom_vjp"
        )
    found = rule.gradient(i, g, node, node.inputs, node.static)
    if found is not None and not isinstance(found, Array) and not isinstance(node.inputs[i], Bundle):
        raise GradientError(
            f"the gradient rule of {rule.name} gave {type(found).__name__} for operand {i}.",
            "a rule that returns an Array, such as sx.zeros_like(x), or None",
        )
    return found


kernels.tell_walk(Bundle, Operation, _joined, _settled, _gradient)
kernels.tell_recording(registry["alias"], context.State)
context.on_forget(kernels.forget_rules)


def _constants(inputs: Sequence[Any]) -> bool:
    """True if all are constants on any mesh of their ranks: their gradients may go on where they are."""
    return not any(isinstance(x, Bundle) or (isinstance(x, Array) and not x.spec.replicated) for x in inputs)


class PullBack:
    """From cotangents of a function's value to the gradients of its primals: all the way, or in two steps. ``nested``:
    inside another gradient, where a running plan has no say."""

    __slots__ = ("leaves", "nested", "out_def", "outputs", "treedef", "watched")

    def __init__(self, watched: list[Watched], leaves: list[Array], treedef: tree.TreeDef | None, nested: bool) -> None:
        self.watched, self.leaves, self.treedef, self.nested = watched, leaves, treedef, nested
        self.outputs: list[Any] = []
        self.out_def: Any = None

    def of(self, value: Any) -> Any:
        """What takes cotangents of ``value``."""
        self.outputs, self.out_def = tree.flatten(value)
        return self

    def __call__(self, cotangents: Any) -> Any:
        """The gradients, each at home: in the placement of its primal."""
        return self.pulled(self.outputs, self._given(cotangents))

    def apart(self, cotangents: Any) -> list[Array | None]:
        """The gradients of the leaves where they arose, such as Partial; None for those that nothing depends on."""
        return pull(self.outputs, self._given(cotangents), self.watched)

    def _given(self, cotangents: Any) -> list[Any]:
        given = tree.match(cotangents, self.out_def, "the cotangent")
        return [slope_of(x, g, "cotangent") for x, g in zip(self.outputs, given)]

    def let_go(self) -> None:
        """Drop the records, and with them the memory of what was computed: only `at_home` is still to come."""
        self.outputs, self.watched = [], []

    def pulled(self, outputs: list[Any], cotangents: list[Any]) -> Any:
        """The gradients from these cotangents; under a plan they may go home while others are still to come."""
        running = context.get().plan
        if running is None or self.nested:
            return self.at_home(pull(outputs, cotangents, self.watched))
        way = self._homeward(running)
        return self._arrived(way, pull(outputs, cotangents, self.watched, way.take if way.fills() else None))

    def at_home(self, found: list[Array | None]) -> Any:
        """These gradients, or sums of such, brought home in as few messages as they need."""
        running = context.get().plan
        if running is not None and not self.nested:
            return self._arrived(self._homeward(running), found)
        for g, x in zip(found, self.leaves):
            if g is None or g.spec is not x.spec or g.spec.partial:
                return self.rebuilt(Homeward(self.leaves, [home(x.spec) for x in self.leaves]).all(found))
        return self.rebuilt(found)

    def _homeward(self, running: Any) -> Homeward:
        places = running.homes(self._paths, [home(x.spec) for x in self.leaves])
        return Homeward(self.leaves, places, running.bucket)

    def _paths(self) -> list[str]:
        return [path.partition(".")[2] for path in tree.paths_of(self.structure())]

    def _arrived(self, way: Homeward, found: list[Array | None]) -> Any:
        context.get().plan.end()
        return self.rebuilt(way.all(found))

    def structure(self) -> tree.TreeDef:
        """The primals' containers."""
        return tree.flatten(tuple(self.leaves))[1] if self.treedef is None else self.treedef

    def rebuilt(self, leaves: list[Any]) -> Any:
        """The primals' containers, with these in their places."""
        return tuple(leaves) if self.treedef is None else tree.unflatten(self.treedef, leaves)


def _recorded(function: Callable[..., Any], primals: tuple[Any, ...]) -> tuple[Any, PullBack]:
    """What a function of these arguments returns, whose leaves are watched, and what takes gradients back to them."""
    state = context.get()
    nested, running = state.depth > 0, state.plan
    leaves, treedef = _flat(primals) if running is None else tree.flatten(primals)
    watched = kernels.watch(leaves)
    if watched is None:
        leaves = [_checked(x) for x in leaves]
        arrive(leaves)
        watched = kernels.watch(leaves)
    pull_back = PullBack(watched, leaves, treedef, nested)
    if running is not None and not nested:
        running.begin(watched, pull_back.structure())
    result = kernels.deeper(function, *(watched if treedef is None else tree.unflatten(treedef, watched)))
    return result, pull_back


def _flat(primals: tuple[Any, ...]) -> tuple[list[Any], tree.TreeDef | None]:
    """The leaves of these arguments and their structure; None where they are arrays: each a leaf, and soon told."""
    for x in primals:
        if type(x) is not Array:
            return tree.flatten(primals)
    return list(primals), None


def vjp(function: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """The value of ``function(*primals)`` and the function that takes cotangents of it to gradients of the primals.

    Returns:
        ``(value, pull_back)``, or ``(value, pull_back, aux)``; ``pull_back(cotangents)`` gives a tuple of gradients,
        each with the placement of its primal (Replicate where that is Partial).
    """
    a_function(function, "sx.vjp(f, x)")
    if context.get().batch:
        return _of_each_example(context.get().batch[-1], function, primals, has_aux)
    result, pull_back = _recorded(function, primals)
    if has_aux and not (isinstance(result, tuple) and len(result) == 2):
        raise GradientError(f"has_aux is of a function that returns a pair; got {type(result)!r}.", "return value, aux")
    value, aux = result if has_aux else (result, None)
    pull_back.of(value)
    if not pull_back.nested:
        value, aux = tree.map(plain, value), tree.map(plain, aux)
    return (value, pull_back, aux) if has_aux else (value, pull_back)


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


def a_function(function: Any, example: str) -> None:
    """An error unless this can be called: what a function returns is handed over in its place by mistake."""
    if not callable(function):
        raise ArgumentError(f"a function is needed; got {type(function).__name__}.", example)


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

    a_function(function, "sx.value_and_grad(f)(x), or sx.grad(f)(x)")
    asked = argnums if isinstance(argnums, Hashable) else tuple(argnums)
    single = one(argnums)

    @wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        numbers = which(asked, len(args))

        def chosen(*some: Any) -> Any:
            full_args = list(args)
            for i, x in zip(numbers, some):
                full_args[i] = x
            return function(*full_args, **kwargs)

        primals = tuple(map(args.__getitem__, numbers))
        if has_aux or context.get().batch:
            value, pull_back, *aux = vjp(chosen, *primals, has_aux=has_aux)
            grads = pull_back(one_like(value))
        else:
            value, pull_back = _recorded(chosen, primals)
            grads = pull_back.pulled([value], [one_like(value)])
            value, aux = value if pull_back.nested else plain(value), []
        grads = grads[0] if single else grads
        return ((value, *aux) if has_aux else value), grads

    return wrapped


def one(argnums: Any) -> bool:
    """Whether this is a number, not a sequence of them."""
    return hasattr(argnums, "__index__")


@lru_cache(maxsize=256)
def which(argnums: int | tuple[int, ...], count: int) -> tuple[int, ...]:
    """The numbers of the arguments that ``argnums`` names, of a call that has so many."""
    try:
        numbers = tuple(map(index, [argnums] if one(argnums) else argnums))  # type: ignore[arg-type]
    except TypeError:
        raise ArgumentError(f"argnums={argnums!r} names no arguments.", "argnums=0, or (0, 2)") from None
    for i in numbers:
        if not -count <= i < count:
            raise ArgumentError(f"argnums={argnums} needs argument {i}; there are {count}.", f"argnums below {count}")
    if len({i % count for i in numbers}) < len(numbers):
        raise ArgumentError(f"argnums={argnums} names an argument twice.", "each argument once")
    return tuple(i % count for i in numbers)


def grad(function: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """The gradient function of ``function``: as :func:`value_and_grad`, without the value."""
    both = value_and_grad(function, argnums, has_aux)

    @wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        value, grads = both(*args, **kwargs)
        return (grads, value[1]) if has_aux else grads

    return wrapped


def slope_of(x: Any, g: Any, what: str) -> Any:
    """A cotangent or a tangent of an array, checked; of a number or a NumPy array it is made one."""
    if g is None or not isinstance(x, Array):
        return g
    if not isinstance(g, Array):
        g = asarray(g, mesh=x.mesh)
    if g.shape != x.shape:
        raise ShapeError(
            f"a {what} of shape {g.shape} is given for an array of shape {x.shape}.", f"a {what} of the same shape"
        )
    return g if g.dtype == x.dtype or g.dtype.kind in "fcV" else g.astype(x.dtype)


def stop_gradient(x: Any) -> Any:
    """The same value, as a constant for every gradient around it. Pytrees."""
    return tree.map(plain, x)


def one_like(value: Any) -> Array:
    """The cotangent of a loss: 1. Raises a GradientError for a value that is none."""
    if type(value) in (Array, Watched) and type(value._block) is np.ndarray:
        return _one(value.spec)
    _is_loss(value.spec if isinstance(value, Array) else type(value))
    return full((), 1, dtype=value.dtype, mesh=value.mesh)


@lru_cache(maxsize=256)
def _one(spec: Spec) -> Array:
    _is_loss(spec)
    return Array(np.ones((), spec.dtype), home(spec))


def _is_loss(spec: Any) -> None:
    if not isinstance(spec, Spec) or spec.shape != () or spec.dtype.kind not in "fV":
        shown = f"a {spec.dtype.name} array of shape {spec.shape}" if isinstance(spec, Spec) else repr(spec)
        raise GradientError(f"grad needs a function with a real scalar value; this one gave {shown}.", "loss.sum()")


def _checked(leaf: Any) -> Array:
    x: Array = leaf if isinstance(leaf, Array) else asarray(leaf)
    if x.dtype.kind not in "fcV":
        raise GradientError(
            f"a gradient needs floating-point leaves; one is {x.spec!r}.",
            "argnums for the arguments that have gradients, or x.astype(float)",
        )
    return x


__all__ = ["call", "grad", "stop_gradient", "value_and_grad", "vjp"]
