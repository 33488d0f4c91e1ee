"""Specs: block bounds against a slow reading of the definitions; canonical, interned, pickled. All exact."""

from __future__ import annotations

import copy
import gc
import math
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1] / "laws"))

from placements import owned, specs

from spmdx.errors import MeshError, PlacementError, ShapeError
from spmdx.mesh import Mesh
from spmdx.placement import P, Partial, Replicate, Shard
from spmdx.spec import WHOLE, Layout, Spec, _interned, _recent, default_sizes, make, place, refines

GRID = Mesh(("a", "b"), (2, 3))
SQUARE = Mesh(("a", "b"), (2, 2))
F8 = np.dtype("float64")


def lengths(spec: Spec, dim: int) -> list[int]:
    return [sum(b - a for a, b in spec.pieces(dim, c)) for c in spec.mesh.coordinates()]


# Where the pieces lie


@given(st.integers(0, 40), st.integers(1, 9))
def test_default_sizes_are_those_of_array_split(n: int, p: int) -> None:
    assert default_sizes(n, (p,)) == tuple(len(part) for part in np.array_split(np.arange(n), p))


@given(st.integers(0, 40), st.lists(st.integers(1, 4), min_size=1, max_size=3))
def test_nested_default_sizes_split_each_block_again(n: int, ways: list[int]) -> None:
    parts = [np.arange(n)]
    for p in ways:
        parts = [inner for part in parts for inner in np.array_split(part, p)]
    assert default_sizes(n, tuple(ways)) == tuple(map(len, parts))


def test_six_over_two_by_two() -> None:
    spec = place(SQUARE, (6,), F8, {"a": Shard(0), "b": Shard(0)})
    assert lengths(spec, 0) == [2, 1, 2, 1]
    assert lengths(place(SQUARE, (6,), F8, P(("b", "a"))), 0) == [2, 2, 1, 1]


@pytest.mark.parametrize("sizes", [(2,), (3,), (2, 3), (2, 2, 2)], ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (7, 6), (12, 2)], ids=str)
def test_pieces_of_every_placement(sizes: tuple[int, ...], shape: tuple[int, ...]) -> None:
    mesh = Mesh(("a", "b", "c")[: len(sizes)], sizes)
    for spec in specs(mesh, shape, F8, ("sum",)):
        for c in mesh.coordinates():
            for d in range(len(shape)):
                pieces = spec.pieces(d, c)
                assert [i for a, b in pieces for i in range(a, b)] == list(owned(spec, d, c)), (spec, c)
                assert all(a < b for a, b in pieces)
            assert spec.block_shape(c) == tuple(len(owned(spec, d, c)) for d in range(len(shape)))
        counts = [math.prod(spec.block_shape(c)) for c in mesh.coordinates()]
        assert (spec.largest_block, spec.smallest_block) == (max(counts), min(counts))


def test_ragged_sizes_on_nested_axes_list_every_block() -> None:
    shard = Shard(0, sizes=(1, 0, 4, 0, 2, 0))
    spec = place(GRID, (7, 2), F8, {"a": shard, "b": shard})
    assert lengths(spec, 0) == [1, 0, 4, 0, 2, 0]
    assert spec.pieces(0, (0, 2)) == ((1, 5),)
    assert spec.pieces(0, (0, 1)) == ()


def test_interleaved_pieces_come_in_group_order() -> None:
    spec = place(SQUARE, (12,), F8, {"a": Shard(0, interleave=3)})
    assert spec.pieces(0, (0, 1)) == ((0, 2), (4, 6), (8, 10))
    assert spec.pieces(0, (1, 1)) == ((2, 4), (6, 8), (10, 12))
    uneven = place(SQUARE, (6,), F8, {"a": Shard(0, interleave=2)})
    assert lengths(uneven, 0) == [4, 4, 2, 2]


# Canonical


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ({"a": Shard(-1)}, {"a": Shard(1)}),
        ({"a": Shard(0), "b": Replicate()}, {"a": Shard(0)}),
        ({"a": Shard(0, sizes=(3, 3))}, {"a": Shard(0)}),
        ({"b": Shard(0), "a": Shard(0)}, {"a": Shard(0), "b": Shard(0)}),
        ({"a": Shard(0), "b": Shard(0)}, P(("a", "b"))),
        ({"a": Shard(1)}, P(None, "a")),
        ({"a": Partial("max"), "b": Shard(0)}, P("b", partial="a", op="max")),
        ({"a": Shard(0, sizes=(2, 1, 2, 1)), "b": Shard(0, sizes=(2, 1, 2, 1))}, P(("a", "b"))),
        ({}, P(None, None)),
        (None, {}),
    ],
    ids=str,
)
def test_two_ways_to_write_one_spec(written: Any, canonical: Any) -> None:
    assert place(SQUARE, (6, 4), F8, written) is place(SQUARE, (6, 4), "float64", canonical)


def test_axes_of_size_one_are_replicate() -> None:
    mesh = Mesh(("a", "b"), (1, 2))
    whole = place(mesh, (6,), F8)
    assert place(mesh, (6,), F8, {"a": Shard(0)}) is whole
    assert place(mesh, (6,), F8, {"a": Partial("max")}) is whole
    assert place(mesh, (6,), F8, {"a": Shard(0), "b": Shard(0)}) is place(mesh, (6,), F8, {"b": Shard(0)})
    assert whole.op is None


def test_placement_reads_back() -> None:
    for spec in specs(GRID, (6, 4), F8):
        assert set(spec.placement) == set(GRID.axis_names) or isinstance(spec.placement, P)
        reversed_and_odd = isinstance(spec.placement, P) and any(lay[1:] != (None, 1) for lay in spec.layouts)
        if not reversed_and_odd:  # a P has no sizes and no interleave
            assert place(GRID, (6, 4), F8, spec.placement) is spec


def test_replace_is_canonical() -> None:
    spec = place(GRID, (6, 4), F8, {"a": Shard(0), "b": Partial("max")})
    assert spec.replace(partial=()) is place(GRID, (6, 4), F8, {"a": Shard(0)})
    assert spec.replace(partial=()).op is None
    assert spec.replace(dtype=np.dtype("float32")).dtype == np.float32
    assert spec.replace(layouts=(Layout(("a",), (3, 3)), WHOLE)) is spec


# Interned


def test_equal_specs_are_one_object() -> None:
    found = specs(GRID, (7, 6), F8)
    assert len({(s.mesh, s.shape, s.dtype, s.layouts, s.partial, s.op) for s in found}) == len(set(found)) == len(found)
    for spec in found:
        again = make(spec.mesh, spec.shape, spec.dtype, spec.layouts, spec.partial, spec.op)
        assert again is spec
        assert pickle.loads(pickle.dumps(spec)) is spec
        assert copy.deepcopy(spec) is spec
        assert copy.copy(spec) is spec


def test_specs_that_differ_in_one_thing_differ() -> None:
    base = place(GRID, (6, 4), F8, {"a": Shard(0), "b": Partial("sum")})
    for other in [
        place(SQUARE, (6, 4), F8, {"a": Shard(0), "b": Partial("sum")}),
        place(GRID, (6, 5), F8, {"a": Shard(0), "b": Partial("sum")}),
        place(GRID, (6, 4), "float32", {"a": Shard(0), "b": Partial("sum")}),
        place(GRID, (6, 4), F8, {"a": Shard(1), "b": Partial("sum")}),
        place(GRID, (6, 4), F8, {"a": Shard(0)}),
        place(GRID, (6, 4), F8, {"a": Shard(0), "b": Partial("max")}),
        place(GRID, (6, 4), F8, {"a": Shard(0, sizes=(2, 4)), "b": Partial("sum")}),
        place(GRID, (6, 4), F8, {"a": Shard(0, interleave=2), "b": Partial("sum")}),
    ]:
        assert other != base


def test_specs_nobody_holds_are_forgotten() -> None:
    """All but the most recent ones."""
    gc.collect()
    before = len(_interned)
    for n in range(12000):
        place(GRID, (n, 3), F8, {"a": Shard(0)})
    gc.collect()
    assert len(_interned) <= before + (_recent.maxlen or 0)
    assert _recent.maxlen and _recent.maxlen < 10000


# What cannot be


@pytest.mark.parametrize(
    ("placement", "error", "message"),
    [
        ({"c": Shard(0)}, MeshError, "no axis 'c': its axes are 'a', 'b'"),
        ({"a": Shard(2)}, PlacementError, r"needs dimension 2; the array has 2: shape \(6, 4\)"),
        ({"a": Shard(-3)}, PlacementError, "needs dimension -3"),
        ({"a": "Shard(0)"}, PlacementError, "which is not a placement"),
        ({"a": Shard}, PlacementError, "which is not a placement"),
        ([Shard(0)], PlacementError, "a placement is a dict"),
        ({"a": Partial("sum"), "b": Partial("max")}, PlacementError, "all Partial axes of one array have one op"),
        ({"a": Shard(0, sizes=(1, 2))}, PlacementError, "hold 3; dimension 0 has 6(.|\n)*Write sizes=\\(3, 3\\)"),
        ({"a": Shard(0, sizes=(1, 2, 3))}, PlacementError, "has 3 blocks"),
        ({"a": Shard(0, sizes=(6, 0)), "b": Shard(0)}, PlacementError, "axes that share a dimension share its sizes"),
        ({"a": Shard(1, interleave=3)}, PlacementError, "groups of equal length; dimension 1 has 4"),
        (P("a", None, "b"), PlacementError, "names 3 dimensions; the array has 2"),
        (P("a", "a"), PlacementError, "'a' is used twice"),
        (P("a", partial="a"), PlacementError, "'a' is used twice"),
        (P("c"), MeshError, "no axis 'c'"),
    ],
    ids=str,
)
def test_placements_that_do_not_fit(placement: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        place(GRID, (6, 4), F8, placement)


def test_zero_dimensions_have_nothing_to_divide() -> None:
    with pytest.raises(PlacementError, match="a 0-d array has no dimension to divide"):
        place(GRID, (), F8, {"a": Shard(0)})


def test_negative_shapes_and_complex_maxima() -> None:
    with pytest.raises(ShapeError, match="no negative sizes"):
        place(GRID, (3, -1), F8)
    with pytest.raises(PlacementError, match="complex values have no max"):
        place(GRID, (3,), "complex64", {"a": Partial("max")})


# Refinement


def test_refines_is_that_every_block_lies_in_the_coarser_one() -> None:
    """Sound against index sets for every pair of divisions; and it holds where an axis is added inside."""
    mesh, n, held = Mesh(("a", "b"), (2, 2)), 12, {}
    for spec in specs(mesh, (n,), F8, ()):
        held[spec] = [set(owned(spec, 0, c)) for c in mesh.coordinates()]
    for inner, small in held.items():
        for outer, large in held.items():
            if refines(inner.layouts[0], outer.layouts[0], n, mesh):
                assert all(s <= b for s, b in zip(small, large)), (inner, outer)
    assert refines(Layout(("a", "b")), Layout(("a",)), 6, mesh)
    assert refines(Layout(("a", "b"), (2, 1, 3, 0)), Layout(("a",)), 6, mesh)
    assert not refines(Layout(("a", "b"), (2, 2, 2, 0)), Layout(("a",)), 6, mesh)
    assert not refines(Layout(("b", "a")), Layout(("a",)), 6, mesh)
