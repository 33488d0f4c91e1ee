"""Operations along the dimension that is divided, which need it whole: right wherever the pieces lie, and what travels
is what the table of operations marks. That is a gather in 1-D, in 2-D an all-to-all to the other dimension, and nothing
where the other dimension is the divided one. Exact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import spmdx as sx
from spmdx.op import registry

Function = Callable[[Any], Any]


def back(*steps: slice) -> tuple[str, Function, Function]:
    return "slicing", lambda x: x[steps], lambda v: v[steps]


# By name: the operation in the registry, the call, and NumPy's.
CASES: dict[str, tuple[str, Function, Function]] = {
    "roll": ("roll", lambda x: sx.roll(x, 2, axis=0), lambda v: np.roll(v, 2, 0)),
    "roll by more": ("roll", lambda x: sx.roll(x, -13, axis=0), lambda v: np.roll(v, -13, 0)),
    "flip": ("flip", lambda x: sx.flip(x, axis=0), lambda v: np.flip(v, 0)),
    "concat": ("concat", lambda x: sx.concat([x, x], axis=0), lambda v: np.concatenate([v, v], 0)),
    "tile": (
        "tile",
        lambda x: sx.tile(x, (3,) + (1,) * (x.ndim - 1)),
        lambda v: np.tile(v, (3,) + (1,) * (v.ndim - 1)),
    ),
    "negative step": back(slice(None, None, -1)),
    "a part, backwards": back(slice(7, 1, -2)),
    "sort": ("sort", lambda x: sx.sort(x, axis=0), lambda v: np.sort(v, axis=0)),
    "argsort": ("argsort", lambda x: sx.argsort(x, axis=0), lambda v: np.argsort(v, axis=0, kind="stable")),
    "cumulative_sum": ("cumulative_sum", lambda x: sx.cumulative_sum(x, axis=0), lambda v: np.cumsum(v, axis=0)),
    "cumulative_prod": ("cumulative_prod", lambda x: sx.cumulative_prod(x, axis=0), lambda v: np.cumprod(v, axis=0)),
}
REDUCED = {"argmax", "argmin", "softmax", "log_softmax"}  # marked too: whole only where they lie so
VALUES = {
    1: np.array([3.0, -1.0, 2.0, 0.5, -4.0, 1.0, 8.0, -2.0, 0.25]),
    2: np.random.default_rng(3).permutation(np.arange(-27.0, 27.0) / 2).reshape(9, 6),
}


def placements(v: Any) -> list[Any]:
    size = sx.make_mesh().size
    sizes = (0,) * (size - 1) + (len(v),)
    some: list[Any] = [sx.Replicate(), sx.Shard(0), sx.Shard(0, sizes=sizes), sx.Shard(0, interleave=3)]
    return [*some, sx.Partial("sum"), sx.Partial("max"), *([sx.Shard(1)] if v.ndim > 1 else [])]


@pytest.mark.parametrize("ndim", VALUES)
@pytest.mark.parametrize("name", CASES)
def test_values_wherever_the_pieces_lie(name: str, ndim: int) -> None:
    _, call, oracle = CASES[name]
    v = VALUES[ndim]
    for placement in placements(v):
        got = call(sx.asarray(v, placement={"world": placement}))
        assert np.array_equal(got.numpy(), oracle(v)), placement
        assert got.dtype == oracle(v).dtype


@pytest.mark.parametrize("name", CASES)
def test_what_travels_is_what_the_table_marks(name: str) -> None:
    marked, call, _ = CASES[name]
    several = sx.make_mesh().size > 1
    for ndim, dim, expected in ((1, 0, ["all_gather"]), (2, 0, ["all_to_all"]), (2, 1, [])):
        x = sx.asarray(VALUES[ndim], placement={"world": sx.Shard(dim)})
        with sx.debug.trace() as t:
            call(x)
        assert [r.verb for r in t] == (expected if several else [])
        assert {r.operation for r in t} <= {marked}


def test_the_table_marks_these_and_no_others() -> None:
    """An operation that needs no more of its dimension, or one that now does, has to change its note and this file."""
    notes = {name: op.note for name, op in registry.items() if op.body.__module__.startswith("spmdx.ops.")}
    assert {name for name, note in notes.items() if note} == {op for op, _, _ in CASES.values()} | REDUCED


UNMARKED: dict[str, Function] = {
    "a part": lambda x: x[1:7],
    "every other": lambda x: x[::2],
    "pad": lambda x: sx.pad(x, [(2, 1)] + [(0, 0)] * (x.ndim - 1)),
    "split": lambda x: sx.split(x, 3, axis=0)[1],
    "repeat": lambda x: sx.repeat(x, 2, axis=0),
    "stack": lambda x: sx.stack([x, x]),
    "x.at[1:7].set": lambda x: x.at[1:7].set(0.0),
}


@pytest.mark.parametrize("name", UNMARKED)
def test_what_is_not_marked_stays(name: str) -> None:
    for v in VALUES.values():
        x = sx.asarray(v, placement={"world": sx.Shard(0)})
        with sx.debug.trace() as t:
            UNMARKED[name](x)
        assert not t
