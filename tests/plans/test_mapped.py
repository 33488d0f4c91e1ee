"""Named functions and vmap: a plan that gathers parameters changes no gradient, whatever is mapped over what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import spmdx as sx
from spmdx import plans, tree
from spmdx.testing import spmd

PLANS = {
    "zero2": plans.zero2(),
    "zero3": plans.zero3(),
    "two_dimensional": plans.two_dimensional("data", "model", {"*": 1}),
    "own": sx.Plan(gather={"b*": {"data": sx.Replicate()}}),
}
W, X, MANY = (np.random.default_rng(n).normal(size=s) for n, s in enumerate([(4, 4), (6, 4), (2, 4, 4)]))

block = sx.name(lambda p, x: sx.tanh(x @ p["w"] + p["b"]), "block")
part = sx.name(sx.remat(lambda p, x: sx.sin(x @ p["w"]) + p["b"]), "block")


def params(w: Any) -> Any:
    return {"w": w, "b": w[..., 0, :]}


def loss(p: Any, x: Any) -> Any:
    return sx.sum(block(p, part(p, block(p, x))) ** 2)


@sx.custom_vjp
def cubed(x: Any) -> Any:
    return x**3


cubed.defvjp(lambda x: (x**3, x), lambda x, g: (3 * x**2 * g,))

CASES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "per example": lambda p, many, x: sx.vmap(sx.grad(loss), in_axes=(None, 0))(p, x),
    "mapped inside": lambda p, many, x: sx.grad(lambda p: sx.sum(sx.vmap(lambda v: loss(p, v))(x)))(p),
    "ensemble": lambda p, many, x: sx.vmap(sx.grad(loss), in_axes=(0, None))(many, x),
    "ensemble inside": lambda p, many, x: sx.grad(lambda m: sx.sum(sx.vmap(loss, in_axes=(0, None))(m, x)))(many),
    "each of each": lambda p, many, x: sx.vmap(lambda q: sx.vmap(lambda v: sx.grad(loss)(q, v))(x))(many),
    "each of each inside": lambda p, many, x: sx.grad(
        lambda m: sx.sum(sx.vmap(lambda q: sx.vmap(lambda v: loss(q, v))(x))(m))
    )(many),
    "the function mapped": lambda p, many, x: sx.grad(
        lambda p: sx.sum(sx.vmap(block, in_axes=(None, 0))(p, sx.vmap(part, in_axes=(None, 0))(p, x)))
    )(p),
    "rematerialised": lambda p, many, x: sx.vmap(
        sx.grad(lambda p, x: sx.remat(lambda: loss(p, x))()), in_axes=(None, 0)
    )(p, x),
    "mapped and rematerialised": lambda p, many, x: sx.grad(
        lambda p: sx.sum(sx.remat(sx.vmap(lambda v: block(p, v)))(x))
    )(p),
    "own gradient": lambda p, many, x: sx.vmap(sx.grad(lambda p, x: sx.sum(cubed(block(p, x)))), in_axes=(None, 0))(
        p, x
    ),
    "Jacobian": lambda p, many, x: sx.jacrev(lambda p: sx.sum(block(p, x), axis=-1))(p),
    "second": lambda p, many, x: sx.grad(
        lambda p: sx.sum(sx.vmap(sx.grad(lambda p, v: loss(p, v)), in_axes=(None, 0))(p, x)["b"] ** 2)
    )(p),
}


def found(case: str, words: str, mesh: sx.Mesh) -> list[Any]:
    with PLANS[words].on(mesh) if words else sx.use_mesh(mesh):
        here = {"data": sx.Shard(0)} if words else None
        p, many = (params(sx.asarray(w, placement=here)) for w in (W, MANY))
        return [g.numpy() for g in tree.leaves(CASES[case](p, many, sx.asarray(X, placement=here)))]


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_without_a_plan(case: str) -> None:
    want = found(case, "", sx.make_mesh())
    assert all(np.any(w) for w in want)
    for words in PLANS:
        for axes in ({"data": 2, "model": 1}, {"data": 3, "model": 2}):
            for got, w in zip(found(case, words, sx.make_mesh(axes, device="sim")), want):
                np.testing.assert_allclose(got, w, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("words", PLANS)
def test_on_ranks(words: str) -> None:
    for case in ("per example", "ensemble inside", "own gradient"):
        want = found(case, "", sx.make_mesh())
        for each in spmd(2)(lambda case=case: found(case, words, sx.make_mesh({"data": 2, "model": 1})))():
            for got, w in zip(each, want):
                np.testing.assert_allclose(got, w, rtol=1e-10, atol=1e-12)
