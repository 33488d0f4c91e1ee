"""Attention and rotary positions against NumPy, wherever the pieces lie; what they send and what they keep."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from helpers import ALONE, FOUR, TWO, close, draw, gradients, put, slope, verbs, weighted

import spmdx as sx
from spmdx import nn

R, S = sx.Replicate(), sx.Shard
Q, K, V = draw(2, 5, 4, 6), draw(2, 7, 2, 6), draw(2, 7, 2, 3)
MASK = np.random.default_rng(0).random((2, 1, 5, 7)) > 0.3
MASK[0, 0, 1] = False  # a query that sees nothing
HEADS = np.random.default_rng(1).random((2, 4, 5, 7)) > 0.3


def plain(q: Any, k: Any, v: Any, mask: Any = None, causal: bool = False, bias: Any = 0.0) -> Any:
    t, s, share = q.shape[1], k.shape[1], q.shape[2] // k.shape[2]
    k, v = np.repeat(k, share, 2), np.repeat(v, share, 2)
    scores = np.einsum("bthd,bshd->bhts", q, k) / np.sqrt(q.shape[-1]) + bias
    seen = np.tri(t, s, s - t, dtype=bool) if causal else np.ones((t, s), bool)
    seen = np.broadcast_to(seen if mask is None else seen & mask, scores.shape)
    top = np.where(seen, scores, -1e30).max(-1, keepdims=True)
    powers = np.exp(np.where(seen, scores - top, -np.inf))
    total = powers.sum(-1, keepdims=True)
    return np.einsum("bhts,bshe->bthe", powers / np.where(total == 0, 1, total), v)


HOW = {
    "all": {},
    "causal": {"causal": True},
    "mask": {"mask": MASK},
    "mask of heads": {"mask": HEADS, "causal": True},
    "matrix": {"mask": MASK[1, 0]},
    "keys": {"mask": MASK[:, :, :1]},
    "queries": {"mask": MASK[..., :1]},
}
# Placements of q, and of k and v: batch, heads, queries; keys divided are never gathered.
WHERE = [
    (TWO, {"a": S(0)}, {"a": S(0)}),
    (TWO, {"a": S(2)}, {"a": S(2)}),
    (TWO, {"a": S(1)}, {}),
    (TWO, {}, {"a": S(1)}),
    (TWO, {"a": sx.Partial()}, {"a": S(3)}),
    (FOUR, {"a": S(0), "b": S(2)}, {"a": S(0), "b": S(2)}),
    (FOUR, {"a": S(1), "b": S(2)}, {"a": S(1), "b": S(2)}),
    (FOUR, {"a": S(1), "b": S(3)}, {"a": R, "b": S(1)}),
]


@pytest.mark.parametrize("how", HOW)
def test_as_numpy(how: str) -> None:
    """Close to 1e-12; gradients close to 1e-8 of central differences, and to 1e-12 of each other."""

    def attend(q: Any, k: Any, v: Any) -> Any:
        return nn.attention(q, k, v, **HOW[how])

    def oracle(q: Any, k: Any, v: Any) -> Any:
        return plain(q, k, v, **HOW[how])

    alone = gradients(attend, *map(put, (Q, K, V)))
    close(attend(*map(put, (Q, K, V))), oracle(Q, K, V))
    for i in (1, 2):
        close(alone[i], slope(weighted(oracle), (Q, K, V), i), 1e-8)
    for mesh, of_q, of_kv in WHERE:
        args = put(Q, mesh, **of_q), put(K, mesh, **of_kv), put(V, mesh, **of_kv)
        close(attend(*args), oracle(Q, K, V))
        for g, w in zip(gradients(attend, *args), alone):
            close(g, w.numpy())


def test_bias_takes_the_plain_way_with_its_gradient() -> None:
    bias = draw(4, 5, 7)
    close(nn.attention(*map(put, (Q, K, V)), bias=put(bias), causal=True), plain(Q, K, V, None, True, bias))
    found = gradients(lambda b: nn.attention(*map(put, (Q, K, V)), bias=b, causal=True), put(bias))[0]
    close(found, slope(weighted(lambda b: plain(Q, K, V, None, True, b)), (bias,), 0), 1e-8)


def test_both_ways_agree_and_so_do_gradients_of_gradients() -> None:
    """Close to 1e-12: by blocks, and in plain operations (which a bias of zeros takes)."""
    q, k, v = (x[:1, :3] for x in (Q, K, V))
    zero = np.zeros((3, 3))

    def size(bias: Any, *args: Any) -> Any:
        return sum((g * g).sum() for g in gradients(lambda *a: nn.attention(*a, bias=bias, causal=True), *args))

    args = tuple(map(put, (q, k, v)))
    blocks, in_full = (sx.grad(lambda *a, b=b: size(b, *a), argnums=(0, 1, 2))(*args) for b in (None, zero))
    for g, w in zip(blocks, in_full):
        close(g, w.numpy())


def test_rows_in_several_blocks() -> None:
    """Close to 1e-12: 100 queries in blocks of 48 rows."""
    args = tuple(put(draw(1, 100, 2, 4, seed=i)) for i in range(3))
    close(nn.attention(*args, causal=True), plain(*(a.numpy() for a in args), causal=True))
    want = gradients(lambda *a: nn.attention(*a, causal=True, bias=np.zeros((100, 100))), *args)
    for g, w in zip(gradients(lambda *a: nn.attention(*a, causal=True), *args), want):
        close(g, w.numpy())


LONG = """
import resource
import numpy as np
import spmdx as sx
def peak(n):
    args = [sx.asarray(np.ones((1, n, 1, 8), np.float32)) for _ in range(3)]
    loss = lambda *a: sx.sum(sx.nn.attention(*a, causal=True))
    sx.grad(loss, argnums=(0, 1, 2))(*args)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before = peak(64)
print(peak(8192) - before)
"""


def test_memory_is_linear_in_the_sequence() -> None:
    """8,192 queries and keys: all scores at once would take 256 MB; what is taken is under a quarter of that."""
    done = subprocess.run([sys.executable, "-c", LONG], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 8192**2


def test_divided_heads_and_batches_send_nothing() -> None:
    args = [put(x, FOUR, a=S(0), b=S(2)) for x in (Q, K, V)]
    with sx.debug.trace() as trace:
        nn.attention(*args, causal=True)
    assert not trace, trace


def test_divided_keys_are_not_gathered() -> None:
    q, k, v = draw(1, 4, 2, 8), draw(1, 64, 2, 8, seed=1), draw(1, 64, 2, 8, seed=2)
    args = put(q, TWO), put(k, TWO, a=S(1)), put(v, TWO, a=S(1))
    with sx.debug.trace() as trace:
        y = nn.attention(*args)
    close(y, plain(q, k, v))
    assert not {"all_gather", "all_to_all"} & set(verbs(trace)), trace


def test_dropout_is_the_same_everywhere() -> None:
    """Exact in what is dropped: a pure function of the key; the mean over many keys is the value without."""
    key = sx.random.key(3)
    alone = nn.attention(*map(put, (Q, K, V)), dropout=0.5, key=key).numpy()
    for mesh, of_q, of_kv in WHERE:
        args = put(Q, mesh, **of_q), put(K, mesh, **of_kv), put(V, mesh, **of_kv)
        close(nn.attention(*args, dropout=0.5, key=key), alone)
    args = tuple(map(put, (Q, K, V)))
    mean = sum(nn.attention(*args, dropout=0.2, key=sx.random.fold_in(key, i)).numpy() for i in range(400)) / 400
    assert np.max(np.abs(mean - plain(Q, K, V))) < 0.15


def test_half_width() -> None:
    args = [put(x).astype(sx.bfloat16) for x in (Q, K, V)]
    assert nn.attention(*args).dtype == sx.bfloat16
    close(nn.attention(*args).astype(float), plain(Q, K, V), 3e-2)


@pytest.mark.parametrize(
    "shapes, words",
    [
        (((2, 5, 4, 6), (2, 7, 3, 6), (2, 7, 3, 6)), "share"),
        (((2, 5, 4, 6), (2, 7, 2, 5), (2, 7, 2, 5)), "q\\[..., t, heads, d\\]"),
        (((5, 6), (7, 6), (7, 6)), "q\\[..., t, heads, d\\]"),
    ],
)
def test_shapes_that_do_not_fit(shapes: Any, words: str) -> None:
    with pytest.raises(sx.SpmdxError, match=words):
        nn.attention(*(put(np.zeros(s)) for s in shapes))


def test_dropout_needs_a_key() -> None:
    with pytest.raises(sx.SpmdxError, match=r"key=sx\.random\.key"):
        nn.attention(*map(put, (Q, K, V)), dropout=0.1)


# Positions


def turned(x: Any, positions: Any, neighbours: bool) -> Any:
    d = x.shape[-1]
    angle = positions[..., None, None] * 10000.0 ** (-np.arange(0, d, 2) / d)
    first, second = (x[..., ::2], x[..., 1::2]) if neighbours else np.split(x, 2, -1)
    z = (first + 1j * second) * np.exp(1j * angle)
    parts = z.real, z.imag
    return np.stack(parts, -1).reshape(x.shape) if neighbours else np.concatenate(parts, -1)


@pytest.mark.parametrize("neighbours", [False, True])
def test_rope(neighbours: bool) -> None:
    """A rotation in the complex plane; divided positions send nothing."""
    for placement in ({}, {"a": S(0)}, {"a": S(1)}, {"a": S(2)}):
        x = put(Q, TWO, **placement)
        with sx.debug.trace() as trace:
            y = nn.rope(x, neighbours=neighbours)
        assert not trace
        close(y, turned(Q, np.arange(5), neighbours))
        found = gradients(lambda x: nn.rope(x, neighbours=neighbours), x)[0]
        close(found, slope(weighted(lambda x: turned(x, np.arange(5), neighbours)), (Q,), 0), 1e-8)


def test_rope_at_given_positions_and_with_a_table() -> None:
    at = np.array([[3, 1, 0, 9, 2], [0, 1, 2, 3, 4]])
    close(nn.rope(put(Q), at), turned(Q, at, False))
    close(nn.rope(put(Q), table=nn.rope_table(5, 6, mesh=ALONE)), turned(Q, np.arange(5), False))
    assert nn.rope(put(Q.astype("float32"))).dtype == np.float32


def test_masks_and_operands_that_do_not_fit() -> None:
    q, k, v = map(put, (Q, K, V))
    for mask in (MASK[0, 0, 0], MASK[..., 1:], MASK[:, :, 1:], HEADS[:, 1:]):
        with pytest.raises(sx.errors.ShapeError, match="a mask of shape"):
            nn.attention(q, k, v, mask=mask)
    with pytest.raises(sx.errors.DtypeError, match="Write mask=mask != 0"):
        nn.attention(q, k, v, mask=MASK.astype(int))
    with pytest.raises(sx.errors.DtypeError, match="k is int64"):
        nn.attention(q, k.astype(int), v)
    with pytest.raises(sx.errors.DtypeError, match="rope"):
        nn.rope(q.astype(int))
