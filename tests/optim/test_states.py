"""What optimizers keep under a plan: divided where the plan divides state, with the numbers of one device."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cases import CASES, SHAPES, close, drawn, leaves

import spmdx as sx
from spmdx import nn, optim, plans, tree

TWO = sx.make_mesh({"data": 2}, device="sim")
PARAMS = tree.map(lambda x: nn.Param(x.shape, sx.random.normal), leaves(SHAPES))
STEPS = 3


def trained(name: str, plan: sx.Plan, mesh: Any = TWO) -> tuple[Any, Any, list[str]]:
    """Parameters, states at the start and the end, and what the last update sent."""
    optimizer, _ = CASES[name]
    with plan.on(mesh):
        params = nn.init(PARAMS, sx.random.key(0))
        state = first = optimizer.init(params)
        for t in range(STEPS):
            want = drawn(t)
            grads = sx.grad(lambda p, w=want: sum(sx.sum(a * b) for a, b in zip(tree.leaves(p), tree.leaves(w))))(
                params
            )
            with sx.debug.trace() as trace:
                updates, state = optimizer.update(grads, state, params)
            params = optim.apply_updates(params, updates)
    return params, (first, state), [r.verb for r in trace]


@pytest.mark.parametrize("words", ["zero1", "zero3"])
@pytest.mark.parametrize("name", CASES)
def test_state_is_divided(name: str, words: str) -> None:
    """Whatever has two elements lies in parts on two ranks, at the start and after some steps; parameters stay as they
    are, and close to 1e-12 to those of one device."""
    params, states, _ = trained(name, plans.parse(words))
    for state in states:
        arrays = [x for x in tree.leaves(state) if x.size > 1]
        assert bool(arrays) == (name != "sgd")
        assert not [x.spec for x in arrays if max(block.size for block in x.block) > (x.size + max(x.shape)) / 2]
    want, _, _ = trained(name, sx.Plan())
    close(params, tree.map(lambda x: x.numpy(), want), 1e-12)


@pytest.mark.parametrize("words", ["zero1", "zero3"])
@pytest.mark.parametrize("name", CASES)
def test_an_update_takes_few_messages(name: str, words: str) -> None:
    """However many parameters there are: one gathering of matrices, and Adafactor's means, their means and sizes."""
    most = {"muon": Counter(all_gather=1), "adafactor": Counter(all_reduce=2, reduce_scatter=1, all_gather=1)}
    sent = Counter(trained(name, plans.parse(words))[2])
    assert sent <= most.get(name, Counter()), sent


def test_a_plan_that_shards_state_by_dimension() -> None:
    """The rows' means lose the dimension that is divided, and are whole; those of columns keep it."""
    plan = sx.Plan(state={"weight": {"data": sx.Shard(1)}})
    optimizer = optim.adafactor(least_size=4)
    with plan.on(TWO):
        params = nn.init({"weight": nn.Param((6, 8), 1.0)}, sx.random.key(0))
        state = optimizer.init(params)
        after = optimizer.update(params, state, params)[1]
    for found in (state[0], after[0]):
        assert [found.rows["weight"].placement, found.columns["weight"].placement] == [
            {"data": sx.Replicate()},
            {"data": sx.Shard(0)},
        ]


@pytest.mark.filterwarnings("error")
def test_adafactor_of_an_empty_parameter() -> None:
    params = {"none": sx.zeros((0, 200)), "some": sx.ones((3,))}
    optimizer = optim.adafactor()
    with np.errstate(all="raise"):
        updates, _ = optimizer.update(params, optimizer.init(params), params)
    assert updates["none"].shape == (0, 200)
    assert np.all(np.isfinite(updates["some"].numpy()))
