"""Small inputs that once went wrong on several ranks, by what was wrong with them. Exact unless a test says close."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import spmdx as sx
from spmdx.errors import GradientError

VALUE = np.arange(12.0).reshape(4, 3)
ROWS = {"world": sx.Shard(0)}


def test_memos_keep_no_operands() -> None:
    """A body that is bound to its bounds lives in the memo; its first operands, and their records, must not."""
    x = sx.asarray(VALUE, placement=ROWS)
    seen: list[Any] = []

    def keep(a: sx.Array) -> sx.Array:
        seen.append(weakref.ref(a))
        return a

    def loss(q: sx.Array) -> sx.Array:
        first = keep(keep(q * 2)[0])
        table = keep(keep(q * 3)[np.array([1, 0])])
        changed = keep(keep(q * 4).at[np.array([1, 0])].add(table)).at[1].set(first)
        return (keep(sx.tril(keep(changed))) * keep(changed)[sx.argmax(plain(changed), axis=0)[0]]).sum()

    def plain(a: sx.Array) -> sx.Array:
        return keep(sx.stop_gradient(a))

    enabled = gc.isenabled()
    gc.disable()
    try:
        sx.grad(loss)(x)
        assert len(seen) > 8 and not [r for r in seen if r() is not None]
    finally:
        if enabled:
            gc.enable()


# Constants from another mesh, and their gradients


def grid() -> sx.Mesh:
    n = sx.make_mesh().size
    return sx.make_mesh({"d": n // 2 if n % 2 == 0 else n, "m": 2 if n % 2 == 0 else 1})


def other(mesh: sx.Mesh) -> sx.Array:
    return sx.asarray(VALUE, mesh=mesh, placement={"d": sx.Shard(0), "m": sx.Shard(1)})


def test_the_gradient_of_a_constant_from_another_mesh_comes_back() -> None:
    x, w = other(grid()), sx.asarray(np.ones(3))
    of_w = sx.grad(lambda w: ((x @ w) ** 2).sum())(w)
    assert of_w.spec is w.spec and np.array_equal(of_w.numpy(), 2 * VALUE.T @ (VALUE @ np.ones(3)))


def test_gradients_of_constants_share_one_message() -> None:
    x, w, b = other(grid()), sx.asarray(np.ones(3)), sx.asarray(np.ones(3))
    with sx.debug.trace() as t:
        sx.grad(lambda p: ((x * p[0] + p[1]) * x).sum())((w, b))
    home = [record for record in t if record.operation == "grad"]
    axes = [a for a, n in x.mesh.shape.items() if n > 1]
    assert len(home) <= len(axes) and {a for record in home for a in record.axes} == set(axes)


@pytest.mark.parametrize("wrap", [lambda f: f, sx.remat])
def test_an_array_used_on_two_meshes_gets_both_gradients(wrap: Any) -> None:
    x, z = other(grid()), sx.asarray(VALUE, placement=ROWS)

    def loss(w: sx.Array, here_first: bool) -> sx.Array:
        parts = [lambda: (z * w).sum().redistribute({}), lambda: ((x * w) ** 2).sum().redistribute({})]
        first, second = (part() for part in (parts if here_first else parts[::-1]))
        return first + second

    for here_first in (True, False):
        w = sx.asarray(np.array([1.0, 2.0, 3.0]))
        got = sx.grad(wrap(loss))(w, here_first)
        assert got.spec is w.spec
        assert np.array_equal(got.numpy(), VALUE.sum(0) + 2 * (VALUE**2).sum(0) * np.array([1, 2, 3]))


def test_a_gathered_array_used_on_another_mesh() -> None:
    """Its gradient goes on to where the pieces lie."""
    x, w = other(grid()), sx.asarray(VALUE, placement=ROWS)

    def loss(w: sx.Array) -> sx.Array:
        return ((w * w).redistribute({}) * x).sum()

    got = sx.grad(loss)(w)
    assert got.spec is w.spec and np.array_equal(got.numpy(), 2 * VALUE * VALUE)
    again = sx.grad(lambda w: (sx.grad(loss)(w) * w).sum())(w)
    assert np.array_equal(again.numpy(), 4 * VALUE * VALUE)
    twice = sx.custom_vjp(lambda w: (w * w).redistribute({}))
    twice.defvjp(lambda w: ((w * w).redistribute({}), w), lambda w, g: (2 * (w * g),))
    assert np.array_equal(sx.grad(lambda w: (twice(w) * x).sum())(w).numpy(), 2 * VALUE * VALUE)


def test_second_gradients_of_constants_from_another_mesh() -> None:
    x, w = other(grid()), sx.asarray(np.array([1.0, 2.0, 3.0]))
    first = sx.grad(lambda w: ((x * w) ** 3).sum())
    got = sx.grad(lambda w: first(w).sum())(w)
    assert got.spec is w.spec and np.allclose(got.numpy(), 6 * (VALUE**3).sum(0) * np.array([1, 2, 3]), rtol=1e-14)
    value, tangent = sx.jvp(lambda w: (x * w * w).sum(), (w,), (sx.ones_like(w),))
    assert value.item() == (VALUE * [1, 4, 9]).sum() and tangent.item() == (VALUE * [2, 4, 6]).sum()


@pytest.mark.ranks(3, 4)
def test_ranks_that_cannot_know_a_gradient_say_what_to_write() -> None:
    part = sx.make_mesh({"d": 2, "m": 1}, ranks=[0, 2])
    x, w = other(part), sx.asarray(np.ones(3))
    with pytest.raises(GradientError, match=r"x\.to\(mesh\) inside"):
        sx.grad(lambda w: (x * w).sum())(w)
    assert np.array_equal(sx.grad(lambda w: (x * w.to(part)).sum())(w).numpy(), VALUE.sum(0))
