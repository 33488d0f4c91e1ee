"""Dropout of attention's weights: what is dropped is what bernoulli says of the whole array of weights, wherever the
pieces lie, and by blocks as in plain operations; memory is linear in the sequence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from helpers import FOUR, TWO, close, draw, gradients, put, slope, weighted

import spmdx as sx
from spmdx import nn
from spmdx.mesh import Mesh
from spmdx.ops import attend

R, S = sx.Replicate(), sx.Shard
KEY = sx.random.key(3)
THREE = Mesh(("a",), (3,), None, "sim")
Q, K, V = draw(2, 5, 4, 6), draw(2, 7, 2, 6), draw(2, 7, 2, 3)
MASK = np.random.default_rng(0).random((2, 1, 5, 7)) > 0.3
MASK[0, 0, 1] = False  # a query that sees nothing
HEADS = np.random.default_rng(1).random((2, 4, 5, 7)) > 0.3
HOW = {"all": {}, "causal": {"causal": True}, "mask": {"mask": MASK}, "heads": {"mask": HEADS, "causal": True}}
# Placements of q, and of k and v: batch, heads, queries, and keys, which take the plain way.
WHERE = [
    (TWO, {"a": S(0)}, {"a": S(0)}),
    (TWO, {"a": S(2)}, {"a": S(2)}),
    (TWO, {"a": S(1)}, {}),
    (TWO, {}, {"a": S(1)}),
    (TWO, {"a": sx.Partial()}, {"a": S(3)}),
    (THREE, {"a": S(1)}, {"a": R}),
    (THREE, {"a": S(0)}, {"a": S(2)}),
    (FOUR, {"a": S(0), "b": S(2)}, {"a": S(0), "b": S(2)}),
    (FOUR, {"a": S(1), "b": S(2)}, {"a": S(1), "b": S(2)}),
]


def kept(b: int, few: int, group: int, t: int, s: int, rate: float, key: Any = KEY) -> Any:
    """What bernoulli keeps, [b, heads, t, s]."""
    return sx.random.bernoulli(key, (b, few, group, t, s), 1 - rate).numpy().reshape(b, few * group, t, s)


def plain(q: Any, k: Any, v: Any, rate: float, mask: Any = True, causal: bool = False, key: Any = KEY) -> Any:
    (b, t, heads, _), s, few = q.shape, k.shape[1], k.shape[2]
    k, v = np.repeat(k, heads // few, 2), np.repeat(v, heads // few, 2)
    scores = np.einsum("bthd,bshd->bhts", q, k) / np.sqrt(q.shape[-1])
    seen = np.broadcast_to(mask & (np.tri(t, s, s - t, dtype=bool) if causal else True), scores.shape)
    powers = np.exp(np.where(seen, scores - np.where(seen, scores, -1e30).max(-1, keepdims=True), -np.inf))
    total = powers.sum(-1, keepdims=True)
    weights = powers / np.where(total == 0, 1, total) * kept(b, few, heads // few, t, s, rate, key)
    return np.einsum("bhts,bshe->bthe", weights / (1 - rate if rate < 1 else 1), v)


@pytest.mark.parametrize("rate", [0.3, 0.97, 1.0])
@pytest.mark.parametrize("how", HOW)
def test_as_numpy(how: str, rate: float) -> None:
    """Close to 1e-12; gradients to 1e-8 of central differences, and to 1e-12 of those of plain operations."""

    def attention(*args: Any, bias: Any = None) -> Any:
        return nn.attention(*args, dropout=rate, key=KEY, bias=bias, **HOW[how])

    want, args = plain(Q, K, V, rate, **HOW[how]), tuple(map(put, (Q, K, V)))
    close(attention(*args), want)
    alone = gradients(attention, *args)
    for g, w in zip(alone, gradients(lambda *a: attention(*a, bias=np.zeros((5, 7))), *args)):
        close(g, w.numpy())
    if rate == 0.3:
        close(alone[1], slope(weighted(lambda *a: plain(*a, rate, **HOW[how])), (Q, K, V), 1), 1e-8)
    for mesh, of_q, of_kv in WHERE:
        args = put(Q, mesh, **of_q), put(K, mesh, **of_kv), put(V, mesh, **of_kv)
        close(attention(*args), want)
        for g, w in zip(gradients(attention, *args), alone):
            close(g, w.numpy())


@pytest.mark.parametrize("key", [KEY, sx.random.key(3, impl="threefry2x32")], ids=["philox", "threefry"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_what_is_dropped(dtype: str, key: Any) -> None:
    """Exact, forward and backward, wherever the pieces lie: with equal scores and the rows of the identity for values
    the output is the weights, and the gradient of the values is their columns."""
    t, s, rate = 101, 99, 0.4
    kind = sx.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    q, k = np.zeros((2, t, 4, 2)), np.zeros((2, s, 2, 2))
    v, one = np.broadcast_to(np.eye(s)[None, :, None], (2, s, 2, s)), np.eye(t)
    want = kept(2, 2, 2, t, s, rate, key)
    for mesh, of_q, of_kv in [(TWO, {}, {}), *WHERE]:
        args = [put(x, mesh, **p).astype(kind) for x, p in ((q, of_q), (k, of_kv), (v, of_kv))]
        found = nn.attention(*args, dropout=rate, key=key).astype(float).numpy()  # [b, t, heads, s]
        assert ((found.transpose(0, 2, 1, 3) != 0) == want).all()

        def column(v: Any, args: Any = args) -> Any:  # of heads 0 and 2, which share nothing: row t of the weights
            y = nn.attention(*args[:2], v, dropout=rate, key=key).astype(float)
            return (y[:, :, ::2, :t].swapaxes(2, 3) * one[None, :, :, None]).sum()

        ones = put(np.ones((2, s, 2, t)), mesh, **of_kv).astype(kind)
        back = sx.grad(column)(ones).astype(float).numpy()  # [b, s, few, t]
        assert ((back.transpose(0, 2, 3, 1) != 0) == want[:, ::2]).all()


def test_without_a_rate_as_without_a_key() -> None:
    args = tuple(map(put, (Q, K, V)))
    assert (nn.attention(*args, dropout=0.0, key=KEY).numpy() == nn.attention(*args).numpy()).all()
    with pytest.raises(sx.SpmdxError, match="between 0 and 1"):
        nn.attention(*args, dropout=1.5, key=KEY)


def test_gradients_of_gradients() -> None:
    """Close to 1e-12: by blocks, and in plain operations (which a bias of zeros takes)."""
    args = tuple(put(x[:1, :3]) for x in (Q, K, V))

    def size(bias: Any, *args: Any) -> Any:
        found = gradients(lambda *a: nn.attention(*a, bias=bias, causal=True, dropout=0.4, key=KEY), *args)
        return sum((g * g).sum() for g in found)

    blocks, in_full = (sx.grad(lambda *a, b=b: size(b, *a), argnums=(0, 1, 2))(*args) for b in (None, np.zeros((3, 3))))
    for g, w in zip(blocks, in_full):
        close(g, w.numpy())


def test_forward_derivatives() -> None:
    args = tuple(put(x[:1, :3]) for x in (Q, K, V))
    value, along = sx.jvp(lambda *a: nn.attention(*a, dropout=0.4, key=KEY), args, args)
    want = [plain(*(x[:1, :3] * (1 + d) for x in (Q, K, V)), 0.4) for d in (1e-6, 0, -1e-6)]
    close(value, want[1])
    close(along, (want[0] - want[2]) / 2e-6, 1e-8)


def test_examples_of_a_batch_drop_the_same() -> None:
    """Close to 1e-12: vmap's examples are those of calls one by one, each with the same key, also in gradients."""
    q, k, v = (draw(3, *x.shape, seed=4) for x in (Q, K, V))

    def loss(q: Any, k: Any, v: Any) -> Any:
        return (nn.attention(q, k, v, causal=True, dropout=0.4, key=KEY) ** 2).sum()

    given = tuple(map(put, (q, k, v)))
    found = sx.vmap(sx.grad(loss, argnums=(0, 1, 2)))(*given)
    for i in range(3):
        for g, w in zip(found, sx.grad(loss, argnums=(0, 1, 2))(*(x[i] for x in given))):
            close(g[i], w.numpy())
    shared = sx.vmap(lambda q: nn.attention(q, given[1][0], given[2][0], dropout=0.4, key=KEY))(given[0])
    for i in range(3):
        close(shared[i], plain(q[i], k[0], v[0], 0.4))


def test_made_again_the_same_are_dropped() -> None:
    args = tuple(map(put, (Q, K, V)))

    def loss(*args: Any) -> Any:
        return (nn.attention(*args, dropout=0.4, key=KEY) ** 2).sum()

    for policy in ("nothing", "attention"):
        again = sx.remat(loss, policy=policy)
        for g, w in zip(*(sx.grad(f, argnums=(0, 1, 2))(*args) for f in (again, loss))):
            assert g.numpy().tobytes() == w.numpy().tobytes()


@pytest.mark.parametrize("how", HOW)
def test_all_weights_at_once(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Close to 1e-12: what a GPU does, of whatever is asked."""

    def attention(*args: Any) -> Any:
        return nn.attention(*args, dropout=0.4, key=KEY, **HOW[how])

    places = [WHERE[0], WHERE[2], WHERE[-1]]
    calls = [[put(x, mesh, **p) for x, p in zip((Q, K, V), (a, b, b))] for mesh, a, b in places]
    want = [[attention(*args), *gradients(attention, *args)] for args in calls]
    monkeypatch.setattr(attend, "_run", lambda xp, drop, *operands: attend._in_full(xp, drop, *operands))
    for args, some in zip(calls, want):
        for g, w in zip([attention(*args), *gradients(attention, *args)], some):
            close(g, w.numpy())


LONG = """
import resource
import numpy as np
import spmdx as sx
def peak(n):
    args = [sx.asarray(np.ones((1, n, 1, 8), np.float32)) for _ in range(3)]
    loss = lambda *a: sx.sum(sx.nn.attention(*a, causal=True, dropout=0.1, key=sx.random.key(0)))
    sx.grad(loss, argnums=(0, 1, 2))(*args)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before = peak(64)
print(peak(8192) - before)
"""


def test_memory_is_linear_in_the_sequence() -> None:
    """8,192 queries and keys: the mask alone would take 64 MB; what is taken is less."""
    done = subprocess.run([sys.executable, "-c", LONG], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 8192**2
