"""Bad input: a clear error on every rank alike, before any communication, that ends with the line to write."""

from __future__ import annotations

import zlib
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
    RangeError,
    RanksDisagree,
    ShapeError,
)

ROWS = {"world": sx.Shard(0)}


def rows(*shape: int) -> sx.Array:
    return sx.asarray(np.ones(shape), placement=ROWS)


def counts(n: int) -> sx.Array:
    return sx.asarray(np.ones(n, "uint8"), placement=ROWS)


def elsewhere(*shape: int) -> sx.Array:
    """Divided over another mesh."""
    return sx.asarray(np.ones(shape), mesh=sx.make_mesh({"other": -1}), placement={"other": sx.Shard(0)})


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
    "sizes that are left open twice": (lambda: sx.make_mesh({"a": -1, "b": -1}), MeshError, "one may be -1"),
    "a size of 0": (lambda: sx.make_mesh({"a": 0}), MeshError, r"Write sx\.make_mesh"),
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
    "an index array of NaN": (
        lambda: rows(4)[sx.asarray(np.array([np.nan]), placement=ROWS)],
        DtypeError,
        r"index\.astype\(int\)",
    ),
    "an index that is NaN": (lambda: rows(4)[float("nan")], DtypeError, "integers or bools"),
    "taken at NaN": (lambda: sx.take(rows(4), np.array([np.nan])), DtypeError, "integers or bools"),
    "taken along at NaN": (lambda: sx.take_along_axis(rows(4), np.full(4, np.nan)), DtypeError, "integers"),
    "written at NaN": (lambda: rows(4).at[np.array([np.nan])].set(1.0), DtypeError, "integers or bools"),
    "a known index array out of range": (lambda: rows(4)[np.array([1, -5])], BoundsError, "index -5"),
    "written out of range": (lambda: rows(4).at[np.array([4])].add(1.0), BoundsError, "indices below 4"),
    "values that do not fit an index": (lambda: rows(4).at[1:3].set(np.ones(3)), ShapeError, r"\(3,\).*\(2,\)"),
    "values that do not fit a row": (lambda: rows(4, 6).at[0].set(np.ones(3)), ShapeError, r"\(3,\).*\(6,\)"),
    "values that do not fit rows of a column": (
        lambda: rows(4, 6).at[0, [1, 2]].set(np.ones(3)),
        ShapeError,
        r"\(3,\).*\(2,\)",
    ),
    "complex written into floats": (lambda: rows(4).at[0].set(1j), DtypeError, r"values\.real"),
    "a mask of another shape": (lambda: rows(4)[np.ones(5, bool)], BoundsError, r"a mask of shape \(4,\)"),
    "an assignment": (lambda: rows(4).__setitem__(0, 1.0), TypeError, r"x\.at\[\.\.\.\]\.set\(value\)"),
    "meshes mixed in an operation": (lambda: rows(4) + elsewhere(4), MeshError, r"y\.to\(x\.mesh"),
    "meshes mixed in a product": (lambda: rows(4, 4) @ elsewhere(4, 4), MeshError, r"y\.to\(x\.mesh"),
    "meshes mixed in a list": (lambda: sx.concat([rows(4), elsewhere(4)]), MeshError, r"y\.to\(x\.mesh"),
    "meshes mixed in an index": (lambda: rows(4)[elsewhere(4).astype(int)], MeshError, r"y\.to\(x\.mesh"),
    "meshes mixed in a mask": (lambda: rows(4)[elsewhere(4) > 0], MeshError, r"y\.to\(x\.mesh"),
    "meshes mixed in what is written": (lambda: rows(4).at[:].set(elsewhere(4)), MeshError, r"y\.to\(x\.mesh"),
    "a redistribution to a dimension that is not there": (
        lambda: rows(4).redistribute(world=sx.Shard(1)),
        PlacementError,
        "needs dimension 1",
    ),
    "a redistribution over an axis that is not there": (
        lambda: rows(4).redistribute(rows=sx.Shard(0)),
        MeshError,
        "no axis 'rows'",
    ),
    "a placement in words": (lambda: rows(4).redistribute("world"), PlacementError, "is a dict"),
    "a P of too many dimensions": (lambda: rows(4).redistribute(sx.P(None, "world")), PlacementError, "names 2"),
    "a maximum of complex numbers": (lambda: sx.max(rows(4) * 1j), DtypeError, r"abs\(x\)"),
    "complex values that are a maximum": (
        lambda: sx.asarray(np.ones(2, complex), placement={"world": sx.Partial("max")}),
        PlacementError,
        r'Partial\("sum"\)',
    ),
    "a number that a dtype does not hold": (lambda: counts(4) + 300, RangeError, r"Write x\.astype\('int16'\) first"),
    "a number below what a dtype holds": (lambda: counts(4) - 1 + -1, RangeError, r"-1 is beyond uint8"),
    "a number that no dtype holds": (lambda: rows(4) * 10**400, RangeError, r"Write a number below 1\.8e308"),
    "a number alone that no integer holds": (lambda: sx.sqrt(2**70), RangeError, r"Write float\(number\)"),
    "a number alone that no dtype holds": (lambda: sx.acos(10**400), RangeError, r"Write a number below 1\.8e308"),
    "more parts than there can be": (lambda: sx.array_split(rows(4), 10**400), ArgumentError, "parts"),
    "a list of too few dimensions to convolve": (lambda: sx.nn.conv2d([[1.0]], [[2.0]]), ShapeError, "conv2d"),
    "a list of too few dimensions to attend": (
        lambda: sx.nn.attention([[1.0]], [[1.0]], [[1.0]]),
        ShapeError,
        "attention",
    ),
    "an image without channels": (lambda: sx.nn.patchify([[1.0]], 1), ShapeError, "channels"),
    "patches of another size": (lambda: sx.nn.unpatchify(np.ones((4, 3)), 1, (3, 2, 3)), ShapeError, "patchify"),
    "a number that bfloat16 does not hold": (
        lambda: rows(4).astype("bfloat16") + 10**400,
        RangeError,
        "beyond bfloat16",
    ),
    "a number below what a wide one holds": (lambda: counts(4).astype("uint32") + -1, RangeError, r"astype\('int64'\)"),
    "a number above what int64 holds": (lambda: sx.arange(4) + 2**63, RangeError, r"Write x\.astype\('float64'\)"),
    "a number that meets bools": (lambda: (rows(4) > 0) + 2**70, RangeError, r"beyond int64.*\n.*'float64'"),
    "a number that does not fit, written": (lambda: counts(4).at[0].set(300), RangeError, "300 holds a number"),
    "a number that does not fit, filled": (lambda: sx.full(4, 300, "uint8"), RangeError, "a wider dtype"),
    "a number that no dtype holds, filled": (lambda: sx.full(4, 10**400, float), RangeError, "float64 does not"),
    "a number that no dtype holds, at an end": (lambda: sx.linspace(0, 10**400, 3), RangeError, "float64 does not"),
    "text at an end": (lambda: sx.linspace("a", 1, 3), DtypeError, "got dtype <U1"),
    "numbers at an end": (lambda: sx.linspace(np.ones(3), 1, 3), ShapeError, r"one end of shape \(3,\)"),
    "what a mask leaves out": (
        lambda: rows(2) + np.ma.array([1.0, 2.0], mask=[False, True]),
        DtypeError,
        r"Write value\.filled\(0\)",
    ),
    "more bytes than there can be": (lambda: sx.zeros((2**60, 2), placement=ROWS), ShapeError, r"2\*\*63"),
    "more numbers than there can be": (lambda: sx.arange(2**63), ShapeError, r"2\*\*63"),
    "a cast of NumPy's complex numbers": (lambda: sx.astype(np.array([1j]), float), DtypeError, "the imaginary part"),
    "a number that does not fit, padded": (lambda: sx.pad(counts(4), 1, constant_values=300), RangeError, "uint8"),
    "numbers that do not fit": (lambda: sx.asarray([1, 300], "uint8"), RangeError, "a number that uint8 does not"),
    "rows of different lengths": (lambda: sx.asarray([[1, 2], [3]]), ShapeError, "different lengths"),
    "rows of different lengths beside an array": (
        lambda: sx.add(rows(2), [[1, 2], [3]]),
        ShapeError,
        "one array for each",
    ),
    "a cast to what is no dtype": (lambda: rows(4).astype("foo"), DtypeError, "'foo' is no dtype"),
    "a cast to a list": (lambda: rows(4).astype([int]), DtypeError, r"\[<class 'int'>\] is no dtype"),
    "zeros of what is no dtype": (lambda: sx.zeros(4, "foo"), DtypeError, "or another dtype's name"),
    "a sum in what is no dtype": (lambda: rows(4).sum(dtype="foo"), DtypeError, "'foo' is no dtype"),
    "a text of numbers": (lambda: sx.asarray(["a"], float), DtypeError, "could not convert string"),
    "a roll by half": (lambda: sx.roll(rows(4), 1.5), DtypeError, "a whole number; got float 1.5"),
    "an axis that is half": (lambda: sx.sum(rows(4), axis=0.5), DtypeError, r"Write axis=0"),
    "a split in halves": (lambda: sx.split(rows(4), 2.0), DtypeError, r"Write split\(x, 2\)"),
    "a pad of half": (lambda: sx.pad(rows(4), 1.5), DtypeError, r"Write pad\(x, 1\)"),
    "tiles and a half": (lambda: sx.tile(rows(4), 1.5), DtypeError, r"Write tile\(x, 2\)"),
    "a diagonal and a half": (lambda: sx.tril(rows(4, 4), 0.5), DtypeError, r"Write k=0"),
    "points and a half": (lambda: sx.linspace(0, 1, 2.5), DtypeError, r"Write num=50"),
    "a matrix as a number": (lambda: f"{rows(4, 3):.3f}", DtypeError, r"np\.array2string.*x\[0, 0\]"),
    "a number as none is written": (lambda: f"{sx.sum(rows(4)):q}", ArgumentError, r"Unknown format code 'q'"),
    "a condition alone": (lambda: sx.where(rows(4) > 0), ArgumentError, r"or nonzero\(condition\)"),
    "a condition and one value": (lambda: sx.where(rows(4) > 0, rows(4)), ArgumentError, r"where\(condition, x, y\)"),
    "the greatest of none, and none of them": (lambda: sx.argmax(rows(0, 0), 1), ShapeError, "no elements"),
    "an axis that is a set": (lambda: sx.sum(rows(4, 3), axis={0, 1}), DtypeError, r"got set \{0, 1\}"),
    "a range of text": (lambda: sx.arange("a"), ArgumentError, r"Write arange\(0, 10, 1\)"),
    "a range up to nothing": (lambda: sx.arange(float("nan")), ArgumentError, "NaN"),
    "values that do not fill": (lambda: sx.full((4, 4), np.arange(2), placement=ROWS), ShapeError, "do not fill"),
    "arrays to join that are none": (lambda: sx.concat(None), DtypeError, r"Write concat\(\[x, y\]\)"),
    "an offset of half": (lambda: sx.diagonal(rows(4, 4), 0.5), DtypeError, "Write offset=0"),
    "a move of what is no array": (lambda: sx.redistribute(np.ones(4), {}), DtypeError, r"Write sx\.asarray"),
    "an array of objects": (lambda: sx.asarray([1], dtype=object), DtypeError, "numbers and bools"),
    "dates": (lambda: sx.asarray(np.array(["2020"], "datetime64[D]")), DtypeError, "numbers and bools"),
    "a cast to objects": (lambda: rows(4).astype(object), DtypeError, "numbers and bools"),
    "a text beside a number": (lambda: rows(4) + "a", DtypeError, "numbers and bools"),
    "nothing beside a number": (lambda: sx.add(rows(4), None), DtypeError, "numbers and bools"),
    "a negative size": (lambda: sx.zeros((3, -1)), ShapeError, "negative"),
    "two sizes to find out": (lambda: rows(4, 3).reshape(-1, -1), ShapeError, "one -1"),
    "a transpose that repeats": (lambda: sx.permute_dims(rows(4, 3), (0, 0)), ShapeError, "twice"),
    "a squeeze of what is long": (lambda: sx.squeeze(rows(4, 3), axis=0), ShapeError, "has size 4"),
    "arrays that do not stack": (lambda: sx.stack([rows(4), rows(5)]), ShapeError, "equal shapes"),
    "arrays that do not join": (lambda: sx.concat([rows(4, 3), rows(4, 2)]), ShapeError, "axis 0 aside"),
    "a split that does not divide": (lambda: sx.split(rows(4), 3), ShapeError, "equal parts"),
    "a sort of a dimension that is not there": (lambda: sx.sort(rows(4), axis=1), ShapeError, "axis 1"),
    "an einsum that does not fit": (lambda: sx.einsum("ij,jk->ik", rows(4, 3), rows(4, 3)), ShapeError, "'j'"),
    "ranks that are not there": (lambda: sx.make_mesh({"a": 1}, ranks=[99]), MeshError, "the world has ranks"),
    "a rank twice": (lambda: sx.make_mesh({"a": 2}, ranks=[0, 0]), MeshError, "distinct"),
    "a key that is none": (lambda: sx.random.normal("key", (3,)), DtypeError, r"sx\.random\.key\(0\)"),
    "the gradient of integers": (lambda: sx.grad(sx.sum)(sx.arange(3)), sx.SpmdxError, "floating-point"),
    "a gradient of a value": (lambda: sx.grad(rows(4))(rows(4)), ArgumentError, r"sx\.grad\(f\)\(x\)"),
    "a batch of a value": (lambda: sx.vmap(rows(4)), ArgumentError, r"sx\.vmap\(f\)\(xs\)"),
    "a derivative along an array": (lambda: sx.jvp(sx.exp, rows(4), rows(4)), ArgumentError, r"jvp\(f, \(x,\)"),
    "a norm of a number": (lambda: sx.nn.layer_norm(sx.asarray(1.0)), ShapeError, "last dimension"),
    "images of two dimensions": (lambda: sx.nn.unpatchify(rows(4, 4), 2, (4, 4)), ShapeError, "channels"),  # type: ignore[arg-type]
    "values on what is no mesh": (lambda: sx.asarray(1.0, mesh={"world": 1}), MeshError, "Write mesh=sx.make_mesh"),
    "values drawn on what is no mesh": (
        lambda: sx.random.normal(sx.random.key(0), (2,), mesh={"world": 1}),
        MeshError,
        "Write mesh=sx.make_mesh",
    ),
    "blocks on what is no mesh": (lambda: sx.from_block(np.ones(2), {}, mesh=1), MeshError, "Write mesh=sx.make_mesh"),
    "a default mesh that is none": (lambda: sx.use_mesh({"world": 1}).__enter__(), MeshError, r"with sx\.use_mesh"),
    "a move to what is no mesh": (lambda: rows(4).to({"world": 1}), MeshError, r"x\.to\(mesh"),
    "a name that is no text": (lambda: sx.name(rows(4), 3), ArgumentError, r'sx\.name\(x, "'),  # type: ignore[arg-type]
    "a value where a scalar is meant": (lambda: float(rows(4)), (ShapeError, TypeError), "one element"),
    "the truth of many": (lambda: bool(rows(4)), (ShapeError, ValueError, TypeError), "sx.any"),
}


@pytest.mark.parametrize("name", CASES)
def test_bad_input(name: str) -> None:
    call, error, message = CASES[name]
    if "mixed" in name and sx.make_mesh().size == 1:
        pytest.skip("on one rank every array is a constant on every mesh")
    with sx.debug.trace() as t, pytest.raises(error, match=message) as found:
        call()
    assert not t  # nothing was communicated
    text = str(found.value)
    assert "\n  Write " in text
    said = sx.from_block(np.array([zlib.crc32(text.encode())]), ROWS).numpy()
    assert len(set(said.tolist())) == 1  # the same on every rank


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
    with pytest.raises(ShapeError, match="different lengths"):
        sx.from_block(np.ones(2 + mesh.rank), {})
    with pytest.raises(ShapeError, match="different lengths"):
        sx.from_block(np.ones(2 + mesh.rank), {"world": sx.Partial("sum")})
    said = sx.Shard(0, sizes=(2,) * mesh.size)
    assert sx.from_block(np.ones(2), {"world": said}).placement == {"world": sx.Shard(0)}
    with pytest.raises(ShapeError, match=r"sizes=\(2, 2.*\n  Write Shard\(0\)"):
        sx.from_block(np.ones(2 + (mesh.rank == 1)), {"world": said})
    with pytest.raises(ShapeError, match=r"not \(4, 3\)"):
        sx.from_block(np.ones((3, 3)), ROWS, shape=(4, 3))
    for other in ("text", None, np.array([object()])):
        with pytest.raises(DtypeError, match="the block of rank 1 does not hold numbers"):
            sx.from_block(other if mesh.rank == 1 else np.ones(1), ROWS)


@pytest.mark.ranks(2, 3, 7)
@pytest.mark.parametrize(
    "call",
    [
        lambda rank: rows(8)[: 2 + rank].numpy(),
        lambda rank: sx.asarray(np.ones(3 + rank), placement=ROWS).numpy(),
        lambda rank: sx.asarray(np.ones(4, np.float32 if rank else float), placement=ROWS).numpy(),
        lambda rank: (sx.max if rank else sx.sum)(rows(8)).numpy(),
        lambda rank: sx.sum(rows(8, 8), axis=0 if rank else 1).numpy(),
        lambda rank: rows(8, 8).redistribute(world=sx.Shard(1) if rank else sx.Replicate()),
    ],
    ids=["slices", "shapes", "dtypes", "operations", "axes", "placements"],
)
def test_ranks_that_go_different_ways_are_told_where_they_meet(call: Callable[[int], Any]) -> None:
    """jax: rank 0 calls sum, rank 1 calls max, and both print the same wrong number. Told without SPMDX_CHECK is what
    changes a collective; equal collectives with other values are told with it (tests/test_checked.py)."""
    with pytest.raises(RanksDisagree, match="different collectives"):
        call(sx.make_mesh().rank)


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
