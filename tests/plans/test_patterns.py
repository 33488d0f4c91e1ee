"""Plans as values: what patterns match, who wins, where Spread divides, and errors that teach."""

from __future__ import annotations

import re

import pytest

import spmdx as sx
from spmdx import nn
from spmdx.errors import MeshError, PlacementError
from spmdx.plans import Plan, Spread, data_parallel, zero3

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
    with pytest.raises(PlacementError, match="dimension 1"):
        Plan({"*": {"model": COLUMNS}}).placement("b", (4,), MESH)


def test_ready_plans_name_their_axes() -> None:
    assert (data_parallel("x") | zero3("y")).axes == ("y", "x")
    assert "names: batch" in repr(data_parallel())
