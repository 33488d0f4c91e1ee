"""Bad input: a clear error on every rank alike, before any communication, that ends with the line to write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import spmdx as sx
from spmdx import check
from spmdx.errors import (
    ArgumentError,
    BoundsError,
    DtypeError,
    ImpliedMoveError,
    MeshError,
    PlacementError,
    ShapeError,
)

ROWS = {"world": sx.Shard(0)}


def rows(*shape: int) -> sx.Array:
    return sx.asarray(np.ones(shape), placement=ROWS)


CASES: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "an axis that the mesh lacks": (
        lambda: sx.asarray(np.ones(3), placement={"model": sx.Shard(0)}),
        MeshError,
        "no axis 'model'",
    ),
    "a dimension that the array lacks": (
        lambda: sx.asarray(np.ones(3), placement={"world": sx.Shard(1)}),
        PlacementError,
        r"Write Shard\(0\)",
    ),
    "a shard of a 0-d array": (lambda: sx.asarray(1.0, placement=ROWS), PlacementError, "0-d"),
    "a placement that is none": (lambda: sx.asarray(np.ones(3), placement={"world": 0}), PlacementError, r"Shard\(0\)"),
    "sizes that do not add up": (
        lambda: sx.asarray(np.ones(3), placement={"world": sx.Shard(0, sizes=(1, 1, 1, 1, 1))}),
        PlacementError,
        "sizes=",
    ),
    "an interleave that does not divide": (
        lambda: sx.asarray(np.ones(4), placement={"world": sx.Shard(0, interleave=3)}),
        PlacementError,
        "divides 4",
    ),
    "a mesh axis used twice": (
        lambda: sx.asarray(np.ones((2, 2)), placement=sx.P("world", "world")),
        PlacementError,
        "used twice",
    ),
    "an unknown reduction": (lambda: sx.Partial("mean"), PlacementError, r'Partial\("sum"\)'),
    "a mesh of another size": (lambda: sx.make_mesh({"a": 11}), MeshError, "mpiexec -n 11"),
    "a reserved axis name": (lambda: sx.make_mesh({"shape": -1}), MeshError, "cannot name a mesh axis"),
    "a GPU that is not there": (lambda: sx.make_mesh(device="cuda"), MeshError, 'device="cpu"'),
    "zeros on a GPU that is not there": (lambda: sx.zeros(3, device="cuda"), MeshError, 'device="cpu"'),
    "shapes that do not broadcast": (lambda: rows(4, 3) + rows(4, 2), ShapeError, "do not broadcast"),
    "a product that does not fit": (lambda: rows(4, 3) @ rows(4, 3), ShapeError, "matmul"),
    "an axis out of range": (lambda: sx.sum(rows(4, 3), axis=2), ShapeError, "axis|dimension"),
    "an axis twice": (lambda: sx.sum(rows(4, 3), axis=(0, -2)), (ShapeError, ArgumentError), "axis|twice|repeat"),
    "a reshape of another size": (lambda: rows(4, 3).reshape(5, 2), ShapeError, "reshape"),
    "too many indices": (lambda: rows(4, 3)[0, 0, 0], BoundsError, "indices"),
    "an index out of range": (lambda: rows(4, 3)[9], BoundsError, "9"),
    "an index array of floats": (lambda: rows(4, 3)[np.array([0.0, np.nan])], DtypeError, "integer"),
    "an object": (lambda: rows(4) + np.array([object()] * 4), DtypeError, "numbers"),
    "bits of floats": (lambda: sx.bitwise_and(rows(4), rows(4)), DtypeError, "bitwise_and"),
    "a value where a scalar is meant": (lambda: float(rows(4)), (ShapeError, TypeError), "one element"),
    "the truth of many": (lambda: bool(rows(4)), (ShapeError, ValueError, TypeError), "element"),
}


@pytest.mark.parametrize("name", CASES)
def test_bad_input(name: str) -> None:
    call, error, message = CASES[name]
    with sx.debug.trace() as t, pytest.raises(error, match=message):
        call()
    assert not t  # nothing was communicated


def test_implied_moves_are_forbidden_inside_explicit() -> None:
    mesh = sx.make_mesh()
    x = sx.asarray(np.ones((4, 6)), placement={"world": sx.Partial("sum")})
    with sx.explicit():
        if mesh.size == 1:
            assert float(sx.exp(x)[0, 0]) == np.exp(1.0)
            return
        with pytest.raises(ImpliedMoveError) as found:
            sx.exp(x)
        text = str(found.value)
        assert text.startswith("exp would move x, which `with explicit()` forbids.\n  x: float64[4, 6] on (world=")
        assert "\n  Write exp(x.redistribute(world=Shard(" in text and "reduce_scatter" in text
        y = sx.exp(x.redistribute(world=sx.Shard(1)))
    assert y.placement == {"world": sx.Shard(1)}


def test_masks_imply_moves_as_well() -> None:
    mesh = sx.make_mesh()
    mask = np.arange(24).reshape(4, 6) % 3 > 0
    x = sx.asarray(np.ones((4, 6)), placement={"world": sx.Shard(1)})
    with sx.explicit():
        if mesh.size > 1:
            with pytest.raises(ImpliedMoveError, match="redistribute"):
                x[mask]
        assert x.redistribute({})[mask].shape == (16,)


def test_errors_are_also_what_python_expects() -> None:
    assert issubclass(ShapeError, ValueError) and issubclass(DtypeError, TypeError)
    assert issubclass(BoundsError, IndexError) and issubclass(MeshError, ValueError)
    assert all(issubclass(e, sx.SpmdxError) for e in (ShapeError, DtypeError, BoundsError, MeshError, PlacementError))


@pytest.mark.ranks(2, 3)
def test_ranks_that_hand_in_other_shapes_are_told() -> None:
    """jax: different host data handed in as replicated is accepted; a block that does not fit is not, here."""
    mesh = sx.make_mesh()
    with pytest.raises(ShapeError, match="different lengths"):
        sx.from_block(np.ones((2, 3 + mesh.rank)), ROWS)


@pytest.mark.ranks(2, 3)
def test_a_fault_on_one_rank_can_be_told_to_all() -> None:
    """What SPMDX_CHECK=1 puts around every operation (tests/test_checked.py runs programs with it)."""
    mesh = sx.make_mesh()
    x = sx.asarray(np.arange(8.0), placement=ROWS)
    with pytest.raises((check.RankFailed, ZeroDivisionError), match=r"raised on rank 1|division"):
        check.together(mesh, "sum", lambda: 1 / (0 if mesh.rank == 1 else 1))
    assert check.together(mesh, "sum", lambda: float(x.block[0])) == x.block[0]


def test_a_users_operation_has_rule_and_gradient() -> None:
    x = sx.asarray(np.linspace(-1, 1, 12).reshape(4, 3), placement=ROWS)
    y, g = sx.value_and_grad(lambda x: scaled_softplus(x, 2.0).sum())(x)
    value = x.numpy()
    assert np.allclose(float(y), (2 * np.log1p(np.exp(value))).sum(), rtol=1e-14)
    assert np.allclose(g.numpy(), 2 / (1 + np.exp(-value)), rtol=1e-13)
    with sx.debug.trace() as t:
        scaled_softplus(x, 2.0)
    assert not t


@sx.op("..., -> ...")
def scaled_softplus(xp: Any, x: Any, s: Any) -> Any:
    """s log(1 + exp(x)): an operation that a user wrote."""
    return s * xp.log1p(xp.exp(x))


scaled_softplus.vjp(lambda g, out, x, s: g * s / (1.0 + sx.exp(-x)), lambda g, out, x, s: None)
