"""Gradients that go home by the bucket: which are whole when, and that nothing depends on the bucket."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import spmdx as sx
from spmdx.autodiff import pull
from spmdx.errors import ArgumentError
from spmdx.ops.create import ones_like
from spmdx.runtime import kernels

DATA = np.random.default_rng(0).normal(size=(6, 4))


def handed(program: Callable[..., Any], *values: Any) -> tuple[list[int], list[Any], list[Any]]:
    """Of a program's gradients: which were handed over, in order; all of them; and those of a walk without that."""
    leaves = kernels.watch([sx.asarray(v) for v in values])
    out = kernels.deeper(program, *leaves)
    told: list[int] = []
    found: list[Any] = [None] * len(leaves)

    def done(k: int, g: Any) -> None:
        assert found[k] is None, "once"
        told.append(k)
        found[k] = g

    rest = pull([out], [ones_like(sx.stop_gradient(out))], leaves, done)
    assert all(g is None or k not in told for k, g in enumerate(rest))
    both = [a if b is None else b for a, b in zip(found, rest)]
    return told, both, pull([out], [ones_like(sx.stop_gradient(out))], leaves)


def test_a_gradient_is_handed_over_when_nothing_is_to_be_added() -> None:
    """Exact. The last one used comes first; what is used at both ends, and what is used first, come at the end."""
    told, found, want = handed(lambda a, b, c, d: sx.exp(sx.exp(sx.exp(a) * b) * c) * a * d, *DATA[:4])
    assert told == [3, 2, 1]
    for g, w in zip(found, want):
        np.testing.assert_array_equal(g.numpy(), w.numpy())


def test_of_what_does_not_matter() -> None:
    """A leaf without a gradient, one that is the result, and one behind an operation that is not smooth."""
    told, found, _ = handed(lambda a, b, c: sx.where(a > b, c, c), *DATA[:3])
    assert told == [] and found[:2] == [None, None]  # nothing comes after the first use of c
    np.testing.assert_array_equal(found[2].numpy(), np.ones(4))
    told, found, _ = handed(lambda a, b: a, *DATA[:2])
    assert told == [] and found[1] is None
    np.testing.assert_array_equal(found[0].numpy(), np.ones(4))


@pytest.mark.parametrize("seed", range(30))
def test_of_random_programs(seed: int) -> None:
    """Exact: sums of products of whatever was there before, leaves among them."""
    draw = np.random.default_rng(seed)
    pairs = [(int(draw.integers(0, 4 + i)), int(draw.integers(0, 4 + i)), draw.random() < 0.5) for i in range(12)]

    def program(*leaves: Any) -> Any:
        made = list(leaves)
        for i, j, adds in pairs:
            made.append(made[i] + made[j] if adds else made[i] * made[j] * 0.5)
        return made[-1]

    _, found, want = handed(program, *DATA[:4])
    for g, w in zip(found, want):
        assert (g is None) == (w is None)
        if w is not None:
            np.testing.assert_array_equal(g.numpy(), w.numpy())


# Under a plan

PARAMS = {"a": DATA[:4] / 2, "b": DATA[2:] / 3, "unused": DATA[0], "c": DATA[1]}


def network(p: Any, x: Any) -> Any:
    x = sx.name(x, "batch")
    return sx.sum(sx.tanh(sx.tanh(x @ p["a"]) @ p["b"] * p["c"]) @ p["a"] + p["c"])


def by_vjp(p: Any, x: Any) -> Any:
    value, pull_back = sx.vjp(lambda p: network(p, x), p)
    return value, pull_back(2.0)[0]


PROGRAMS: dict[str, Callable[[Any, Any], Any]] = {
    "value_and_grad": sx.value_and_grad(network),
    "vjp": by_vjp,
    "remat": sx.value_and_grad(sx.remat(network)),
    "accumulate": lambda p, x: sx.accumulate(network)(p, [x[:3], x[3:]]),
    "inside a gradient": sx.value_and_grad(
        lambda p, x: sum(sx.sum(g * g) for g in sx.tree.leaves(sx.grad(network)(p, x)))
    ),
    "vmap": sx.value_and_grad(lambda p, x: sx.sum(sx.vmap(lambda row: network(p, row[None]))(x))),
    "its own result": sx.value_and_grad(lambda p, x: sx.sum(p["c"])),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("plan", [sx.plans.data_parallel(), sx.plans.zero1()], ids=["dp", "zero1"])
def test_nothing_depends_on_the_bucket(name: str, plan: sx.Plan) -> None:
    """Exact. From every gradient by itself to all of them together: the same values in the same places."""
    mesh = sx.make_mesh({"data": 3}, device="sim")
    found = []
    for bucket in (None, 1, 100, 300):
        with (plan | sx.Plan(bucket=bucket)).on(mesh), sx.debug.trace() as trace:
            params = sx.tree.map(sx.asarray, PARAMS)
            value, grads = PROGRAMS[name](params, sx.asarray(DATA))
        leaves = sx.tree.leaves(grads)
        moves = [r for r in trace if r.operation == "grad"]
        found.append((float(value), [g.spec for g in leaves], [g.numpy() for g in leaves], sum(r.bytes for r in moves)))
    for value, specs, values, sent in found[1:]:
        assert (value, specs, sent) == (found[0][0], found[0][1], found[0][3])
        for a, b in zip(found[0][2], values):
            np.testing.assert_array_equal(a, b)


def test_micro_batches_fill_the_same_buckets() -> None:
    """What has been added up goes home in as many messages as one batch's gradients."""
    mesh, plan = sx.make_mesh({"data": 3}, device="sim"), sx.plans.data_parallel() | sx.Plan(bucket=128)
    counts = []
    for name in ("value_and_grad", "accumulate"):
        with plan.on(mesh), sx.debug.trace() as trace:
            PROGRAMS[name](sx.tree.map(sx.asarray, PARAMS), sx.asarray(DATA))
        counts.append(sorted(r.bytes for r in trace if r.operation == "grad"))
    assert len(counts[0]) > 1 and counts[0] == counts[1]


def test_the_later_plan_says_the_bucket() -> None:
    small, large = sx.Plan(bucket=8), sx.Plan(bucket=9)
    assert [(a | b).bucket for a, b in ((small, large), (small, sx.Plan()), (sx.Plan(), small))] == [9, 8, 8]
    assert "bucket: 8 bytes" in repr(small) and "bucket" not in repr(sx.Plan())
    for wrong in (0, -1, True, 2.5, "25MB"):
        with pytest.raises(ArgumentError, match=r"sx\.Plan\(bucket=25"):
            sx.Plan(bucket=wrong)  # type: ignore[arg-type]
