"""Cases that other libraries got wrong, from their public reports and from trials. Each name says whose; exact unless
a test says close."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import spmdx as sx
from spmdx.errors import BoundsError, ShapeError
from spmdx.op import registry

ROWS = {"world": sx.Shard(0)}
COLUMNS = {"world": sx.Shard(1)}


def place(value: Any, placement: Any = None) -> sx.Array:
    return sx.asarray(np.asarray(value), placement=placement or ROWS)


# Uneven, empty and 0-d blocks


def test_pytorch_162692_mean_over_an_uneven_dimension() -> None:
    value = np.arange(12.0).reshape(3, 4)
    assert np.array_equal(sx.mean(place(value), axis=0).numpy(), value.mean(0))
    assert float(sx.mean(place(value))) == value.mean()
    assert np.array_equal(sx.mean(place(np.arange(35.0).reshape(5, 7)), axis=0).numpy(), np.arange(14.0, 21.0))


def test_pytorch_144109_103306_gathering_uneven_blocks() -> None:
    value = np.arange(50.0).reshape(5, 10)
    for placement in (ROWS, COLUMNS):
        assert np.array_equal(place(value, placement).redistribute({}).block, value)


def test_heat_417_empty_leading_blocks() -> None:
    mesh = sx.make_mesh()
    sizes = (0,) * (mesh.size - 1) + (5,)
    x = place(np.arange(5.0), {"world": sx.Shard(0, sizes=sizes)})
    assert float(sx.sum(x)) == 10.0
    assert np.array_equal(sx.exp(x).numpy(), np.exp(np.arange(5.0)))
    assert int(sx.argmax(x)) == 4
    assert np.array_equal((x + place(np.arange(5.0))).numpy(), 2 * np.arange(5.0))


def test_heat_492_1017_zero_d_and_empty_sums() -> None:
    assert float(sx.sum(sx.asarray(3.0))) == 3.0
    empty = place(np.zeros((0, 3)))
    assert np.array_equal(sx.sum(empty, axis=0).numpy(), np.zeros(3))
    assert float(sx.sum(empty)) == 0.0
    assert float(sx.prod(empty)) == 1.0


def test_heat_2507_var_with_empty_and_one_element_blocks() -> None:
    value = np.random.default_rng(0).normal(size=(7, 3))
    for ddof in (0, 1):
        got = sx.var(place(value), axis=0, correction=ddof).numpy()
        assert np.allclose(got, value.var(0, ddof=ddof), rtol=1e-13)  # close: another order of addition
    assert np.allclose(float(sx.var(place(np.arange(3.0)), correction=1)), 1.0, rtol=1e-15)


def test_dask_777_2794_8352_min_and_max_with_empty_and_nan_blocks() -> None:
    mesh = sx.make_mesh()
    x = place(np.arange(3.0), {"world": sx.Shard(0, sizes=(3,) + (0,) * (mesh.size - 1))})
    assert (float(sx.max(x)), float(sx.min(x))) == (2.0, 0.0)
    nans = np.full((max(mesh.size, 2), 2), np.nan)
    nans[0] = 1.0
    assert np.isnan(float(sx.max(place(nans)))) and np.isnan(float(sx.min(place(nans))))
    with pytest.raises(ShapeError, match="no elements"):
        sx.max(place(np.zeros(0)))


def test_mlx_4072_min_and_max_propagate_nan_on_every_rank() -> None:
    mesh = sx.make_mesh()
    value = np.ones((mesh.size, 2), np.float32)
    value[-1, 0] = np.nan
    for f, oracle in ((sx.max, np.max), (sx.min, np.min)):
        got = f(place(value), axis=0).redistribute({}).block
        assert np.array_equal(got, oracle(value, axis=0), equal_nan=True)
    assert int(sx.argmax(place(value[:, 0]))) == mesh.size - 1
    assert int(sx.argmin(place(value[:, 0]))) == mesh.size - 1


def test_dtensor_an_empty_blocks_max_and_argmax() -> None:
    x = place(np.array([3.0]))
    assert float(sx.max(x)) == 3.0
    assert int(sx.argmax(x)) == 0


def test_tinygrad_5130_dimension_of_two_over_four_ranks() -> None:
    value = np.arange(6.0).reshape(2, 3)
    assert np.array_equal((place(value) * 2.0).numpy(), value * 2)
    assert np.array_equal(sx.sum(place(value), axis=0).numpy(), value.sum(0))


def test_jax_26946_27808_uneven_shardings_stay_sharded() -> None:
    mesh = sx.make_mesh()
    for shape in ((17, 16), (5,)):
        x = place(np.arange(float(np.prod(shape))).reshape(shape))
        assert x.block.shape[0] == len(np.array_split(np.arange(shape[0]), mesh.size)[mesh.rank])
        assert np.array_equal((x + 1.0).numpy(), x.numpy() + 1)


# Indexing


def test_heat_880_shifted_slices_of_different_blocks() -> None:
    for n in (1, 2, 7, 10):
        value = np.arange(float(n))
        a, b = place(value), place(value * 10)
        with sx.debug.trace() as t:
            left, right = a[:-1], b[1:]
        assert not t  # slices stay where they are
        assert np.array_equal((left + right).numpy(), value[:-1] + 10 * value[1:])


def test_heat_703_914_order_and_repeats_in_integer_indexing() -> None:
    value = np.arange(21.0).reshape(7, 3)
    for index in ([4, 0, 4], [6, -7, 3, 3, 2], []):
        i = np.array(index, np.int64)
        for x in (place(value), place(value, COLUMNS), place(value, {"world": sx.Partial("sum")})):
            assert np.array_equal(x[i].numpy(), value[i])
            assert np.array_equal(sx.take(x, sx.asarray(i), axis=0).numpy(), value[i])


def test_heat_negative_steps() -> None:
    value = np.arange(21.0).reshape(7, 3)
    for x in (place(value), place(value, COLUMNS)):
        assert np.array_equal(x[::-1].numpy(), value[::-1])
        assert np.array_equal(x[5:1:-2, ::-1].numpy(), value[5:1:-2, ::-1])


def test_heat_argmax_shape() -> None:
    value = np.random.default_rng(1).permutation(21).reshape(7, 3).astype(float)
    got = sx.argmax(place(value), axis=0)
    assert got.shape == (3,)
    assert np.array_equal(got.numpy(), value.argmax(0))


def test_jax_22387_indexing_is_not_scaled_by_the_ranks() -> None:
    value = np.arange(8.0)
    assert float(place(value)[3]) == 3.0
    assert float(sx.asarray(value)[3]) == 3.0


def test_jax_explicit_mode_basic_indexing_of_the_sharded_dimension() -> None:
    value = np.arange(40.0).reshape(5, 8)
    for x in (place(value), place(value, COLUMNS)):
        assert np.array_equal(x[0].numpy(), value[0])
        assert np.array_equal(x[1:5].numpy(), value[1:5])
        assert np.array_equal(x[:, :8:3].numpy(), value[:, :8:3])
        assert np.array_equal(sx.sort(x, axis=0).numpy(), np.sort(value, axis=0))
        assert np.array_equal(sx.cumulative_sum(x, axis=0).numpy(), np.cumsum(value, axis=0))


def test_jax_explicit_mode_boolean_masks_of_the_sharded_dimension() -> None:
    """More of masks: test_masks.py."""
    value = np.arange(40.0).reshape(5, 8)
    for x in (place(value), place(value, COLUMNS)):
        assert np.array_equal(x[x > 11.0].numpy(), value[value > 11.0])
        assert np.array_equal(x[np.array([True, False, True, True, False])].numpy(), value[[0, 2, 3]])


def test_pytorch_170934_index_assignment_on_the_sharded_dimension() -> None:
    value = np.arange(21.0).reshape(7, 3)
    expected = value.copy()
    expected[[5, 1]] = 9.0
    for x in (place(value), place(value, COLUMNS)):
        assert np.array_equal(x.at[np.array([5, 1])].set(9.0).numpy(), expected)
    added = value.copy()
    np.add.at(added, [5, 1, 5], 1.0)
    assert np.array_equal(place(value).at[np.array([5, 1, 5])].add(1.0).numpy(), added)


@pytest.mark.ranks(1)
def test_out_of_range_indices_raise() -> None:
    with pytest.raises(BoundsError, match="7"):
        place(np.arange(5.0))[np.array([7])]


# Scalars and Partial values


def test_pytorch_163193_a_scalar_is_added_once() -> None:
    value = np.arange(10.0)
    assert float(sx.sum(place(value)) + 10) == 55.0
    assert float(10 - sx.sum(place(value))) == -35.0


def test_pytorch_145218_norm_then_add() -> None:
    x = place(np.array([3.0, 4.0]))
    norm = sx.sqrt(sx.sum(x * x))
    norm = norm + 2
    assert float(norm) == 7.0


def test_pytorch_153603_scalars_are_not_cached() -> None:
    x = place(np.arange(8.0))
    assert [float(sx.mean(x) * i) for i in (1, 2, 3)] == [3.5, 7.0, 10.5]
    zeros = [sx.mean(x) * s for s in (0.0, -0.0)]
    assert [bool(np.signbit(z.numpy())) for z in zeros] == [False, True]


def test_dtensor_an_integer_partial_stays_an_integer() -> None:
    total = sx.sum(place(np.arange(6, dtype=np.int32)), dtype=np.int32)
    assert (total + 1).dtype == np.int32
    assert int(total + 1) == 16


def test_cupy_7981_complex_sums() -> None:
    value = np.arange(6.0) + 1j * np.arange(6.0)[::-1]
    assert sx.sum(place(value)).numpy() == value.sum()


def test_vescale_partial_and_replicate_are_not_mixed() -> None:
    x = place(np.arange(6.0), {"world": sx.Partial("sum")})
    assert np.array_equal((x + np.ones(6)).numpy(), np.arange(6.0) + 1)
    assert np.array_equal(sx.floor_divide(x, 4.0).numpy(), np.arange(6.0) // 4)


def test_replicate_to_partial_keeps_its_source() -> None:
    x = sx.asarray(np.arange(6.0))
    y = x.redistribute({"world": sx.Partial("sum")})
    assert np.array_equal(x.block, np.arange(6.0))
    assert np.array_equal(y.numpy(), np.arange(6.0))


def test_pytorch_178276_dtensor_steps_add_no_entries() -> None:
    """What is remembered of calls does not grow with the steps of an optimizer, nor with an index that changes."""
    optimizer = sx.optim.adamw(1e-2)
    w = place(np.ones((6, 4)))
    state = optimizer.init(w)

    def entries() -> int:
        return sum(len(op.entries) for op in registry.values())

    seen = []
    for _ in range(6):
        g = sx.grad(lambda w: (w * w).sum())(w)
        updates, state = optimizer.update(g, state, w)
        w = w + updates
        seen.append(entries())
    assert seen[2:] == [seen[2]] * 4


# Several mesh axes


@pytest.mark.ranks(4)
def test_jax_24576_concat_of_partly_replicated_arrays() -> None:
    mesh = sx.make_mesh({"a": 2, "b": 2})
    value = np.arange(12.0).reshape(4, 3)
    x = sx.asarray(value, mesh=mesh, placement={"a": sx.Shard(0)})
    for axis in (0, 1):
        got = sx.concat([x, x], axis=axis).numpy()
        assert np.array_equal(got, np.concatenate([value, value], axis))


@pytest.mark.ranks(4)
def test_pytorch_167106_matmul_moves_no_more_than_it_must() -> None:
    mesh = sx.make_mesh({"a": 2, "b": 2})
    n = 16
    value = np.arange(float(n * n)).reshape(n, n)
    x = sx.asarray(value, mesh=mesh, placement={"a": sx.Shard(0), "b": sx.Shard(1)})
    with sx.debug.trace() as t:
        y = sx.matmul(x, x)
    assert np.array_equal(y.numpy(), value @ value)  # integers below 2**53: exact in any order
    gathered = 2 * (n * n // 4) * 8  # each operand's other half, as a rank-by-rank gather along one axis moves it
    assert t.bytes <= gathered


@pytest.mark.ranks(4)
def test_vescale_nested_shards_of_one_dimension() -> None:
    mesh = sx.make_mesh({"a": 2, "b": 2})
    value = np.arange(18.0).reshape(6, 3)
    for p in (sx.P(("a", "b")), sx.P(("b", "a"))):
        x = sx.asarray(value, mesh=mesh, placement=p)
        assert np.array_equal(x.redistribute({"a": sx.Shard(1)}).numpy(), value)
        assert np.array_equal(sx.sum(x, axis=0).numpy(), value.sum(0))


# Whole-dimension operations: right, and not by gathering where another dimension can be sharded instead

WHOLE: list[tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = [
    ("sort", lambda x: sx.sort(x, axis=0), lambda v: np.sort(v, axis=0)),
    ("cumulative_sum", lambda x: sx.cumulative_sum(x, axis=0), lambda v: np.cumsum(v, axis=0)),
    ("softmax", lambda x: sx.softmax(x, axis=0), lambda v: np.exp(v - v.max(0)) / np.exp(v - v.max(0)).sum(0)),
    ("var", lambda x: sx.var(x, axis=0), lambda v: v.var(0)),
    ("roll", lambda x: sx.roll(x, 1, axis=0), lambda v: np.roll(v, 1, axis=0)),
    ("flip", lambda x: sx.flip(x, axis=0), lambda v: np.flip(v, axis=0)),
    ("slice", lambda x: x[1:6], lambda v: v[1:6]),
    ("pad", lambda x: sx.pad(x, ((1, 2), (0, 0))), lambda v: np.pad(v, ((1, 2), (0, 0)))),
    ("tril", lambda x: sx.tril(x), lambda v: np.tril(v)),
]


@pytest.mark.parametrize(("name", "call", "oracle"), WHOLE, ids=[name for name, _, _ in WHOLE])
def test_dtensor_operations_that_gathered(name: str, call: Any, oracle: Any) -> None:
    value = np.random.default_rng(2).normal(size=(8, 8))
    x = place(value)
    with sx.debug.trace() as t:
        y = call(x)
    gathered = value.nbytes - x.block.nbytes  # what a gather of the array would move; of a row of means it is little
    assert all(r.bytes < gathered for r in t if r.verb == "all_gather")
    assert np.allclose(y.numpy(), oracle(value), rtol=1e-12, atol=1e-13)  # close: sums in another order


def test_vescale_sort_is_not_elementwise() -> None:
    value = np.array([5.0, 1.0, 4.0, 2.0, 3.0])
    assert np.array_equal(sx.sort(place(value)).numpy(), np.sort(value))


def test_mpi4jax_17_reordered_reductions() -> None:
    mesh = sx.make_mesh()
    x = sx.from_block(np.array([float(mesh.rank), 1.0]), {"world": sx.Partial("sum")})
    y = sx.from_block(np.array([float(mesh.rank), -1.0]), {"world": sx.Partial("max")})
    assert np.array_equal(x.numpy(), [sum(range(mesh.size)), mesh.size])
    assert np.array_equal(y.numpy(), [mesh.size - 1, -1.0])
    assert np.array_equal(x.numpy(), [sum(range(mesh.size)), mesh.size])


# Random values


def test_dtensor_and_pytorch_138329_random_shards_differ_and_equal_one_rank() -> None:
    key = sx.random.key(3)
    whole = sx.random.uniform(key, (8, 3)).numpy()
    for placement in (ROWS, COLUMNS):
        assert np.array_equal(sx.random.uniform(key, (8, 3), placement=placement).numpy(), whole)
    assert len(np.unique(whole)) == whole.size


def test_pytorch_180088_truncated_normals_where_mesh_and_array_disagree() -> None:
    """More ranks than rows, rows on one rank alone, another mesh: it ends, and is the same."""
    mesh = sx.make_mesh()
    one = sx.make_mesh({"world": 1}, ranks=[mesh.rank])
    key = sx.random.key(4)
    alone = sx.random.truncated_normal(key, (3, 5), -1.0, 2.0, mesh=one).numpy()
    sizes = (0,) * (mesh.size - 1) + (3,)
    for placement in (ROWS, COLUMNS, {"world": sx.Shard(0, sizes=sizes)}):
        assert np.array_equal(sx.random.truncated_normal(key, (3, 5), -1.0, 2.0, placement=placement).numpy(), alone)
    assert alone.min() >= -1.0 and alone.max() <= 2.0


def test_jax_40232_21232_heat_386_dask_1684_cupynumeric_601_initial_values() -> None:
    mesh = sx.make_mesh()
    one = sx.make_mesh({"world": 1}, ranks=[mesh.rank])
    for seed in (0, 1):
        key = sx.random.key(seed)
        alone = sx.random.normal(key, (5, 7), mesh=one).numpy()
        for placement in ({}, ROWS, COLUMNS):
            assert np.array_equal(sx.random.normal(key, (5, 7), placement=placement).numpy(), alone)
    other = sx.random.normal(sx.random.key(1), (5, 7)).numpy()
    assert not np.array_equal(other, sx.random.normal(sx.random.key(0), (5, 7)).numpy())


def test_jax_17982_dropout_inside_remat_draws_the_same_mask() -> None:
    x = place(np.ones((6, 5)))
    key = sx.random.key(7)

    def layer(x: Any) -> Any:
        mask = sx.random.bernoulli(key, x.shape, 0.5, placement=ROWS)
        return sx.where(mask, x, 0.0) * x

    value, g = sx.value_and_grad(lambda x: sx.remat(layer)(x).sum())(x)
    mask = layer(x).numpy()
    assert np.array_equal(g.numpy(), 2 * mask)
    assert float(value) == mask.sum()
