"""Thread worlds of one process that follow one another share what is remembered of calls."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import spmdx as sx
from spmdx import context, decide
from spmdx.testing import spmd


def test_a_mesh_that_was_whole_is_later_a_part() -> None:
    def twice(ranks: list[int] | None) -> float | None:
        mesh = sx.make_mesh({"p": 2}, ranks=ranks)
        x = sx.asarray(np.arange(6.0), mesh=mesh, placement={"p": sx.Shard(0)})
        y = (x + x).sum()
        return float(y) if mesh.contains_me() else None

    assert spmd(2)(twice)(None) == [30.0, 30.0]
    assert spmd(4)(twice)([0, 1]) == [30.0, 30.0, None, None]


def test_a_mesh_that_becomes_a_part_while_a_call_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread rank finds that it is outside just before the call would be remembered for all of them."""
    mesh = sx.Mesh(("part",), (2,), (0, 1))
    x = sx.asarray(np.arange(6.0), mesh=mesh, placement={"part": sx.Shard(0)})
    times = []

    def slow(*args: Any, **how: Any) -> Any:
        found = decide.decide(*args, **how)
        times.append(1)
        if len(times) == 2:  # the second look, after the mesh was found whole
            with context.use(rank=3):
                assert not mesh.contains_me()
        return found

    monkeypatch.setattr(sys.modules["spmdx.op"], "decide", slow)
    sx.sum.op.memo.clear()
    sx.sum.op.entries.clear()
    assert sx.sum(x).block == 3.0
    assert len(times) == 2 and not sx.sum.op.memo
