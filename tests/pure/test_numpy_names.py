"""Functions under NumPy's names that are made of operations: NumPy's value, dtype and gradient on any placement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import spmdx as sx

MESH = sx.make_mesh({"a": 2, "b": 3}, device="sim")
PLACEMENTS: tuple[dict[str, Any], ...] = (
    {},
    {"a": sx.Shard(0)},
    {"a": sx.Shard(-1), "b": sx.Shard(0)},
    {"a": sx.Shard(0), "b": sx.Partial("sum")},
)
draw = np.random.default_rng(0)
V, W, M, N, T = (draw.normal(size=shape) for shape in (5, 5, (4, 5), (4, 5), (2, 4, 3)))
ODD = np.array([1.0, np.nan, np.inf, -np.inf, -0.0])
NEAR = np.array([1.0 + 1e-9, np.nan, np.inf, np.inf, 1e-9])

Example = tuple[str, Callable[..., Any], tuple[Any, ...]]  # name, the same call of either library, inputs
SMOOTH: list[Example] = [
    ("concatenate", lambda m, x, y: m.concatenate([x, y], 1), (M, N)),
    ("concatenate, flattened", lambda m, x, y: m.concatenate([x, y], axis=None), (M, V)),
    ("vstack", lambda m, x, y: m.vstack([x, y]), (M, V)),
    ("vstack of vectors", lambda m, x, y: m.vstack((x, y)), (V, W)),
    ("hstack", lambda m, x, y: m.hstack([x, y]), (M, N)),
    ("hstack of vectors", lambda m, x, y: m.hstack([x, y]), (V, W)),
    ("dstack", lambda m, x, y: m.dstack([x, y]), (M, N)),
    ("dstack of vectors", lambda m, x, y: m.dstack([x, y]), (V, W)),
    ("column_stack", lambda m, x, y: m.column_stack([x, y]), (V, W)),
    ("append", lambda m, x, y: m.append(x, y), (M, V)),
    ("append along", lambda m, x, y: m.append(x, y, 0), (M, N)),
    ("array_split", lambda m, x: m.array_split(x, 3)[1], (V,)),
    ("array_split at", lambda m, x: m.array_split(x, [1, 4], 1)[1], (M,)),
    ("flipud", lambda m, x: m.flipud(x), (M,)),
    ("fliplr", lambda m, x: m.fliplr(x), (M,)),
    ("copy", lambda m, x: m.copy(x), (M,)),
    ("diagonal", lambda m, x: m.diagonal(x), (M,)),
    ("diagonal above", lambda m, x: m.diagonal(x, 2), (M,)),
    ("diagonal below", lambda m, x: m.diagonal(x, -3), (M,)),
    ("diagonal of none", lambda m, x: m.diagonal(x, 9), (M,)),
    ("diagonal, turned", lambda m, x: m.diagonal(x, 1, 2, 0), (T,)),
    ("diag of a matrix", lambda m, x: m.diag(x, 1), (M,)),
    ("diag", lambda m, x: m.diag(x), (V,)),
    ("diag above", lambda m, x: m.diag(x, 2), (V,)),
    ("diag below", lambda m, x: m.diag(x, -1), (V,)),
    ("trace", lambda m, x: m.trace(x), (M,)),
    ("trace of others", lambda m, x: m.trace(x, -1, 1, 2), (T,)),
    ("vdot", lambda m, x, y: m.vdot(x, y), (M, N)),
    ("cross", lambda m, x, y: m.cross(x, y), (T, T[0])),
    ("cross along", lambda m, x, y: m.cross(x, y, axis=0), (M[:3], N[:3])),
    ("kron", lambda m, x, y: m.kron(x, y), (M[:2], N)),
    ("kron of a vector", lambda m, x, y: m.kron(x, y), (V, M[:2, :2])),
    ("average", lambda m, x: m.average(x, 0), (M,)),
    ("average, weighted", lambda m, x, y: m.average(x, 1, y), (M, abs(V))),
    ("average of all", lambda m, x, y: m.average(x, weights=y), (M, abs(N))),
    ("ptp", lambda m, x: m.ptp(x, 1), (M,)),
    ("ptp of all", lambda m, x: m.ptp(x), (M,)),
    ("nan_to_num", lambda m, x: m.nan_to_num(x), (M,)),
]
EXACT: list[Example] = [
    ("isclose", lambda m, x, y: m.isclose(x, y), (ODD, NEAR)),
    ("isclose, NaN", lambda m, x, y: m.isclose(x, y, equal_nan=True), (ODD, NEAR)),
    ("isclose of ints", lambda m, x, y: m.isclose(x, y, 0.3), (np.arange(5), np.arange(5)[::-1])),
    ("allclose", lambda m, x, y: m.allclose(x, y), (V, V + 1e-12)),
    ("allclose, not", lambda m, x, y: m.allclose(x, y), (V, W)),
    ("allclose, NaN", lambda m, x, y: m.allclose(x, y, equal_nan=True), (ODD, ODD)),
    ("array_equal", lambda m, x, y: m.array_equal(x, y), (M, M)),
    ("array_equal, not", lambda m, x, y: m.array_equal(x, y), (M, N)),
    ("array_equal of other shapes", lambda m, x, y: m.array_equal(x, y), (M, V)),
    ("array_equal, NaN", lambda m, x, y: m.array_equal(x, y, equal_nan=True), (ODD, ODD)),
    ("nan_to_num, odd", lambda m, x: m.nan_to_num(x), (ODD,)),
    ("nan_to_num, told", lambda m, x: m.nan_to_num(x, nan=7.0, posinf=8.0, neginf=9.0), (ODD,)),
    ("nan_to_num of ints", lambda m, x: m.nan_to_num(x), (np.arange(5),)),
    ("flatnonzero", lambda m, x: m.flatnonzero(x > 0), (M,)),
    ("argwhere", lambda m, x: m.argwhere(x > 0), (M,)),
    ("vdot of complex", lambda m, x, y: m.vdot(x, y), (np.arange(3) + 1j, np.arange(3) - 2j)),
    ("trace of ints", lambda m, x: m.trace(x), (np.arange(12, dtype=np.int32).reshape(3, 4),)),
    ("hstack of mixed dtypes", lambda m, x, y: m.hstack([x, y]), (np.arange(5, dtype=np.int8), V)),
]


def placed(x: Any, placement: dict[str, Any]) -> sx.Array:
    ok = x.dtype.kind == "f" and np.isfinite(x).all()
    use = {a: p for a, p in placement.items() if ok or p != sx.Partial("sum")}
    if use.get("a") == sx.Shard(-1) and x.ndim == 1:
        use.pop("b", None)
    return sx.asarray(x, mesh=MESH, placement=use)


@pytest.mark.parametrize("placement", PLACEMENTS, ids=str)
@pytest.mark.parametrize(("name", "call", "inputs"), [*SMOOTH, *EXACT], ids=[e[0] for e in [*SMOOTH, *EXACT]])
def test_value(name: str, call: Any, inputs: tuple[Any, ...], placement: dict[str, Any]) -> None:
    """Close to 1e-14; what is bool or integer is exact."""
    want = np.asarray(call(np, *inputs))
    found = call(sx, *(placed(x, placement) for x in inputs))
    assert isinstance(found, sx.Array)
    assert (found.shape, found.dtype) == (want.shape, want.dtype)
    bound = 1e-14 if want.dtype.kind in "fc" else 0.0
    np.testing.assert_allclose(found.numpy(), want, bound, bound)


@pytest.mark.parametrize(("name", "call", "inputs"), SMOOTH, ids=[e[0] for e in SMOOTH])
def test_gradient(name: str, call: Any, inputs: tuple[Any, ...]) -> None:
    """Along a random direction, against central differences: close to 1e-6."""
    draw = np.random.default_rng(1)
    weight = draw.normal(size=np.shape(call(np, *inputs)))
    ways = [draw.normal(size=x.shape) for x in inputs]

    def total(m: Any, *xs: Any) -> Any:
        return m.sum(call(m, *xs) * weight)

    grads = sx.grad(lambda *xs: total(sx, *xs), argnums=tuple(range(len(inputs))))(
        *(placed(x, {"a": sx.Shard(0)}) for x in inputs)
    )
    slope = sum(float((g.numpy() * d).sum()) for g, d in zip(grads, ways))
    ahead, back = ([x + s * d for x, d in zip(inputs, ways)] for s in (1e-6, -1e-6))
    assert abs(slope - (total(np, *ahead) - total(np, *back)) / 2e-6) < 1e-6


def test_numpy_arrays_and_numbers_are_constants() -> None:
    x = placed(V, {"a": sx.Shard(0)})
    assert bool(sx.allclose(x, V)) and bool(sx.array_equal(V, x)) and not bool(sx.allclose(x, 0.0))
    assert np.array_equal(sx.append(x, [1.0, 2.0]).numpy(), np.append(V, [1.0, 2.0]))
    assert sx.copy(x) is x and sx.copy(V).shape == V.shape


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: sx.cross(x, x), r"3 components(.|\n)*Write a third one"),
        (lambda x: sx.diag(sx.stack([x] * 2)[None]), r"vector or a matrix(.|\n)*Write diagonal"),
        (lambda x: sx.diagonal(x), r"2 dimensions or more(.|\n)*Write diag\(x\)"),
        (lambda x: sx.diagonal(sx.stack([x, x]), 0, 1, 1), r"both 1"),
        (lambda x: sx.average(x, weights=np.ones(2)), r"weights of shape \(2,\)(.|\n)*Write weights"),
        (lambda x: sx.array_split(x, 0), r"0 parts"),
    ],
)
def test_errors(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        call(placed(V, {}))
    assert isinstance(raised.value, sx.SpmdxError)


# Positions of arguments


Z = np.arange(12.0).reshape(3, 4)


@pytest.mark.parametrize(
    "call",
    [
        lambda m, x: m.concat([x, x], 1),
        lambda m, x: m.stack([x, x], 1),
        lambda m, x: m.roll(x, 1, 0),
        lambda m, x: m.split(x, 2, 1)[1],
        lambda m, x: m.repeat(x, 2, 1),
        lambda m, x: m.take(x, np.array([2, 0]), 1),
        lambda m, x: m.flip(x, 0),
        lambda m, x: m.diff(x, 2),
        lambda m, x: m.diff(x, 1, 0),
        lambda m, x: m.tril(x, 1),
        lambda m, x: m.triu(x, -1),
        lambda m, x: m.sort(x, 0),
        lambda m, x: m.searchsorted(x[0], 1.0, "right"),
        lambda m, x: m.moveaxis(x, source=0, destination=1),
        lambda m, x: m.zeros_like(x, np.int8),
        lambda m, x: m.full_like(x, 2, np.int8),
        lambda m, x: m.zeros((2, 3), np.int8),
        lambda m, x: m.ones(3, np.float32),
        lambda m, x: m.full(3, 7, np.int8),
        lambda m, x: m.identity(3, np.int8),
        lambda m, x: m.eye(3, 4, 1, np.int8),
        lambda m, x: m.tri(3, 4, 1, np.int8),
        lambda m, x: m.linspace(0, 1, 5, False),
        lambda m, x: m.asarray([1, 2], np.float32),
    ],
)
def test_arguments_stand_where_numpy_has_them(call: Any) -> None:
    """Exact."""
    want, found = call(np, Z), call(sx, sx.asarray(Z))
    assert found.dtype == want.dtype and np.array_equal(found.numpy(), want)


def test_what_is_not_numpys_is_not_taken_by_position() -> None:
    """NumPy's third argument of sort is the kind of sort: it must not be read as descending=True."""
    for function in (sx.sort, sx.argsort):
        with pytest.raises(TypeError, match="positional"):
            function(sx.asarray(Z), 0, "stable")


def test_kinds_of_dtypes_are_numpys_also_of_those_that_no_array_has() -> None:
    words = ("bool", "signed integer", "unsigned integer", "integral", "real floating", "complex floating", "numeric")
    for dtype in map(np.dtype, ("?", "i2", "u8", "f4", "f8", "c16", "O", "U3", "M8[D]", [("a", "f4")])):
        for kind in (*words, ("integral", np.float32), np.float32):
            assert sx.isdtype(dtype, kind) == np.isdtype(dtype, kind)
    assert sx.isdtype("bfloat16", "real floating") and sx.isdtype(sx.bfloat16, sx.bfloat16)
