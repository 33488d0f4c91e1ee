"""Recording: an array that remembers the operation and the inputs that it came from.

The graph is of arrays, held by the outputs alone: when the last output goes, the record goes. Each remembers its place
in the order of making, which the walk backwards follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any

from spmdx import context
from spmdx.array import Array
from spmdx.runtime import kernels
from spmdx.spec import Spec

_order = count()


class Watched(Array):
    """An array whose making is recorded. ``rule`` is the operation that made it, or None for a leaf.

    It is a class of its own so that ``type(x) is Array`` tells, at no cost, that nothing has to be recorded.
    """

    __slots__ = ("inputs", "order", "rule", "static")
    rule: Any
    inputs: tuple[Any, ...]
    static: Mapping[str, Any]
    order: int

    def __init__(self, block: Any, spec: Spec, rule: Any, inputs: tuple[Any, ...], static: Mapping[str, Any]) -> None:
        self._block = block
        self.spec = spec
        self.rule = rule
        self.inputs = inputs
        self.static = static
        self.order = next(_order)


kernels.tell_arrays(Array, Watched, context.variable, context.State, _order, Spec)


class Rule:
    """What a record has where no operation made it; beside these a ``name`` and a ``gradient``, as operations have."""

    differentiable = True
    onto = None


class Bundle:
    """A record with several outputs (a custom gradient, a rematerialised function): its outputs' common source."""

    __slots__ = ("inputs", "order", "rule", "static")

    def __init__(self, rule: Any, inputs: tuple[Any, ...], static: Mapping[str, Any]) -> None:
        self.rule = rule
        self.inputs = inputs
        self.static = static
        self.order = next(_order)


def recording() -> bool:
    """True inside a gradient: operations on watched arrays are recorded."""
    return context.get().depth > 0


def now() -> int:
    """A place in the order of making: everything recorded from here on comes later."""
    return next(_order)


def plain(x: Any) -> Any:
    """The array without its record; anything else as it is."""
    return x if type(x) is Array else Array(x._block, x.spec) if isinstance(x, Watched) else getattr(x, "stopped", x)
