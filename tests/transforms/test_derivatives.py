"""jvp, linearize, Jacobians and Hessians: against differences, closed forms and one another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from worlds import close, draw, exact, in_each_world, placements, put

import spmdx as sx
from spmdx.errors import ArgumentError, GradientError, ShapeError

X, V = draw(4, 3), draw(4, 3, seed=1)


def function(x: Any) -> Any:
    return sx.softmax(x @ x.T, axis=1) @ sx.sin(x)


def oracle(x: Any) -> Any:
    powers = np.exp(x @ x.T)
    return powers / powers.sum(1, keepdims=True) @ np.sin(x)


def differences(f: Any, x: Any, v: Any, step: float = 1e-5) -> Any:
    return (f(x + step * v) - f(x - step * v)) / (2 * step)


@in_each_world
def test_jvp_is_the_directional_derivative(mesh: sx.Mesh) -> None:
    for placement in placements(mesh, 2):
        x, v = put(X, mesh, placement), put(V, mesh)
        value, tangent = sx.jvp(function, (x,), (v,))
        close(value, oracle(X))
        close(tangent, differences(oracle, X, V), 1e-8)
        _, push = sx.linearize(function, x)
        exact(push(v), tangent)
        pushed = sx.vmap(push)(sx.stack([v, v * 2.0]))
        close(pushed, sx.stack([tangent, tangent * 2.0]))


@in_each_world
def test_jacobians(mesh: sx.Mesh) -> None:
    for placement in placements(mesh, 2, partial=False):
        x = put(X, mesh, placement)
        rows, columns = sx.jacrev(function)(x), sx.jacfwd(function)(x)
        assert rows.shape == (4, 3, 4, 3)
        close(rows, columns)
        close(np.einsum("ijkl,kl->ij", rows.numpy(), V), differences(oracle, X, V), 1e-8)


@pytest.mark.parametrize("placement", [{}, {"a": sx.Shard(0)}])
@pytest.mark.parametrize("zeros", [(), (0,), (0, 1), (0, 1, 2)])
def test_second_derivatives_of_products_of_one_element(zeros: Any, placement: Any) -> None:
    """Exact: x v0 v1 v2, of which some are 0."""
    values = np.array([2.0, 3.0, 5.0])
    values[list(zeros)] = 0.0
    x = sx.asarray(np.array([7.0, 1.0]), mesh=sx.make_mesh({"a": 2}, device="sim"), placement=placement)

    def product(v: Any) -> Any:
        return sx.sum(x.at[np.zeros(3, int)].multiply(v))

    a, b, c = values
    exact(sx.grad(product)(sx.asarray(values, mesh=x.mesh)), 7 * np.array([b * c, a * c, a * b]))
    exact(sx.hessian(product)(sx.asarray(values, mesh=x.mesh)), 7 * np.array([[0, c, b], [c, 0, a], [b, a, 0]]))


@in_each_world
def test_second_derivatives_of_products_with_zeros(mesh: sx.Mesh) -> None:
    """Exact: of a product, and of the running ones times 1, 10 and 100."""
    for zeros in ([1], [0, 2], [0, 1, 2]):
        values = np.array([2.0, 3.0, 5.0])
        values[zeros] = 0.0
        a, b, c = values
        pairs = np.array([[0, c, b], [c, 0, a], [b, a, 0]])
        running = 100 * pairs + 10 * np.array([[0, 1, 0], [1, 0, 0], [0, 0, 0]])
        for placement in placements(mesh, 1):
            x = put(values, mesh, placement)
            exact(sx.hessian(sx.prod)(x), pairs)
            exact(sx.hessian(lambda x: sx.sum(sx.cumprod(x) * np.array([1.0, 10.0, 100.0])))(x), running)


@in_each_world
def test_hessian(mesh: sx.Mesh) -> None:
    def loss(x: Any) -> Any:
        return sx.sum(sx.exp(x[:, :1] * x[:, 1:]) * x[:1, 1:])

    for placement in placements(mesh, 2, partial=False):
        x = put(X, mesh, placement)
        found = sx.hessian(loss)(x).numpy()
        close(found, found.transpose(2, 3, 0, 1))
        times = sx.jvp(sx.grad(loss), (x,), (put(V, mesh),))[1]  # a Hessian times a vector, without the Hessian
        close(times, np.einsum("ijkl,kl->ij", found, V), 1e-11)
        slope = differences(lambda x: sx.grad(loss)(put(x, mesh)).numpy(), X, V)
        close(times, slope, 1e-7)


def test_the_values_that_jax_gives() -> None:
    """Exact: jax.hessian of jnp.prod and of Rosenbrock's function, jax.jvp of a cube."""
    x = sx.asarray([1.0, 2.0, 3.0])
    exact(sx.hessian(sx.prod)(x), np.array([[0.0, 3.0, 2.0], [3.0, 0.0, 1.0], [2.0, 1.0, 0.0]]))

    def rosenbrock(x: Any) -> Any:
        return sx.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)

    at = sx.asarray([1.0, 1.0])
    exact(sx.hessian(rosenbrock)(at), np.array([[802.0, -400.0], [-400.0, 200.0]]))
    value, tangent = sx.jvp(lambda x: x**3, (sx.asarray(2.0),), (sx.asarray(1.0),))
    assert (float(value), float(tangent)) == (8.0, 12.0)
    close(sx.vmap(sx.hessian(rosenbrock))(sx.stack([at, at * 2.0]))[0], sx.hessian(rosenbrock)(at))


def test_pytrees_and_several_arguments() -> None:
    def f(p: Any, scale: Any) -> Any:
        return {"y": p["a"] * scale, "z": sx.sum(p["a"]) * p["b"]}

    p, scale = {"a": sx.asarray([1.0, 2.0]), "b": sx.asarray(3.0)}, sx.asarray(5.0)
    for jacobian in (sx.jacrev, sx.jacfwd):
        found = jacobian(f, argnums=(0, 1))(p, scale)
        exact(found["y"][0]["a"], np.diag([5.0, 5.0]))
        exact(found["y"][0]["b"], np.zeros(2))
        exact(found["y"][1], np.array([1.0, 2.0]))
        exact(found["z"][0]["a"], np.array([3.0, 3.0]))
        exact(found["z"][0]["b"], np.array(3.0))
        exact(found["z"][1], np.array(0.0))


@in_each_world
def test_leaves_on_two_meshes(mesh: sx.Mesh) -> None:
    """The gradient of one arises on the other's mesh, whole batches of them at once."""
    other = sx.Mesh(("other",), (mesh.size,), mesh.ranks, mesh.device)
    x, b = put(X[0], mesh), put(np.array(2.0), other)
    f = lambda p: sx.sum(p[0] ** 2) * p[1] ** 2  # noqa: E731  # as JAX's examples have it
    for transform in (sx.hessian, lambda f: sx.jacrev(sx.grad(f)), lambda f: sx.jacfwd(sx.grad(f))):
        (xx, xb), (bx, bb) = transform(f)((x, b))
        close(xx, 8 * np.eye(3))
        close(xb, 8 * X[0])
        close(bx, 8 * X[0])
        close(bb, 2 * np.sum(X[0] ** 2))
    close(sx.vmap(sx.grad(lambda b, v: f((v, b))), in_axes=(None, 0))(b, put(X, mesh)), 4 * np.sum(X**2, 1))


def test_bad_calls_say_so() -> None:
    x = sx.asarray(X)
    with pytest.raises(ArgumentError, match="1 primals and 2 tangents"):
        sx.jvp(function, (x,), (x, x))
    with pytest.raises(ArgumentError, match="argnums=2"):
        sx.jacrev(function, argnums=2)(x)
    for argnums in (1.5, "0", (0, None)):
        for transform in (sx.jacrev, sx.jacfwd, sx.grad):
            with pytest.raises(ArgumentError, match="names no arguments"):
                transform(function, argnums=argnums)(x)
    with pytest.raises(GradientError, match="real floating arrays"):
        sx.jacrev(lambda x: x * 1j)(x)


def test_a_function_that_draws_is_the_same_function_twice() -> None:
    rng, key = sx.random.default_rng(0), sx.random.key(1)

    def noisy(x: Any) -> Any:
        return sx.sum(x * rng.normal(size=3) * sx.random.normal(key, (3,)))

    with sx.debug.check_keys():
        value, change = sx.jvp(noisy, (sx.ones(3),), (sx.ones(3),))
    assert float(value) == float(change)
    assert rng.state[1] == 1


def with_aux(x: Any) -> Any:
    """A value, and beside it arrays and what is none."""
    inner = x @ x.T
    return sx.softmax(inner, axis=1) @ sx.sin(x), {"inner": inner, "name": "softmax", "fixed": sx.ones(2, mesh=x.mesh)}


@in_each_world
def test_what_a_function_returns_beside_its_value(mesh: sx.Mesh) -> None:
    """Exact: derivatives are those without it, and it is what the function returned, a constant."""
    for placement in placements(mesh, 2, partial=False):
        x, v = put(X, mesh, placement), put(V, mesh)
        value, tangent, aux = sx.jvp(with_aux, (x,), (v,), has_aux=True)
        exact(value, function(x))
        exact(tangent, sx.jvp(function, (x,), (v,))[1])
        found, push, again = sx.linearize(with_aux, x, has_aux=True)
        exact(found, value)
        exact(push(v), tangent)
        beside = [aux, again]
        for jacobian in (sx.jacrev, sx.jacfwd):
            made, aux = jacobian(with_aux, has_aux=True)(x)
            exact(made, jacobian(function)(x))
            beside.append(aux)
        for aux in beside:
            exact(aux["inner"], x @ x.T)
            assert aux["name"] == "softmax"
            assert aux["fixed"].tolist() == [1, 1]
            assert type(aux["inner"]) is sx.Array


def test_second_derivatives_with_aux() -> None:
    """Exact, alone, of several arguments, and of each example of a batch."""

    def pair(x: Any, y: Any) -> Any:
        return sx.sum(x**3 * y), (x * y, "beside")

    x, y = sx.asarray(np.array([1.0, 2.0])), sx.asarray(np.array([3.0, 5.0]))
    found, (product, name) = sx.hessian(pair, has_aux=True)(x, y)
    assert found.tolist() == [[18.0, 0.0], [0.0, 60.0]]
    assert (product.tolist(), name, type(product)) == ([3.0, 10.0], "beside", sx.Array)
    both, _ = sx.hessian(pair, argnums=(0, 1), has_aux=True)(x, y)
    assert both[0][1].tolist() == both[1][0].tolist() == [[3.0, 0.0], [0.0, 12.0]]
    each, product = sx.vmap(lambda x, y: (lambda h, aux: (h, aux[0]))(*sx.hessian(pair, has_aux=True)(x, y)))(
        sx.stack([x, 2 * x]), sx.stack([y, y])
    )
    assert each[1].tolist() == [[36.0, 0.0], [0.0, 120.0]]
    assert product.tolist() == [[3.0, 10.0], [6.0, 20.0]]
    # the gradient of what is made of a tangent, beside which there is something else
    total = sx.grad(lambda x: sx.sum(sx.jvp(lambda z: pair(z, y), (x,), (sx.ones(2),), has_aux=True)[1]))(x)
    assert total.tolist() == [18.0, 60.0]


def test_numbers_and_numpy_arrays_are_tangents_and_cotangents() -> None:
    """As they are primals. Exact."""
    x = sx.asarray(np.arange(1.0, 4.0))
    assert sx.jvp(lambda v: v * v, (x,), (np.ones(3),))[1].tolist() == [2.0, 4.0, 6.0]
    assert float(sx.jvp(lambda v: v * v, (2.0,), (1.0,))[1]) == 4.0
    assert sx.vjp(lambda v: sx.sum(v * v), x)[1](1)[0].tolist() == [2.0, 4.0, 6.0]
    for jacobian in (sx.jacrev, sx.jacfwd):
        found = jacobian(lambda v: (v, 2.0))(x)
        assert [j.tolist() for j in found] == [np.eye(3).tolist(), [0.0] * 3]


def test_what_does_not_fit_says_so() -> None:
    x = sx.asarray(np.arange(1.0, 4.0))
    for call, error, said in (
        (lambda: sx.jvp(lambda v: v * v, (x,), (np.ones(2),)), ShapeError, "tangent of shape"),
        (lambda: sx.jvp(lambda v: v["a"], ({"a": x},), ({"b": x},)), ShapeError, "structure"),
        (lambda: sx.vjp(lambda v: v * v, x)[1](np.ones(2)), ShapeError, "cotangent of shape"),
        (lambda: sx.grad(lambda v: sx.sum(v), has_aux=True)(x), GradientError, "return value, aux"),
        (lambda: sx.grad(lambda v: (sx.sum(v), 1, 2), has_aux=True)(x), GradientError, "return value, aux"),
        (lambda: sx.jvp(lambda v: sx.sum(v), (x,), (x,), has_aux=True), GradientError, "return value, aux"),
        (lambda: sx.jacfwd(lambda v: sx.sum(v), has_aux=True)(x), GradientError, "return value, aux"),
        (lambda: sx.grad(sx.sum, argnums=(0, -1))(x), ArgumentError, "names an argument twice"),
        (lambda: sx.grad(lambda v: "loss")(x), GradientError, "real scalar"),
    ):
        with pytest.raises(error, match=said):
            call()
