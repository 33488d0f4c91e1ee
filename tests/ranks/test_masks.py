"""Boolean masks: large ones, and all placements of mask and array. cupynumeric 1214 and 1215: a mask on a large array
hangs, or leaves zeros at the end; jax in explicit mode: masks of the sharded dimension are errors. All exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import spmdx as sx

LARGE = 300_007  # elements: pieces, and blocks of different lengths
PATTERNS: dict[str, Any] = {
    "none": np.zeros(LARGE, bool),
    "all": np.ones(LARGE, bool),
    "the last": np.arange(LARGE) == LARGE - 1,
    "the first": np.arange(LARGE) == 0,
    "a run in the middle": (np.arange(LARGE) > LARGE // 3) & (np.arange(LARGE) < LARGE // 2),
    "some": np.random.default_rng(4).random(LARGE) < 0.3,
}
VALUE = np.arange(1.0, LARGE + 1)  # no zeros of its own


@pytest.mark.parametrize("name", PATTERNS)
def test_large_masks(name: str) -> None:
    mask = PATTERNS[name]
    want = VALUE[mask]
    x = sx.asarray(VALUE, placement={"world": sx.Shard(0)})
    m = sx.asarray(mask, placement={"world": sx.Shard(0)})
    with sx.debug.trace() as t:
        got = x[m]
    assert len(t) == (x.mesh.size > 1) and t.bytes <= 8 * x.mesh.size  # the sizes, and nothing else
    assert got.shape == want.shape
    assert np.array_equal(got.numpy(), want)
    [where] = sx.nonzero(m)
    assert np.array_equal(where.numpy(), np.flatnonzero(mask))
    assert np.array_equal(x[where].numpy(), want)
    assert np.array_equal(x[mask].numpy(), want)


@pytest.mark.parametrize("name", ["none", "the last", "some"])
def test_what_a_large_mask_writes(name: str) -> None:
    mask = PATTERNS[name]
    x = sx.asarray(VALUE, placement={"world": sx.Shard(0)})
    want = VALUE.copy()
    want[mask] = -1.0
    assert np.array_equal(x.at[mask].set(-1.0).numpy(), want)
    assert np.array_equal(sx.where(sx.asarray(mask), -1.0, x).numpy(), want)
    kept = sx.asarray(VALUE, placement={"world": sx.Shard(0)})[mask]
    assert np.array_equal((kept * 2.0).numpy(), 2.0 * VALUE[mask])  # a ragged result is an array like any other
    assert float(sx.sum(kept)) == VALUE[mask].sum()  # whole numbers: exact


SMALL = np.arange(1.0, 61.0).reshape(5, 4, 3)


def placed(value: Any) -> list[sx.Array]:
    """The value with its pieces everywhere that they can lie."""
    sizes = (0,) * (sx.make_mesh().size - 1) + (len(value),)
    places: list[Any] = [sx.Replicate(), sx.Shard(0, sizes=sizes), *(sx.Shard(d) for d in range(value.ndim))]
    places.append(sx.Partial("max" if value.dtype == bool else "sum"))
    return [sx.asarray(value, placement={"world": place}) for place in places]


@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_every_placement_of_both(ndim: int) -> None:
    """A mask of the first dimensions, wherever the pieces of it and of the array lie."""
    mask = np.random.default_rng(ndim).random(SMALL.shape[:ndim]) < 0.4
    mask.flat[-1] = True
    erased = np.where(mask.reshape(mask.shape + (1,) * (3 - ndim)), 0.0, SMALL)
    for m in placed(mask):
        for x in placed(SMALL):
            assert np.array_equal(x[m].numpy(), SMALL[mask]), (x.spec, m.spec)
        assert np.array_equal(placed(SMALL)[1].at[m].set(0.0).numpy(), erased), m.spec
