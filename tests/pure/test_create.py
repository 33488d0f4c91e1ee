"""Creation: every placement holds NumPy's bits (exact)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spmdx as sx
from spmdx.errors import ArgumentError, DtypeError, MeshError, ShapeError
from spmdx.mesh import Mesh
from spmdx.ops import create

sys.path.insert(0, str(Path(__file__).parents[1] / "laws"))
from placements import holds, specs

MESHES = [Mesh(("a",), (3,), None, "sim"), Mesh(("a", "b"), (2, 2), None, "sim")]


def same(make: Any, want: Any) -> None:
    """Equal bits wherever the pieces lie."""
    want = np.asarray(want)
    for mesh in MESHES:
        for spec in specs(mesh, want.shape, want.dtype, ("sum", "max"), ("default", "ragged", "interleaved")):
            if isinstance(spec.placement, sx.P):
                continue
            made = make(mesh=mesh, placement=spec.placement)
            assert made.spec is spec
            assert holds(spec, made._block, want), spec


@pytest.mark.parametrize("dtype", [None, "float32", "float16", "int32", "complex64"])
@pytest.mark.parametrize(
    "args", [(7,), (0,), (2, 9, 3), (9, 2, -2), (0.1, 1.3, 0.1), (-3.7, 2, 0.3), (1e4, 1e4 + 20, 1.1), (3, 1)]
)
def test_arange(args: Any, dtype: Any) -> None:
    same(lambda **where: create.arange(*args, dtype=dtype, **where), np.arange(*args, dtype=dtype))


@pytest.mark.parametrize("dtype", [None, "float32", "int64", "complex128"])
@pytest.mark.parametrize("endpoint", [True, False])
@pytest.mark.parametrize("args", [(0.3, 2.7, 11), (5, 5, 3), (1, 2, 1), (1, 2, 0), (-3, 3.3, 13), (0, 5e-324, 5)])
def test_linspace(args: Any, endpoint: bool, dtype: Any) -> None:
    want = np.linspace(*args, endpoint=endpoint, dtype=dtype)
    same(lambda **where: create.linspace(*args, endpoint=endpoint, dtype=dtype, **where), want)


def test_long_ranges() -> None:
    for dtype in ("float64", "float32"):
        want = np.arange(0.1, 3000, 0.1, dtype=dtype)
        assert create.arange(0.1, 3000, 0.1, dtype=dtype).numpy().tobytes() == want.tobytes()
    assert create.linspace(0.1, 3000, 99999).numpy().tobytes() == np.linspace(0.1, 3000, 99999).tobytes()


@pytest.mark.parametrize(("rows", "columns", "k"), [(5, 7, 0), (5, None, 1), (3, 8, -2), (0, 3, 0), (4, 4, 9)])
def test_matrices(rows: int, columns: int | None, k: int) -> None:
    same(lambda **where: create.eye(rows, columns, k=k, **where), np.eye(rows, columns, k=k))
    same(lambda **where: create.tri(rows, columns, k, dtype=int, **where), np.tri(rows, columns, k, dtype=int))


def test_filled() -> None:
    same(lambda **where: create.zeros((5, 3), **where), np.zeros((5, 3)))
    same(lambda **where: create.ones(4, dtype="float32", **where), np.ones(4, "float32"))
    same(lambda **where: create.full((5,), True, **where), np.full(5, True))
    same(lambda **where: create.identity(3, **where), np.identity(3))


def test_like_keeps_the_placement_and_finishes_partials() -> None:
    x = create.ones((5, 3), mesh=MESHES[1], placement={"a": sx.Shard(0), "b": sx.Partial("sum")}, dtype="int32")
    assert create.zeros_like(x).placement == {"a": sx.Shard(0), "b": sx.Replicate()}
    assert create.full_like(x, 2.5, dtype=float).dtype == np.float64
    assert create.empty_like(x).dtype == np.int32


def test_another_librarys_array() -> None:
    same(lambda **where: create.from_dlpack(np.arange(7.0), **where), np.arange(7.0))
    x = create.from_dlpack(np.arange(7), mesh=MESHES[0], placement={"a": sx.Shard(0)})
    assert create.from_dlpack(x) is x


def test_what_the_library_says_of_itself() -> None:
    said = sx.__array_namespace_info__()
    assert said.dtypes(kind="real floating") == {"float32": np.float32, "float64": np.float64}
    assert said.default_dtypes()["indexing"] == np.int64
    with sx.use_mesh(MESHES[0]):
        assert said.devices() == ["sim"]
    with pytest.raises(MeshError, match="no device 'tape'"):
        said.dtypes(device="tape")


@pytest.mark.parametrize(
    ("act", "error", "says"),
    [
        (lambda: create.arange(1, 2, 0), ArgumentError, "the step cannot be 0"),
        (lambda: create.zeros((-1,)), ShapeError, "no negative sizes"),
        (lambda: create.zeros(3, dtype=object), DtypeError, "got dtype object"),
        (lambda: create.linspace(0, 1, -1), ArgumentError, "num is 0 or more"),
        (lambda: create.zeros_like(create.ones(3), device="tape"), MeshError, "lies on 'cpu', not on 'tape'"),
        (lambda: create.tril(create.ones(3)), ShapeError, "at least 2 dimensions"),
        (lambda: create.one_hot(create.ones(3), 3), DtypeError, "one_hot takes integers; got dtype float64"),
    ],
)
def test_errors_say_what_is_wrong(act: Any, error: Any, says: str) -> None:
    with pytest.raises(error) as raised:
        act()
    assert says in str(raised.value)


@pytest.mark.parametrize("shape", [2.5, "a", (2, 2.5), (2, None), None])
def test_what_is_no_shape(shape: Any) -> None:
    """Every function that takes a shape says so, and what to write."""
    x, key = sx.ones((2, 2)), sx.random.key(0)
    for make in (
        lambda: sx.zeros(shape),
        lambda: sx.full(shape, 1.0),
        lambda: sx.reshape(x, shape),
        lambda: sx.broadcast_to(x, shape),
        lambda: sx.random.normal(key, shape),
        lambda: sx.random.dirichlet(key, shape, np.ones(3)),
        lambda: sx.random.truncated_normal(key, shape, -1.0, 1.0),
        lambda: sx.nn.Param(shape),
    ):
        with pytest.raises(ShapeError, match=r"a shape is made of whole numbers; got(.|\n)*Write \(3, 5\)"):
            make()


@pytest.mark.parametrize("shape", [(4,), (1,), (3, 1), (3, 4), ()])
@pytest.mark.parametrize("placement", [{}, {"a": sx.Shard(0)}, {"a": sx.Shard(1)}, {"a": sx.Partial("sum")}])
def test_values_fill_the_whole_and_not_each_block(shape: Any, placement: Any) -> None:
    """Exact: values broadcast to the global shape, wherever its pieces lie."""
    mesh, values = sx.make_mesh({"a": 2}, device="sim"), np.arange(float(np.prod(shape))).reshape(shape)
    found = sx.full((3, 4), values, mesh=mesh, placement=placement)
    assert np.array_equal(found.numpy(), np.full((3, 4), values))
    like = sx.full_like(sx.zeros((3, 4), mesh=mesh, placement=placement), values)
    assert np.array_equal(like.numpy(), np.full((3, 4), values)) and found.dtype == like.dtype
    if shape:
        with pytest.raises(sx.errors.ShapeError, match=r"do not fill an array of shape \(3, 6\)"):
            sx.full((3, 6), np.arange(2.0), mesh=mesh, placement=placement)


@pytest.mark.parametrize("of", [np.array, lambda values: values])
def test_what_takes_arrays_takes_what_numpy_takes(of: Any) -> None:
    """Exact: NumPy's arrays and lists, of which NumPy makes arrays."""
    given = [[1.0, 2.0, 4.0], [7.0, 11.0, 16.0], [0.0, 1.0, 0.0]]
    names = ("zeros_like", "ones_like", "diagonal", "trace", "diff", "cumsum")
    calls: list[Any] = [
        *(lambda m, x, name=name: getattr(m, name)(x) for name in names),
        lambda m, x: m.full_like(x, 2),
        lambda m, x: m.pad(x, 1),
        lambda m, x: m.tile(x, 2),
        lambda m, x: m.take(x, [0, 2], axis=1),
        lambda m, x: m.stack(m.split(x, 3)),
        lambda m, x: m.stack(m.unstack(x)),
        lambda m, x: m.astype(x, "int8"),
    ]
    for call in calls:
        found, want = call(sx, of(given)), call(np, np.array(given))
        assert found.dtype == want.dtype and np.array_equal(found.numpy(), want)


def test_numpys_arrays_are_constants_on_the_mesh_of_the_others() -> None:
    mesh, values = sx.make_mesh({"a": 2}, device="sim"), np.arange(6.0).reshape(3, 2)
    x = sx.asarray(values, mesh=mesh, placement={"a": sx.Shard(0)})
    for call in (sx.outer, sx.vecdot, sx.kron, sx.inner, sx.vdot):
        want = call(x, x).numpy()
        assert np.array_equal(call(x, values).numpy(), want) and np.array_equal(call(values, x).numpy(), want)
    q = x[:, None]
    want = sx.nn.attention(q, q, q).numpy()
    for some in ((q.numpy(), q, q), (q, q.numpy(), q.numpy())):
        np.testing.assert_allclose(sx.nn.attention(*some).numpy(), want, 1e-14)  # as blocks of another size round


def test_a_gradient_of_linspace_is_refused() -> None:
    """It would be 0: ends are read as numbers."""
    with pytest.raises(sx.errors.GradientError):
        sx.grad(lambda stop: sx.sum(sx.linspace(0, stop, 3)))(sx.asarray(2.0))
