"""remat: the same bits, less kept, and what is computed and sent again is counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from worlds import close, draw, exact, in_each_world, placements, put

import spmdx as sx
from spmdx import nn, tree
from spmdx.errors import ArgumentError

X = draw(6, 8)
PARAMS = {"up": draw(8, 12, seed=1), "down": draw(12, 8, seed=2)}
ALL = ["nothing", "dots", "attention", ("hidden", "out"), lambda operation, spec, parts: operation == "exp"]


def layer(p: Any, x: Any) -> Any:
    hidden = sx.name(x @ p["up"], "hidden")
    noisy = nn.dropout(sx.random.key(3), nn.gelu(hidden), 0.5) + sx.random.normal(sx.random.key(4), hidden.shape)
    return x + sx.name(sx.exp(sx.tanh(noisy)) @ p["down"], "out")


def loss(p: Any, x: Any, *, wrap: Any = lambda f: f) -> Any:
    block = wrap(layer)
    return sx.sum(sx.sin(block(p, block(p, x))))


@in_each_world
def test_gradients_are_the_same_bits(mesh: sx.Mesh) -> None:
    for i, placement in enumerate(placements(mesh, 2)):
        with sx.use_mesh(mesh):
            x = put(X, mesh, placement)
            p = {"up": put(PARAMS["up"], mesh, {"a": sx.Shard(1)}), "down": put(PARAMS["down"], mesh)}
            value, want = sx.value_and_grad(loss, argnums=(0, 1))(p, x)
            for policy in ALL if i == 0 else ALL[i : i + 2]:
                again, found = sx.value_and_grad(
                    lambda p, x, policy=policy: loss(p, x, wrap=sx.remat(policy=policy)), argnums=(0, 1)
                )(p, x)
                exact(again, value)
                for g, w in zip(tree.leaves(found), tree.leaves(want)):
                    exact(g, w)


def test_second_gradients_are_close() -> None:
    """Their shares are added up in another order."""
    x, p = sx.asarray(X), tree.map(sx.asarray, PARAMS)

    def second(wrap: Any) -> Any:
        return sx.grad(lambda x: sx.sum(sx.grad(lambda x: loss(p, x, wrap=wrap))(x) ** 2))(x)

    want = second(lambda f: f)
    for policy in ALL:
        close(second(sx.remat(policy=policy)), want)


def test_inside_vmap_the_policies_hold_as_well() -> None:
    x, p = sx.asarray(draw(3, 6, 8)), tree.map(sx.asarray, PARAMS)
    want = sx.vmap(sx.grad(lambda x: loss(p, x)))(x)
    for policy in ALL:
        wrap = sx.remat(policy=policy)
        exact(sx.vmap(sx.grad(lambda x, wrap=wrap: loss(p, x, wrap=wrap)))(x), want)


# What is kept

N = 128  # rows; an activation is N x 8 or N x 12 float64 numbers


def kept(wrap: Any) -> int:
    x, p = sx.asarray(draw(N, 8)), tree.map(sx.asarray, PARAMS)
    loss(p, x, wrap=wrap)  # what is made once and remembered is no part of it
    return sx.debug.kept_bytes(lambda x: loss(p, x, wrap=wrap), x)


class Box:
    """No pytree."""

    def __init__(self, x: Any) -> None:
        self.x = x


PRODUCTS: dict[str, Any] = {  # of an example v and a shared w
    "closed over": lambda wrap, v, w: wrap(lambda: v * w)(),
    "by keyword": lambda wrap, v, w: wrap(lambda *, a: a * w)(a=v),
    "in an object": lambda wrap, v, w: wrap(lambda box: box.x * w)(Box(v)),
    "shared": lambda wrap, v, w: wrap(lambda a: a * v)(w),
    "example": lambda wrap, v, w: wrap(lambda a: a * w)(v),
    "nested": lambda wrap, v, w: wrap(lambda: wrap(lambda a: a * v)(w))(),
    "a vmap inside": lambda wrap, v, w: wrap(lambda: sx.vmap(lambda a, b: wrap(lambda: a * b)())(v, w))(),
    "a gradient inside": lambda wrap, v, w: wrap(lambda: sx.grad(lambda a: sx.sum(a * v * w) * 1.0)(v))(),
}


def gradients(case: str, wrap: Any) -> list[Any]:
    """Of examples and of what they share, with vmap outside, inside and twice, and the Jacobian."""
    x, w = sx.asarray(draw(3, 4)), sx.asarray(draw(4, seed=1))

    def loss(v: Any, w: Any) -> Any:
        return sx.sum(sx.sin(PRODUCTS[case](wrap, v, w)))

    def batch(x: Any, w: Any) -> Any:
        return sx.vmap(loss, in_axes=(0, None))(x, w)

    def pairs(x: Any, w: Any) -> Any:
        return sx.vmap(lambda u: sx.vmap(lambda v: loss(v, u))(x))(sx.stack([w, 2 * w]))

    return [
        *sx.vmap(sx.grad(loss, argnums=(0, 1)), in_axes=(0, None))(x, w),
        *sx.grad(lambda x, w: sx.sum(batch(x, w)), argnums=(0, 1))(x, w),
        *sx.grad(lambda x, w: sx.sum(pairs(x, w)), argnums=(0, 1))(x, w),
        *sx.jacrev(batch, argnums=(0, 1))(x, w),
    ]


@pytest.mark.parametrize("case", PRODUCTS)
def test_inside_vmap_gradients_do_not_go_by_arguments(case: str) -> None:
    want = gradients(case, lambda f: f)
    assert all(np.any(w.numpy()) for w in want)
    for policy in ("nothing", ("hidden",), lambda operation, spec, parts: operation == "multiply"):
        for found, w in zip(gradients(case, sx.remat(policy=policy)), want):
            close(found, w)


def test_each_policy_keeps_what_it_says() -> None:
    outside = kept(sx.remat)  # the input of the second layer and of the sine, and what the sum needs
    hidden, out = N * 12 * 8, N * 8 * 8
    assert outside <= 4 * out + 4096
    assert 0 <= kept(sx.remat(policy="dots")) - outside - 2 * (hidden + out) <= 4096
    assert 0 <= kept(sx.remat(policy=("hidden",))) - outside - 2 * hidden <= 4096
    assert 0 <= kept(sx.remat(policy=("out",))) - outside - 2 * out <= 4096
    everything = kept(lambda f: f)
    assert everything > outside + 2 * 4 * hidden


def test_selective_attention_keeps_all_but_the_weights() -> None:
    t, heads = 64, 2
    q = sx.asarray(draw(t, heads, 4))
    weights = heads * t * t * 8  # bytes of one array of weights

    def block(q: Any) -> Any:
        y = nn.attention(q * 2.0, q, q, bias=np.zeros((t, t)), causal=True, dropout=0.5, key=sx.random.key(1))
        return sx.sum(sx.exp(y) * y)

    sx.grad(block)(q)
    everything, nothing, selective = (
        sx.debug.kept_bytes(f, q) for f in (block, sx.remat(block), sx.remat(block, policy="attention"))
    )
    assert everything > 3 * weights > nothing
    assert nothing + 3 * q.nbytes < selective < weights  # q * 2, y, exp(y) and their product
    exact(sx.grad(sx.remat(block, policy="attention"))(q), sx.grad(block)(q))


# What is sent again


@pytest.mark.parametrize(("policy", "again"), [("nothing", 2), ("dots", 2), (("out",), 0), ("attention", 0)], ids=str)
def test_collectives_of_the_second_run_are_counted(policy: Any, again: int) -> None:
    """Two layers, one all-reduce each: made once more for the gradient, unless its result is saved."""
    mesh = sx.make_mesh({"model": 2}, device="sim")
    plan = sx.Plan(names={"out": {"model": sx.Replicate()}})
    with plan.on(mesh):
        x = sx.asarray(X)
        p = {
            "up": sx.asarray(PARAMS["up"], placement={"model": sx.Shard(1)}),
            "down": sx.asarray(PARAMS["down"], placement={"model": sx.Shard(0)}),
        }
        with sx.debug.trace() as plain:
            sx.grad(loss, argnums=1)(p, x)
        with sx.debug.trace() as trace:
            sx.grad(lambda p, x: loss(p, x, wrap=sx.remat(policy=policy)), argnums=1)(p, x)
    assert trace.count("all_reduce") - plain.count("all_reduce") == again


def test_an_unknown_policy_says_so() -> None:
    with pytest.raises(ArgumentError, match=r"'nothing', 'dots', 'attention'(.|\n)*policy=\(\"residual\",\)"):
        sx.remat(layer, policy="residual")


def test_outside_of_gradients_it_is_the_function() -> None:
    x, p = sx.asarray(X), tree.map(sx.asarray, PARAMS)
    exact(sx.remat(layer)(p, x), layer(p, x))
    assert np.isfinite(sx.remat(layer, policy="dots")(p, x).numpy()).all()


def test_a_generator_draws_the_same_again() -> None:
    rng = sx.random.default_rng(0)

    def noisy(x: Any) -> Any:
        return sx.sum(x * rng.normal(size=3)) * sx.sum(x)

    rng.normal()
    before = rng.state
    want = sx.grad(noisy)(sx.ones(3))
    after = rng.state
    for wrapped in (sx.remat(noisy), sx.remat(lambda x: sx.remat(noisy)(x))):
        rng.state = before
        exact(sx.grad(wrapped)(sx.ones(3)), want)
        assert rng.state == after
