"""Micro-batches: the gradient of the whole batch, with the messages of one."""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from worlds import close, draw, in_each_world, put

import spmdx as sx
from spmdx import nn, plans, tree
from spmdx.errors import ArgumentError, GradientError

sys.path.insert(0, str(Path(__file__).parents[1] / "plans"))

import tiny_gpt
from tiny_gpt import TINY

X, Y = draw(480, 5), draw(480, 2, seed=1)
P = {"w": draw(5, 2, seed=2), "b": np.zeros(2), "unused": np.ones(3)}


def loss(p: Any, x: Any, y: Any) -> Any:
    return sx.mean((sx.tanh(sx.name(x, "batch") @ p["w"]) + p["b"] - y) ** 2)


def batches(count: int, mesh: sx.Mesh) -> Any:
    """Pieces of the batch, made when they are asked for; each is divided over the ranks."""
    for x, y in zip(np.split(X, count), np.split(Y, count)):
        yield tuple(put(v, mesh, {"a": sx.Shard(0)}) for v in (x, y))


@in_each_world
def test_it_is_the_gradient_of_the_whole_batch(mesh: sx.Mesh) -> None:
    p = tree.map(lambda v: put(v, mesh), P)
    want, of = sx.value_and_grad(loss)(p, put(X, mesh), put(Y, mesh))
    for count in (1, 3, 4):
        value, found = sx.accumulate(loss)(p, batches(count, mesh))
        close(value, want)
        for name, g in found.items():
            close(g, of[name])
            assert g.spec == p[name].spec


@in_each_world
def test_four_micro_batches_send_what_one_sends(mesh: sx.Mesh) -> None:
    p = tree.map(lambda v: put(v, mesh), P)
    with sx.debug.trace() as one:
        sx.accumulate(loss)(p, batches(1, mesh))
    with sx.debug.trace() as four:
        sx.accumulate(loss)(p, batches(4, mesh))
    assert [r[:3] for r in four] == [r[:3] for r in one]
    assert [r.verb for r in four] == ["all_reduce"] * (mesh.shape["a"] > 1)


@pytest.mark.parametrize("plan", [plans.data_parallel("a"), plans.zero1("a")], ids=["data_parallel", "zero1"])
def test_under_a_plan(plan: sx.Plan) -> None:
    mesh = sx.make_mesh({"a": 2}, device="sim")
    with plan.on(mesh):
        p = tree.map(sx.asarray, P)
        pieces = [(sx.asarray(x), sx.asarray(y)) for x, y in zip(np.split(X, 3), np.split(Y, 3))]
        with sx.debug.trace() as trace:
            _, found = sx.accumulate(loss)(p, pieces)
        want = sx.grad(loss)(p, sx.asarray(X), sx.asarray(Y))
    close(found["w"], want["w"])
    assert found["w"].spec == want["w"].spec
    assert len([r for r in trace if r.operation == "grad"]) == 1


def test_bad_calls_say_so() -> None:
    p = tree.map(sx.asarray, P)
    with pytest.raises(ArgumentError, match="no batches"):
        sx.accumulate(loss)(p, [])
    with pytest.raises(GradientError, match="real scalar"):
        sx.accumulate(lambda p, x: x @ p["w"])(p, [sx.asarray(X)])
    with pytest.raises(ArgumentError, match="iterable"):
        sx.accumulate(loss)(p, 3)  # type: ignore[arg-type]


def test_one_micro_batch_is_in_memory_at_a_time() -> None:
    """What was computed for one has gone when the next begins."""
    p, held = tree.map(sx.asarray, P), []

    def watched(p: Any, x: Any, y: Any) -> Any:
        assert not [block for block in held if block() is not None]
        hidden = sx.tanh(x @ p["w"])
        held.append(weakref.ref(hidden._block))
        return sx.mean((hidden + p["b"] - y) ** 2)

    pieces = [(sx.asarray(x), sx.asarray(y)) for x, y in zip(np.split(X, 4), np.split(Y, 4))]
    sx.accumulate(watched)(p, pieces)
    assert len(held) == 4 and not [block for block in held if block() is not None]


@pytest.mark.parametrize("words", ["zero2", "zero3", "zero3+megatron"])
def test_gradients_of_blocks_go_home_once(words: str) -> None:
    """Gathering plans as well: reductions are those of one micro-batch, gathers those of each. Close to 1e-12."""
    sizes = {"data": 2, "model": 2} if "megatron" in words else {"data": 2}

    def run(count: int, hold: bool) -> tuple[Any, Counter[str]]:
        with tiny_gpt.plans.plan(words).on(sx.make_mesh(sizes, device="sim")):
            params = nn.init(tiny_gpt.model.parameters(TINY), sx.random.key(0), dtype=np.float64)
            pieces = [sx.asarray(tiny_gpt.tokens(TINY, size=4, seed=seed)) for seed in range(count)]
            with sx.debug.trace() as trace:
                _, found = sx.accumulate(lambda p, b: tiny_gpt.model.loss(p, b, TINY), hold=hold)(params, pieces)
        return found, Counter(r.verb for r in trace)

    held, few = run(3, True)
    sent, many = run(3, False)
    _, one = run(1, True)
    assert few["reduce_scatter"] == one["reduce_scatter"] < many["reduce_scatter"]
    for a, b in zip(tree.leaves(held), tree.leaves(sent)):
        assert a.spec is b.spec
        close(a, b)
