"""Shapes without values: what a run would return and send, and that it takes no memory."""

from __future__ import annotations

import resource
import time
from typing import Any

import law
import numpy as np
import pytest
from placements import simulated
from worlds import draw, in_each_world, of_each_operation, placements, put

import spmdx as sx
from spmdx import nn, tree
from spmdx.mesh import Mesh
from spmdx.spec import place


def model(x: Any, w: Any) -> Any:
    h = sx.exp(x) @ w
    noise = sx.random.normal(sx.random.key(0), h.shape, mesh=x.mesh)
    y = sx.softmax(nn.gelu(h + noise), axis=-1)
    gradient = sx.grad(lambda w: (x @ w).sum())(w)
    return {"h": h, "y": y, "mean": sx.mean(y)}, [gradient, sx.sort(h, axis=0), y.reshape((-1,)), y[::-1, 1:], "word"]


@in_each_world
def test_it_says_what_a_run_gives_and_sends(mesh: sx.Mesh) -> None:
    for first in placements(mesh, 2):
        for second in placements(mesh, 2):
            x, w = put(draw(6, 4), mesh, first), put(draw(4, 5), mesh, second)
            with sx.debug.trace() as dry:
                found = sx.eval_shape(model, x, w)
            with sx.debug.trace() as real:
                result = model(x, w)
            assert tree.leaves(found) == [y.spec if isinstance(y, sx.Array) else y for y in tree.leaves(result)]
            assert [r[:4] for r in dry] == [r[:4] for r in real]


@of_each_operation(law.cases())
def test_every_operation(case: Any) -> None:
    """The dtype found on empty blocks is the one that the body gives, whatever the placement."""
    each = law.placements(case, simulated(2), ("sum",), ("default",))
    for chosen in law.sample(each, 3, case.name):
        given = law.arrays(case, chosen)
        with np.errstate(all="ignore"):
            try:
                found = sx.eval_shape(case.call, *given)
            except sx.SpmdxError as error:
                assert "asked for" in str(error), error  # of a value: sizes that depend on the data
                continue
            expected = law.outputs(case.call(*given))
        assert law.outputs(found) == [y.spec if isinstance(y, sx.Array) else y for y in expected]


def test_two_to_the_forty_elements_on_512_ranks_take_no_memory() -> None:
    mesh = Mesh(("data", "model"), (64, 8))
    x = place(mesh, (2**20, 2**20), np.float32, {"data": sx.Shard(0)})
    w = place(mesh, (2**20, 2**20), sx.bfloat16, {"model": sx.Shard(1)})
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    (first, rest) = sx.eval_shape(model, x, w)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert time.process_time() - start < 20 and grown < 64_000  # kB; one array has 4 TiB
    assert first["h"].shape == (2**20, 2**20) and first["h"].dtype == np.float32
    assert first["h"].placement == {"data": sx.Shard(0), "model": sx.Shard(1)}
    assert rest[0] == w and rest[2].shape == (2**40,)


def test_it_takes_descriptors_and_ndarrays() -> None:
    mesh = sx.make_mesh({"a": 3}, device="sim")
    found = sx.eval_shape(lambda p, x: x @ p["w"], {"w": nn.Param((4, 2))}, np.ones((5, 4), np.float32), mesh=mesh)
    assert found == place(mesh, (5, 2), np.float64)


def test_a_value_is_not_known() -> None:
    with pytest.raises(sx.SpmdxError, match=r"knows shapes and no values(.|\n)*Write sx\.where"):
        sx.eval_shape(lambda x: x if x.sum() > 0 else -x, np.ones(3))
    for sized in (lambda x: x[x > 0], sx.nonzero):
        with pytest.raises(sx.errors.ArgumentError, match=r"knows shapes and no values(.|\n)*Write sx\.where"):
            sx.eval_shape(sized, np.ones(3))


def test_a_mesh_that_was_looked_at_still_takes_the_short_way() -> None:
    mesh = sx.make_mesh({"a": 1})
    x = put(draw(31, 17), mesh)
    sx.eval_shape(lambda x: sx.exp(x), x)
    assert not mesh.divided
    sx.exp(x)
    assert x.spec in sx.exp.op.memo


def test_calls_on_other_meshes_are_not_forgotten() -> None:
    x = put(draw(29, 13), sx.make_mesh({"a": 1}))
    sx.exp(x)
    sx.eval_shape(lambda x: sx.sin(x), x)  # the first run on a mesh without this rank
    elsewhere = sx.Mesh(("elsewhere",), (1,), (1,))
    assert not elsewhere.contains_me() and x.spec in sx.exp.op.memo


def test_keys_are_not_used_up() -> None:
    key, x = sx.random.key(0), sx.ones(3)
    with sx.debug.check_keys():
        for _ in range(2):
            sx.eval_shape(lambda v: nn.dropout(key, v, 0.5), x)
        nn.dropout(key, x, 0.5)


def test_a_call_on_arrays_from_outside_that_was_made_before_is_not_computed() -> None:
    x = sx.ones((3, 4))
    assert (x + 1)._block is not None  # made before

    def f(_: Any) -> Any:
        assert (x + 1)._block is None
        return x + 1

    assert sx.eval_shape(f, x) == x.spec


def test_arrays_from_outside_are_known_by_their_shapes() -> None:
    mesh = sx.make_mesh({"a": 1})
    x, y = put(draw(6, 4), mesh), put(draw(6, 4), mesh)
    for function in (
        lambda x: x * y,
        lambda x: y + 2.5,
        lambda x: sx.where(x > y, x, y),
        lambda x: sx.concat([x, y]),
        lambda x: x * y.redistribute(a=sx.Shard(0)),
        lambda x: sx.add(*sx.redistribute([x, y], {"a": sx.Shard(1)})),
        lambda x: sx.vmap(lambda row: row @ y.T)(x),
        lambda x: sx.grad(lambda w: (sx.exp(w) * x).sum())(y),
    ):
        assert sx.eval_shape(function, x) == function(x).spec


@in_each_world
def test_a_move_of_an_array_from_outside_is_afterwards_as_before(mesh: sx.Mesh) -> None:
    """What a dry run remembers of it is of its own mesh, of no rank that there is."""
    v = draw(5, 3)
    for placement in placements(mesh, 2):
        x = put(v, mesh, placement)
        for _ in range(2):
            found = sx.eval_shape(lambda x=x: x.redistribute({"a": sx.Shard(1)}))
            y = x.redistribute({"a": sx.Shard(1)})
            assert found == y.spec and y.mesh is mesh and np.allclose(y.numpy(), v)


def test_a_dry_run_of_draws_leaves_nothing_behind() -> None:
    def make() -> sx.Array:
        return 2.0 * sx.random.normal(sx.random.key(0), (3, 7), mesh=sx.make_mesh({"dry": 1}))

    specs = [sx.eval_shape(make), sx.eval_shape(make), make().spec, sx.eval_shape(make)]
    assert specs == [specs[2]] * 4
