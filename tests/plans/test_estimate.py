"""Estimates equal closed forms (exact), and the trace of a step that does run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tiny_gpt import TINY, gradient, model, plans, tokens

import spmdx as sx
from spmdx import nn, optim, tree

# every parameter divides by 512, so that the closed forms hold without rounding
WIDE = TINY._replace(vocabulary=512, length=4, width=512, heads=512, kv_heads=512, hidden=512, layers=3)


def size(params: Any) -> int:
    return 4 * nn.count(params)


@pytest.mark.parametrize("p", [8, 64, 512])
def test_closed_forms(p: int) -> None:
    shapes = model.parameters(WIDE)
    batch = np.zeros((p, WIDE.length + 1), np.int64)
    n, block, outer = size(shapes), size(shapes["blocks"][0]), size(shapes["outer"])

    def sent(words: str) -> Any:
        return plans.plan(words).estimate(gradient(WIDE), shapes, batch, mesh={"data": p})

    share = (p - 1) / p
    dp, zero1, zero2, zero3 = (sent(words) for words in ("dp", "zero1", "zero2", "zero3"))
    assert dp.moved == {("data",): 2 * n * share}
    assert zero1.moved == zero2.moved == {("data",): n * share}  # the gathering of new parameters is the update's
    # gathered: all forward, all but the last block and what is outside of blocks backward; scattered: all
    assert zero3.moved == {("data",): (n + (n - block - outer) + n) * share}
    assert (dp.params, zero1.params, zero3.params) == (n, n, n / p)
    assert zero3.collectives == {"all_gather": 1 + 3 + 2, "reduce_scatter": 3 + 1}


@pytest.mark.parametrize(
    ("words", "axes"), [("dp", {"data": 3}), ("megatron+sp+zero3", {"data": 2, "model": 3})], ids=str
)
def test_as_the_trace(words: str, axes: dict[str, int]) -> None:
    plan = plans.plan(words)
    found = plan.estimate(gradient(), model.parameters(TINY), tokens(), mesh=axes, dtype=np.float64)
    with plan.on(sx.make_mesh(axes, device="sim")):
        params = nn.init(model.parameters(TINY), sx.random.key(0))
        with sx.debug.trace() as trace:
            gradient()(params, sx.asarray(tokens()))
    assert [r[:4] for r in found.records] == [r[:4] for r in trace]
    assert found.bytes == trace.bytes
    assert found.params == sum(p.spec.largest_block * 8 for p in tree.leaves(params))


@pytest.mark.parametrize(("words", "times"), [("dp", 2), ("zero1", 2), ("zero2", 2)])
def test_whole_step(words: str, times: int) -> None:
    """With the update: ZeRO moves what data parallelism moves, for a fraction of the state."""
    shapes, optimizer = model.parameters(WIDE), optim.adamw(1e-3, weight_decay=0.1)

    def step(params: Any, batch: Any) -> Any:
        state = optimizer.init(params)
        _, grads = gradient(WIDE)(params, batch)
        updates, state = optimizer.update(grads, state, params)
        return optim.apply_updates(params, updates)

    found = plans.plan(words).estimate(step, shapes, np.zeros((8, WIDE.length + 1), np.int64), mesh={"data": 8})
    assert found.moved == {("data",): times * size(shapes) * 7 / 8}
