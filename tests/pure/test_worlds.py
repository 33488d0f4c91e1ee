"""Thread worlds of one process that follow one another share what is remembered of calls."""

from __future__ import annotations

import numpy as np

import spmdx as sx
from spmdx.testing import spmd


def test_a_mesh_that_was_whole_is_later_a_part() -> None:
    def twice(ranks: list[int] | None) -> float | None:
        mesh = sx.make_mesh({"p": 2}, ranks=ranks)
        x = sx.asarray(np.arange(6.0), mesh=mesh, placement={"p": sx.Shard(0)})
        y = (x + x).sum()
        return float(y) if mesh.contains_me() else None

    assert spmd(2)(twice)(None) == [30.0, 30.0]
    assert spmd(4)(twice)([0, 1]) == [30.0, 30.0, None, None]
