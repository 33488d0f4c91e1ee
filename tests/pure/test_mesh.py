"""Meshes are values: equal by names, sizes, ranks and device, and then identical. All exact."""

from __future__ import annotations

import copy
import gc
import pickle

import numpy as np
import pytest

from spmdx import context
from spmdx.errors import MeshError
from spmdx.mesh import RESERVED, Mesh

GRID = Mesh(("data", "model"), (2, 3))


def test_equal_meshes_are_one_object() -> None:
    same = Mesh(("data", "model"), (2, 3), tuple(range(6)), "cpu")
    assert same is GRID
    assert hash(same) == hash(GRID)
    for other in [
        Mesh(("data", "expert"), (2, 3)),
        Mesh(("data", "model"), (3, 2)),
        Mesh(("data", "model"), (2, 3), (5, 4, 3, 2, 1, 0)),
        Mesh(("data", "model"), (2, 3), None, "sim"),
    ]:
        assert other != GRID


def test_copies_and_pickles_are_the_mesh_itself() -> None:
    odd = Mesh(("p",), (2,), (3, 1))
    for mesh in (GRID, odd):
        assert copy.copy(mesh) is mesh
        assert copy.deepcopy([mesh])[0] is mesh
        assert pickle.loads(pickle.dumps(mesh)) is mesh


def test_meshes_nobody_holds_are_forgotten() -> None:
    """All but the most recent ones."""
    from spmdx.mesh import _interned, _recent

    gc.collect()
    before = len(_interned)
    for n in range(1, 2000):
        Mesh(("temporary",), (n,))
    gc.collect()
    assert len(_interned) <= before + (_recent.maxlen or 0)
    assert _recent.maxlen and _recent.maxlen < 1000


def test_what_a_mesh_knows() -> None:
    assert GRID.axis_names == ("data", "model")
    assert GRID.shape == {"data": 2, "model": 3}
    assert list(GRID.shape) == ["data", "model"]
    assert GRID.size == 6
    assert GRID.axis("model") == 1
    assert "model" in GRID
    assert "expert" not in GRID
    assert repr(GRID) == "Mesh(data=2, model=3)"
    assert "ranks=[3, 1]" in repr(Mesh(("p",), (2,), (3, 1)))


def test_a_mesh_with_no_axes_is_one_rank() -> None:
    mesh = Mesh((), ())
    assert mesh.size == 1
    assert mesh.coordinates() == [()]
    assert mesh.coordinate_of(0) == ()
    assert mesh.members((), ()) == [()]


@pytest.mark.parametrize("sizes", [(4,), (2, 3), (3, 1, 2), (2, 2, 2)], ids=str)
def test_coordinates_are_row_major(sizes: tuple[int, ...]) -> None:
    names = ("a", "b", "c")[: len(sizes)]
    ranks = tuple(np.random.default_rng(0).permutation(int(np.prod(sizes))).tolist())
    mesh = Mesh(names, sizes, ranks)
    for position, rank in enumerate(ranks):
        coordinate = tuple(int(i) for i in np.unravel_index(position, sizes))
        assert mesh.coordinate_of(rank) == coordinate
        assert mesh.rank_at(coordinate) == rank
        assert mesh.coordinates()[position] == coordinate
        with context.use(rank=rank):
            assert mesh.rank == rank
            assert mesh.coordinate == dict(zip(names, coordinate))


def test_members_are_row_major_over_the_axes_in_mesh_order() -> None:
    mesh = Mesh(("a", "b", "c"), (2, 3, 2))
    assert mesh.members(("b",), (1, 2, 0)) == [(1, 0, 0), (1, 1, 0), (1, 2, 0)]
    expected = [(i, 2, k) for i in range(2) for k in range(2)]
    assert mesh.members(("c", "a"), (1, 2, 0)) == mesh.members(("a", "c"), (0, 2, 1)) == expected
    assert mesh.members((), (1, 2, 0)) == [(1, 2, 0)]
    groups = {tuple(mesh.members(("a", "b"), c)) for c in mesh.coordinates()}
    assert sorted(c for g in groups for c in g) == sorted(mesh.coordinates())


def test_a_slice_goes_through_this_rank() -> None:
    with context.use(rank=4):
        assert GRID["model"] == Mesh(("model",), (3,), (3, 4, 5))
        assert GRID["data"] == Mesh(("data",), (2,), (1, 4))
        assert GRID["model", "data"] == GRID


def test_ranks_outside() -> None:
    part = Mesh(("p",), (2,), (1, 3))
    with context.use(rank=0):
        assert not part.contains_me()
        with pytest.raises(MeshError, match="rank 0 is not in Mesh"):
            part.coordinate  # noqa: B018
    with context.use(rank=3):
        assert part.contains_me()
        assert part.coordinate == {"p": 1}
    assert Mesh(("p",), (2,), (1, 3), "sim").contains_me()


@pytest.mark.parametrize("name", [*sorted(RESERVED), "two words", "", "0", 3])
def test_names_that_no_axis_can_have(name: object) -> None:
    with pytest.raises(MeshError, match="cannot name a mesh axis"):
        Mesh((name,), (1,))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((("a", "a"), (1, 1)), "distinct axes need one size each"),
        ((("a",), (1, 1)), "distinct axes need one size each"),
        ((("a",), (0,)), "a size of at least 1"),
        ((("a",), (-2,)), "a size of at least 1"),
        ((("a",), (2,), (0,)), "needs 2 distinct ranks; got 1"),
        ((("a",), (2,), (1, 1)), "needs 2 distinct ranks"),
        ((("a",), (2,), None, "tpu"), "no device 'tpu'"),
    ],
)
def test_meshes_that_cannot_be(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(MeshError, match=message):
        Mesh(*arguments)  # type: ignore[arg-type]


def test_an_axis_that_is_not_there() -> None:
    with pytest.raises(MeshError, match=r"no axis 'expert': its axes are 'data', 'model'(.|\n)*Write"):
        GRID.axis("expert")
