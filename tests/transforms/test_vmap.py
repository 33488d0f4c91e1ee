"""vmap: batches anywhere, nested, differentiated, divided over ranks, and what cannot be batched."""

from __future__ import annotations

from collections import Counter, OrderedDict
from functools import partial
from typing import Any

import numpy as np
import pytest
from worlds import close, draw, exact, in_each_world, placements, put

import spmdx as sx
from spmdx import nn
from spmdx.errors import ArgumentError, BatchError, GradientError, ShapeError

X, W = draw(4, 3, 5), draw(5, 2, seed=1)


def model(w: Any, x: Any) -> Any:
    h = sx.tanh(x @ w)
    return sx.sum(sx.softmax(h, axis=-1) * h, axis=0) - h[1:].max(axis=0)


def one_by_one(function: Any, x: Any) -> Any:
    return np.stack([function(x[i]).numpy() for i in range(len(x))])


@in_each_world
def test_it_is_the_function_of_each_example_stacked(mesh: sx.Mesh) -> None:
    for placement in placements(mesh, 3):
        x, w = put(X, mesh, placement), put(W, mesh)
        close(sx.vmap(model, (None, 0))(w, x), one_by_one(partial(model, w), x))


@in_each_world
def test_gradients_inside_and_outside(mesh: sx.Mesh) -> None:
    def loss(w: Any, x: Any) -> Any:
        return sx.sum(model(w, x) ** 2)

    for placement in placements(mesh, 3):
        x, w = put(X, mesh, placement), put(W, mesh)
        each = np.stack([sx.grad(loss)(w, x[i]).numpy() for i in range(4)])
        close(sx.vmap(sx.grad(loss), (None, 0))(w, x), each)  # one gradient for each example
        close(sx.grad(lambda w, x: sx.vmap(loss, (None, 0))(w, x).sum())(w, x), each.sum(0))
        second = sx.grad(lambda w, x: sx.sum(sx.grad(loss)(w, x) ** 2))
        close(sx.vmap(second, (None, 0))(w, x)[2], second(w, x[2]), 1e-11)


@in_each_world
def test_a_divided_batch_sends_nothing(mesh: sx.Mesh) -> None:
    x, w = put(X, mesh, {"a": sx.Shard(0)}), put(W, mesh)
    with sx.debug.trace() as trace:
        y = sx.vmap(model, (None, 0))(w, x)
    assert not trace
    assert y.placement == {**{name: sx.Replicate() for name in mesh.axis_names}, "a": y.placement["a"]}
    assert mesh.shape["a"] == 1 or y.placement["a"] == sx.Shard(0)


@in_each_world
def test_each_examples_gradient_lies_where_the_example_does(mesh: sx.Mesh) -> None:
    x, w = put(draw(240, 3, 5), mesh, {"a": sx.Shard(0)}), put(W, mesh)
    with sx.debug.trace() as trace:
        each = sx.vmap(sx.grad(lambda w, x: sx.sum(model(w, x) ** 2)), (None, 0))(w, x)
    assert not trace
    assert each.shape == (240, 5, 2)
    assert mesh.shape["a"] == 1 or each.placement["a"] == sx.Shard(0)


@in_each_world
def test_random_values_and_dropout_are_those_of_one_example(mesh: sx.Mesh) -> None:
    def noisy(x: Any) -> Any:
        return nn.dropout(sx.random.key(1), x, 0.5) + sx.random.normal(sx.random.key(2), x.shape, mesh=x.mesh)

    for placement in placements(mesh, 3, partial=False):
        x = put(X, mesh, placement)
        exact(sx.vmap(noisy)(x), one_by_one(noisy, x))


def test_batches_in_and_out_anywhere() -> None:
    x = sx.asarray(X)
    close(sx.vmap(lambda x: x.sum(axis=0), in_axes=2)(x), X.sum(0).T)
    close(sx.vmap(lambda x: x.sum(axis=0), in_axes=-2, out_axes=1)(x), X.sum(0).T)
    tree = {"x": x, "pair": (x[:, 0], sx.asarray(W))}
    found = sx.vmap(lambda t: t["x"] @ t["pair"][1] + t["pair"][0][0], ({"pair": (0, None), "x": 0},))(tree)
    close(found, X @ W + X[:, 0, 0][:, None, None])
    first, second = sx.vmap(lambda x: (x, sx.asarray(1.0)), out_axes=(1, None))(x)
    assert first.shape == (3, 4, 5) and second.shape == ()
    assert sx.vmap(lambda x: 2.0)(x).shape == (4,)


def test_nested() -> None:
    a, b = draw(3, 5), draw(2, 5)
    pairs = sx.vmap(sx.vmap(lambda a, b: sx.sum(a * b), (0, None)), (None, 0))
    close(pairs(sx.asarray(a), sx.asarray(b)), b @ a.T)
    gradient = sx.grad(lambda a: pairs(a, sx.asarray(b)).sum())(sx.asarray(a))
    close(gradient, np.tile(b.sum(0), (3, 1)))
    inner = sx.vmap(sx.grad(lambda a: sx.vmap(lambda b: sx.sum(sx.sin(a) * b))(sx.asarray(b)).sum()))(sx.asarray(a))
    close(inner, np.cos(a) * b.sum(0))


def test_custom_gradients_and_remat() -> None:
    @sx.custom_vjp
    def odd(x: Any, scale: Any) -> Any:
        return x * scale

    odd.defvjp(lambda x, scale: (x * scale, (x, scale)), lambda kept, g: (g * kept[1] * 10, sx.sum(g * kept[0])))
    x, scale = sx.asarray(draw(4, 3)), sx.asarray(2.0)

    def loss(x: Any, scale: Any) -> Any:
        return sx.sum(sx.remat(lambda x: odd(sx.exp(x), scale) ** 2)(x))

    found = sx.vmap(sx.grad(loss, argnums=(0, 1)), (0, None))(x, scale)
    for i in range(4):
        for g, want in zip(found, sx.grad(loss, argnums=(0, 1))(x[i], scale)):
            exact(g[i], want)
    total = sx.grad(lambda x, s: sx.vmap(loss, (0, None))(x, s).sum(), argnums=(0, 1))(x, scale)
    close(total[0], found[0])
    close(total[1], found[1].sum())


def test_custom_gradients_that_close_over_an_example() -> None:
    def scaled(by: Any) -> Any:
        f = sx.custom_vjp(lambda x: sx.sum(x * by))
        f.defvjp(lambda x: (sx.sum(x * by), None), lambda kept, g: (10 * g * by,))
        return f

    w, x = sx.asarray(draw(3)), sx.asarray(draw(4, 3))
    found = sx.grad(lambda w: sx.sum(sx.vmap(lambda v: scaled(v)(w))(x)))(w)  # only what is closed over is batched
    close(found, 10 * draw(4, 3).sum(0))
    close(sx.vmap(sx.grad(lambda w, v: scaled(v)(w)), (None, 0))(w, x), 10 * draw(4, 3))


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("also", [False, True], ids=["alone", "beside an argument"])
def test_a_custom_gradient_speaks_of_its_arguments(batched: bool, also: bool) -> None:
    """Of what it closes over, or gets in an object, the gradient would be lost."""

    class Box:
        def __init__(self, x: Any) -> None:
            self.x = x

    f = sx.custom_vjp(lambda box, y: box.x * y)
    f.defvjp(lambda box, y: (box.x * y, None), lambda kept, g: (None, g))

    def loss(x: Any) -> Any:
        return sx.sum(f(Box(x), 2 * x if also else 2.0))

    with pytest.raises(GradientError, match="none of its arguments"):
        (sx.vmap if batched else lambda f: f)(sx.grad(loss))(sx.asarray(X))


def test_what_leaves_a_vmap_has_no_gradient_outside() -> None:
    left: list[Any] = []

    def loss(x: Any) -> Any:
        sx.vmap(lambda v: left.append(v) or v)(x)
        return sx.sum(left.pop())

    for f in (sx.grad(loss), sx.vmap(sx.grad(loss))):
        with pytest.raises(BatchError, match="a vmap that has ended"):
            f(sx.asarray(X))


def test_from_one_mesh_to_another() -> None:
    one, other = (sx.make_mesh({name: -1}) for name in ("one", "other"))
    x = put(X, one, {"one": sx.Shard(0)})
    for placement in (None, {"other": sx.Shard(0)}):
        exact(sx.vmap(lambda v, p=placement: v.to(other, p))(x), X)
        square = lambda v, p=placement: sx.sum(v.to(other, p) ** 2)  # noqa: E731  # a loss, said once
        exact(sx.vmap(sx.grad(square))(x), 2 * X)
        exact(sx.grad(lambda x, f=square: sx.sum(sx.vmap(f)(x)))(x), 2 * X)
    found = sx.jacrev(lambda v: v.to(other))(x[0, 0])
    exact(found, np.eye(X.shape[2]))
    assert found.mesh is one


def test_attention_norms_and_losses() -> None:
    q, labels = draw(3, 6, 2, 4), np.arange(18).reshape(3, 6) % 8

    def loss(q: Any, labels: Any) -> Any:
        y = nn.attention(q, q, q, causal=True).reshape((6, 8))
        return nn.cross_entropy(nn.rms_norm(y, sx.ones(8)), labels).mean()

    given = sx.asarray(q), sx.asarray(labels)
    found = sx.vmap(sx.grad(loss))(*given)
    for i in range(3):
        close(found[i], sx.grad(loss)(given[0][i], given[1][i]))


def test_a_named_value_goes_where_the_plan_wants_an_example() -> None:
    mesh = sx.make_mesh({"data": 2, "model": 2}, device="sim")
    with sx.Plan(names={"h": {"model": sx.Shard(0)}}).on(mesh):
        x = put(draw(4, 6), mesh, {"data": sx.Shard(0)})
        y = sx.vmap(lambda x: sx.name(sx.exp(x), "h"))(x)
        gradient = sx.grad(lambda x: sx.vmap(lambda x: sx.name(sx.exp(x), "h"))(x).sum())(x)
    assert y.placement == {"data": sx.Shard(0), "model": sx.Shard(1)}
    close(gradient, np.exp(draw(4, 6)))


def test_redistribute_speaks_of_an_example() -> None:
    mesh = sx.make_mesh({"a": 2, "b": 2}, device="sim")
    x = put(draw(4, 6), mesh, {"a": sx.Shard(0)})
    y = sx.vmap(lambda x: x.redistribute(b=sx.Shard(0)))(x)
    assert y.placement == {"a": sx.Shard(0), "b": sx.Shard(1)}
    exact(y, draw(4, 6))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: x if x.sum() > 0 else -x, r"bool at .* reads the elements(.|\n)*Write the same with .*sx\.where"),
        (lambda x: x[x > 0], r"getitem at .*test_vmap.py:\d+ reads"),
        (lambda x: x.numpy(), "numpy at .* reads the elements"),
    ],
)
def test_what_needs_elements_says_so(call: Any, words: str) -> None:
    with pytest.raises(BatchError, match=words):
        sx.vmap(call)(sx.asarray(X))


def test_axes_of_dicts_go_by_keys() -> None:
    """An OrderedDict has its leaves in its own order, and keys of two kinds have none."""
    x, shared = sx.asarray(X), sx.asarray(draw(5))
    for make in (dict, OrderedDict):
        given = make([("b", x), ("a", shared), (1, None)])
        for axes in ({"a": None, "b": 0, 1: None}, OrderedDict([(1, None), ("b", 0), ("a", None)])):
            exact(sx.vmap(lambda p: p["b"] * 2, in_axes=(axes,))(given), X * 2)
        found = sx.vmap(lambda v, make=make: make(b=v, a=v[0]), out_axes={"a": 0, "b": 1})(x)
        exact(found["b"], np.moveaxis(X, 0, 1))
        exact(found["a"], X[:, 0])
    with pytest.raises(ValueError, match="does not fit Counter"):
        sx.vmap(lambda x: x, in_axes=({"a": 0},))(Counter(a=1))


def test_a_number_of_examples_that_is_told() -> None:
    """As many of the same where no argument is a batch; where one is, it has to agree."""
    x = sx.asarray(np.arange(3.0))
    assert sx.vmap(lambda: x * 2, axis_size=2)().tolist() == [[0, 2, 4]] * 2
    assert sx.vmap(lambda x: x + 1, in_axes=None, axis_size=2)(x).tolist() == [[1, 2, 3]] * 2
    assert sx.vmap(lambda x: x + 1, axis_size=np.int64(3))(x).tolist() == [1, 2, 3]
    assert sx.vmap(lambda x: x + 1, in_axes=None, axis_size=0)(x).shape == (0, 3)
    nested = sx.vmap(lambda a: sx.vmap(lambda b: a + b, None, axis_size=2)(x), axis_size=3)(x)
    assert nested.shape == (3, 2, 3)
    for call, error, said in (
        (lambda: sx.vmap(lambda x: x, axis_size=2)(x), ShapeError, "batches of lengths 2, 3, with axis_size=2"),
        (lambda: sx.vmap(lambda x: x, None)(x), ShapeError, "no batch"),
        (lambda: sx.vmap(lambda x: x, axis_size=-1), ArgumentError, "axis_size=3"),
        (lambda: sx.vmap(lambda x: x, axis_size=2.0), ArgumentError, "axis_size=3"),
    ):
        with pytest.raises(error, match=said):
            call()


def test_bad_axes_say_so() -> None:
    x = sx.asarray(X)
    with pytest.raises(ValueError, match="lengths 3, 4"):
        sx.vmap(lambda x, y: x + y, (0, 1))(x, x)
    with pytest.raises(ValueError, match="no batch"):
        sx.vmap(lambda x: x, None)(x)
    with pytest.raises(IndexError, match="axis 3"):
        sx.vmap(lambda x: x, 3)(x)
    with pytest.raises(ValueError, match="does not fit"):
        sx.vmap(lambda x: x, (0, 0))(x)
    with pytest.raises(ValueError, match="same for all examples"):
        sx.vmap(lambda x: x, out_axes=None)(x)
