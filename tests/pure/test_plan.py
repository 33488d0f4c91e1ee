"""Plans are pure functions of two specs, short, and cost what semantics.md says. All exact."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "laws"))

from placements import specs

from spmdx import plan as planning
from spmdx.errors import PlacementError
from spmdx.mesh import Mesh
from spmdx.placement import P, Partial, Replicate, Shard
from spmdx.plan import LOCAL, Step, cost, plan
from spmdx.spec import place

SUM = Partial("sum")
CUBE = Mesh(("a", "b", "c"), (2, 2, 2))


def steps(sizes: tuple[int, ...], shape: tuple[int, ...], source: Any, target: Any, dtype: str = "float64") -> Any:
    mesh = Mesh(("a", "b", "c")[: len(sizes)], sizes)
    return plan(place(mesh, shape, dtype, source), place(mesh, shape, dtype, target))


@pytest.mark.parametrize("p", [2, 3, 4])
@pytest.mark.parametrize("dtype", ["float64", "int16"])
def test_bytes_on_one_axis(p: int, dtype: str) -> None:
    """n: bytes of the whole array, 12 x 24."""
    n = 12 * 24 * np.dtype(dtype).itemsize
    for source, target, verb, sent in [
        (SUM, Replicate(), "all_reduce", 2 * n * (p - 1) // p),
        (SUM, Shard(0), "reduce_scatter", n * (p - 1) // p),
        (Shard(0), Replicate(), "all_gather", n - n // p),
        (Shard(0), Shard(1), "all_to_all", n // p * (p - 1) // p),
        (Replicate(), Shard(1), "slice", 0),
        (Replicate(), SUM, "mask", 0),
        (Shard(0), Partial("max"), "pad", 0),
    ]:
        [step] = steps((p,), (12, 24), {"a": source}, {"a": target}, dtype)
        assert (step.verb, step.bytes) == (verb, sent)


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        # Two Partial axes are one collective over both.
        ({"a": SUM, "b": SUM}, {}, [("all_reduce", ("a", "b"), 2 * 512 * 3 // 4)]),
        ({"a": SUM, "b": SUM}, {"a": Shard(0), "b": Shard(1)}, [("reduce_scatter", ("a", "b"), 512 * 3 // 4)]),
        # What goes on as a shard is scattered first, so that less is reduced over the other.
        (
            {"a": SUM, "b": SUM},
            {"a": Shard(0)},
            [("reduce_scatter", ("a",), 512 // 2), ("all_reduce", ("b",), 2 * 256 // 2)],
        ),
        # What is cut in the end is cut before it is reduced.
        ({"a": SUM}, {"b": Shard(0)}, [("all_reduce", ("a",), 2 * 256 // 2)]),
        ({"a": SUM}, {"a": Shard(0), "b": Shard(1)}, [("reduce_scatter", ("a",), 256 // 2)]),
        # A Partial axis that stays takes no part.
        ({"a": SUM, "b": SUM}, {"b": SUM}, [("all_reduce", ("a",), 2 * 512 // 2)]),
        # Nested shards: gathered over the inner alone, or cut further, or exchanged.
        ({"a": Shard(0), "b": Shard(0)}, {"a": Shard(0)}, [("all_gather", ("b",), 256 - 128)]),
        ({"a": Shard(0)}, {"a": Shard(0), "b": Shard(0)}, [("slice", (), 0)]),
        ({"a": Shard(0), "b": Shard(0)}, {}, [("all_gather", ("a", "b"), 512 - 128)]),
        ({"a": Shard(0), "b": Shard(1)}, {}, [("all_gather", ("a", "b"), 512 - 128)]),
        # A shard changes its dimension within its axis; the other axis is left alone.
        ({"a": Shard(0), "b": Shard(1)}, {"a": Shard(0)}, [("all_gather", ("b",), 256 - 128)]),
        ({"a": Shard(0)}, {"a": Shard(1)}, [("all_to_all", ("a",), 256 // 2)]),
        # Another op: finished, and masked again without communication.
        ({"a": SUM}, {"a": Partial("max")}, [("all_reduce", ("a",), 512), ("mask", ("a",), 0)]),
        # A shard becomes Partial beside a Partial that stays.
        ({"a": SUM, "b": Shard(0)}, {"a": SUM, "b": SUM}, [("pad", ("b",), 0)]),
    ],
    ids=str,
)
def test_steps_and_bytes_on_two_axes(source: Any, target: Any, expected: Any) -> None:
    found = steps((2, 2), (8, 8), source, target)
    assert [(s.verb, s.axes, s.bytes) for s in found] == expected
    assert cost(found) == sum(sent for _, _, sent in expected)


def test_nothing_to_do() -> None:
    assert steps((2, 2), (6, 4), {"a": Shard(-1)}, P(None, "a")) == ()
    assert steps((1, 1), (6, 4), {"a": Shard(0)}, {"b": Partial("max")}) == ()


def test_empty_arrays_send_nothing() -> None:
    for source in ({"a": SUM}, {"a": Shard(0)}, {"a": Shard(1)}):
        assert cost(steps((3,), (0, 5), source, {})) == 0


def test_uneven_gathers_count_the_rank_that_sends_most() -> None:
    [step] = steps((4,), (5,), {"a": Shard(0)}, {})
    assert step.bytes == (5 - 1) * 8
    [step] = steps((3,), (7,), {"a": Shard(0, sizes=(7, 0, 0))}, {})
    assert step.bytes == 7 * 8


def test_unequal_parts_count_the_rank_that_sends_most() -> None:
    """Seven rows in 3, 2 and 2, five columns in 2, 2 and 1: the first rank keeps two columns of its three rows."""
    [step] = steps((3,), (7, 5), {"a": Shard(0)}, {"a": Shard(1)})
    assert (step.verb, step.bytes) == ("all_to_all", 3 * (5 - 2) * 8)
    [step] = steps((3,), (7,), {"a": SUM}, {"a": Shard(0)})
    assert (step.verb, step.bytes) == ("reduce_scatter", (7 - 2) * 8)


@pytest.mark.parametrize("sizes", [(4096,), (64, 64)], ids=str)
def test_neighbours_send_their_edges_on_many_ranks_too(sizes: tuple[int, ...]) -> None:
    """Sixteen million pairs of blocks, of which some thousands meet; every block but the last gives a row away."""
    axes = ("a", "b")[: len(sizes)]
    later = tuple(3 + (i == 4095) - (i == 0) for i in range(4096))
    divided = Shard(0, sizes=later)
    [step] = steps(sizes, (3 * 4096, 5), {a: Shard(0) for a in axes}, dict.fromkeys(axes, divided))
    assert (step.verb, step.axes, step.bytes) == ("all_to_all", axes, 5 * 8)


def test_steps_chain_and_a_plan_is_pure() -> None:
    found = specs(CUBE, (4, 6), "float64", ("sum", "max"))
    for i, j in np.random.default_rng(0).integers(0, len(found), (2000, 2)):
        source, target = found[i], found[j]
        made = plan(source, target)
        assert plan(source, target) is made
        assert planning._derive(source, target) == made
        ends = [source, *(s.target for s in made)]
        assert [s.source for s in made] == ends[:-1]
        assert ends[-1] is target
        for step in made:
            assert step.source is not step.target
            assert step.bytes == 0 or step.verb not in LOCAL
            assert set(step.axes) <= set(CUBE.axis_names)
            assert list(step.axes) == [a for a in CUBE.axis_names if a in step.axes]


def test_plans_beat_going_through_replicate() -> None:
    """Never more bytes than finishing and gathering everything, then cutting."""
    mesh = Mesh(("a", "b"), (2, 2))
    found = specs(mesh, (8, 12), "float64", ("sum",), ("default",))
    whole = place(mesh, (8, 12), "float64")
    for source in found:
        for target in found:
            assert cost(plan(source, target)) <= cost(plan(source, whole)), (source, target)


def test_the_memo_is_bounded() -> None:
    mesh = Mesh(("a",), (2,))
    for n in range(9000):
        plan(place(mesh, (n, 2), "float64", {"a": Shard(0)}), place(mesh, (n, 2), "float64"))
    assert len(planning._memo) <= 8192


def test_a_plan_keeps_shape_dtype_and_mesh() -> None:
    mesh = Mesh(("a",), (2,))
    with pytest.raises(PlacementError, match="keeps mesh, shape and dtype"):
        plan(place(mesh, (4,), "float64"), place(mesh, (5,), "float64"))


def test_a_step_prints() -> None:
    [step] = steps((2,), (4,), {"a": SUM}, {})
    assert isinstance(step, Step)
    assert (
        repr(step)
        == 'all_reduce over a: float64[4] on (a=2): Partial("sum") -> float64[4] on (a=2): Replicate(), 32 bytes'
    )
