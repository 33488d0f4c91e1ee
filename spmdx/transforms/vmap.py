"""vmap: a function of one example, made one of a batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from operator import index
from typing import Any

from spmdx import tree
from spmdx.array import Array
from spmdx.autodiff import a_function
from spmdx.errors import ArgumentError, AxisError, ShapeError
from spmdx.ops.place import asarray
from spmdx.ops.shape import moveaxis
from spmdx.transforms import batching as _batching  # noqa: F401  # attaches what operations do with batches
from spmdx.transforms.batched import Level

Axes = Any  # an int, None, or a container of these


def vmap(
    function: Callable[..., Any], in_axes: Axes = 0, out_axes: Axes = 0, axis_size: int | None = None
) -> Callable[..., Any]:
    """``function``, of one example, made a function of a batch of them: every operation runs once, on the whole batch.

    Args:
        function: a function of pytrees of arrays. Inside, an array looks as one example does: its shape has no batch.
        in_axes: for each argument the dimension along which its arrays are batches, or None for what all examples
            share; one for all arguments, or a tuple of one for each, in which a tuple, list or dict speaks of an
            argument's parts.
        out_axes: where the batch stands in the results; None for a result that is the same for all examples.
        axis_size: how many examples there are; it may be left out where an argument is a batch, which tells.

    Returns:
        a function of positional arguments. It equals ``sx.stack`` of the function over the examples, up to rounding.

    The batch may be divided over ranks as any dimension, and stays so. Random values are the same for every example
    (draw them outside, with the batch's shape). Composes with itself, ``grad``, ``jvp`` and ``remat``, in any order.

    Raises:
        ShapeError: batches of different lengths.
        BatchError: what asks for an array's elements, as ``if x > 0:`` does.
    """

    a_function(function, "sx.vmap(f)(xs)")
    asked = None if axis_size is None else _size(axis_size)

    @wraps(function)
    def batched(*args: Any) -> Any:
        leaves, treedef = tree.flatten(args)
        axes = _spread(in_axes if isinstance(in_axes, (tuple, list)) else (in_axes,) * len(args), args, "in_axes")
        arrays = [x if axis is None else x if isinstance(x, Array) else asarray(x) for x, axis in zip(leaves, axes)]
        lengths = {x.shape[_checked(axis, x)] for x, axis in zip(arrays, axes) if axis is not None}
        if asked is not None:
            lengths.add(asked)
        if len(lengths) != 1:
            found = f"batches of lengths {', '.join(map(str, sorted(lengths)))}" if lengths else "no batch"
            found = found if asked is None else f"{found}, with axis_size={asked}"
            raise ShapeError(
                f"vmap needs one length for all batches; it got {found}.",
                "in_axes=(0, None) for shared, or axis_size=3 where nothing is a batch",
            )
        arrays = [x if axis is None else moveaxis(x, axis, 0) for x, axis in zip(arrays, axes)]
        level = Level(lengths.pop(), [x for x, axis in zip(arrays, axes) if axis is not None])
        examples = [x if axis is None else level.up(x) for x, axis in zip(arrays, axes)]
        with level.on():
            result = function(*tree.unflatten(treedef, examples))
            outputs, out_def = tree.flatten(result)
            places = _spread(out_axes, result, "out_axes")
            return tree.unflatten(out_def, [_out(level, x, axis) for x, axis in zip(outputs, places)])

    return batched


def _size(given: Any) -> int:
    """A number of examples."""
    try:
        size = index(given)
    except TypeError:
        size = -1
    if size < 0:
        raise ArgumentError(f"vmap of axis_size={given!r} examples.", "axis_size=3")
    return size


def _checked(axis: int, x: Array) -> int:
    if not -x.ndim <= axis < x.ndim:
        raise AxisError(f"vmap over axis {axis} of an array of shape {x.shape}.", "in_axes=None for what has no batch")
    return axis


def _out(level: Level, x: Any, axis: int | None) -> Any:
    if axis is None:
        if level.within(x):
            raise ArgumentError(
                f"out_axes=None is for a result that is the same for all examples; {x!r} is not.", "out_axes=0"
            )
        return x
    whole = level.down(x if isinstance(x, Array) else asarray(x))
    return whole if axis == 0 else moveaxis(whole, 0, axis)


def _spread(axes: Axes, value: Any, what: str) -> list[int | None]:
    """One entry for every leaf of ``value``, of a tree that may stop earlier."""
    if axes is None or isinstance(axes, int):
        return [axes] * len(tree.leaves(value))
    parts = tree.parts(value)  # in the order of the leaves, which is not the same for every kind of dict
    if parts is not None and isinstance(axes, (tuple, list)) and isinstance(value, (tuple, list)):
        if len(axes) == len(parts):
            return [found for a, part in zip(axes, parts.values()) for found in _spread(a, part, what)]
    elif parts is not None and isinstance(axes, dict) and isinstance(value, dict) and axes.keys() == parts.keys():
        return [found for key, part in parts.items() for found in _spread(axes[key], part, what)]
    raise ArgumentError(
        f"{what}={axes!r} does not fit {type(value).__name__} of {len(tree.leaves(value))} arrays.",
        f"{what}=0, or one entry (a number or None) for each part",
    )


__all__ = ["vmap"]
