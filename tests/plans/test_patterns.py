"""Plans as values: what patterns match, who wins, where Spread divides, and errors that teach."""

from __future__ import annotations

import re
from typing import Any

import pytest

import spmdx as sx
from spmdx import nn
from spmdx.errors import MeshError, PlacementError
from spmdx.plans import Plan, Spread, data_parallel, parse, tensor_parallel, zero3

MESH = sx.make_mesh({"data": 2, "model": 3}, device="sim")
WHOLE, ROWS, COLUMNS = sx.Replicate(), sx.Shard(0), sx.Shard(1)


def test_patterns() -> None:
    plan = Plan({"layers.*.up": {"model": COLUMNS}, re.compile(r"\.down$"): {"model": ROWS}})
    assert plan.placement("layers.3.mlp.up", (6, 6), MESH) == {"data": WHOLE, "model": COLUMNS}
    assert plan.placement("layers.3.mlp.down", (6, 6), MESH) == {"data": WHOLE, "model": ROWS}
    assert plan.placement("layers.3.mlp.down_bias", (6,), MESH) == {"data": WHOLE, "model": WHOLE}
    assert plan.placement(("layers", 3, "up"), (6, 6), MESH) == {"data": WHOLE, "model": COLUMNS}


def test_later_wins_axis_by_axis() -> None:
    plan = Plan({"*": {"model": ROWS, "data": ROWS}, "w": {"model": COLUMNS}})
    assert plan.placement("w", (4, 6), MESH) == {"data": ROWS, "model": COLUMNS}
    turned = Plan({"w": {"model": COLUMNS}}) | Plan({"*": {"model": ROWS}})
    assert turned.placement("w", (4, 6), MESH) == {"data": WHOLE, "model": ROWS}


def test_a_plan_is_not_changed_by_or() -> None:
    one = Plan({"w": {"model": COLUMNS}})
    assert (one | Plan({"w": {"model": ROWS}})).axes == ("model",)
    assert one.placement("w", (4, 6), MESH)["model"] == COLUMNS


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((4, 6), {"data": ROWS, "model": WHOLE}),
        ((3, 6), {"data": COLUMNS, "model": WHOLE}),  # 3 does not divide evenly
        ((1, 1), {"data": WHOLE, "model": WHOLE}),  # too small
        ((), {"data": WHOLE, "model": WHOLE}),
        ((5,), {"data": ROWS, "model": WHOLE}),  # 3 and 2
    ],
)
def test_spread(shape: tuple[int, ...], expected: object) -> None:
    assert Plan({"*": {"data": Spread()}}).placement("w", shape, MESH) == expected


def test_spread_beside_and_inside_another_axis() -> None:
    plan = Plan({"*": {"model": ROWS, "data": Spread()}})
    assert plan.placement("w", (6, 6), MESH) == {"data": COLUMNS, "model": ROWS}
    # nothing else is left: inside of model's pieces, so that gathering over data alone gives them back
    assert plan.placement("b", (12,), MESH) == sx.P(("model", "data"))


def test_check() -> None:
    shapes = {"blocks": [{"up": nn.Param((4, 6))}, {"up": nn.Param((4, 6))}], "norm": nn.Param((4,))}
    plan = Plan({"blocks.*.up": {"model": COLUMNS}, "blocks.*.dwon": {"model": ROWS}}, names={"resid": {"data": ROWS}})
    table = plan.check(shapes)
    assert [row.paths for row in table] == [("blocks.0.up", "blocks.1.up"), ()]
    assert table.nothing == ("blocks.*.dwon",)
    assert table.unmatched == ("norm",)
    assert "NOTHING" in str(table) and "norm" in str(table)


def test_check_of_names_that_a_run_came_by() -> None:
    plan = Plan(names={"resid": {"data": ROWS}, "hidden": {"data": ROWS}})
    with plan.on(MESH) as running:
        sx.name(sx.asarray([1.0, 2.0]), "hidden")
    assert plan.check({}, running.used).nothing == ("resid",)


def test_an_axis_that_the_mesh_has_not() -> None:
    with pytest.raises(MeshError, match="'model'"), Plan({"*": {"model": ROWS}}).on(sx.make_mesh({"data": 1})):
        pass


def test_words_that_are_none() -> None:
    with pytest.raises(PlacementError, match="Shard, Replicate or Spread"):
        Plan({"*": {"model": sx.Partial()}})
    with pytest.raises(PlacementError, match="Shard, Replicate or Spread"):
        Plan({"*": sx.Shard(0)})


def test_a_dimension_that_is_not_there() -> None:
    with pytest.raises(PlacementError, match=r"'b' does not lie as the plan says.*dimension 1"):
        Plan({"*": {"model": COLUMNS}}).placement("b", (4,), MESH)
    with Plan(names={"mean": {"model": COLUMNS}}).on(MESH), pytest.raises(PlacementError, match="'mean' does not"):
        sx.name(sx.ones(3), "mean")


def test_ready_plans_name_their_axes() -> None:
    assert (data_parallel("x") | zero3("y")).axes == ("y", "x")
    assert "names: batch" in repr(data_parallel())


# A model that is run dry


def misspelt(params: object, x: sx.Array) -> sx.Array:
    """A loss that names a value "residul", and a block."""
    h = sx.name(lambda p, x: x @ p["w"], "block")(params, sx.name(x, "batch"))
    return sx.sum(sx.name(h, "residul"))


@pytest.mark.parametrize("mesh", [None, {"data": 8, "model": 2}])
def test_check_of_a_step_that_is_run_dry(mesh: dict[str, int] | None) -> None:
    """Without a rank or a block: a misspelt name is one that no pattern matches, and its pattern matches nothing."""
    plan = zero3("data") | tensor_parallel("model", {"w": 1})
    model = {"w": nn.Param((2**20, 2**20))}
    x = nn.Param((2**20, 2**20))
    with sx.debug.trace() as trace:
        table = plan.check(model, step=sx.value_and_grad(misspelt), args=[x], mesh=mesh)
    assert not trace
    assert sorted(table.nothing) == ["normed", "outer", "residual"]
    assert table.unnamed == ("residul",)
    assert "1 names that no pattern matches: residul" in str(table)
    assert [row.paths for row in table if row.pattern in ("batch", "block")] == [("batch",), ("block",)]


def test_check_inside_a_running_plan_is_on_its_mesh() -> None:
    """Sizes of blocks are those of one mesh, and fit no other."""
    plan = Plan({"w": {"model": sx.Shard(0, sizes=(1, 3, 0))}})
    with plan.on(MESH):
        table = plan.check({"w": nn.Param((4, 4))}, step=misspelt, args=[nn.Param((2, 4))])
    assert table.unnamed == ("block", "batch", "residul")


def test_check_says_that_names_take_a_run() -> None:
    plan = Plan(names={"residual": {"model": WHOLE}})
    assert "1 patterns of names, which only a run tells: check(model, step=step" in str(plan.check({}))
    assert plan.check({}, step=lambda params: None).nothing == ("residual",)
    assert "NOTHING" in str(plan.check({}, step=lambda params: None))


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        (lambda: Plan({3: {"data": ROWS}}), r'sx\.Plan\(\{"blocks'),
        (lambda: Plan(["w"]), r'sx\.Plan\(\{"blocks'),
        (lambda: Plan(names="w"), r'sx\.Plan\(\{"blocks'),
        (lambda: Plan({"w": {0: ROWS}}), r"\{'w': \{\"model\": sx\.Shard"),
        (lambda: Plan({"w": ROWS}), r"\{'w': \{\"model\": sx\.Shard"),
        (lambda: Plan({"w": {"data": 0}}), r"\{'w': \{\"model\": sx\.Shard"),
        (lambda: Plan({re.compile("w"): None}), r"\{'w': \{\"model\": sx\.Shard"),
        (lambda: Plan() | {"w": {}}, r"plan \| sx\.Plan\(\{'w'"),
        (lambda: {} | Plan(), r"sx\.Plan\(\{\}\) \| plan"),
        (lambda: Plan() | None, r"plan \| sx\.Plan\("),
        (lambda: zero3().on(3).__enter__(), r"plan\.on\(sx\.make_mesh\(\{'data': -1\}\)\)"),
        (lambda: Plan().on({"data": 1}).__enter__(), r"plan\.on\(sx\.make_mesh\(\{'data': 1\}\)\)"),
        (lambda: tensor_parallel("model", ["w"]), r"tensor_parallel\('model', "),
        (lambda: tensor_parallel("model", {"w": ROWS}), r"tensor_parallel\('model', "),
        (lambda: tensor_parallel("model", {3: 1}), r'sx\.Plan\(\{"blocks'),
        (lambda: data_parallel(3), r"\{'batch': \{\"model\": sx\.Shard"),
        (lambda: parse(3), 'parse\\("megatron'),
        (lambda: parse("megatron", ["w"]), r"tensor_parallel\('model', "),
        (lambda: Plan().estimate(3, {}, mesh={"data": 1}), "sx.value_and_grad"),
        (lambda: Plan().estimate(len, {}, mesh=3), 'mesh=\\{"data": 16\\}'),
    ],
)
def test_what_is_no_plan_says_what_to_write(wrong: Any, line: str) -> None:
    with pytest.raises(sx.SpmdxError, match=rf"(?s)\n  Write .*{line}"):
        wrong()
