"""Seeing communication: trace what was made, explain what would be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from spmdx import context
from spmdx.array import Array
from spmdx.debug.memory import kept_bytes as kept_bytes
from spmdx.move import Record
from spmdx.ops.place import target_spec
from spmdx.placement import AxisPlacement, Placement
from spmdx.plan import LOCAL, Step, plan


class Trace(list[Record]):
    """The collectives made while it was open, in order. ``print(trace)`` shows a table."""

    @property
    def bytes(self) -> int:
        """Bytes that the rank which sends most sent, all collectives together."""
        return sum(record.bytes for record in self)

    def count(self, verb: Any = None) -> int:
        """How many collectives, or how many of one verb."""
        return sum(1 for record in self if verb is None or record.verb == verb)

    def __str__(self) -> str:
        lines = [f"{'collective':<15}{'axes':<20}{'bytes':>14}  operation at line"]
        lines += [f"{r.verb:<15}{', '.join(r.axes):<20}{r.bytes:>14}  {r.operation} at {r.line}" for r in self]
        return "\n".join(
            [*lines, f"{len(self)} collective{'s' * (len(self) != 1)}, {self.bytes} bytes sent per rank at most"]
        )


@contextmanager
def trace() -> Iterator[Trace]:
    """Count every collective made inside: verb, axes, bytes, the operation and the user's line that caused it."""
    found = Trace()
    outer = context.get().trace
    with context.use(trace=found):
        try:
            yield found
        finally:
            if outer is not None:
                outer.extend(found)


@contextmanager
def explicit() -> Iterator[None]:
    """Make every move that an operation implies an error that shows the line to write. `redistribute` still moves."""
    with context.use(explicit=True):
        yield


@contextmanager
def check_keys() -> Iterator[None]:
    """Make drawing from a random key twice, or from one that was split, an error: the values would be the same."""
    with context.use(check_keys=True, used_keys=set()):
        yield


def explain(x: Array, placement: Placement | None = None, /, **axes: AxisPlacement) -> tuple[Step, ...]:
    """Print, and return, the steps from where ``x`` lies to a placement, with bytes. Moves nothing."""
    target = target_spec(x, placement, axes)
    steps = plan(x.spec, target)
    print(f"{x.spec!r}\n  -> {target.placement!r}")
    for step in steps:
        over = f" over {', '.join(step.axes)}" if step.axes else ""
        sent = "no communication" if step.verb in LOCAL else f"{step.bytes} bytes sent per rank at most"
        print(f"  {step.verb}{over}: {sent}")
    if not steps:
        print("  nothing to do")
    return steps
