"""Products by cuBLAS: what it is told of matrices that lie in many ways, in a graph too. The stand-in's cuBLAS reads
memory as NVIDIA's does, by columns, and checks the distances; on a GPU the values alone are compared."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from there import REAL

import spmdx as sx
from spmdx.runtime import gpu, products
from spmdx.runtime.products import Lying, lying

stand_in_only = pytest.mark.skipif(REAL, reason="a real device does not tell what it did: the stand-in does")
DTYPES = [np.float16, ml_dtypes.bfloat16]
# The operands' shapes, a view of each, and whether cuBLAS reads both where they lie.
CASES: dict[str, Any] = {
    "stacks": ((2, 3, 4, 5), (2, 3, 5, 6), "", "", True),
    "turned over": ((2, 4, 5), (2, 6, 5), "", "T", True),
    "both turned over": ((2, 5, 4), (2, 6, 5), "T", "T", True),
    "one matrix for all": ((3, 4, 5), (1, 5, 6), "", "", True),
    "a matrix and a stack": ((4, 5), (3, 5, 6), "", "", True),
    "a part of each row": ((3, 4, 9), (3, 9, 7), "columns", "columns", True),
    "heads that lie apart": ((2, 4, 3, 5), (2, 3, 5, 6), "heads", "", False),
    "one head for several": ((2, 1, 4, 5), (2, 3, 5, 6), "", "", False),
    "every second element": ((3, 4, 10), (3, 5, 6), "second", "", False),
    "backwards": ((3, 4, 5), (3, 5, 6), "back", "", False),
    "a vector": ((5,), (3, 5, 6), "", "", True),
    "and a vector": ((3, 4, 5), (5,), "", "", True),
    "rows of one": ((3, 1, 5), (3, 5, 1), "", "", True),
    "one by one": ((3, 4, 1), (3, 1, 6), "", "T1", True),
}
VIEWS: dict[str, Any] = {
    "": lambda a: a,
    "T": lambda a: a.swapaxes(-1, -2),
    "T1": lambda a: a,
    "columns": lambda a: a[..., 2 : a.shape[-1] - 2],
    "heads": lambda a: a.swapaxes(-2, -3),
    "second": lambda a: a[..., ::2],
    "back": lambda a: a[::-1],
}


def operands(name: str, dtype: Any, xp: Any) -> list[Any]:
    left, right, one, other, _ = CASES[name]
    draw = np.random.default_rng(1)
    return [VIEWS[view](xp.asarray(draw.normal(size=s).astype(dtype))) for s, view in ((left, one), (right, other))]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_stacks(name: str, dtype: Any, device: Any) -> None:
    """As NumPy's product, added up in float32 and rounded once; copied only where it must be."""
    xp = gpu.here().xp
    (x, y), given = operands(name, dtype, xp), operands(name, dtype, np)
    if name == "a part of each row":
        x, y, given = x[..., :5], y[:, :5], [given[0][..., :5], given[1][:, :5]]
    if device is not None:
        device.clear()
    found = xp.matmul(x, y)
    wanted = np.matmul(*(a.astype(np.float32) for a in given))
    assert found.shape == wanted.shape and found.dtype == dtype
    bound = 2e-3 if dtype is np.float16 else 2e-2
    assert np.allclose(found.get().astype("f4"), wanted, rtol=bound, atol=bound)
    if device is not None:
        assert len(device.of("product")) == 1
        assert all((products._of(wanted.shape[:-2], a) is not None) for a in (x, y) if a.ndim > 1) or not CASES[name][4]


def test_how_stacks_lie() -> None:
    """Exact: rows side by side, columns side by side, a row or a column alone, and what cuBLAS has no words for."""
    assert lying((2, 3), (2, 3, 4, 5), (60, 20, 5, 1)) == Lying(0, 5, 20)
    assert lying((2, 3), (2, 3, 5, 4), (60, 20, 1, 5)) == Lying(1, 5, 20)
    assert lying((2, 3), (2, 3, 4, 5), (0, 0, 5, 1)) == Lying(0, 5, 0)
    assert lying((2, 3), (2, 3, 4, 5), (20, 0, 5, 1)) is None
    assert lying((2, 3), (2, 3, 4, 5), (20, 40, 5, 1)) is None
    assert lying((1, 3), (1, 3, 4, 5), (7, 20, 5, 1)) == Lying(0, 5, 20)
    assert lying((3,), (3, 1, 5), (5, 99, 1)) == Lying(0, 5, 5)
    assert lying((3,), (3, 1, 5), (5, 99, 3)) == Lying(1, 3, 5)
    assert lying((3,), (3, 4, 1), (4, 1, 99)) == Lying(0, 1, 4)
    assert lying((3,), (3, 4, 5), (20, 4, 1)) is None  # rows that share elements
    assert lying((3,), (3, 4, 5), (0, 0, 1)) is None  # one row for all
    assert lying((3,), (3, 4, 5), (-20, 5, 1)) is None
    assert lying((), (4, 5), (2**31, 1)) is None


KINDS = [*DTYPES, np.float32, np.float64, np.complex64, np.complex128]


@pytest.mark.parametrize("dtype", KINDS)
def test_in_a_graph(dtype: Any, device: Any) -> None:
    """Close: products of every type, of rows, stacks and views, when the step is run, captured and launched again."""
    mesh = sx.make_mesh({"p": 1}, device="cuda")
    draw = np.random.default_rng(2)
    values = [draw.normal(size=s).astype(dtype) for s in ((2, 3, 4), (4, 5), (2, 4, 6), (7, 2, 3, 4))]
    w, stack = (sx.asarray(v, mesh=mesh) for v in values[1:3])

    @sx.cuda.graph
    def step(x: Any) -> Any:
        return x @ w, x @ stack, sx.matrix_transpose(x) @ x, x[0] @ w

    bound = {2: 3e-2, 4: 1e-5, 8: 1e-5 if dtype is np.complex64 else 1e-12}.get(np.dtype(dtype).itemsize, 1e-12)
    for i in range(4):
        x = values[3][i]
        found = step(sx.asarray(x, mesh=mesh))
        wide = np.float32 if np.dtype(dtype).itemsize == 2 else dtype
        x, own = x.astype(wide), [v.astype(wide) for v in values]
        for got, want in zip(found, (x @ own[1], x @ own[2], x.swapaxes(1, 2) @ x, x[0] @ own[1])):
            assert np.allclose(got.numpy().astype(wide), want, rtol=bound, atol=bound), i


@stand_in_only
def test_a_graph_keeps_what_it_points_to(device: Any) -> None:
    """Arrays of a closure, keys and tables stay when nobody else has them; what was made on the way does not."""
    mesh, key = sx.make_mesh({"p": 1}, device="cuda"), sx.random.key(7)
    held = [sx.asarray(np.ones((3, 3), np.float32), mesh=mesh)]
    made: list[Any] = []

    @sx.cuda.graph
    def step(x: Any) -> Any:
        y = x @ sx.matrix_transpose(held[0])
        made.append(weakref.ref(y._block))
        return sx.nn.dropout(key, y, 0.5)

    x = sx.ones((3, 3), dtype=np.float32, mesh=mesh)
    step(x)
    first = step(x)
    closed = weakref.ref(held[0]._block)
    held.clear()
    here = gpu.here()
    for store in (here.launch._places, here.launch._words, here._constants):
        store.clear()
    gc.collect()
    assert closed() is not None
    again = step(x)
    assert np.unique(again.numpy()).tolist() == np.unique(first.numpy()).tolist() == [0, 6]
    step = None
    gc.collect()
    assert closed() is None and all(ref() is None for ref in made)
