"""Reductions, contractions and what is composed of them leave the blocks where they are: what travels is as small as
the result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from case import values
from placements import simulated

from spmdx import autodiff, context
from spmdx.ops import contract, extremes, moments, scan, soft
from spmdx.ops import reduce as r
from spmdx.ops.place import asarray, to_numpy
from spmdx.placement import Partial, Replicate, Shard

MESH = simulated(2)
SHARED = {"a": Shard(1)}
X = values(4, 256, kind="unit")
LANE = 4 * X.itemsize  # one number for each row: an all-reduce of what a reduction over the columns gives
# An all-reduce may be two halves: a reduce-scatter now, an all-gather where the whole is needed.

SMALL: dict[str, tuple[Callable[..., Any], int]] = {  # and how many all-reduces of one number a row they take
    "sum": (lambda x: r.sum(x, 1), 0),
    "prod": (lambda x: r.prod(x, 1), 0),
    "max": (lambda x: r.max(x, 1), 0),
    "any": (lambda x: r.any(x, 1), 0),
    "count_nonzero": (lambda x: r.count_nonzero(x, 1), 0),
    "mean": (lambda x: moments.mean(x, 1), 0),
    "var": (lambda x: moments.var(x, 1), 1),
    "std": (lambda x: moments.std(x, 1), 2),
    "argmax": (lambda x: extremes.argmax(x, 1), 1),
    "argmin": (lambda x: extremes.argmin(x), 1),
    "logsumexp": (lambda x: moments.logsumexp(x, 1), 3),
    "norm": (lambda x: moments.norm(x, axis=1), 3),
    "softmax": (lambda x: soft.softmax(x, 1), 2),
    "log_softmax": (lambda x: soft.log_softmax(x, 1), 2),
    "searchsorted": (lambda x: scan.searchsorted(scan.cumsum(abs(x), 0)[0], 0.5), 0),
    "matmul": (lambda x: contract.matmul(x, x.mT), 0),
    "einsum": (lambda x: contract.einsum("ij,ij->i", x, x), 0),
    "trace": (lambda x: contract.einsum("ii->", contract.matmul(x.mT, X)), 0),
}


@pytest.mark.parametrize("name", SMALL)
def test_a_reduced_dimension_is_never_gathered(name: str) -> None:
    function, most = SMALL[name]
    x = asarray(X, mesh=MESH, placement=SHARED)
    with context.use(trace=[]) as state:
        function(x)
    sent = [(step.verb, step.bytes) for step in state.trace]
    assert sum(n for _, n in sent) <= most * LANE, sent


@pytest.mark.parametrize("name", ["max", "prod", "logsumexp", "softmax", "log_softmax", "norm", "var"])
def test_gradients_never_gather(name: str) -> None:
    function, _ = SMALL[name]
    x = asarray(X, mesh=MESH, placement=SHARED)
    with context.use(trace=[]) as state:
        autodiff.grad(lambda x: r.sum(function(x) ** 2))(x)
    sent = [(step.verb, step.bytes) for step in state.trace]
    assert sum(n for _, n in sent) <= 8 * LANE < X.nbytes // 4, sent


def test_column_then_row_parallel_stays_partial() -> None:
    x = asarray(X, mesh=MESH, placement={})
    up, down = values(256, 8, seed=1), values(8, 3, seed=2)
    with context.use(trace=[]) as state:
        hidden = contract.matmul(x, asarray(up, mesh=MESH, placement={"a": Shard(1)}))
        out = contract.matmul(hidden, asarray(down, mesh=MESH, placement={"a": Shard(0)}))
    assert not state.trace
    assert out.placement == {"a": Partial("sum")}
    np.testing.assert_allclose(to_numpy(out), X @ up @ down, rtol=1e-9)


def test_sums_of_narrow_integers_and_bools_finish_before_they_widen() -> None:
    """127 + 127 wraps in int8; True + True is True in a bool array: both before they are summed as int64."""
    for one in (np.full((2, 3), 127, "int8"), np.full((2, 3), True)):
        both = asarray(one, mesh=MESH, placement={"a": Partial("sum")})
        both = both + asarray(one, mesh=MESH, placement={"a": Partial("sum")})
        assert to_numpy(r.sum(both)) == (one + one).sum()
    x = asarray(np.array([-1.0, 0.0]), mesh=MESH, placement={"a": Partial("max")})
    assert r.any(x).placement == {"a": Replicate()}


@pytest.mark.parametrize("function", [r.max, r.min, extremes.argmax, extremes.argmin])
def test_extremes_of_nothing_say_so(function: Callable[..., Any]) -> None:
    x = asarray(values(0, 3), mesh=MESH, placement={"a": Shard(1)})
    with pytest.raises(ValueError, match=r"of no elements: shape \(0, 3\)"):
        function(x, axis=0)
    assert function(x, axis=1).shape == (0,)
    for axis in (0, 1, None):  # NumPy's also where there would be none of them
        with pytest.raises(ValueError, match=r"of no elements: shape \(0, 0\)"):
            function(x[:, :0], axis=axis)


@pytest.mark.parametrize("rank", [0, 1])
def test_second_gradients(rank: int) -> None:
    """Of compositions and products: against differences of the first gradient."""
    v = values(3, 4, kind="unit", seed=rank)
    placement = {"a": Shard(rank)}
    for function in (
        lambda x: moments.logsumexp(x, 1),
        lambda x: r.prod(x, 1),
        lambda x: moments.norm(x, axis=0),
        lambda x: soft.softmax(x, 0) ** 2,
        lambda x: scan.cumprod(x, 1),
        lambda x: scan.sort(x, 1) ** 3,
        lambda x: contract.matmul(x, x.mT),
        lambda x: r.max(x, 1) ** 3,
        lambda x: moments.var(x, 1),
    ):

        def loss(x: Any, function: Callable[..., Any] = function) -> Any:
            return r.sum(function(x) ** 2)

        def first(value: Any, loss: Callable[..., Any] = loss) -> Any:
            return to_numpy(autodiff.grad(loss)(asarray(value, mesh=MESH, placement=placement)))

        weight = values(3, 4, kind="positive", seed=5)
        second = autodiff.grad(lambda x, loss=loss, weight=weight: r.sum(autodiff.grad(loss)(x) * weight))
        found = to_numpy(second(asarray(v, mesh=MESH, placement=placement)))
        step = 1e-5
        want = np.zeros_like(v)
        for i in np.ndindex(v.shape):
            bump = np.zeros_like(v)
            bump[i] = step
            want[i] = ((first(v + bump) - first(v - bump)) / (2 * step) * weight).sum()
        np.testing.assert_allclose(found, want, rtol=1e-6, atol=1e-7)
