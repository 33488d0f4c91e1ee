"""Gradients: transforms, nesting, placements of gradients, and the collectives that they cost."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest

import spmdx as sx
from spmdx.errors import ArgumentError, GradientError, ShapeError

VALUE = np.linspace(-1.0, 1.0, 35).reshape(5, 7)


def placements() -> list[dict[str, Any]]:
    return [{"world": p} for p in (sx.Replicate(), sx.Shard(0), sx.Shard(1), sx.Partial("sum"))]


def test_a_gradient_lies_where_its_value_does() -> None:
    for placement in placements():
        x = sx.asarray(VALUE, placement=placement)
        value, g = sx.value_and_grad(lambda x: (sx.exp(x) * x).sum())(x)
        assert np.allclose(g.numpy(), np.exp(VALUE) * (VALUE + 1), rtol=1e-14)
        assert np.allclose(float(value), (np.exp(VALUE) * VALUE).sum(), rtol=1e-14)
        partial = isinstance(placement["world"], sx.Partial)
        assert g.placement == (x.redistribute({}).placement if partial else x.placement)


def test_arrays_alone_and_in_a_container_have_the_same_gradients() -> None:
    """Exact; also where a plan runs when the gradient is asked for, or only when it is pulled back."""
    x = sx.asarray(VALUE, placement={"world": sx.Shard(0)})

    def loss(a: sx.Array, b: sx.Array) -> sx.Array:
        return sx.sum(sx.exp(a) * b * b)

    alone = sx.grad(loss, argnums=(0, 1))(x, x)
    within = sx.grad(lambda both: loss(*both))([x, x])
    _, pull_back = sx.vjp(loss, x, x)
    with sx.Plan(grads={"*": {"world": sx.Shard(0)}}).on(x.mesh):
        planned = sx.grad(loss, argnums=(0, 1))(x, x)
        pulled = pull_back(sx.ones((), dtype=x.dtype))
    assert type(alone) is type(pulled) is tuple and type(within) is list
    for found in (alone, within, planned, pulled):
        for g, want in zip(found, (np.exp(VALUE) * VALUE**2, np.exp(VALUE) * 2 * VALUE), strict=True):
            assert np.allclose(g.numpy(), want, rtol=1e-14) and g.placement == x.placement
    assert all(
        np.array_equal(g.numpy(), a.numpy()) for g, a in zip([*within, *planned, *pulled], alone * 3, strict=True)
    )


def test_a_number_is_sent_as_often_as_it_is_asked_for() -> None:
    """Exact: the first time and when the move is remembered, traced or not; `explicit` forbids it each time."""
    x = sx.asarray(VALUE, placement={"world": sx.Shard(0)})
    loss, sent = sx.sum(x * x), int(x.mesh.size > 1)
    want = float(loss)
    for _ in range(3):
        with sx.debug.trace() as t:
            assert float(loss) == loss.item() == want
        assert len(t) == 2 * sent
        assert float(loss) == want
        if sent:
            with sx.explicit(), pytest.raises(sx.SpmdxError, match="forbids"):
                float(loss)
        with pytest.raises(sx.SpmdxError, match="dry run"):
            sx.eval_shape(lambda x: sx.asarray(float(sx.sum(x))), x)


def test_gradients_of_gradients() -> None:
    for placement in placements():
        x = sx.asarray(VALUE, placement=placement)
        second = sx.grad(lambda x: sx.grad(lambda x: sx.exp(x * x).sum())(x).sum())(x)
        expected = (2 + 4 * VALUE**2) * np.exp(VALUE**2)
        assert np.allclose(second.numpy(), expected, rtol=1e-13)


def test_an_inner_gradient_does_not_see_outer_variables() -> None:
    # d/dx x * (d/dy (x + y) at y=1) = 1: the example of perturbation confusion
    x = sx.asarray(2.0)
    g = sx.grad(lambda x: x * sx.grad(lambda y: x + y)(sx.asarray(1.0)))(x)
    assert float(g) == 1.0


def test_pytrees_argnums_and_aux() -> None:
    params = {"w": sx.asarray(VALUE), "b": [sx.asarray(np.ones(7)), None]}

    def loss(scale: sx.Array, p: Any) -> Any:
        y = p["w"] * scale + p["b"][0]
        return (y * y).sum(), {"y": y}

    (value, aux), (gs, gp) = sx.value_and_grad(loss, argnums=(0, 1), has_aux=True)(sx.asarray(3.0), params)
    y = VALUE * 3 + 1
    assert np.isclose(float(value), (y * y).sum(), rtol=1e-14)
    assert np.array_equal(aux["y"].numpy(), y)
    assert type(aux["y"]) is sx.Array
    assert np.allclose(float(gs), (2 * y * VALUE).sum(), rtol=1e-12)
    assert np.allclose(gp["w"].numpy(), 6 * y)
    assert np.allclose(gp["b"][0].numpy(), (2 * y).sum(0))
    assert gp["b"][1] is None


def test_unused_leaves_have_zero_gradients() -> None:
    x = sx.asarray(VALUE, placement={"world": sx.Shard(1)})
    g = sx.grad(lambda x, y: y.sum(), argnums=(0, 1))(x, x)
    assert np.array_equal(g[0].numpy(), np.zeros_like(VALUE))
    assert np.array_equal(g[1].numpy(), np.ones_like(VALUE))
    assert g[0].placement == x.placement


def test_numpy_inside_a_gradient() -> None:
    """NumPy would make a constant of a watched value; Python's own scalars are for looking at values."""
    x = sx.asarray(VALUE)
    for taken in (lambda x: np.asarray(x), lambda x: x.numpy(), lambda x: x.tolist()):
        with pytest.raises(GradientError, match=r"Write stop_gradient\(x\).numpy\(\)"):
            sx.grad(lambda x, taken=taken: (x * sx.asarray(taken(x))).sum())(x)
    g = sx.grad(lambda x: (x * sx.asarray(sx.stop_gradient(x).numpy())).sum() * float((0 * x).sum() + 2))(x)
    assert (g.numpy() == 2 * VALUE).all()


def test_stop_gradient() -> None:
    x = sx.asarray(VALUE)
    g = sx.grad(lambda x: (sx.stop_gradient(x) * x).sum())(x)
    assert np.array_equal(g.numpy(), VALUE)


def test_custom_vjp() -> None:
    @sx.custom_vjp
    def twice(x: Any, y: Any) -> Any:
        return x * 2.0, y

    twice.defvjp(lambda x, y: ((x * 2.0, y), x), lambda x, g: (g[0] * 10.0, None))
    x = sx.asarray(VALUE)
    g = sx.grad(lambda x: twice(x, x)[0].sum())(x)
    assert np.array_equal(g.numpy(), np.full_like(VALUE, 10.0))
    h = sx.grad(lambda x: (twice(x, x)[0] + twice(x, x)[1]).sum())(x)
    assert np.array_equal(h.numpy(), np.full_like(VALUE, 10.0))


def test_buckets_on_ranks_that_run() -> None:
    """Exact. From one gradient a message to all in one."""
    draw = np.random.default_rng(4)
    layers, rows = [draw.normal(size=(5, 5)) for _ in range(4)], draw.normal(size=(6, 5))

    def loss(layers: Any, x: Any) -> Any:
        x = sx.name(x, "batch")
        for w in layers:
            x = sx.tanh(x @ w)
        return sx.sum(x * layers[-1][0])

    found = []
    for bucket in (None, 1, 250):
        with (sx.plans.data_parallel("world") | sx.Plan(bucket=bucket)).on(sx.make_mesh()), sx.debug.trace() as trace:
            grads = sx.grad(loss)(layers, rows)
        found.append([g.numpy() for g in grads])
        if sx.make_mesh().size > 1:
            assert trace.count() == {None: 1, 1: 4, 250: 2}[bucket]
    for other in found[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(found[0], other))


def test_custom_vjp_whose_forward_calls_it() -> None:
    """As JAX's manual writes it, with the value among the residuals: gradients are its own at every order."""
    f = sx.custom_vjp(lambda x: sx.round(x))
    f.defvjp(lambda x: ((y := f(x)), y), lambda y, g: (3.0 * y * g,))
    x = sx.asarray(VALUE, placement={"world": sx.Shard(0)})
    first = sx.grad(lambda x: f(x).sum())
    assert (first(x).numpy() == 3.0 * np.round(VALUE)).all()
    assert (sx.grad(lambda x: first(x).sum())(x).numpy() == 9.0 * np.round(VALUE)).all()
    assert (sx.vmap(first)(x).numpy() == 3.0 * np.round(VALUE)).all()


def test_custom_vjp_lets_gradients_go_while_the_walk_goes_on() -> None:
    """Also where its last argument is a constant or an integer, for which no gradient is asked."""
    made: list[weakref.ref[Any]] = []
    alive = []

    def backward(kept: Any, g: Any) -> Any:
        alive.append(sum(ref() is not None for ref in made))
        found = g * 2.0
        made.append(weakref.ref(found))
        return found, None

    f = sx.custom_vjp(lambda x, y: x * 2.0)
    f.defvjp(lambda x, y: (x * 2.0, None), backward)
    x = sx.asarray(VALUE)

    def loss(x: Any, last: Any) -> Any:
        for _ in range(5):
            x = f(x, last(x)) * 3.0
        return x.sum()

    for last in (lambda x: sx.asarray(VALUE), lambda x: x > 0):
        alive.clear()
        assert (sx.grad(loss)(x, last).numpy() == 6.0**5).all()
        assert max(alive) <= 1


def test_custom_vjp_needs_its_rule() -> None:
    f = sx.custom_vjp(lambda x: x)
    with pytest.raises(GradientError, match="defvjp"):
        f(sx.asarray(1.0))


@pytest.mark.parametrize(
    ("forward", "backward", "message"),
    [
        (lambda x: x * 2.0, lambda kept, g: (g,), "Write return value, residuals"),
        (lambda x: (x * 2.0, None), lambda kept, g: g, "a tuple with one gradient"),
        (lambda x: (x * 2.0, None), lambda kept, g: (g[0],), "gave shape"),
        (lambda x: (x * 2.0, None), lambda kept, g: (g.sum(),), "gave shape"),
    ],
)
def test_custom_vjp_whose_rule_does_not_fit(forward: Any, backward: Any, message: str) -> None:
    f = sx.custom_vjp(lambda x: x * 2.0)
    f.defvjp(forward, backward)
    with pytest.raises(GradientError, match=message):
        sx.grad(lambda x: f(x * x).sum())(sx.asarray(VALUE))


def test_custom_vjp_pairs_gradients_by_keys_and_casts_them() -> None:
    """jax: another tree is an error. Exact."""
    x = sx.asarray(VALUE)
    f = sx.custom_vjp(lambda p: p["a"].sum())
    f.defvjp(lambda p: (p["a"].sum(), p["a"]), lambda a, g: ({"z": g + a, "b": a},))
    with pytest.raises(ShapeError, match="structure"):
        sx.grad(f)({"a": x, "b": x})
    f.defvjp(lambda p: (p["a"].sum(), p["a"]), lambda a, g: ({"a": np.full(VALUE.shape, 2), "b": a * 3j},))
    found = sx.grad(f)({"a": x, "b": x})
    assert [found[k].dtype.name for k in "ab"] == ["float64"] * 2
    assert np.array_equal(found["a"].numpy(), np.full_like(VALUE, 2.0)) and not found["b"].numpy().any()


def test_remat_gives_the_same_bits_and_reaches_closed_over_values() -> None:
    for placement in placements():
        x, w = sx.asarray(VALUE, placement=placement), sx.asarray(VALUE + 2)

        def loss(x: Any, w: Any, wrap: Any) -> Any:
            def layer(y: Any) -> Any:
                return sx.exp(y * w) * y

            return wrap(layer)(x).sum()

        plain = sx.grad(lambda x, w: loss(x, w, lambda f: f), argnums=(0, 1))(x, w)
        again = sx.grad(lambda x, w: loss(x, w, sx.remat), argnums=(0, 1))(x, w)
        for a, b in zip(plain, again):
            assert np.array_equal(a.numpy(), b.numpy())  # exact: the same operations in the same order


def test_vjp_and_jvp() -> None:
    x = sx.asarray(VALUE, placement={"world": sx.Shard(0)})
    value, pull = sx.vjp(lambda x: sx.exp(x), x)
    (g,) = pull(x * 2.0)
    assert np.allclose(g.numpy(), np.exp(VALUE) * VALUE * 2, rtol=1e-14)
    with pytest.raises(ShapeError, match="cotangent"):
        pull(sx.asarray(1.0))
    out, tangent = sx.jvp(lambda x: sx.exp(x), (x,), (x,))
    assert np.allclose(tangent.numpy(), np.exp(VALUE) * VALUE, rtol=1e-14)
    assert np.array_equal(out.numpy(), value.numpy())


def test_results_are_not_watched_outside() -> None:
    x = sx.asarray(VALUE)
    value, g = sx.value_and_grad(lambda x: x.sum())(x)
    assert type(value) is sx.Array and type(g) is sx.Array


def test_bad_gradients_say_so() -> None:
    with pytest.raises(GradientError, match="floating-point leaves"):
        sx.grad(lambda x: x.sum())(sx.asarray(np.arange(3)))
    with pytest.raises(GradientError, match="real scalar"):
        sx.grad(lambda x: x)(sx.asarray(VALUE))
    with pytest.raises(ArgumentError, match="argument 3"):
        sx.grad(lambda x: x, argnums=3)(sx.asarray(1.0))


def test_column_and_row_parallel_layers_make_one_all_reduce_forward() -> None:
    mesh = sx.make_mesh({"model": -1})
    if mesh.size == 1:
        pytest.skip("one rank has nothing to reduce")
    x = sx.asarray(np.ones((8, 16)), mesh=mesh)
    w1 = sx.asarray(np.ones((16, 48)), mesh=mesh, placement={"model": sx.Shard(1)})
    w2 = sx.asarray(np.ones((48, 16)), mesh=mesh, placement={"model": sx.Shard(0)})
    with sx.debug.trace() as t:
        y = sx.matmul(sx.exp(sx.matmul(x, w1) * 0.01), w2)
    assert not t and y.placement == {"model": sx.Partial("sum")}
    with sx.debug.trace() as t:
        y.redistribute({})
    assert [r.verb for r in t] == ["all_reduce"]


def test_gradients_of_replicated_parameters_share_one_all_reduce() -> None:
    mesh = sx.make_mesh({"data": -1})
    x = sx.asarray(np.ones((640, 7)), mesh=mesh, placement={"data": sx.Shard(0)})
    a, b = sx.asarray(np.ones((1, 7)), mesh=mesh), sx.asarray(np.ones(()), mesh=mesh)
    with sx.debug.trace() as t:
        sx.grad(lambda a, b: (x * a * b).sum(), argnums=(0, 1))(a, b)
    assert len(t) <= 1


def test_a_custom_gradient_has_a_gradient() -> None:
    @sx.custom_vjp
    def sine(x: Any) -> Any:
        return sx.sin(x)

    sine.defvjp(lambda x: (sx.sin(x), sx.cos(x)), lambda cosine, g: (g * cosine,))
    x = sx.asarray(VALUE, placement={"world": sx.Shard(0)})
    second = sx.grad(lambda x: sx.grad(lambda x: sine(x).sum())(x).sum())(x)
    assert np.allclose(second.numpy(), -np.sin(VALUE), rtol=1e-14)


def test_a_factor_of_zero_among_repeated_indices() -> None:
    """The gradient of a product without the factor itself, also where a factor is 0; ties of a minimum share."""
    at = np.array([0, 0, 1, 1])
    for placement in (sx.Replicate(), sx.Shard(0), sx.Partial("sum")):
        x = sx.asarray(np.array([2.0, 3.0, 5.0]), placement={"world": placement})
        v = sx.asarray(np.array([0.0, 7.0, 0.0, 0.0]))
        of_x, of_v = sx.grad(lambda x, v: x.at[at].multiply(v).sum(), argnums=(0, 1))(x, v)
        assert np.array_equal(of_x.numpy(), [0.0, 0.0, 1.0])
        assert np.array_equal(of_v.numpy(), [14.0, 0.0, 0.0, 0.0])
        w = sx.asarray(np.array([2.0, 9.0, 1.0, 1.0]))
        of_x, of_w = sx.grad(lambda x, w: x.at[at].min(w).sum(), argnums=(0, 1))(x, w)
        assert np.array_equal(of_x.numpy(), [0.5, 0.0, 1.0])
        assert np.array_equal(of_w.numpy(), [0.5, 0.0, 0.5, 0.5])
