"""Functions with a gradient of their own."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from spmdx import context, tree
from spmdx.array import Array
from spmdx.autodiff import a_function
from spmdx.errors import GradientError
from spmdx.ops.create import zeros_like
from spmdx.ops.fit import fit
from spmdx.ops.place import asarray
from spmdx.tape import Watched, now
from spmdx.transforms.batched import innermost, sources, watched
from spmdx.transforms.bundle import bundled

_inside: ContextVar[tuple[Any, ...]] = ContextVar("spmdx.custom", default=())  # the functions whose forward runs


def _filled(given: list[Any], outputs: list[Any]) -> list[Any]:
    return [zeros_like(out) if g is None and isinstance(out, Array) else g for g, out in zip(given, outputs)]


class custom_vjp:  # noqa: N801  # JAX's name, used as a function
    """A function with a gradient of its own, as JAX's: ``f.defvjp(forward, backward)``.

    ``forward(*args)`` returns ``(value, residuals)``; ``backward(residuals, cotangent)`` returns one gradient (or
    None) for each argument. ``forward`` may call ``f`` itself for the value.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        a_function(function, "sx.custom_vjp(f)")
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
        leaves, state = tree.leaves(args), context.get()
        if not state.depth:
            return self.function(*args)
        start = now()
        if Watched not in set(map(type, leaves)) and not (state.batch and any(map(watched, leaves))):
            value = self.function(*args)
            self._alone(tree.leaves(value), leaves, start)
            return value
        own = self in _inside.get()  # its own forward asks for the value: forward runs again if that has a gradient
        value, residuals = (self.function(*args), None) if own else self._forwarded(args)
        outputs, out_def = tree.flatten(value)
        self._alone(outputs, leaves, start)
        backward = self.backward

        def gradients(g: list[Any]) -> list[Any]:
            kept = self._forwarded(args)[1] if own else residuals
            back = backward(kept, tree.unflatten(out_def, _filled(g, outputs)))
            return _gradients(back, args)

        return tree.unflatten(out_def, bundled(outputs, leaves, "custom_vjp", gradients))

    def _forwarded(self, args: tuple[Any, ...]) -> tuple[Any, Any]:
        """Value and residuals, recorded: a second derivative goes through the residuals."""
        before = _inside.set((*_inside.get(), self))
        try:
            made = self.forward(*args) if self.forward is not None else None
        finally:
            _inside.reset(before)
        if not isinstance(made, tuple) or len(made) != 2:
            raise GradientError(f"a custom_vjp's forward gave {type(made).__name__}.", "return value, residuals")
        return made

    def _alone(self, outputs: list[Any], leaves: list[Any], start: int) -> None:
        """Raise for outputs that depend on a watched array which is no argument: backward speaks of no other."""
        own = set(map(id, leaves))
        if all(type(x) is Array or (type(x) is Watched and own.issuperset(map(id, x.inputs))) for x in outputs):
            return  # a body of one operation, as those of layers are
        found = sources(outputs, start)
        if not {id(x) for x in found} <= {id(innermost(x)) for x in leaves}:
            raise GradientError(
                f"custom_vjp {getattr(self.function, '__name__', '')} depends on an array with a gradient that is "
                "none of its arguments: it closes over it, or gets it in an object that is no pytree.",
                "an argument for it, and a gradient in what backward returns; or stop_gradient(x)",
            )


def _gradients(back: Any, args: tuple[Any, ...]) -> list[Any]:
    """What a backward function gave, one gradient for each leaf of the arguments; None for none."""
    if not isinstance(back, (tuple, list)) or len(back) != len(args):
        got = f"{len(back)} gradients" if isinstance(back, (tuple, list)) else type(back).__name__
        raise GradientError(
            f"a custom_vjp's backward gave {got} for {len(args)} arguments.",
            "a tuple with one gradient, or None, for each argument",
        )
    found: list[Any] = []
    for arg, of_arg in zip(args, back):
        leaves, treedef = ([arg], None) if isinstance(arg, Array) else tree.flatten(arg)
        if of_arg is None:
            found += [None] * len(leaves)
        else:
            given = [of_arg] if treedef is None else tree.match(of_arg, treedef, "what a custom_vjp's backward gave")
            found += [_slope(x, g) for x, g in zip(leaves, given)]
    return found


def _slope(x: Any, g: Any) -> Any:
    if not isinstance(x, Array):
        return None
    g = g if isinstance(g, Array) else asarray(g, mesh=x.mesh)
    if g.shape != x.shape:
        raise GradientError(
            f"a custom_vjp's backward gave shape {g.shape} for an argument of {x.shape}.",
            "a gradient of the argument's shape: sums over what was broadcast",
        )
    return fit(g, x)


__all__ = ["custom_vjp"]
