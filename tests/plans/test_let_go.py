"""What a step has made goes when the step ends, without Python's garbage collector: it comes by when so many objects
have been made, and knows nothing of the large blocks that they hold."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from tiny_gpt import TINY, gradient, model, plans, tokens

import spmdx as sx
from spmdx import nn, optim
from spmdx.array import Array
from spmdx.tape import Bundle

MESHES: dict[str, dict[str, int]] = {
    "dp": {"data": 2},
    "zero3": {"data": 2},
    "megatron": {"model": 2},
    "megatron+sp": {"model": 2},
    "zero2+megatron": {"data": 2, "model": 2},
}


def left_behind(step: Any) -> list[Any]:
    """The arrays and records in cycles that a call of ``step`` leaves, once calls like it were seen before."""
    for _ in range(3):
        step()
    gc.collect()
    gc.disable()
    try:
        step()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        return [x for x in gc.garbage if isinstance(x, (Array, Bundle))]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


@pytest.mark.parametrize("words", ["", *MESHES])
@pytest.mark.parametrize("form", ["gpt2", "llama"])
def test_a_training_step_leaves_no_cycles(form: str, words: str) -> None:
    config = TINY._replace(form=form, width=16)
    mesh = sx.make_mesh(MESHES[words], device="sim") if words else sx.make_mesh()
    optimizer = optim.chain(optim.clip_by_global_norm(1.0), optim.adamw(1e-2, weight_decay=0.1))
    with (plans.plan(words) if words else sx.Plan()).on(mesh):
        params = nn.init(model.parameters(config), sx.random.key(0))
        held = [params, optimizer.init(params)]

        def step() -> None:
            _, grads = gradient(config)(held[0], sx.asarray(tokens(config)))
            updates, held[1] = optimizer.update(grads, held[1], held[0])
            held[0] = optim.apply_updates(held[0], updates)

        assert not left_behind(step)


def test_what_is_left_is_found() -> None:
    """Of a record that holds itself."""

    def step() -> None:
        made: list[Any] = []

        def loss(x: sx.Array) -> sx.Array:
            made.append(sx.exp(x))
            made.append(made)
            return sx.sum(made[0])

        sx.grad(loss)(sx.asarray([1.0, 2.0]))

    assert left_behind(step)


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("centered", [False, True])
def test_the_layers_leave_no_cycles(centered: bool, dropout: bool) -> None:
    x, scale = sx.random.normal(sx.random.key(0), (2, 6, 64)), sx.ones((64,))
    more: dict[str, Any] = {"key": sx.random.key(1), "rate": 0.1} if dropout else {}

    def loss(x: sx.Array, scale: sx.Array) -> sx.Array:
        stream, h = nn.add_norm(nn.gelu(x, bias=scale), x, scale, centered=centered, **more)
        heads = h.reshape((2, 6, 4, 16))
        seen = nn.attention(heads, heads, heads, causal=True).reshape((2, 6, 64))
        part = sx.remat(lambda y: nn.swiglu(y, y))(nn.softmax(seen))
        return sx.mean(nn.cross_entropy(part + stream, sx.zeros((2, 6), dtype=int)))

    assert not left_behind(lambda: sx.value_and_grad(loss, argnums=(0, 1))(x, scale))
