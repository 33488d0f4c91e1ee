"""Gradients over micro-batches, added where they arise and sent once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

from spmdx import context, tree
from spmdx.array import Array
from spmdx.autodiff import PullBack, a_function, one_like, vjp
from spmdx.errors import ArgumentError
from spmdx.ops.elementwise import add, multiply


def accumulate(function: Callable[..., Any], *, hold: bool = True) -> Callable[[Any, Iterable[Any]], tuple[Any, Any]]:
    """A function ``(params, batches) -> (value, gradients)``: means over micro-batches of a loss and its gradient.

    Args:
        function: ``function(params, *batch)`` returns a real scalar.
        hold: gradients of parameters stay as they arise, such as ``Partial("sum")`` over the ranks that share the
            batch, while they are added up; they go home after the last micro-batch, in as many messages as one batch
            needs. Each rank then holds whole gradients, also under ZeRO-2 and 3. Without it, plans that gather
            parameters block by block send theirs home block by block, in each micro-batch, and hold the rank's part.

    The result takes, as ``batches``, an iterable of tuples of further arguments (or of one argument each), and one
    micro-batch is in memory at a time.

    Raises:
        ArgumentError: no batches.
        GradientError: a value that is no real scalar.
    """

    a_function(function, "sx.accumulate(loss)(params, batches)")

    def accumulated(params: Any, batches: Iterable[Any]) -> tuple[Any, Any]:
        value, grads, last, count = None, None, None, 0
        running = context.get().plan
        if not isinstance(batches, Iterable):
            raise ArgumentError(
                f"batches are an iterable; got {type(batches)!r}.", "accumulate(loss)(params, [(x, y)])"
            )
        for batch in batches:
            args = batch if isinstance(batch, tuple) else (batch,)
            with nullcontext() if running is None else running.holding(hold):
                found, last = vjp(lambda p, args=args: function(p, *args), params)
                if isinstance(last, PullBack):
                    arisen = last.apart(one_like(found))
                    last.let_go()  # before the next micro-batch takes memory
                else:
                    arisen = tree.leaves(last(one_like(found)))
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
