"""Exact: dropout's mask is bernoulli's, on every placement, for every dtype, in the gradient and in its gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from placements import assembled, blocks, simulated, specs

import spmdx as sx
from spmdx import random
from spmdx.array import Array
from spmdx.nn import dropout
from spmdx.testing import spmd

KEY = random.key(11)


def mask(shape: tuple[int, ...], rate: float, key: random.Key = KEY) -> Any:
    return random.bernoulli(key, shape, 1 - rate).numpy()


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64", "complex64"])
@pytest.mark.parametrize("impl", ["philox4x32", "threefry2x32"])
def test_the_same_mask_for_every_dtype(name: str, impl: str) -> None:
    kind, key = sx.bfloat16 if name == "bfloat16" else np.dtype(name), random.key(5, impl)
    x = np.linspace(-3, 4, 210).reshape(7, 30).astype(kind)
    got = dropout(key, x, 0.3)
    wide = x.astype(np.float32) if x.itemsize == 2 else x
    want = np.where(mask(x.shape, 0.3, key), (wide * wide.real.dtype.type(1 / 0.7)).astype(kind), np.zeros((), kind))
    assert got.dtype == kind
    assert got.numpy().tobytes() == want.tobytes()


@pytest.mark.parametrize("sizes", [(2,), (3,), (2, 2)])
@pytest.mark.parametrize("shape", [(), (7,), (6, 5), (0, 4)])
def test_wherever_the_pieces_lie(shape: tuple[int, ...], sizes: tuple[int, ...]) -> None:
    x = np.arange(1.0, 1 + np.prod(shape, dtype=int)).reshape(shape)
    want = np.where(mask(shape, 0.5), x * 2, 0.0)
    for spec in specs(simulated(*sizes), shape, ops=("sum", "max")):
        with sx.debug.trace() as t:
            got = dropout(KEY, Array(blocks(spec, x), spec), 0.5)
        assert np.array_equal(assembled(got.spec, got._block), want), spec
        if not spec.partial:
            assert got.spec is spec
            assert not t, t


def test_gradients() -> None:
    x, w = np.arange(1.0, 13).reshape(4, 3), np.arange(12.0).reshape(4, 3) - 5
    kept = np.where(mask((4, 3), 0.25), 1 / 0.75, 0.0)
    for spec in specs(simulated(2, 2), (4, 3), ops=()):
        a, weights = Array(blocks(spec, x), spec), sx.asarray(w, mesh=spec.mesh)

        def loss(a: Any, weights: Any = weights) -> Any:
            return (dropout(KEY, a, 0.25) ** 2 * weights).sum()

        g = sx.grad(loss)(a)
        np.testing.assert_allclose(assembled(g.spec, g._block), 2 * x * kept * kept * w, rtol=1e-15)
        second = sx.grad(lambda a, loss=loss: sx.grad(loss)(a).sum())(a)
        np.testing.assert_allclose(assembled(second.spec, second._block), 2 * kept * kept * w, rtol=1e-15)


def test_the_mask_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The record holds x, the key's words and the rate, and nothing as large as a mask."""
    x = sx.asarray(np.ones((64, 64)))

    def loss(a: Any) -> Any:
        out = dropout(KEY, a, 0.5)
        held = [v.size for v in out.inputs if isinstance(v, Array)]
        assert held == [64 * 64, 4], held
        return out.sum()

    sx.grad(loss)(x)


def test_new_keys_need_no_new_plan() -> None:
    from spmdx.op import registry

    x = sx.asarray(np.ones(5))
    dropout(KEY, x, 0.5)
    before = len(registry["dropped"].entries)
    for step in range(10):
        dropout(random.fold_in(KEY, step), x, 0.1 + step / 20)
    assert len(registry["dropped"].entries) == before


def test_ends() -> None:
    x = sx.asarray(np.array([1.0, np.inf, np.nan, -0.0]))
    assert dropout(KEY, x, 0) is x
    assert dropout(KEY, x, 1.0).numpy().tobytes() == np.zeros(4).tobytes()


def test_share() -> None:
    """Close: the share that is kept within 5 deviations, and the mean with it."""
    got = dropout(KEY, np.ones(100_000), 0.2).numpy()
    assert abs((got != 0).mean() - 0.8) < 5 * (0.16 / 100_000) ** 0.5


def test_on_thread_ranks() -> None:
    x = np.arange(35.0).reshape(7, 5)
    want = np.where(mask((7, 5), 0.5), x * 2, 0.0)

    def program() -> None:
        mesh = sx.make_mesh({"a": 3})
        for placement in ({"a": sx.Shard(0)}, {"a": sx.Shard(1)}, {}, {"a": sx.Partial("sum")}):
            a = sx.asarray(x, mesh=mesh, placement=placement)
            assert np.array_equal(dropout(KEY, a, 0.5).numpy(), want)

    spmd(3)(program)()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: dropout(KEY, np.ones(3), 1.5), sx.errors.ArgumentError, r"between 0 and 1; got 1\.5[\s\S]*0\.1"),
        (lambda: dropout(KEY, np.ones(3), np.ones(3)), sx.errors.ArgumentError, r"a number between 0 and 1"),
        (lambda: dropout(KEY, np.arange(3), 0.5), sx.errors.DtypeError, r"int64[\s\S]*astype\(float\)"),
        (lambda: dropout(0, np.ones(3), 0.5), sx.errors.DtypeError, r"sx\.random\.key\(0\)"),
    ],
)
def test_errors(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
