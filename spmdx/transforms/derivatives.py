"""Derivatives in other forms: forwards (jvp, linearize), and all at once (jacrev, jacfwd, hessian)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import wraps
from typing import Any

from spmdx import tree
from spmdx.array import Array
from spmdx.autodiff import one, slope_of, vjp, which
from spmdx.decide import default_mesh
from spmdx.errors import ArgumentError, GradientError
from spmdx.ops.create import eye, zeros_like
from spmdx.ops.place import arrays, asarray
from spmdx.ops.shape import moveaxis, reshape
from spmdx.transforms.again import Draws
from spmdx.transforms.vmap import vmap


def linearize(function: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """The value of ``function(*primals)``, and the linear function of tangents that is its derivative there.

    Returns:
        ``(value, push)``; with ``has_aux``, of a function that returns ``(value, aux)``, ``(value, push, aux)``.

    ``push(*tangents)`` may be called many times, also inside :func:`spmdx.vmap`: it is the vjp of the vjp, so whatever
    has a gradient rule has a forward derivative.
    """
    draws = Draws()
    with draws.first():
        value, _, *aux = vjp(function, *primals, has_aux=has_aux)
    mesh = default_mesh()

    def back(cotangent: Any) -> Any:
        with draws.second():
            pull_back = vjp(function, *primals, has_aux=has_aux)[1]
        return pull_back(cotangent)

    probe = tree.map(lambda x: zeros_like(x) if isinstance(x, Array) else asarray(x, mesh=mesh), value)
    _, pull_back = vjp(back, probe)
    return value, lambda *tangents: pull_back(tangents)[0], *aux


def jvp(function: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False) -> Any:
    """The value of ``function(*primals)`` and its derivative in the direction of ``tangents``, one for each primal.

    Returns:
        ``(value, tangent)``; with ``has_aux``, of a function that returns ``(value, aux)``, ``(value, tangent, aux)``.

    A Hessian times a vector is ``sx.jvp(sx.grad(f), (x,), (v,))[1]``, at the cost of a few gradients.
    """
    if not isinstance(primals, (tuple, list)) or not isinstance(tangents, (tuple, list)):
        raise ArgumentError(
            f"jvp takes tuples of primals and of tangents; got {type(primals).__name__} and {type(tangents).__name__}.",
            "jvp(f, (x,), (of_x,))",
        )
    if len(primals) != len(tangents):
        raise ArgumentError(
            f"jvp got {len(primals)} primals and {len(tangents)} tangents.", "jvp(f, (x, y), (of_x, of_y))"
        )
    value, push, *aux = linearize(function, *primals, has_aux=has_aux)
    leaves, treedef = tree.flatten(tuple(primals))
    given = tree.match(tuple(tangents), treedef, "the tangent")
    slopes = [slope_of(x, t, "tangent") for x, t in zip(arrays(*leaves), given)]
    return value, push(*tree.unflatten(treedef, slopes)), *aux


def jacrev(function: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """The Jacobian function, a row at a time from the outputs back: the gradients of all outputs, batched.

    Args:
        function: of pytrees of real floating arrays, to a pytree of them.
        argnums: which argument or arguments.
        has_aux: the function returns ``(outputs, aux)``, and this one ``(jacobian, aux)``.

    Returns:
        a function whose result has, for every output, the tree of the argument (a tuple of trees for several), each
        of shape output + input. For few outputs and many inputs; :func:`jacfwd` is for the opposite.
    """

    def jacobian(chosen: Callable[..., Any], primals: tuple[Any, ...]) -> Any:
        value, pull_back, *aux = vjp(chosen, *primals, has_aux=has_aux)
        outputs, out_def = tree.flatten(value)
        outputs = arrays(*outputs)

        def rows(i: int, out: Array) -> Any:
            def row(cotangent: Any) -> Any:
                given = [cotangent if k == i else zeros_like(x) for k, x in enumerate(outputs)]
                return pull_back(tree.unflatten(out_def, given))

            found = vmap(row)(_basis(out))
            return tree.map(lambda g: reshape(g, (*out.shape, *g.shape[1:])), found)

        return out_def, [rows(i, out) for i, out in enumerate(outputs)], aux

    return _jacobian(function, argnums, jacobian)


def jacfwd(function: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """The Jacobian function, a column at a time from the inputs on: the same result as :func:`jacrev`."""

    def jacobian(chosen: Callable[..., Any], primals: tuple[Any, ...]) -> Any:
        value, push, *aux = linearize(chosen, *primals, has_aux=has_aux)
        outputs, out_def = tree.flatten(value)
        outputs = arrays(*outputs)
        inputs, in_def = tree.flatten(primals)

        def columns(i: int, x: Array) -> list[Any]:
            def column(tangent: Any) -> Any:
                given = [tangent if k == i else zeros_like(y) for k, y in enumerate(inputs)]
                return push(*tree.unflatten(in_def, given))

            found = tree.leaves(vmap(column)(_basis(x)))
            last = [moveaxis(t, 0, -1) for t in found]
            return [reshape(t, (*out.shape, *x.shape)) for t, out in zip(last, outputs)]

        table = [columns(i, x if isinstance(x, Array) else asarray(x)) for i, x in enumerate(inputs)]
        return out_def, [tree.unflatten(in_def, [row[k] for row in table]) for k in range(len(outputs))], aux

    return _jacobian(function, argnums, jacobian)


def hessian(
    function: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """The matrix of second derivatives, of shape output + input + input: the Jacobian of the Jacobian. With
    ``has_aux`` a pair, as :func:`jacrev`'s."""
    return jacrev(jacrev(function, argnums, has_aux), argnums, has_aux)


def _jacobian(
    function: Callable[..., Any], argnums: int | Sequence[int], jacobian: Callable[..., Any]
) -> Callable[..., Any]:
    @wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        numbers = which(argnums if isinstance(argnums, Hashable) else tuple(argnums), len(args))

        def chosen(*some: Any) -> Any:
            full = list(args)
            for i, x in zip(numbers, some):
                full[i] = x
            return function(*full, **kwargs)

        out_def, found, aux = jacobian(chosen, tuple(args[i] for i in numbers))
        made = tree.unflatten(out_def, [f[0] if one(argnums) else f for f in found])
        return (made, *aux) if aux else made

    return wrapped


def _basis(x: Array) -> Array:
    """All arrays like x with a single 1, along a new first dimension."""
    if x.dtype.kind not in "fV":
        raise GradientError(f"a Jacobian is of real floating arrays; one is {x.spec!r}.", "x.astype(float)")
    made: Array = reshape(eye(x.size, dtype=x.dtype, mesh=x.mesh), (x.size, *x.shape))
    return made


__all__ = ["hessian", "jacfwd", "jacrev", "jvp", "linearize"]
