"""Gradient rules that were seen before are made again without Python: when, and what they depend on. All exact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import spmdx as sx
from spmdx.op import Operation
from spmdx.runtime import kernels

X = np.array([[-2.0, -0.0, 1.0], [3.0, 1.0, 0.5]])


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operations whose rules Python was asked for."""
    kernels.forget_rules()
    names: list[str] = []
    rule = Operation.gradient

    def gradient(self: Operation, *args: Any) -> Any:
        names.append(self.name)
        return rule(self, *args)

    monkeypatch.setattr(Operation, "gradient", gradient)
    return names


def grad(f: Callable[..., Any], *args: Any) -> list[Any]:
    found = sx.grad(lambda *a: sx.sum(f(*a)), argnums=tuple(range(len(args))))(*map(sx.asarray, args))
    return [g.numpy() for g in found]


def test_python_is_asked_until_its_calls_are_known(asked: list[str]) -> None:
    counts = []
    for _ in range(4):
        asked.clear()
        grad(lambda x: sx.exp(sx.maximum(x, 0.5)) / 3, X)
        counts.append(len(asked))
    assert counts[0] == 4 and counts[2:] == [0, 0]


def test_numbers_are_told_apart() -> None:
    for bound in (1.0, 0.5, 1, True, 3.0):
        for _ in range(4):
            assert (grad(lambda x, b=bound: sx.maximum(x, b), X)[0] == (bound < X) + 0.5 * (bound == X)).all()
    for zero in (0.0, -0.0, 0):
        for _ in range(4):
            [g] = grad(lambda x, z=zero: x * z, X)
            assert g.tobytes() == np.full_like(X, zero).tobytes()


def test_the_same_array_twice() -> None:
    for _ in range(4):
        assert (grad(lambda x: x * x, X)[0] == 2 * X).all()
        assert [g.tolist() for g in grad(lambda x, y: x * y, X, X + 1)] == [(X + 1).tolist(), X.tolist()]


def test_numbers_that_a_dtype_does_not_hold_are_told_again() -> None:
    x = np.float32([1.0, 2.0])
    for _ in range(4):
        with np.errstate(all="ignore"):
            assert grad(lambda x: x * 1e30, x)[0].tolist() == [np.float32(1e30)] * 2
        with pytest.raises(sx.errors.RangeError, match="beyond"):
            grad(lambda x: x * 10**400, x)


def test_rules_of_users_are_asked_each_time() -> None:
    seen = []

    @sx.op("... -> ...")
    def thrice(xp: Any, x: Any) -> Any:
        """3 x."""
        return 3 * x

    def rule(g: Any, out: Any, x: Any) -> Any:
        seen.append(float(g.sum()))
        return g * 3 if len(seen) % 2 else g * 5

    thrice.vjp(rule)
    assert [grad(thrice, X)[0][0, 0] for _ in range(5)] == [3, 5, 3, 5, 3]
    assert len(seen) == 5


def test_a_rule_that_takes_the_place_of_another() -> None:
    rule, other = sx.tanh.op.gradients, lambda g, out, x: 7 * g
    try:
        for _ in range(4):
            assert (grad(sx.tanh, X)[0] != 7).all()
        sx.tanh.vjp(other)
        assert (grad(sx.tanh, X)[0] == 7).all()
    finally:
        sx.tanh.vjp(*rule)
    assert (grad(sx.tanh, X)[0] != 7).all()


@pytest.mark.parametrize("made", [0.0, np.zeros(X.shape), [None]])
def test_rules_that_give_no_array_are_errors(made: Any) -> None:
    @sx.op("... -> ...")
    def careless(xp: Any, x: Any) -> Any:
        """x, whose gradient is no array."""
        return x

    careless.vjp(lambda g, out, x: made)
    with pytest.raises(sx.errors.GradientError, match="gradient rule of careless gave"):
        grad(lambda x: careless(x * 2), X)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_interrupt_in_a_known_rule_is_not_lost(error: type[BaseException]) -> None:
    """What fails is asked in Python again, which fails or not; an interrupt comes once."""
    told: list[int] = []

    @sx.op("... -> ...")
    def interrupted(xp: Any, x: Any) -> Any:
        """x, unless it is told to stop."""
        if told:
            told.pop()
            raise error
        return x

    @sx.op("... -> ...")
    def same(xp: Any, x: Any) -> Any:
        """x."""
        return x

    same.vjp(lambda g, out, x: interrupted(g))
    same.op.pure = True
    for _ in range(4):
        grad(same, X)
    told.append(1)
    if error is ValueError:
        grad(same, X)
    else:
        with pytest.raises(KeyboardInterrupt):
            grad(same, X)
    assert not told and (grad(same, X)[0] == 1).all()


def test_a_block_that_was_let_go_is_an_error() -> None:
    x = sx.asarray(X)
    del x._block
    with pytest.raises(sx.errors.GradientError, match="let go"):
        sx.grad(sx.sum)(x)


def test_what_runs_may_be_forgotten_meanwhile(asked: list[str]) -> None:
    @sx.op("... -> ...")
    def forgetful(xp: Any, x: Any) -> Any:
        """x, and no rule is known any more."""
        kernels.forget_rules()
        return x

    forgetful.vjp(lambda g, out, x: g)
    for _ in range(4):
        assert (grad(lambda x: forgetful(x * 2) + x, X)[0] == 3).all()


def test_gradients_of_gradients_are_recorded() -> None:
    f = sx.grad(lambda x: sx.sum(x**3 * sx.exp(x)))
    x = sx.asarray(X)
    for _ in range(4):
        got = sx.grad(lambda x: sx.sum(f(x)))(x).numpy()
        assert np.allclose(got, (6 * X + 6 * X**2 + X**3) * np.exp(X), rtol=1e-13)


@pytest.mark.parametrize("n", [2, 3])
def test_ranks_that_are_threads_have_blocks_of_their_own(n: int) -> None:
    """Uneven ones, and sums of what is Partial, whose gradients are spread over templates of each rank's."""

    @sx.testing.spmd(n)
    def run() -> list[Any]:
        mesh = sx.make_mesh({"a": n})
        rows = sx.asarray(np.arange(15.0).reshape(5, 3), mesh=mesh, placement=sx.P("a"))
        w = sx.asarray(np.arange(15.0).reshape(3, 5), mesh=mesh, placement=sx.P(None, "a"))
        loss = sx.grad(lambda x, w: sx.sum(w @ x) + sx.sum(sx.maximum(x, 7.0)), argnums=(0, 1))
        return [[g.numpy() for g in loss(rows, w)] for _ in range(4)]

    x, w = np.arange(15.0).reshape(5, 3), np.arange(15.0).reshape(3, 5)
    of_x = np.broadcast_to(w.sum(0)[:, None], (5, 3)) + (x > 7) + 0.5 * (x == 7)
    for steps in run():
        for got in steps:
            assert (got[0] == of_x).all() and (got[1] == x.sum(1)).all()


def test_a_function_that_fails_leaves_the_depth_as_it_was() -> None:
    with pytest.raises(ZeroDivisionError):
        sx.grad(lambda x: 1 / 0)(sx.asarray(X))
    x = sx.asarray(X)
    assert type(x * 2) is sx.Array and (grad(lambda x: x * 2, X)[0] == 2).all()
