"""Placements are frozen values that read as they are written. All exact."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import pytest

from spmdx.errors import PlacementError
from spmdx.placement import P, Partial, Replicate, Shard

EXAMPLES: list[Any] = [
    Replicate(),
    Shard(0),
    Shard(-1),
    Shard(1, sizes=(3, 0, 5)),
    Shard(1, interleave=3),
    Partial("sum"),
    Partial("max"),
    P(),
    P("data", None, ("model", "expert")),
    P("data", partial="model"),
    P(partial=("a", "b"), op="max"),
]


@pytest.mark.parametrize("placement", EXAMPLES, ids=repr)
def test_a_value(placement: Any) -> None:
    again = eval(repr(placement))
    for same in (again, pickle.loads(pickle.dumps(placement)), copy.deepcopy(placement)):
        assert type(same) is type(placement)
        assert same == placement
        assert hash(same) == hash(placement)
    assert sum(other == placement for other in EXAMPLES) == 1


def test_frozen() -> None:
    for placement in (Shard(0), Partial("sum")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            placement.dim = 1  # type: ignore[union-attr,misc]


def test_defaults() -> None:
    assert Partial() == Partial("sum")
    assert Shard(0, sizes=[1, 2]).sizes == (1, 2)  # type: ignore[arg-type]


def test_p_is_not_a_plain_tuple() -> None:
    assert P("a") != ("a",)
    assert P("a") != P("a", partial="b")
    assert P("a", partial="b") != P("a", partial="b", op="max")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Shard(1.0), "the number of a dimension"),  # type: ignore[arg-type]
        (lambda: Shard(True), "the number of a dimension"),
        (lambda: Shard("a"), "the number of a dimension"),  # type: ignore[arg-type]
        (lambda: Shard(0, sizes=(1, -1)), "must not be negative"),
        (lambda: Shard(0, interleave=0), "1 or more"),
        (lambda: Shard(0, interleave=1.5), "1 or more"),  # type: ignore[arg-type]
        (lambda: Shard(0, sizes=(1, 1), interleave=2), "not both"),
        (lambda: Partial("mean"), r"A mean is a sum divided by the global count(.|\n)*Write Partial\(\"sum\"\)"),
        (lambda: P("a", op="mean"), "sum, prod, min, max"),
    ],
)
def test_what_cannot_be(make: Any, message: str) -> None:
    with pytest.raises(PlacementError, match=message):
        make()
