"""The vision and the diffusion transformer train alike under every plan, on 2 and 4 ranks.

Exact: initial parameters, noise and whatever else is drawn, dropout masks. Close: losses, 1e-5 relative in float32 and
1e-10 in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tiny import BATCH, DIT, RATE, SIZES, STEPS, on_ranks, parameters

import spmdx as sx
from spmdx import nn

ALONE = (("data", 1), ("model", 1))
DATA, MODEL = (("data", 2),), (("model", 2),)
BOTH, FOUR = (("data", 2), ("model", 2)), (("data", 4),)
PLANS = [
    ("dp", DATA),
    ("megatron", MODEL),
    ("megatron+sp", MODEL),
    ("zero3", DATA),
    ("zero1", DATA),
    ("zero2", DATA),
    ("dp", FOUR),
    ("zero3", FOUR),
    ("megatron+sp", (("model", 4),)),
    ("megatron+dp", BOTH),
    ("megatron+sp+dp", BOTH),
    ("megatron+sp+zero1", BOTH),
    ("megatron+sp+zero3", BOTH),
]
BOUND = {"float64": 1e-10, "float32": 1e-5}

every_run = [
    pytest.mark.parametrize("dtype", BOUND),
    pytest.mark.parametrize(("words", "axes"), PLANS, ids=str),
    pytest.mark.parametrize("example", ["vit", "dit"]),
]


def every(test: Any) -> Any:
    for mark in every_run:
        test = mark(test)
    return test


def equal(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for a, b in zip(found, expected):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert a.tobytes() == b.tobytes()


@every
def test_draws_are_exact(example: str, words: str, axes: Any, dtype: str) -> None:
    [alone], each = on_ranks(example, "", ALONE, dtype), on_ranks(example, words, axes, dtype)
    for run in each:
        equal(run.initial, alone.initial)
        equal(run.drawn, alone.drawn)
        equal(run.masks, alone.masks)


@every
def test_losses_are_close(example: str, words: str, axes: Any, dtype: str) -> None:
    [alone], each = on_ranks(example, "", ALONE, dtype), on_ranks(example, words, axes, dtype)
    for run in each:
        assert run.losses == each[0].losses  # exact: the same bits on every rank
        np.testing.assert_allclose(run.losses, alone.losses, rtol=BOUND[dtype], atol=0)


@pytest.mark.parametrize("example", ["vit", "dit"])
def test_what_is_compared(example: str) -> None:
    """Two masks a block and step, other ones each time, and drawn in pieces where a plan divides the values."""
    [alone] = on_ranks(example, "", ALONE, "float64")
    assert len(alone.masks) == STEPS * 2 * SIZES["layers"]
    assert len({mask.tobytes() for mask in alone.masks}) == len(alone.masks)
    assert abs(np.mean(alone.masks) - (1 - RATE)) < 0.05
    assert len(set(alone.losses)) == STEPS
    assert {str(p) for p in on_ranks(example, "dp", DATA, "float64")[0].placements} == {str({"data": sx.Shard(0)})}
    assert {str(p) for p in on_ranks(example, "megatron+sp", MODEL, "float64")[0].placements} == {
        str({"model": sx.Shard(1)})
    }
    shapes = {x.shape for x in alone.drawn}
    assert shapes == ({(BATCH,), (BATCH, 4, 4)} if example == "dit" else set())


def drawn_digits(words: str, axes: dict[str, int]) -> Any:
    with DIT.plans.plan(words).on(sx.make_mesh(axes)):
        params = nn.init(parameters("dit"), sx.random.key(1))
        params["outer"]["head"] = params["outer"]["head"] + 0.1  # which begins as 0: no noise found
        config = DIT.model.Config(**SIZES)
        return DIT.diffusion.sample(params, np.arange(4) % 3, sx.random.key(3), config, steps=3, dtype=float).numpy()


def test_samples_are_close() -> None:
    """1e-10: what is drawn under a plan is what one rank draws."""
    expected = sx.testing.spmd(1)(lambda: drawn_digits("", {"all": 1}))()[0]
    for found in sx.testing.spmd(2)(lambda: drawn_digits("megatron+sp", {"model": 2}))():
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)
    assert np.ptp(expected) > 0.5
