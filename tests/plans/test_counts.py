"""How many collectives a training step of the GPT with four layers makes, from the trace: no more than the bars."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tiny_gpt import TINY, gradient, model, plans, tokens

import spmdx as sx
from spmdx import nn, optim

DEEP = TINY._replace(layers=4)


def traced(words: str, axes: dict[str, int], config: Any = DEEP) -> tuple[Any, Any]:
    """What a step's gradient, and its update with AdamW, move; the loss is read as well."""
    mesh, optimizer = sx.make_mesh(axes, device="sim"), optim.adamw(1e-3)
    with plans.plan(words).on(mesh):
        params = nn.init(model.parameters(config), sx.random.key(0))
        state = optimizer.init(params)
        with sx.debug.trace() as trace:
            value, grads = gradient(config)(params, sx.asarray(tokens(config)))
        with sx.debug.trace() as update:
            updates, state = optimizer.update(grads, state, params)
            params = optim.apply_updates(params, updates)
        with sx.debug.trace() as reading:
            float(value)
    assert reading.count() == (1 if "data" in axes else 0)  # under tensor parallelism the loss is whole
    return trace, update


def test_data_parallel() -> None:
    trace, update = traced("dp", {"data": 2})
    assert [r.verb for r in trace] == ["all_reduce"]  # of all gradients
    assert update.count() == 0


@pytest.mark.parametrize("words", ["dp", "zero1", "megatron+dp", "megatron+sp+dp"])
def test_buckets(words: str) -> None:
    """Exact. A bucket goes once it is full, with no more than the gradient that fills it above its bytes, while others
    are still to come; the rest goes at the end. They are the gradients, and the bytes, of one message."""
    axes = {"data": 2, "model": 2} if "model" in plans.plan(words).axes else {"data": 2}
    mesh, size = sx.make_mesh(axes, device="sim"), 16_000

    def gradients(bucket: int | None) -> tuple[Any, list[Any]]:
        with (plans.plan(words) | sx.Plan(bucket=bucket)).on(mesh):
            params = nn.init(model.parameters(DEEP), sx.random.key(0))
            with sx.debug.trace() as trace:
                _, grads = gradient(DEEP)(params, sx.asarray(tokens(DEEP)))
        return trace, sx.tree.leaves(grads)

    (once, whole), (trace, grads) = gradients(None), gradients(size)
    for a, b in zip(whole, grads):
        assert a.spec == b.spec
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert trace.bytes == once.bytes
    home = [r for r in trace if r.operation == "grad" and r.axes == ("data",)]
    assert {r.verb for r in home} == {r.verb for r in once if r.operation == "grad" and r.axes == ("data",)}
    filled = [r.bytes * (2 if r.verb == "reduce_scatter" else 1) for r in home[:-1]]  # on two ranks
    if "sp" not in words:  # there a bucket has what goes over both axes as well
        largest = max(g.spec.largest_block * 8 for g in whole)
        assert filled and all(size <= each < size + largest for each in filled)
    if "megatron" in words:
        at = [i for i, r in enumerate(trace) if r.operation == "grad"]
        assert at[0] < max(i for i, r in enumerate(trace) if r.operation == "normed") < at[-1]


def test_zero1() -> None:
    trace, update = traced("zero1", {"data": 2})
    assert [r.verb for r in trace] == ["reduce_scatter"]
    assert [r.verb for r in update] == ["all_gather"]


def test_zero2() -> None:
    trace, update = traced("zero2", {"data": 2})
    assert [r.verb for r in trace] == ["reduce_scatter"] * 5  # one a block, one for the rest
    assert [r.verb for r in update] == ["all_gather"]


def test_zero3() -> None:
    trace, update = traced("zero3", {"data": 2})
    forward, outer = ["all_gather"] * 5, ["reduce_scatter"]
    backward = ["reduce_scatter", *["all_gather", "reduce_scatter"] * 3]  # the last block is still there
    assert [r.verb for r in trace] == [*forward, *backward, *outer]  # 13; with the loss 14, as FSDP2's
    assert update.count() == 0


@pytest.mark.parametrize("form", ["gpt2", "llama"])
def test_tensor_parallel(form: str) -> None:
    config = DEEP._replace(form=form, width=16)
    trace, update = traced("megatron", {"model": 2}, config)
    assert {r.verb for r in trace} == {"all_reduce"}
    # forward: embedding, two a block, the loss's maxima and sums; backward: two a block, one before the head
    assert trace.count() <= 20
    assert update.count() == 0


def test_sequence_parallel() -> None:
    tensor, _ = traced("megatron", {"model": 2})
    trace, update = traced("megatron+sp", {"model": 2})
    # each all-reduce of activations is now a reduce-scatter and an all-gather: the same bytes. What is new are the
    # gradients of parameters that are whole (norms, positions, two biases), of which each rank has a part.
    assert trace.count("reduce_scatter") == trace.count("all_gather") == 2 * 4 + 1 + 2 * 4 + 1
    assert trace.count("all_reduce") == 3
    assert trace.bytes - trace[-1].bytes == tensor.bytes
    assert update.count() == 0


def test_all_together() -> None:
    trace, _ = traced("megatron+sp+zero3", {"data": 2, "model": 2})
    over_data = [r for r in trace if r.axes == ("data",)]
    assert len(over_data) == 13


def test_two_layer_network() -> None:
    """Columns, then rows: one all-reduce forward, and none for the gradients of the weights."""
    mesh = sx.make_mesh({"model": 2}, device="sim")
    plan = sx.Plan({"up": {"model": sx.Shard(1)}, "down": {"model": sx.Shard(0)}})
    shapes = {"up": nn.Param((4, 8), sx.random.normal), "down": nn.Param((8, 4), sx.random.normal)}
    with plan.on(mesh):
        params = nn.init(shapes, sx.random.key(0))
        x = sx.asarray(np.ones((3, 4)))
        with sx.debug.trace() as trace:
            sx.value_and_grad(lambda p: sx.sum(nn.gelu(x @ p["up"]) @ p["down"]))(params)[0].item()
    assert [r.verb for r in trace] == ["all_reduce"]


def test_two_dimensional() -> None:
    """Every matrix lies in blocks over both axes: a rank of 2 x 2 holds a quarter of them."""
    mesh = sx.make_mesh({"rows": 2, "columns": 2}, device="sim")
    plan = sx.plans.two_dimensional("rows", "columns", plans.DIMS)
    with plan.on(mesh):
        params = nn.init(model.parameters(DEEP), sx.random.key(0))
        with sx.debug.trace() as trace:
            value, grads = gradient(DEEP)(params, sx.asarray(tokens(DEEP)))
    matrices = {path: x for path, x in zip(sx.tree.paths(params), sx.tree.leaves(params)) if x.ndim > 1}
    for path, x in matrices.items():
        shares = {block.size * 4 for block in x.block}
        assert shares == {x.size} or "positions" in path, path
    assert {r.axes for r in trace if r.verb == "all_gather"} == {("rows",)}
    alone = sx.make_mesh({"all": 1}, device="sim")
    with sx.Plan().on(alone):
        expected = gradient(DEEP)(nn.init(model.parameters(DEEP), sx.random.key(0)), sx.asarray(tokens(DEEP)))
    assert abs(float(value) / float(expected[0]) - 1) < 1e-12  # close
    for a, b in zip(sx.tree.leaves(grads), sx.tree.leaves(expected[1])):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-9, atol=1e-12)
