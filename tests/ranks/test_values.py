"""Values in and out: asarray, from_block, numpy, scalars, meshes that mix, and moves between meshes. All exact."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import spmdx as sx
from spmdx.errors import (
    ArgumentError,
    DtypeError,
    ImpliedMoveError,
    MeshError,
    PlacementError,
    RanksDisagree,
    ShapeError,
)
from spmdx.spec import Spec


def test_asarray_keeps_this_ranks_part() -> None:
    mesh = sx.make_mesh()
    value = np.arange(7.0)
    x = sx.asarray(value, placement={"world": sx.Shard(0)})
    assert np.array_equal(x.block, np.array_split(value, mesh.size)[mesh.rank])
    assert x.shape == (7,)
    assert np.array_equal(x.numpy(), value)


def test_asarray_copies_unless_told() -> None:
    value = np.arange(6.0)
    kept, handed = sx.asarray(value), sx.asarray(value, copy=False)
    value[0] = 9.0
    assert kept.numpy()[0] == 0.0
    assert handed.block[0] == 9.0


def test_blocks_are_read_only() -> None:
    x = sx.asarray(np.zeros(3))
    with pytest.raises(ValueError, match="read-only"):
        x.block[0] = 1.0


def test_zero_d() -> None:
    x = sx.asarray(2.5)
    assert (x.shape, x.ndim, x.size) == ((), 0, 1)
    assert isinstance(x.block, np.ndarray)
    assert float(x) == 2.5 and x.item() == 2.5


def test_scalars_of_partial_values_are_global() -> None:
    mesh = sx.make_mesh()
    x = sx.from_block(np.array(2), {"world": sx.Partial("sum")})
    assert int(x) == 2 * mesh.size
    assert float(x) == 2.0 * mesh.size
    assert x.item() == 2 * mesh.size
    assert bool(x)
    assert (x + 1).item() == 2 * mesh.size + 1
    assert (x + 1).dtype == x.dtype


def test_from_block_infers_ragged_sizes() -> None:
    mesh = sx.make_mesh()
    mine = np.full((mesh.rank, 2), float(mesh.rank))
    x = sx.from_block(mine, {"world": sx.Shard(0)})
    expected = np.concatenate([np.full((r, 2), float(r)) for r in range(mesh.size)])
    assert x.shape == expected.shape
    assert np.array_equal(x.numpy(), expected)


@pytest.mark.parametrize("copy", [None, False])
def test_what_kernels_cannot_read_is_copied(copy: bool | None) -> None:
    """Exact: whole numbers, in the other byte order, and not aligned; as many rows as are summed by a kernel."""
    value = np.arange(65 * 16.0).reshape(65, 16)
    shifted = np.empty(value.nbytes + 1, np.uint8)[1:].view(float).reshape(value.shape)
    shifted[:] = value
    for given in (value.astype(value.dtype.newbyteorder()), shifted):
        for x in (sx.from_block(given, {}, copy=copy), sx.asarray(given, copy=copy)):
            assert x.block.flags.aligned and x.block.dtype.isnative
            assert np.array_equal(sx.sum(x, 0).numpy(), value.sum(0))


def test_from_block_disagreement_raises_everywhere() -> None:
    mesh = sx.make_mesh()
    if mesh.size == 1:
        assert sx.from_block(np.zeros((2, 3)), {}).shape == (2, 3)
        return
    with pytest.raises(ShapeError, match="number of dimensions"):
        sx.from_block(np.zeros((2,) * (1 + (mesh.rank == 1))), {"world": sx.Shard(0)})
    with pytest.raises(ShapeError, match="different lengths"):
        sx.from_block(np.zeros((2, 3 + (mesh.rank == 1))), {"world": sx.Shard(0)})
    with pytest.raises(ShapeError, match="dtype"):
        sx.from_block(np.zeros(2, np.float32 if mesh.rank == 1 else np.float64), {"world": sx.Shard(0)})
    with pytest.raises(DtypeError, match="does not hold numbers"):
        sx.from_block(np.array(["a"]) if mesh.rank == 1 else np.zeros(1), {"world": sx.Shard(0)})
    with pytest.raises(ShapeError, match="make an array of shape"):
        sx.from_block(np.zeros(2), {"world": sx.Shard(0)}, shape=(5,))
    with pytest.raises(RanksDisagree, match="another placement on rank 1 than on rank 0"):
        sx.from_block(np.zeros(2), {"world": sx.Shard(0)} if mesh.rank == 1 else {})
    with pytest.raises(RanksDisagree, match="another shape on rank 1 than on rank 0"):
        sx.from_block(np.zeros(2), {"world": sx.Shard(0)}, shape=(5,) if mesh.rank == 1 else None)


def test_objects_are_refused() -> None:
    with pytest.raises(DtypeError, match="numbers and bools"):
        sx.asarray([object()])
    with pytest.raises(DtypeError, match="numbers and bools"):
        sx.asarray(["text"])
    with pytest.raises(DtypeError, match=r"sx\.stack"):
        sx.asarray([sx.asarray(1.0), sx.asarray(2.0)])


def test_explicit_forbids_the_global_value() -> None:
    mesh = sx.make_mesh()
    x = sx.asarray(np.arange(4.0), placement={"world": sx.Shard(0)})
    with sx.explicit():
        if mesh.size > 1:
            with pytest.raises(ImpliedMoveError, match="redistribute"):
                x.numpy()
        assert np.array_equal(x.redistribute({}).numpy(), np.arange(4.0))


def test_redistribute_by_axis_keeps_the_others() -> None:
    mesh = sx.make_mesh({"a": -1, "b": 1})
    x = sx.asarray(np.arange(12.0).reshape(3, 4), mesh=mesh, placement={"a": sx.Shard(0)})
    y = x.redistribute(b=sx.Shard(1))
    assert y.placement == x.placement  # b has size 1: Replicate is its canonical form
    with pytest.raises(MeshError, match="no axis 'c'"):
        x.redistribute(c=sx.Shard(0))
    with pytest.raises(PlacementError, match="needs dimension 2"):
        x.redistribute(a=sx.Shard(2))
    with pytest.raises(PlacementError, match="needs a placement"):
        x.redistribute()
    with pytest.raises(ArgumentError, match="one placement for each"):
        sx.redistribute([x, x], [{}])


def test_default_mesh_is_a_setting() -> None:
    mesh = sx.make_mesh({"rows": -1})
    assert sx.asarray(1.0).mesh.axis_names == ("world",)
    with sx.use_mesh(mesh):
        assert sx.asarray(1.0).mesh is mesh
    assert sx.asarray(1.0).mesh.axis_names == ("world",)


def test_replicated_arrays_are_constants_on_other_meshes() -> None:
    world = sx.make_mesh()
    mesh = sx.make_mesh({"a": 1, "b": -1})
    x = sx.asarray(np.arange(5.0), mesh=mesh, placement={"b": sx.Shard(0)})
    with sx.debug.trace() as t:
        y = x + sx.asarray(1.0)
    assert not t and y.mesh is mesh
    assert np.array_equal(y.numpy(), np.arange(5.0) + 1)
    if world.size > 1:
        z = sx.asarray(np.arange(5.0), mesh=world, placement={"world": sx.Shard(0)})
        with pytest.raises(MeshError, match=r"y\.to\(x\.mesh"):
            x + z


@pytest.mark.ranks(3, 4)
def test_to_another_mesh_and_back() -> None:
    world = sx.make_mesh()
    value = np.arange(35.0).reshape(5, 7)
    pair = sx.make_mesh({"p": 2}, ranks=[2, 0])
    for placement in ({"world": sx.Shard(0)}, {"world": sx.Partial("sum")}, {"world": sx.Replicate()}):
        x = sx.asarray(value, mesh=world, placement=placement)
        y = x.to(pair, {"p": sx.Shard(1)})
        assert y.spec.mesh is pair and y.shape == (5, 7)
        z = y + 1.0  # propagated on ranks outside, without a block
        if pair.contains_me():
            assert np.array_equal(z.numpy(), value + 1)
        else:
            with pytest.raises(MeshError, match="outside"):
                z.numpy()
            with pytest.raises(MeshError, match="outside"):
                _ = z.block
        back = z.to(world, {"world": sx.Shard(1)})
        assert np.array_equal(back.numpy(), value + 1)


def test_values_pickle_and_arrays_refuse() -> None:
    mesh = sx.make_mesh({"a": -1})
    x = sx.asarray(np.zeros((4, 3)), mesh=mesh, placement={"a": sx.Shard(0)})
    for thing in (mesh, x.spec, sx.Shard(0), sx.Partial("max"), sx.P("a", None, partial=(), op="sum")):
        assert pickle.loads(pickle.dumps(thing)) == thing
    assert pickle.loads(pickle.dumps(x.spec)) is x.spec
    assert isinstance(x.spec, Spec)
    assert copy.deepcopy(x) is x
    with pytest.raises(sx.SpmdxError, match="checkpoint"):
        pickle.dumps(x)


def test_repr_never_communicates() -> None:
    x = sx.asarray(np.arange(9.0), placement={"world": sx.Partial("sum")})
    with sx.debug.trace() as t:
        text = repr(x) + str(x)
    assert not t
    assert "float64[9]" in text


def test_several_arrays_share_collectives() -> None:
    mesh = sx.make_mesh()
    arrays = [sx.asarray(np.arange(float(n)), placement={"world": sx.Shard(0)}) for n in (3, 8, 5)]
    with sx.debug.trace() as t:
        whole = sx.redistribute(arrays, {})
    assert len(t) == (mesh.size > 1)
    for x, n in zip(whole, (3, 8, 5)):
        assert np.array_equal(x.block, np.arange(float(n)))


def test_explain_prints_steps(capsys: pytest.CaptureFixture[str]) -> None:
    mesh = sx.make_mesh()
    x = sx.asarray(np.zeros((4, 6)), placement={"world": sx.Partial("sum")})
    steps = sx.debug.explain(x, {"world": sx.Shard(0)})
    assert [s.verb for s in steps] == (["reduce_scatter"] if mesh.size > 1 else [])
    with sx.debug.trace() as t:
        x.redistribute({"world": sx.Shard(0)})
    assert t.bytes == sum(s.bytes for s in steps)


def test_handing_in_blocks_is_counted() -> None:
    mesh = sx.make_mesh()
    with sx.debug.trace() as t:
        sx.from_block(np.ones(2), {"world": sx.Shard(0)})
    assert [r.operation for r in t] == ["from_block"] * (mesh.size > 1)


def test_numpys_functions_do_not_gather() -> None:
    x = sx.asarray(np.arange(12.0).reshape(4, 3), placement={"world": sx.Shard(0)})
    with sx.debug.trace() as t:
        y = np.concatenate([x, x], axis=1)
        z = np.where(x > 1.0, x, 0.0)
        m = np.mean(x, axis=1)
        assert np.shape(x) == (4, 3) and np.ndim(x) == 2
    assert not t
    assert all(isinstance(a, sx.Array) for a in (y, z, m))
    assert np.array_equal(y.numpy(), np.concatenate([x.numpy()] * 2, axis=1))
    with pytest.raises(DtypeError, match=r"Write np\.unique\(x\.numpy\(\)"):
        np.unique(x)
