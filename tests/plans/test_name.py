"""Named values and functions: the identity without a plan; with one, placed, in one message, and so are gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import spmdx as sx
from spmdx import tree
from spmdx.errors import GradientError
from spmdx.plans import Plan

MESH = sx.make_mesh({"p": 2}, device="sim")
WHOLE, ROWS = sx.Replicate(), sx.Shard(0)
W = {"a": np.arange(12.0).reshape(4, 3), "b": np.arange(4.0)}


def weights(placement: Any) -> Any:
    return {k: sx.asarray(v, mesh=MESH, placement=placement) for k, v in W.items()}


def test_without_a_plan() -> None:
    x = sx.asarray([1.0, 2.0])
    assert sx.name(x, "x") is x
    assert sx.name(lambda p, y: p + y, "f")(1, 2) == 3


def test_a_value_that_the_plan_does_not_name() -> None:
    with Plan(names={"y": {"p": ROWS}}).on(MESH):
        x = sx.asarray([1.0, 2.0])
        assert sx.name(x, "x") is x


def test_a_value_is_placed_with_its_gradient() -> None:
    with Plan(names={"x": {"p": ROWS}, "y": {"p": WHOLE}}).on(MESH):
        x = sx.asarray(np.arange(4.0))
        assert sx.name(x, "x").placement == {"p": ROWS}
        partial = x.redistribute(p=sx.Partial())
        assert sx.name(partial, "y").placement == {"p": WHOLE}
        given = sx.asarray(np.ones(4)).redistribute(p=sx.Partial())
        _, back = sx.vjp(lambda x: sx.name(x, "y") * 3, x)
        with sx.debug.trace() as trace:
            [g] = back(given)
    np.testing.assert_array_equal(g.numpy(), np.full(4, 3.0))  # exact
    assert [r.operation for r in trace] == ["y"]  # finished where the value is named


def test_numpys_arrays_are_placed_too() -> None:
    """Else a batch that a program read with NumPy would stay whole on every rank, and nobody would say so. Exact."""
    batch = np.arange(8.0).reshape(4, 2)
    assert sx.name(batch, "batch") is batch
    with Plan(names={"batch": {"p": ROWS}}).on(MESH):
        several = sx.name({"x": batch, "n": 3, "y": sx.asarray(batch)}, "batch")
        assert several["n"] == 3
        for x in (sx.name(batch, "batch"), several["x"], several["y"]):
            assert x.placement == {"p": ROWS}
            np.testing.assert_array_equal(x.numpy(), batch)
        assert sx.name(batch, "other") is batch


def test_a_tree_goes_in_one_message() -> None:
    with Plan(names={"all": {"p": WHOLE}}).on(MESH):
        params = weights({"p": ROWS})
        with sx.debug.trace() as trace:
            whole = sx.name({**params, "n": 3}, "all")
        assert [r.verb for r in trace] == ["all_gather"]
        assert whole["n"] == 3
        for k, v in W.items():
            np.testing.assert_array_equal(whole[k].numpy(), v)
        with sx.debug.trace() as trace:
            grads = sx.grad(lambda p: sum(sx.sum(x * x) for x in tree.leaves(sx.name(p, "all"))))(params)
    assert [r.verb for r in trace] == ["all_gather"]  # the loss was the same on every rank: gradients are cut
    for k, v in W.items():
        np.testing.assert_array_equal(grads[k].numpy(), 2 * v)  # exact
        assert grads[k].placement == params[k].placement


def layer(p: Any, x: Any) -> Any:
    return sx.tanh(p["a"] @ x) * p["b"][:, None]


def deep(params: list[Any], x: Any) -> Any:
    f = sx.name(layer, "layer")
    for i, p in enumerate(params):
        x = f(p, x)[: 3 if i < 2 else 4]
    return sx.sum(x)


def test_a_function_gathers_its_parameters_and_again_backward() -> None:
    plan = Plan({"*": {"p": ROWS}}, gather={"layer": {"p": WHOLE}})
    x = np.linspace(-1, 1, 6).reshape(3, 2)
    expected = sx.grad(deep)([{k: sx.asarray(v) for k, v in W.items()}] * 3, sx.asarray(x))
    with plan.on(MESH):
        params = [weights({"p": ROWS})] * 3
        with sx.debug.trace() as trace:
            grads = sx.grad(deep)(params, sx.asarray(x))
    # three forward; backward the last is still there; what is the same on every rank is cut, not scattered
    assert [r.verb for r in trace] == ["all_gather"] * 5
    for g, e in zip(tree.leaves(grads), tree.leaves(expected)):
        np.testing.assert_allclose(g.numpy(), e.numpy(), rtol=1e-14)
        assert g.placement == {"p": ROWS}


def let_go(x: sx.Array) -> bool:
    try:
        return x.block is None
    except GradientError:
        return True


def test_gathered_arrays_are_dropped() -> None:
    plan = Plan(gather={"layer": {"p": WHOLE}})
    seen: list[Any] = []

    def watched(p: Any, x: Any) -> Any:
        seen.append(p["a"])
        return layer(p, x)

    def two(params: Any, x: Any) -> Any:
        f = sx.name(watched, "layer")
        x = f(params[0], x)[:3]
        assert seen[0]._block is not None
        x = f(params[1], x)
        assert let_go(seen[0])  # of the call before
        return sx.sum(x)

    with plan.on(MESH) as running:
        sx.grad(two)([weights({"p": ROWS})] * 2, sx.asarray(np.ones((3, 2))))
    assert let_go(seen[1])
    assert running.held is None


def test_a_gradient_of_a_gradient() -> None:
    plan = Plan(names={"h": {"p": ROWS}}, gather={"layer": {"p": WHOLE}})
    x = np.linspace(-1, 1, 6).reshape(3, 2)

    def twice(params: Any, x: Any) -> Any:
        inner = sx.grad(lambda x: sx.sum(sx.name(sx.name(layer, "layer")(params, x), "h") ** 2))
        return sx.sum(inner(x) ** 2)

    expected = sx.grad(twice)({k: sx.asarray(v) for k, v in W.items()}, sx.asarray(x))
    with plan.on(MESH):
        found = sx.grad(twice)(weights({"p": ROWS}), sx.asarray(x))
    for k in W:
        np.testing.assert_allclose(found[k].numpy(), expected[k].numpy(), rtol=1e-12)


def test_with_remat() -> None:
    plan = Plan(gather={"layer": {"p": WHOLE}})
    x = np.linspace(-1, 1, 6).reshape(3, 2)

    def run(params: Any, x: Any) -> Any:
        f = sx.remat(sx.name(layer, "layer"))
        return sx.sum(f(params[1], f(params[0], x)[:3]))

    expected = sx.grad(run)([{k: sx.asarray(v) for k, v in W.items()}] * 2, sx.asarray(x))
    with plan.on(MESH):
        found = sx.grad(run)([weights({"p": ROWS})] * 2, sx.asarray(x))
    for a, b in zip(tree.leaves(found), tree.leaves(expected)):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-14)


def test_a_call_inside_another_that_is_made_again() -> None:
    """The inner one lets go what was gathered last, and not what it is given itself."""
    plan = Plan(gather={"layer": {"p": WHOLE}, "whole": {"p": WHOLE}})
    x = np.linspace(-1, 1, 6).reshape(3, 2)

    def run(params: Any, x: Any) -> Any:
        return sx.sum(sx.name(lambda p, x: sx.remat(sx.name(layer, "layer"))(p, x), "whole")(params, x))

    expected = sx.grad(run)({k: sx.asarray(v) for k, v in W.items()}, sx.asarray(x))
    with plan.on(MESH):
        found = sx.grad(run)(weights({"p": ROWS}), sx.asarray(x))
    for k in W:
        np.testing.assert_allclose(found[k].numpy(), expected[k].numpy(), rtol=1e-14)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_function_may_return_a_parameter(frozen: bool) -> None:
    """One that is gathered and dropped again, and that nothing watches or a gradient does."""

    def leaves_b(p: Any, x: Any, b: Any) -> Any:
        return (x if b is None else x + b) @ p["a"], p["b"]

    def run(params: Any, x: Any) -> Any:
        f, b = sx.name(leaves_b, "layer"), None
        for p in params:
            x, b = f(p, x, b)
            x = sx.concat([x, x[:, :1]], axis=1)
        return sx.sum(x * x + b)

    x, by = np.linspace(-1, 1, 8).reshape(2, 4), int(frozen)
    expected = sx.grad(run, argnums=by)([{k: sx.asarray(v) for k, v in W.items()}] * 3, sx.asarray(x))
    with Plan(gather={"layer": {"p": WHOLE}}).on(MESH):
        found = sx.grad(run, argnums=by)([weights({"p": ROWS}) for _ in range(3)], sx.asarray(x))
    for a, b in zip(tree.leaves(found), tree.leaves(expected)):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-14)


def test_a_plan_is_explicit() -> None:
    with Plan(names={"x": {"p": WHOLE}}, gather={"layer": {"p": WHOLE}}).on(MESH), sx.explicit():
        whole = sx.name(weights({"p": ROWS}), "x")
        assert whole["a"].placement == {"p": WHOLE}
        f = sx.name(layer, "layer")
        sx.grad(lambda p: sx.sum(f(p, sx.asarray(np.ones((3, 2))))))(weights({"p": ROWS}))


@pytest.mark.parametrize("planned", [True, False])
def test_operands_stay_under_a_plan(planned: bool) -> None:
    """Without a plan the cheapest way is taken; a plan has said where the operands are to be."""
    x = sx.asarray(np.ones((16, 4)), mesh=MESH, placement={"p": sx.Shard(1)})
    w = sx.asarray(np.ones((4, 16)), mesh=MESH, placement={"p": ROWS})

    def product() -> Any:
        with sx.debug.trace() as trace:
            return (x @ w).placement["p"], trace.count()

    if planned:
        with Plan().on(MESH):
            assert product() == (sx.Partial(), 0)
    assert product()[1] > 0 or product()[0] != sx.Partial()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_python_numbers_do_not_finish_a_partial(dtype: Any) -> None:
    """A number takes the array's dtype, masked or not; so does what a slice's gradient is filled up with."""
    x = sx.asarray(np.ones(4, dtype), mesh=MESH).redistribute(p=sx.Partial())
    with Plan().on(MESH), sx.debug.trace() as trace:
        y = x + 1
        _, back = sx.vjp(lambda x: x[1:3], sx.asarray(np.ones(4, dtype), mesh=MESH))
        back(sx.asarray(np.ones(2, dtype), mesh=MESH).redistribute(p=sx.Partial()))
    assert y.placement == {"p": sx.Partial()}
    assert y.dtype == dtype
    np.testing.assert_array_equal(y.numpy(), np.full(4, 2, dtype))
    assert [r.operation for r in trace] == ["grad"]


class Box:
    """No pytree."""

    def __init__(self, x: Any) -> None:
        self.x = x


@pytest.mark.parametrize("by", [0, 1])
def test_a_result_may_be_an_object(by: int) -> None:
    """Its arrays get no mark, so the parameters stay."""

    def run(params: Any, x: Any) -> Any:
        f = sx.name(lambda p, x: Box(x @ p["a"]), "layer")
        for p in params:
            x = f(p, x).x
            x = sx.concat([x, x[:, :1]], axis=1)
        return sx.sum(x * x)

    x = np.linspace(-1, 1, 8).reshape(2, 4)
    expected = sx.grad(run, argnums=by)([{k: sx.asarray(v) for k, v in W.items()}] * 3, sx.asarray(x))
    with Plan(gather={"layer": {"p": WHOLE}}).on(MESH):
        found = sx.grad(run, argnums=by)([weights({"p": ROWS})] * 3, sx.asarray(x))
    for a, b in zip(tree.leaves(found), tree.leaves(expected)):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-14)


@pytest.mark.parametrize("by", [0, 1])
@pytest.mark.parametrize(("what", "used"), [("parameter", True), ("value", True), ("value", False)])
def test_what_leaves_by_a_closure(what: str, used: bool, by: int) -> None:
    """A parameter is let go, which says so. What was made of it has its gradient, if the result has one."""
    left: list[Any] = []

    def keeps(p: Any, x: Any) -> Any:
        left.append(p["b"] if what == "parameter" else p["a"] @ x)
        return layer(p, x)

    def run(params: Any, x: Any) -> Any:
        left.clear()
        f = sx.name(keeps, "layer")
        y = f(params[1], f(params[0], x)[:3])
        return sx.sum(left[0] ** 2) + (sx.sum(y) if used else 0)

    x = np.linspace(-1, 1, 6).reshape(3, 2)
    expected = sx.grad(run, argnums=by)([{k: sx.asarray(v) for k, v in W.items()} for _ in range(2)], sx.asarray(x))
    with Plan(gather={"layer": {"p": WHOLE}}).on(MESH):
        given = [weights({"p": ROWS}) for _ in range(2)], sx.asarray(x)
        if what == "parameter" or (by and not used):
            with pytest.raises(GradientError, match=r"gathered(.|\n)*the function's result"):
                sx.grad(run, argnums=by)(*given)
            return
        found = sx.grad(run, argnums=by)(*given)
    for a, b in zip(tree.leaves(found), tree.leaves(expected)):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-14)


def test_parameters_that_are_no_arrays_stay_as_they_are() -> None:
    other = {"eps": 1e-3, "table": np.arange(4.0), "kind": "row", "none": None, "flag": True}

    def f(p: Any, x: Any) -> Any:
        assert (p["eps"], p["kind"], p["none"], p["flag"]) == (1e-3, "row", None, True)
        return p["a"] @ x * p["eps"] + p["table"][:, None] + p["b"][:, None]

    def run(params: Any, x: Any) -> Any:
        for p in params:
            x = sx.name(f, "layer")({**p, **other}, x)[:3]
        return sx.sum(x * x)

    x = np.ones((3, 2))
    expected = sx.grad(run)([{k: sx.asarray(v) for k, v in W.items()}] * 3, sx.asarray(x))
    with Plan(gather={"layer": {"p": WHOLE}}).on(MESH):
        found = sx.grad(run)([weights({"p": ROWS})] * 3, sx.asarray(x))
        sx.name(f, "layer")({**weights({"p": ROWS}), **other}, sx.asarray(x))
    for a, b in zip(tree.leaves(found), tree.leaves(expected)):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-14)


def test_another_order_than_was_gathered_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next gradient enters the same function with other parameters than the one before did."""
    monkeypatch.setattr("spmdx.plans.running.begins", lambda plans: True)
    x, f = sx.asarray(np.ones((3, 2)), mesh=MESH), sx.name(lambda p, x: (p["a"] @ x)[:3], "layer")

    def run(params: Any, order: Any) -> Any:
        y = x
        for i in order:
            y = f(params[i], y)
        return sx.sum(y * y)

    with Plan(gather={"layer": {"p": WHOLE}}).on(MESH):
        params = [{"a": 0.1 * (i + 1) * weights({"p": ROWS})["a"]} for i in range(3)]
        for order in ((0, 1, 2), (0, 2, 1), (0, 2), (0, 2, 1)):
            found = sx.grad(lambda p, order=order: run(p, order))(params)
            expected = sx.grad(lambda p, order=order: run(p, order))(
                tree.map(lambda w: w.redistribute(p=WHOLE), params)
            )
            for a, b in zip(tree.leaves(found), tree.leaves(expected)):
                np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-14)


@pytest.mark.parametrize("wrap", ["as it is", "cast", "masked"])
def test_gradients_go_home_by_their_own_paths(wrap: str) -> None:
    """Those of a function's parameters too, whatever it calls them."""
    change = {
        "as it is": lambda w: w,
        "cast": lambda w: w.astype(np.float32),
        "masked": lambda w: w * sx.ones(w.shape, mesh=MESH),
    }[wrap]

    def loss(p: Any, x: Any) -> Any:
        f = sx.name(layer, "layer")
        for q in p["blocks"]:
            x = f(tree.map(change, q), x)[:3]
        return sx.sum(x @ p["out"])

    shard = {"p": ROWS}
    traces = []
    for grads in (
        {"*": shard},
        {"blocks.*": shard, "out": shard},
        {"blocks.0.*": shard, "blocks.1.?": shard, "out": shard},
    ):
        with Plan(gather={"layer": {"p": WHOLE}}, grads=grads, names={"x": {"p": sx.Shard(1)}}).on(MESH):
            p = {"blocks": [weights({"p": WHOLE}) for _ in range(2)], "out": sx.asarray(np.ones((2, 2)))}
            x = sx.name(sx.asarray(np.ones((3, 2))), "x")
            with sx.debug.trace() as trace:
                found = sx.grad(loss)(p, x)
        assert all(g.placement == shard for g in tree.leaves(found))
        traces.append([(r.verb, r.operation, r.bytes) for r in trace])
    assert traces[0] == traces[1] == traces[2]
    assert "reduce_scatter" in {verb for verb, *_ in traces[0]}
