"""What is replicated on a mesh of all ranks is a constant on other meshes, wherever an operation takes arrays: at no
communication, and with its gradient. All exact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import spmdx as sx

VALUE = np.array([4.0, 1.0, 3.0, 2.0])
PAIR = np.array([7.0, 8.0])


def put(x: Any, index: Any, values: Any, how: str = "set") -> Any:
    if isinstance(x, sx.Array):
        return getattr(x.at[index], how)(values)
    out = x.copy()
    ufunc = {"add": np.add, "multiply": np.multiply, "min": np.minimum, "max": np.maximum}.get(how)
    if ufunc:
        ufunc.at(out, index, values)
    else:
        out[index] = values
    return out


# Functions of an array on a mesh of its own and of a way to make constants on the default mesh.
CASES: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, c: x + c(VALUE),
    "set": lambda x, c: put(x, slice(1, 3), c(PAIR)),
    "set one": lambda x, c: put(x, 0, c(5.0)),
    "add to": lambda x, c: put(x, slice(1, 3), c(PAIR), "add"),
    "multiply": lambda x, c: put(x, slice(1, 3), c(PAIR), "multiply"),
    "greatest": lambda x, c: put(x, slice(1, 3), c(PAIR), "max"),
    "set at indices": lambda x, c: put(x, c([1, 2]), c(PAIR)),
    "add at indices": lambda x, c: put(x, c([1, 1]), c(PAIR), "add"),
    "least at indices": lambda x, c: put(x, c([1, 3]), c(PAIR), "min"),
    "set at a mask": lambda x, c: put(x, c([True, False, True, True]), c(1.0)),
    "take": lambda x, c: x[c([1, 2])],
    "take one": lambda x, c: x[c(1)],
    "mask": lambda x, c: x[c([True, False, True, True])],
    "a mask of a constant": lambda x, c: c([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]])[x > 1.5],
    "indices of a constant": lambda x, c: c(VALUE)[x.astype(int) - 1],
    "write into a constant": lambda x, c: put(c(np.arange(5.0)), slice(0, 4), x),
    "add into a constant": lambda x, c: put(c(np.arange(5.0)), x.astype(int), c(1.0), "add"),
}


def on_own_mesh(value: Any, dim: int = 0) -> sx.Array:
    return sx.asarray(value, mesh=sx.make_mesh({"own": -1}), placement={"own": sx.Shard(dim)})


@pytest.mark.parametrize("name", CASES)
def test_constants_from_the_default_mesh(name: str) -> None:
    got = CASES[name](on_own_mesh(VALUE), sx.asarray)
    want = CASES[name](VALUE, np.asarray)
    assert np.array_equal(got.numpy(), want)
    assert got.mesh.axis_names == ("own",) or got.mesh.size == 1
    if name in ("set", "set one", "add to", "multiply", "greatest"):
        with sx.debug.trace() as t:
            CASES[name](on_own_mesh(VALUE), sx.asarray)
        assert not t


def test_gradients_come_back_to_constants() -> None:
    x, values, table = on_own_mesh(VALUE), sx.asarray(PAIR), sx.asarray(np.arange(5.0))
    mask = sx.asarray([True, False, True, True])
    given, weights = sx.asarray(PAIR), on_own_mesh(np.array([2.0, 3.0, 5.0, 7.0]))
    for call, want in (
        (lambda v: (x.at[1:3].set(v) * weights).sum(), [3.0, 5.0]),
        (lambda v: (x.at[sx.asarray([3, 0])].add(v) * weights).sum(), [7.0, 2.0]),
        (lambda v: (sx.concat([v, v])[x > 1.5] * x[x > 1.5]).sum(), [4.0 + 3.0, 2.0]),
        (lambda v: (sx.concat([v, v])[mask] * x[mask]).sum(), [4.0 + 3.0, 2.0]),
    ):
        got = sx.grad(call)(given)
        assert got.spec is values.spec
        assert np.array_equal(got.numpy(), want)
    got = sx.grad(lambda c: (c.at[:4].set(x) * 2.0).sum())(table)
    assert got.spec is table.spec and np.array_equal(got.numpy(), [0.0, 0.0, 0.0, 0.0, 2.0])
