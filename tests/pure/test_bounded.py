"""Memo tables stay bounded, however many distinct calls a program makes."""

from __future__ import annotations

import gc
import inspect
from functools import _lru_cache_wrapper

import numpy as np
import pytest

import spmdx as sx
from spmdx import move as moving
from spmdx import plan as planning
from spmdx import spec as specs
from spmdx.mesh import Mesh
from spmdx.op import MEMO_SIZE, registry
from spmdx.placement import Partial, Replicate, Shard

ALONE = Mesh(("p",), (1,))
SIM = Mesh(("p",), (2,), None, "sim")


def tables() -> dict[str, int]:
    """The sizes of all tables that remember calls."""
    found = {f"{name}.{kind}": len(getattr(op, kind)) for name, op in registry.items() for kind in ("entries", "memo")}
    return {**found, "plans": len(planning._memo), "specs": len(specs._interned)}


def assert_bounded() -> None:
    gc.collect()
    sizes = tables()
    assert all(n <= MEMO_SIZE for name, n in sizes.items() if "." in name), sizes
    assert sizes["plans"] <= 8192
    # Whoever remembers a call holds a few specs: entries, plans and their steps.
    assert sizes["specs"] <= 4 * (sum(sizes.values()) - sizes["specs"]) + 4 * 4096


def many_calls(number: int, start: int) -> None:
    """Distinct calls: other shapes, other static arguments; and moves between other specs."""
    long = sx.asarray(np.zeros(8), mesh=ALONE)
    for n in range(start, start + number):
        x = sx.asarray(np.broadcast_to(np.float64(1), (n, 0)), mesh=ALONE, copy=False)
        _ = x + 1.0
        _ = long[: n + 8]
    for n in range(start, start + number // 8):
        y = sx.asarray(np.zeros((2, n % 100, 0)), mesh=SIM, placement={"p": Shard(0, sizes=(n % 3, 2 - n % 3))})
        sx.redistribute(y, {"p": Partial("sum") if n % 2 else Replicate()})


def test_tables_are_bounded() -> None:
    many_calls(MEMO_SIZE + 300, 1)
    assert_bounded()


def test_messages_are_bounded_by_what_they_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many parts each has, and each collective still gives its value."""
    monkeypatch.setattr(moving, "PARTS", 200)
    mesh = Mesh(("p",), (8,), None, "sim")
    for n in range(2, 12):
        value = np.arange(n * 3.0).reshape(n, 3)
        x = sx.asarray(value, mesh=mesh, placement={"p": Shard(0)})
        assert np.array_equal(sx.redistribute(x, {"p": Shard(1)}).numpy(), value)
        listed = sum(len(r.send) + len(r.receive) for m in moving._messages.values() for r in m.routes)
        assert listed == moving._messages.parts <= 200


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_hundred_thousand_distinct_calls() -> None:
    """The tables are bounded all along."""
    for start in range(1, 50_000, 5_000):  # two calls for each number
        many_calls(5_000, start)
        assert_bounded()


def test_every_cache_has_a_limit() -> None:
    """Each lru_cache of the package is bounded; one of a function without arguments is by itself."""
    by_operation = {"_compiled"}  # grows with the operations there are, not with their calls
    endless = [
        f"{f.__module__}.{f.__qualname__}"
        for f in gc.get_objects()
        if isinstance(f, _lru_cache_wrapper)
        and str(f.__module__).startswith("spmdx")
        and f.cache_parameters()["maxsize"] is None
        and inspect.signature(f).parameters
        and f.__qualname__ not in by_operation
    ]
    assert not endless, endless
