"""Indexing where the law suite does not look: masks, what moves and what must not, errors."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spmdx as sx
from spmdx.errors import BoundsError, DtypeError, ShapeError
from spmdx.mesh import Mesh
from spmdx.ops import index, mask, operators  # noqa: F401  # attaches x[...]
from spmdx.placement import Partial, Replicate, Shard

sys.path.insert(0, str(Path(__file__).parents[1] / "laws"))
from placements import blocks, specs

A = np.arange(35.0).reshape(5, 7) + 1
CUBE = np.arange(60.0).reshape(3, 4, 5)
MESHES = [Mesh(("a",), (2,), None, "sim"), Mesh(("a",), (3,), None, "sim"), Mesh(("a", "b"), (2, 2), None, "sim")]
THIRD = A % 3 == 1


def everywhere(*inputs: Any) -> list[tuple[sx.Array, ...]]:
    """The inputs in every placement of the first, each with a placement of the others."""
    out = []
    for mesh in MESHES:
        each = [specs(mesh, x.shape, x.dtype, ("sum", "max")) for x in inputs]
        for i, first in enumerate(each[0]):
            chosen = (first, *(options[i * 7 % len(options)] for options in each[1:]))
            out.append(tuple(sx.Array(blocks(s, x), s) for s, x in zip(chosen, inputs)))
    return out


# Masks (exact)


@pytest.mark.parametrize(
    ("x", "where"),
    [(A, THIRD), (A, A[:, 0] > 10), (CUBE, CUBE[:, :, 0] > 9), (A, np.zeros(5, bool)), (A[:0], THIRD[:0])],
    ids=["all dims", "first dim", "first two", "nothing", "empty"],
)
def test_a_mask_takes_what_numpy_takes(x: Any, where: Any) -> None:
    for given, chosen in everywhere(x, where):
        found = given[chosen]
        assert np.array_equal(found.numpy(), x[where]), (given.spec, chosen.spec)
        assert found.dtype == x.dtype


def test_a_mask_beside_other_indices() -> None:
    for given, chosen in everywhere(A, A[:, 0] > 10):
        assert np.array_equal(given[chosen, 1].numpy(), A[A[:, 0] > 10, 1])
        assert np.array_equal(given[chosen, 2:].numpy(), A[A[:, 0] > 10, 2:])


def test_the_gradient_of_a_mask_is_zero_elsewhere() -> None:
    for given, chosen in everywhere(A, THIRD):
        g = sx.grad(lambda x, m=chosen: (x[m] * x[m]).sum())(given)
        assert np.array_equal(g.numpy(), np.where(THIRD, 2 * A, 0))
        assert g.spec is given.spec.replace(partial=())


def test_nonzero() -> None:
    for (given,) in everywhere(THIRD):
        found = mask.nonzero(given)
        for ours, numpys in zip(found, np.nonzero(THIRD)):
            assert ours.dtype == np.int64
            assert np.array_equal(ours.numpy(), numpys)


def test_a_mask_moves_nothing_where_both_are_divided_alike() -> None:
    [mesh, *_] = MESHES
    x, m = (sx.asarray(v, mesh=mesh, placement={"a": Shard(0)}) for v in (A, THIRD))
    with sx.explicit():
        found = x[m]
    assert found.placement == {"a": Shard(0, sizes=(7, 5))}


# What moves


def test_a_slice_of_a_sharded_dimension_stays_where_it_is() -> None:
    [mesh, *_] = MESHES
    x = sx.asarray(np.arange(8.0), mesh=mesh, placement={"a": Shard(0)})
    with sx.explicit():
        assert x[1:].placement == {"a": Shard(0, sizes=(3, 4))}
        assert x[1::3].placement == {"a": Shard(0, sizes=(1, 2))}
        assert x[5:].placement == {"a": Shard(0, sizes=(0, 3))}
        assert x[3].placement == {"a": Partial("sum")}


def test_the_gradient_of_a_slice_goes_home_without_moving() -> None:
    [mesh, *_] = MESHES
    x = sx.asarray(np.arange(8.0), mesh=mesh, placement={"a": Shard(0)})
    for cut in (slice(1, None), slice(None, -1), slice(1, None, 2), slice(None, 3)):
        with sx.explicit():
            g = sx.grad(lambda x, cut=cut: x[cut].sum())(x)
        want = np.zeros(8)
        want[cut] = 1
        assert np.array_equal(g.numpy(), want)


def test_an_embedding_sharded_by_vocabulary_takes_from_its_own_rows() -> None:
    mesh = MESHES[2]
    words = np.arange(200.0).reshape(100, 2)
    table = sx.asarray(words, mesh=mesh, placement={"b": Shard(0)})
    chosen = np.array([[94, 0, 94], [1, 52, 52]])
    tokens = sx.asarray(chosen, mesh=mesh, placement={"a": Shard(0)})
    with sx.explicit():
        found = table[tokens]
        assert found.placement == {"a": Shard(0), "b": Partial("sum")}
    assert np.array_equal(found.numpy(), words[chosen])
    g = sx.grad(lambda table: table[tokens].sum())(table)
    assert g.placement == {"a": Replicate(), "b": Shard(0)}
    assert np.array_equal(g.numpy()[:, 0], np.bincount(chosen.ravel(), minlength=100))


def test_changes_keep_the_placement() -> None:
    [mesh, *_] = MESHES
    x = sx.asarray(A, mesh=mesh, placement={"a": Shard(0)})
    with sx.explicit():
        for changed in (x.at[1:4].set(0.0), x.at[2].add(1.0), x.at[np.array([0, 4, 0])].add(1.0), x.at[3, 3].max(99.0)):
            assert changed.placement == {"a": Shard(0)}
    assert np.array_equal(x.numpy(), A)


def test_a_changing_slice_keeps_the_memo_bounded() -> None:
    from spmdx.op import MEMO_SIZE
    from spmdx.ops.slice import slicing

    x = sx.asarray(np.zeros(MEMO_SIZE + 100))
    for i in range(MEMO_SIZE + 100):
        assert x[:i].shape == (i,)
    assert len(slicing.op.memo) <= MEMO_SIZE


def test_true_is_not_one() -> None:
    x = sx.asarray(A)
    assert x[1].shape == (7,)
    assert x[True].shape == (1, 5, 7)
    assert x[False].shape == (0, 5, 7)


# Errors


@pytest.mark.parametrize(
    ("act", "error", "says"),
    [
        (lambda x: x[5], BoundsError, "index 5 is out of range for dimension 0, which has size 5"),
        (lambda x: x[:, -8], BoundsError, "index -8 is out of range for dimension 1"),
        (lambda x: x[np.array([1, 9])], BoundsError, "index 9 is out of range for dimension 0"),
        (lambda x: x.at[np.array([-6])].add(1), BoundsError, "index -6 is out of range for dimension 0"),
        (lambda x: x[np.array([0.0, np.nan])], DtypeError, "an index array holds integers or bools; got dtype float64"),
        (lambda x: x[1.0], DtypeError, "integers"),
        (lambda x: x[0, 0, 0], BoundsError, "3 indices for an array of shape (5, 7)"),
        (lambda x: x[..., ...], BoundsError, "at most once"),
        (lambda x: x[::0], BoundsError, "step cannot be 0"),
        (lambda x: x[THIRD.T], BoundsError, "a mask of shape (7, 5) does not fit an array of shape (5, 7)"),
        (lambda x: x[[0, 1], [0, 1, 2]], ShapeError, "do not broadcast"),
        (lambda x: x.at[0].set(np.ones(3)), ShapeError, "(3,) does not broadcast to (7,)"),
        (lambda x: x.at[0].set(1j), DtypeError, "complex values do not fit into float64"),
        (lambda x: x[True, 0], BoundsError, "a 0-d mask is an index of its own"),
        (lambda x: mask.nonzero(x[0, 0]), ShapeError, "a 0-d array has no indices"),
        (lambda x: index.take(x, [0], axis=2), ShapeError, "axis 2 is out of range for 2 dimensions"),
    ],
)
@pytest.mark.parametrize("placement", [{}, {"a": Shard(0)}, {"a": Shard(1)}])
def test_errors_say_what_is_wrong(act: Any, error: Any, says: str, placement: Any) -> None:
    x = sx.asarray(A, mesh=MESHES[0], placement=placement)
    with pytest.raises(error) as raised:
        act(x)
    assert says in str(raised.value)
