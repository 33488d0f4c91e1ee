"""Learning rates as functions of the number of steps taken: an int, or the 0-d array that an optimizer counts with."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spmdx.array import Array
from spmdx.errors import ArgumentError
from spmdx.ops import elementwise as e
from spmdx.ops.place import asarray

Schedule = Callable[[Any], Any]


def _counted(count: Any) -> Array:
    return count if isinstance(count, Array) else asarray(count)


def _share(count: Any, steps: int) -> Array:
    """How much of ``steps`` is done, from 0 to 1, in float64."""
    found: Array = e.clip(_counted(count).astype(float) / max(steps, 1), 0.0, 1.0)
    return found


def constant_schedule(value: float) -> Schedule:
    """The same value always."""
    return lambda count: value


def linear_schedule(start: float, end: float, steps: int) -> Schedule:
    """From start to end in so many steps, then end."""
    return lambda count: start + (end - start) * _share(count, steps)


def cosine_decay_schedule(start: float, steps: int, end: float = 0.0) -> Schedule:
    """From start to end along half a cosine (Loshchilov and Hutter, 2017), then end."""
    return lambda count: end + (start - end) * (0.5 + 0.5 * e.cos(math.pi * _share(count, steps)))


def exponential_decay(
    start: float, steps: int, factor: float, *, staircase: bool = False, end: float | None = None
) -> Schedule:
    """start factor**(t / steps).

    Args:
        start: the value at first.
        steps: after so many the value is ``factor`` times what it was.
        factor: above 0.
        staircase: only after whole ``steps``.
        end: where it stops, if anywhere.
    """
    if steps <= 0 or factor <= 0:
        raise ArgumentError(
            f"an exponential decay by {factor} in {steps} steps is none.", "optim.exponential_decay(1e-3, 1000, 0.5)"
        )

    def decayed(count: Any) -> Any:
        t = _counted(count).astype(float) / steps
        value = start * e.pow(factor, e.floor(t) if staircase else t)
        if end is None:
            return value
        return e.maximum(value, end) if factor < 1 else e.minimum(value, end)

    return decayed


def piecewise_constant_schedule(start: float, factors: Mapping[int, float]) -> Schedule:
    """A value that changes at some steps.

    Args:
        start: the value at first.
        factors: by what it is multiplied, from each of these steps on: ``{1000: 0.1, 2000: 0.1}``.
    """
    if not isinstance(factors, Mapping):
        raise ArgumentError(
            f"the steps at which a value changes are a dict of step to factor; got {factors!r}.", "{1000: 0.1}"
        )

    def constant(count: Any) -> Any:
        t, value = _counted(count), float(start)
        for step, factor in factors.items():
            value = value * e.where(t >= step, float(factor), 1.0)
        return value

    return constant


def join_schedules(schedules: Sequence[Schedule], boundaries: Sequence[int]) -> Schedule:
    """The first schedule until the first boundary, then the second, which counts from there, and so on."""

    if len(schedules) != len(boundaries) + 1:
        raise ArgumentError(
            f"{len(schedules)} schedules are joined at {len(boundaries)} boundaries.",
            "one boundary less than schedules",
        )

    def joined(count: Any) -> Any:
        t = _counted(count)
        value = schedules[0](t)
        for schedule, start in zip(schedules[1:], boundaries):
            value = e.where(t < start, value, schedule(t - start))
        return value

    return joined


def warmup_cosine_decay_schedule(
    peak: float, warmup: int, steps: int, *, start: float = 0.0, end: float = 0.0
) -> Schedule:
    """Linear from start to peak in ``warmup`` steps, then half a cosine down to end at step ``steps``."""
    rise, fall = linear_schedule(start, peak, warmup), cosine_decay_schedule(peak, steps - warmup, end)
    return join_schedules([rise, fall], [warmup])


__all__ = [
    "constant_schedule",
    "cosine_decay_schedule",
    "exponential_decay",
    "join_schedules",
    "linear_schedule",
    "piecewise_constant_schedule",
    "warmup_cosine_decay_schedule",
]
