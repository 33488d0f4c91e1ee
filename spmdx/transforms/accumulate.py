"""Gradients over micro-batches, added where they arise and sent once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from spmdx import tree
from spmdx.array import Array
from spmdx.autodiff import PullBack, one_like, vjp
from spmdx.errors import ArgumentError
from spmdx.ops.elementwise import add, multiply


def accumulate(function: Callable[..., Any]) -> Callable[[Any, Iterable[Any]], tuple[Any, Any]]:
    """A function ``(params, batches) -> (value, gradients)``: means over micro-batches of a loss and its gradient.

    Args:
        function: ``function(params, *batch)`` returns a real scalar.

    The result takes, as ``batches``, an iterable of tuples of further arguments (or of one argument each), and one
    micro-batch is in memory at a time. Gradients stay as they arise, such as ``Partial("sum")`` over the ranks that
    share the batch, while they are added up; they go home after the last, in as many messages as one batch needs. (A
    plan that gathers parameters block by block sends theirs home block by block, in each micro-batch.)

    Raises:
        ArgumentError: no batches.
        GradientError: a value that is no real scalar.
    """

    def accumulated(params: Any, batches: Iterable[Any]) -> tuple[Any, Any]:
        value, grads, last, count = None, None, None, 0
        for batch in batches:
            args = batch if isinstance(batch, tuple) else (batch,)
            found, last = vjp(lambda p, args=args: function(p, *args), params)
            arisen = last.apart(one_like(found)) if isinstance(last, PullBack) else tree.leaves(last(one_like(found)))
            value = found if value is None else add(value, found)
            grads = arisen if grads is None else [_sum(a, b) for a, b in zip(grads, arisen)]
            count += 1
        if grads is None or last is None:
            raise ArgumentError("accumulate got no batches.", "accumulate(loss)(params, [(x, y), ...])")
        whole = last.at_home(grads) if isinstance(last, PullBack) else (tree.unflatten(tree.flatten(params)[1], grads),)
        share = 1.0 / count
        return multiply(value, share), tree.map(lambda g: multiply(g, share), whole[0])

    return accumulated


def _sum(a: Array | None, b: Array | None) -> Any:
    return b if a is None else a if b is None else add(a, b)


__all__ = ["accumulate"]
