"""Indexing and changes at an index: examples for the law suite. Exact, but for sums over repeated indices."""

from __future__ import annotations

from typing import Any

import numpy as np
from case import Case, values

import spmdx.ops.operators  # attaches x[...] and the methods
from spmdx.ops import index as indexing
from spmdx.ops import scatter

assert spmdx.ops.operators
A, CUBE = values(5, 7), values(3, 4, 5)
ROWS, GRID, COLUMN = np.array([4, 0, 4, -1, 2]), np.array([[0, 6, -7], [3, 3, 1]]), np.array([[1], [0]])
APPLY = {"add": np.add, "multiply": np.multiply, "min": np.minimum, "max": np.maximum}


def _get(index: Any, *inputs: Any, op: str = "slicing", grad: tuple[int, ...] = (0,)) -> Case:
    """``x[index]``; where the index is a function, of the other inputs."""
    at = index if callable(index) else lambda: index
    return Case(op, lambda x, *i: x[at(*i)], lambda x, *i: x[at(*i)], inputs, grad=grad)


def _gather(index: Any, *inputs: Any, grad: tuple[int, ...] = (0,)) -> Case:
    return _get(index, *inputs, op="gather", grad=grad)


def _change(op: str, how: str, index: Any, *shape: int, grad: tuple[int, ...] = ()) -> Case:
    """``x.at[index].how(values of a shape)``."""

    def oracle(x: Any, u: Any) -> Any:
        out = x.copy()
        if how == "set":
            out[index] = u
        else:
            APPLY[how].at(out, index, u)
        return out

    close = 1e-12 if how in ("add", "multiply") else 0.0
    return Case(op, lambda x, u: getattr(x.at[index], how)(u), oracle, (A, values(*shape, seed=3)), close, grad)


def _added(x: Any, u: Any, i: Any) -> Any:
    out = np.zeros_like(x)
    np.add.at(out, i, u)
    return out


s_ = np.s_
BASIC: list[Any] = [s_[1:5], s_[:-1], s_[::2], s_[1::3], s_[:, 1:6:2], s_[-1], s_[2, 3], s_[::-1], s_[4:0:-2, ::-1]]
BASIC += [s_[:, None, 1:4], s_[None, 2, ...], s_[..., 0], s_[3:3], s_[...], s_[10:], s_[1:3, -1]]
CASES = [
    *(_get(index, A) for index in BASIC),
    _get(s_[1], values(5, 3, kind="bool"), grad=()),
    _get(s_[1:], values(5, 3, kind="special"), grad=()),
    _get(s_[0], values(2, 3, dtype="complex128"), grad=()),
    _get(s_[-1:], values(1), grad=(0,)),
    Case("slicing", lambda x: x[:-1] + x[1:], lambda x: x[:-1] + x[1:], (values(7),), grad=(0,)),
    _gather(lambda i: i, A, ROWS),
    _gather(lambda i: s_[:, i], A, GRID),
    _gather(lambda i: s_[i, :3], A, ROWS),
    _gather(lambda i: s_[1:, i], A, ROWS),
    _gather(lambda i, j: (i, j), A, COLUMN, GRID),
    _gather(lambda i, j: s_[i, :, j], CUBE, COLUMN, COLUMN),
    _gather(lambda i: s_[0, :, i], CUBE, COLUMN),
    _gather(lambda i: s_[:, 0, i], CUBE, COLUMN),
    _gather(lambda i: s_[None, i, None], A, ROWS, grad=()),
    _gather(lambda i: i, values(5, 3, kind="bool"), ROWS, grad=()),
    _gather(lambda i: i, values(3), np.array(2)),
    _gather(lambda i: i, A, np.array(-1)),
    _gather([4, 0, 4], A),
    _gather(lambda i: i, A, np.array([], np.int64)),
    Case("gather", lambda x, i: indexing.take(x, i, axis=1), lambda x, i: np.take(x, i, 1), (A, GRID), grad=(0,)),
    Case("gather", lambda x, i: indexing.take(x, i), lambda x, i: np.take(x, i), (values(7), GRID)),
    Case(
        "accumulate",
        lambda x, u, i: scatter.accumulate((x, u, i), dims=(0,), at=0),
        _added,
        (values(5, 3), values(5, 3, seed=1), ROWS),
        close=1e-12,
        grad=(1,),
    ),
    _change("blend", "set", s_[1:4, ::2], 3, 4, grad=(0, 1)),
    _change("blend", "set", s_[2], 7, grad=(0, 1)),
    _change("blend", "set", s_[::-2, None, 1:3], 3, 1, 2, grad=(0, 1)),
    _change("blend", "set", s_[:, 3], 1, grad=(0, 1)),
    _change("unslice", "add", s_[1:4, 5], 3, grad=(0, 1)),
    _change("blend_with", "multiply", s_[1:, ::3], 4, 3, grad=(0, 1)),
    _change("blend_with", "min", s_[3], 7, grad=(0, 1)),
    _change("blend_with", "max", s_[:, -1], 5, grad=(0, 1)),
    _change("put", "set", ROWS, 5, 7, grad=(0, 1)),
    _change("put", "set", s_[1:4, ROWS], 3, 5, grad=(0, 1)),
    _change("put", "set", (COLUMN, GRID), 2, 3, grad=(0, 1)),
    _change("put", "set", (2, ROWS), 5),
    _change("accumulate", "add", ROWS, 5, 7, grad=(0, 1)),
    _change("accumulate", "add", s_[ROWS, 2:5], 5, 3, grad=(0, 1)),
    _change("put_with", "multiply", ROWS, 5, 7, grad=(0, 1)),
    _change("put_with", "multiply", s_[1:4, ROWS], 3, 5, grad=(0, 1)),
    _change("put_with", "min", s_[1:4, ROWS], 3, 5, grad=(0, 1)),
    _change("put_with", "max", (COLUMN, GRID), 2, 3, grad=(0, 1)),
]
