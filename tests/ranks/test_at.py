"""What is written into an array leaves it where it lies. All exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import spmdx as sx

VALUE = np.arange(1.0, 36.0).reshape(7, 5)
ROWS = np.array([5, 0, 3])
INDICES: dict[str, Any] = {
    "slice": (slice(1, -1),),
    "step": (slice(0, 6, 2), slice(1, 4)),
    "int": (2,),
    "rows": (ROWS,),
    "columns": (slice(None), np.array([4, 1])),
}
HOWS = {"set": None, "add": np.add, "multiply": np.multiply, "min": np.minimum, "max": np.maximum}


@pytest.mark.parametrize("name", INDICES)
@pytest.mark.parametrize("how", HOWS)
def test_the_placement_of_the_old(how: str, name: str) -> None:
    index, ufunc = INDICES[name], HOWS[how]
    given = np.linspace(-40.0, 40.0, VALUE[index].size).reshape(VALUE[index].shape)
    expected = VALUE.copy()
    expected[index] = given if ufunc is None else ufunc(VALUE[index], given)
    for placement in (sx.Replicate(), sx.Shard(0), sx.Shard(1)):
        for other in (sx.Replicate(), sx.Shard(0), sx.Partial("sum")):
            x = sx.asarray(VALUE, placement={"world": placement})
            changed = getattr(x.at[index], how)(sx.asarray(given, placement={"world": other}))
            assert changed.spec is x.spec
            assert np.array_equal(changed.numpy(), expected)


def test_a_row_is_written_where_it_lies() -> None:
    """Its shape is known without it: what is written is all that a rank needs."""
    x = sx.asarray(VALUE, placement={"world": sx.Shard(0)})
    with sx.debug.trace() as trace:
        changed = x.at[2].set(np.arange(5.0)).at[3, [1, 2]].add(1.0)
    expected = VALUE.copy()
    expected[2] = np.arange(5.0)
    expected[3, [1, 2]] += 1.0
    assert np.array_equal(changed.numpy(), expected)
    assert not trace


def test_a_stencil_keeps_its_balance() -> None:
    """Written as `x.at[1:-1].add(...)`, the blocks of a heat equation drifted from rank to rank."""
    u = sx.asarray(np.arange(33.0) ** 2, placement={"world": sx.Shard(0)})
    home, value = u.spec, u.numpy()
    for _ in range(12):
        u = u.at[1:-1].add(0.25 * (u[2:] + u[:-2] - 2.0 * u[1:-1]))
        value[1:-1] += 0.25 * (value[2:] + value[:-2] - 2.0 * value[1:-1])
    assert u.spec is home
    assert np.array_equal(u.numpy(), value)
