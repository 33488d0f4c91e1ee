"""Exact: the greatest of logits and noise, drawn tile by tile, is what it is of the whole; no whole is ever made."""

from __future__ import annotations

import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from placements import assembled, blocks, simulated, specs

import spmdx as sx
from spmdx import random
from spmdx.array import Array
from spmdx.random import greatest

KEY = random.key(23)


def whole(logits: Any, axis: int, before: tuple[int, ...]) -> Any:
    noise = random.gumbel(KEY, (*before, *logits.shape), dtype=logits.dtype).numpy()
    noisy = (noise + logits).astype(np.float64)
    return noisy.argmax(axis if axis < 0 else axis + len(before))


@pytest.mark.parametrize("tile", [1, 5, 2**16])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_tiles(tile: int, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ties are common in narrow floats: the first wins."""
    monkeypatch.setattr(greatest, "TILE", tile)
    logits = np.log(np.arange(1.0, 43).reshape(3, 2, 7)).astype(dtype)
    for axis in (0, 1, -1):
        want = whole(logits, axis, (4,))
        batch = want.shape
        for spec in specs(simulated(2, 2), logits.shape, dtype, ops=())[::9]:
            got = random.categorical(KEY, Array(blocks(spec, logits), spec), axis, batch)
            assert np.array_equal(assembled(got.spec, got._block), want), (spec, axis)


def test_infinite_logits_and_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greatest, "TILE", 2)
    infinity = np.inf
    logits = np.array(
        [[-infinity] * 5, [-infinity, 0, -infinity, 0, -infinity], [0, 1, np.nan, 2, np.nan], [0, infinity, 1, 2, 3]]
    )
    want = whole(logits, 1, ())
    assert want[0] == 0 and want[1] in (1, 3) and want[2] == 2 and want[3] == 1
    for spec in specs(simulated(3), logits.shape, ops=()):
        got = random.categorical(KEY, Array(blocks(spec, logits), spec))
        assert np.array_equal(assembled(got.spec, got._block), want), spec


@pytest.mark.parametrize("divided", [False, True])
def test_memory(divided: bool) -> None:
    """1,000 draws of 5,000 kinds take a few tiles of memory, not the 40 MB of their noise."""
    p = np.full(5000, 1 / 5000)
    where: dict[str, Any] = {}
    if divided:
        mesh = simulated(4)
        where, p = {"mesh": mesh}, sx.asarray(p, mesh=mesh, placement={"a": sx.Shard(0)})
    random.choice(KEY, 5000, (10,), p=p, **where)
    tracemalloc.start()
    got = random.choice(KEY, 5000, (1000,), p=p, **where)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert got.shape == (1000,)
    assert peak < 6 * 8 * greatest.TILE, peak
