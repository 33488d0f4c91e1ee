"""Moving blocks: local steps, views, identities, and what the trace records. All exact."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "laws"))

from case import values
from placements import blocks, holds, nothing, same_bits, simulated

from spmdx import context
from spmdx.mesh import Mesh
from spmdx.move import move
from spmdx.placement import Partial, Replicate, Shard
from spmdx.plan import plan
from spmdx.runtime import memory
from spmdx.spec import place

SIM = simulated(2, 3)
V = values(5, 6, kind="special")


def go(mesh: Mesh, source: Any, target: Any, value: Any) -> Any:
    start, end = place(mesh, value.shape, value.dtype, source), place(mesh, value.shape, value.dtype, target)
    [held] = move([plan(start, end)], [blocks(start, value)])
    assert holds(end, held, value)
    return held


@pytest.mark.parametrize("interleave", [1, 3])
@pytest.mark.parametrize("axis", ["a", "b"])
def test_slicing_and_padding_interleaved_blocks(axis: str, interleave: int) -> None:
    """A block in several pieces that are not along the first dimension: each piece goes to its own place."""
    where = {axis: Shard(1, interleave=interleave)}
    go(SIM, {}, where, V)
    go(SIM, where, {axis: Partial("sum")}, V)
    go(SIM, where, {}, V)


@pytest.mark.parametrize("op", ["sum", "prod", "min", "max"])
@pytest.mark.parametrize("dtype", ["float64", "float16", "int8", "uint8", "bool"])
def test_coordinate_zero_keeps_the_block_and_others_hold_identities(op: str, dtype: str) -> None:
    value = values(4, kind="natural").astype(dtype)
    held = go(SIM, {}, {"a": Partial(op)}, value)
    for block, c in zip(held, SIM.coordinates()):
        if c[0] == 0:
            assert same_bits(block, value)
        else:
            assert same_bits(block, np.full(4, nothing(dtype, op), dtype))


def test_identities_are_those_of_the_table() -> None:
    for dtype in ("float64", "float32", "complex64", "int8", "uint16", "bool"):
        for op in ("sum", "prod", "min", "max"):
            if np.dtype(dtype).kind == "c" and op in ("min", "max"):
                continue
            assert same_bits(np.asarray(memory.identity(dtype, op)), np.asarray(nothing(dtype, op)))


def test_a_slice_is_a_view_and_a_source_is_not_changed() -> None:
    start, end = place(SIM, V.shape, V.dtype), place(SIM, V.shape, V.dtype, {"a": Shard(0)})
    held = blocks(start, V)
    before = [b.tobytes() for b in held]
    [out] = move([plan(start, end)], [held])
    assert all(np.shares_memory(o, b) for o, b in zip(out, held))
    assert [b.tobytes() for b in held] == before


def test_what_a_reduction_returns_is_new_memory() -> None:
    """Also along an axis whose other ranks add nothing."""
    start, end = place(SIM, V.shape, V.dtype, {"a": Partial("sum")}), place(SIM, V.shape, V.dtype)
    held = blocks(start, V)
    [out] = move([plan(start, end)], [held])
    assert not any(np.shares_memory(o, b) for o in out for b in held)


def test_blocks_that_do_not_lie_in_c_order() -> None:
    """Views and transposes are packed element by element, not as they lie."""
    start = place(SIM, V.shape, V.dtype, {"a": Shard(0)})
    held = tuple(np.asfortranarray(b) for b in blocks(start, V))
    strided = tuple(np.repeat(b, 2, axis=1)[:, ::2] for b in blocks(start, V))
    for target in ({}, {"a": Shard(1)}, {"b": Shard(0)}, {"a": Partial("max")}):
        end = place(SIM, V.shape, V.dtype, target)
        for given in (held, strided):
            [out] = move([plan(start, end)], [given])
            assert holds(end, out, V)


def test_python_scalars_are_the_same_on_every_rank() -> None:
    """Masked for a sum, a scalar counts once."""
    start, end = place(SIM, (), "float64"), place(SIM, (), "float64", {"a": Partial("sum"), "b": Partial("sum")})
    [out] = move([plan(start, end)], [2.5])
    assert [float(x) for x in out] == [2.5, 0, 0, 0, 0, 0]


def test_records_name_verb_axes_bytes_operation_and_the_users_line() -> None:
    start, end = place(SIM, V.shape, V.dtype, {"a": Partial("sum")}), place(SIM, V.shape, V.dtype, {"b": Shard(0)})
    with context.use(trace=[]) as state:
        move([plan(start, end)], [blocks(start, V)], "multiply")
    [record] = state.trace
    assert (record.verb, record.axes, record.operation) == ("all_reduce", ("a",), "multiply")
    assert record.bytes == 2 * 2 * 6 * 8 // 2  # two rows of the five, cut before they are reduced
    assert record.line.startswith(__file__)


def test_local_steps_are_not_recorded() -> None:
    with context.use(trace=[]) as state:
        go(SIM, {}, {"a": Shard(0)}, V)
        go(SIM, {"a": Replicate()}, {"a": Partial("sum")}, V)
    assert state.trace == []


def test_no_arrays_and_no_steps() -> None:
    assert move([], []) == []
    spec = place(SIM, V.shape, V.dtype)
    held = blocks(spec, V)
    [out] = move([()], [held])
    assert out is held
