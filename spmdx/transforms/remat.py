"""remat: what a function made is computed again in the backward pass, instead of being kept."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from spmdx import context, tree
from spmdx.autodiff import bundled, pull
from spmdx.tape import Bundle, Watched, now
from spmdx.transforms.batched import level_of


def remat(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, computed again in the backward pass instead of keeping what it made. Arrays that it closes over
    get their gradients as well."""

    @wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if not context.get().depth:
            return function(*args, **kwargs)
        leaves, treedef = tree.flatten(args)
        level = level_of(leaves)
        if level is not None:
            flags = [level.within(x) for x in leaves]
            with level.off():
                whole = remat(level.lowered(lambda *args: function(*args, **kwargs), flags))
                down = [level.down(x, always=False) for x in leaves]
                return tree.map(level.up, whole(*tree.unflatten(treedef, down)))
        start = now()
        value = function(*args, **kwargs)
        outputs, _ = tree.flatten(value)
        sources = _sources(outputs, start)

        def gradients(g: list[Any]) -> list[Any]:
            with context.use(depth=context.get().depth + 1, check_keys=False):  # it draws the same values again
                again = tree.leaves(function(*args, **kwargs))
            with_g = [(out, c) for out, c in zip(again, g) if c is not None]
            return list(pull([out for out, _ in with_g], [c for _, c in with_g], sources))

        return bundled(value, list(sources), "remat", gradients)

    return wrapped


def _sources(outputs: list[Any], start: int) -> list[Watched]:
    """The watched arrays from before ``start`` that outputs made since depend on."""
    found: dict[int, Any] = {}
    seen: set[int] = set()
    todo = [x for x in outputs if type(x) is Watched]
    while todo:
        node = todo.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if node.order < start:
            found[id(node)] = node
        else:
            todo += [x for x in node.inputs if type(x) in (Watched, Bundle)]
    return sorted(found.values(), key=lambda x: int(x.order))


__all__ = ["remat"]
