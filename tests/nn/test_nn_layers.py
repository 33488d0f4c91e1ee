"""Linear layers, embeddings, activations and norms: values and gradients against NumPy, and what they send."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from helpers import FOUR, TWO, close, draw, everywhere, gradients, put, slope, verbs, weighted

import spmdx as sx
from spmdx import nn
from spmdx.errors import DtypeError
from spmdx.plans import Plan

X, SCALE, BIAS = draw(3, 4, 6), draw(6, seed=1), draw(6, seed=2)


def layer_norm(x: Any, scale: Any, bias: Any) -> Any:
    low = x - x.mean(-1, keepdims=True)
    return low / np.sqrt((low * low).mean(-1, keepdims=True) + 1e-5) * scale + bias


def rms_norm(x: Any, scale: Any) -> Any:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * scale


NORMS = {"layer": (nn.layer_norm, layer_norm, (X, SCALE, BIAS)), "rms": (nn.rms_norm, rms_norm, (X, SCALE))}
each_norm = pytest.mark.parametrize("name", NORMS)


@each_norm
def test_norms_wherever_the_pieces_lie(name: str) -> None:
    norm, oracle, (x, *rest) = NORMS[name]
    want = [slope(weighted(oracle), (x, *rest), i) for i in range(1 + len(rest))]
    alone = gradients(norm, *map(put, (x, *rest)))
    for g, w in zip(alone, want):
        close(g, w, 1e-8)
    for a in everywhere(x):
        close(norm(a, *rest), oracle(x, *rest))
        for g, w in zip(gradients(norm, a, *(put(r, a.mesh) for r in rest)), alone):
            close(g, w.numpy())
    for p in (sx.Shard(0), sx.Replicate()):  # and with divided scales
        given = [put(r, TWO, a=p) for r in rest]
        for g, w in zip(gradients(norm, put(x, TWO, a=sx.Shard(2)), *given), alone):
            close(g, w.numpy())


@each_norm
def test_norms_without_scale(name: str) -> None:
    norm, oracle, (x, *rest) = NORMS[name]
    plain = [np.ones(6), np.zeros(6)][: len(rest)]
    close(norm(put(x)), oracle(x, *plain))
    close(gradients(norm, put(x))[0], gradients(norm, put(x), *map(put, plain))[0].numpy())


@each_norm
def test_gradients_of_gradients_of_norms(name: str) -> None:
    norm, _, args = NORMS[name]
    args = tuple(x[:2, :1] if x.ndim == 3 else x for x in args)

    def size(*args: Any) -> Any:
        return sum((g * g).sum() for g in gradients(norm, *args))

    found = sx.grad(size, argnums=tuple(range(len(args))))(*map(put, args))
    for i, g in enumerate(found):
        close(g, slope(lambda *a: size(*map(put, a)).item(), args, i, 1e-5), 1e-6)


@each_norm
def test_norms_send_nothing_where_rows_are_whole(name: str) -> None:
    norm, _, (x, *rest) = NORMS[name]
    args = put(x, FOUR, a=sx.Shard(0), b=sx.Shard(1)), *(put(r, FOUR) for r in rest)
    with sx.debug.trace() as trace:
        norm(*args)
    assert not trace
    with sx.debug.trace() as trace:
        gradients(norm, *args)  # scale and bias are replicated: their gradients, and the loss, are all-reduced together
    assert set(verbs(trace)) == {"all_reduce"}
    assert len(trace) <= 2, trace


@each_norm
def test_norms_take_numpy_arrays_and_refuse_integers(name: str) -> None:
    norm, _, (x, *rest) = NORMS[name]
    assert np.array_equal(norm(x, *rest).numpy(), norm(put(x), *map(put, rest)).numpy())
    whole = sx.arange(6).reshape(2, 3)
    with pytest.raises(DtypeError, match=r"norm is of floating-point numbers; x is int64.*\n.*x\.astype\(float\)"):
        norm(whole)
    norm(whole.astype(float))


def test_half_width_is_computed_in_float32() -> None:
    x = put(X.astype(np.float16))
    assert nn.layer_norm(x).dtype == np.float16
    close(nn.layer_norm(x).astype(float), layer_norm(X, 1, 0), 5e-3)
    assert nn.rms_norm(put(X).astype(sx.bfloat16), put(SCALE).astype(sx.bfloat16)).dtype == sx.bfloat16


# Activations


def test_activations_wherever_the_pieces_lie() -> None:
    from math import erf

    def exact(x: Any) -> Any:
        return 0.5 * x * (1 + np.vectorize(erf)(x / np.sqrt(2)))

    def tanh(x: Any) -> Any:
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

    def silu(x: Any) -> Any:
        return x / (1 + np.exp(-x))

    for function, oracle in (
        (nn.gelu, tanh),
        (lambda x: nn.gelu(x, approximate=False), exact),
        (nn.silu, silu),
        (lambda x: nn.swiglu(x, x * x), lambda x: silu(x) * x * x),
    ):
        want = slope(weighted(oracle), (X,), 0)
        for x in everywhere(X):
            close(function(x), oracle(X))
            close(gradients(function, x)[0], want, 1e-8)

        def size(x: Any, function: Any = function) -> Any:
            return (gradients(function, x)[0] ** 2).sum()

        small = X[:1, :2]
        close(sx.grad(size)(put(small)), slope(lambda x: size(put(x)).item(), (small,), 0, 1e-5), 1e-6)


def test_gelu_with_a_bias() -> None:
    """What the sum and GELU give, gradients and gradients of gradients too; nothing is sent."""
    bias = draw(X.shape[-1], seed=1)
    for approximate in (True, False):

        def fused(x: Any, b: Any, a: bool = approximate) -> Any:
            return nn.gelu(x, a, bias=b)

        def apart(x: Any, b: Any, a: bool = approximate) -> Any:
            return nn.gelu(x + b, a)

        want = gradients(apart, put(X), put(bias))
        for x in everywhere(X):
            b = put(bias, x.mesh)
            close(fused(x, b), apart(x, b).numpy())
            for got, wanted in zip(gradients(fused, x, b), want):
                close(got, wanted.numpy())

        def size(x: Any, b: Any, f: Any) -> Any:
            return sum((g * g).sum() for g in gradients(f, x, b))

        of_size = [sx.grad(size, argnums=(0, 1))(put(X), put(bias), f) for f in (fused, apart)]
        for got, wanted in zip(*of_size):
            close(got, wanted.numpy(), 1e-11)
    assert nn.gelu(put(X).astype(sx.bfloat16), bias=put(bias).astype(sx.bfloat16)).dtype == sx.bfloat16
    x, b = put(X, TWO, a=sx.Shard(2)), put(bias, TWO, a=sx.Shard(0))
    with sx.explicit(), sx.debug.trace() as trace:
        nn.gelu(x, bias=b)
    assert not trace


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradients_in_one_pass(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact: calls seen before are made together, and give what they gave one by one."""
    from spmdx.runtime import kernels

    passes: list[str] = []

    def seen(name: str, kernel: Any, out: Any, *args: Any) -> None:
        sums = args[:2] if name == "norm_back" else args[-1:]
        if out is not None and any(s is not None for s in sums):
            passes.append(name)
        kernel(out, *args)

    for name in ("norm_back", "bias_gelu"):
        kernel = getattr(kernels.HOST.build, name)
        monkeypatch.setattr(kernels.HOST.build, name, partial(seen, name, kernel))
    x, bias = (sx.asarray(draw(*shape).astype(dtype)) for shape in ((3, 90, 32), (32,)))
    for function in (
        lambda x, b: nn.layer_norm(x, b, b),
        lambda x, b: nn.rms_norm(x, b),
        lambda x, b: nn.layer_norm(x, None, b),
        lambda x, b: nn.gelu(x, bias=b),
    ):

        def loss(x: Any, b: Any, f: Any = function) -> Any:
            return (f(x, b) * x).sum()

        first, *later = ([g.numpy() for g in sx.grad(loss, argnums=(0, 1))(x, bias)] for _ in range(3))
        for again in later:
            assert [g.tobytes() for g in again] == [g.tobytes() for g in first]
    assert passes == ["norm_back"] * 6 + ["bias_gelu"] * 2


# Linear layers and embeddings


def test_two_layers_make_one_all_reduce() -> None:
    """Columns, then rows (Megatron's pair): forward one all-reduce, and one more of the input's gradient."""
    w1, b1, w2, b2 = draw(6, 8), draw(8), draw(8, 6), draw(6)

    def network(x: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
        return nn.linear(nn.gelu(nn.linear(x, w1, b1)), w2, b2).redistribute({})

    args = (
        put(X, TWO),
        put(w1, TWO, a=sx.Shard(1)),
        put(b1, TWO, a=sx.Shard(0)),
        put(w2, TWO, a=sx.Shard(0)),
        put(b2, TWO),
    )
    with Plan().on(TWO), sx.debug.trace() as trace:  # under a plan weights stay where they are
        y = network(*args)
    assert verbs(trace) == ["all_reduce"], trace
    h = X @ w1 + b1
    close(y, 0.5 * h * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3))) @ w2 + b2)
    with Plan().on(TWO), sx.debug.trace() as trace:
        found = gradients(network, *args)
    assert verbs(trace) == ["all_reduce"] * 2, trace
    for g, w in zip(found, gradients(network, *map(put, (X, w1, b1, w2, b2)))):
        close(g, w.numpy())


def test_embedding_is_never_gathered() -> None:
    table, numbers = draw(11, 6), np.array([[0, 10, 3], [3, 3, 7]])
    for placement in ({"a": sx.Shard(0)}, {"a": sx.Shard(1)}, {}):
        t = put(table, TWO, **placement)
        with Plan().on(TWO), sx.debug.trace() as trace:
            y = nn.embedding(t, numbers)
        assert not trace
        close(y, table[numbers])
        close(
            gradients(lambda t: nn.embedding(t, numbers), t)[0], gradients(lambda t: t[numbers], put(table))[0].numpy()
        )


def test_linear_of_any_dimensions() -> None:
    w, b = draw(6, 5), draw(5)
    close(nn.linear(put(X), put(w), put(b)), X @ w + b)
    close(nn.linear(put(X[0, 0]), put(w)), X[0, 0] @ w)
