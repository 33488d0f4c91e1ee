"""Convolutions, pools and patches against loops in NumPy; batch and channels may be divided."""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from helpers import FOUR, TWO, close, draw, gradients, put, slope, verbs, weighted

import spmdx as sx
from spmdx import nn
from spmdx.plans import Plan

S = sx.Shard


def convolved(x: Any, w: Any, b: Any, stride: Any, pads: Any, dilation: Any, groups: int) -> Any:
    """Output by output, as the definition has it; x is [n, c, spatial...]."""
    dims = x.ndim - 2
    x = np.pad(x, [(0, 0), (0, 0), *pads])
    spans = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilation)]
    shape = [(n - s) // t + 1 for n, s, t in zip(x.shape[2:], spans, stride)]
    out = np.zeros((x.shape[0], w.shape[0], *shape))
    inner, outer = w.shape[1], w.shape[0] // groups
    for o, at in product(range(w.shape[0]), product(*map(range, shape))):
        first = o // outer * inner
        cut = tuple(slice(i * t, i * t + s, d) for i, t, s, d in zip(at, stride, spans, dilation))
        part = x[(slice(None), slice(first, first + inner), *cut)]
        out[(slice(None), o, *at)] = (part * w[o]).sum(tuple(range(1, dims + 2)))
    return out if b is None else out + b.reshape(-1, *[1] * dims)


CASES = [
    (nn.conv2d, (2, 4, 6, 5), (6, 4, 3, 2), {}, ((1, 1), ((0, 0), (0, 0)), (1, 1), 1)),
    (
        nn.conv2d,
        (2, 4, 6, 5),
        (6, 2, 3, 3),
        {"stride": 2, "padding": 1, "groups": 2},
        ((2, 2), ((1, 1), (1, 1)), (1, 1), 2),
    ),
    (nn.conv2d, (2, 4, 7, 5), (4, 1, 2, 2), {"dilation": (2, 1), "groups": 4}, ((1, 1), ((0, 0),) * 2, (2, 1), 4)),
    (nn.conv2d, (2, 3, 5, 6), (2, 3, 3, 2), {"padding": "same"}, ((1, 1), ((1, 1), (0, 1)), (1, 1), 1)),
    (nn.conv1d, (2, 4, 8), (6, 4, 3), {"padding": (2, 0), "stride": 2}, ((2,), ((2, 0),), (1,), 1)),
]
WHERE = [
    (TWO, {"a": S(0)}, {}),
    (TWO, {"a": S(1)}, {"a": S(1)}),
    (TWO, {}, {"a": S(0)}),
    (TWO, {"a": S(2)}, {"a": S(2)}),
    (FOUR, {"a": S(0), "b": S(1)}, {"b": S(0)}),
    (FOUR, {"a": sx.Partial(), "b": S(0)}, {"a": S(0), "b": S(1)}),
]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_convolutions(case: int) -> None:
    """Close to 1e-12; gradients close to 1e-8 of central differences."""
    function, x_shape, w_shape, how, known = CASES[case]
    x, w, b = draw(*x_shape), draw(*w_shape, seed=1), draw(w_shape[0], seed=2)
    args = (x, w, b)

    def call(x: Any, w: Any, b: Any) -> Any:
        return function(x, w, b, **how)

    close(call(*map(put, args)), convolved(*args, *known))
    alone = gradients(call, *map(put, args))
    for i in (1, 2):
        close(alone[i], slope(weighted(lambda *a: convolved(*a, *known)), args, i), 1e-8)
    for mesh, of_x, of_w in WHERE:
        given = put(x, mesh, **of_x), put(w, mesh, **of_w), put(b, mesh)
        close(call(*given), convolved(*args, *known))
        for g, want in zip(gradients(call, *given), alone):
            close(g, want.numpy())


def test_divided_channels_send_nothing() -> None:
    x, w = draw(2, 4, 6, 6), draw(6, 4, 3, 3)
    for of_x, of_w in (({"a": S(0), "b": S(1)}, {"b": S(1)}), ({"a": S(0)}, {"b": S(0)})):
        with Plan().on(FOUR), sx.debug.trace() as trace:
            nn.conv2d(put(x, FOUR, **of_x), put(w, FOUR, **of_w), padding=1)
        assert not verbs(trace), trace


def test_without_a_batch() -> None:
    x, w = draw(3, 6, 5), draw(2, 3, 3, 3)
    close(nn.conv2d(put(x), put(w)), convolved(x[None], w, None, (1, 1), ((0, 0),) * 2, (1, 1), 1)[0])


@pytest.mark.parametrize("name", ["max", "avg"])
def test_pools(name: str) -> None:
    pool, reduce = (nn.max_pool, np.max) if name == "max" else (nn.avg_pool, np.mean)
    fill = -np.inf if name == "max" else 0.0
    x = draw(2, 3, 7, 5)

    def oracle(x: Any, size: Any, stride: Any, pad: int) -> Any:
        x = np.pad(x, [(0, 0), (0, 0), (pad, pad), (pad, pad)], constant_values=fill)
        view = np.lib.stride_tricks.sliding_window_view(x, size, (2, 3))[:, :, :: stride[0], :: stride[1]]
        return reduce(view, (-1, -2))

    for how, known in (
        ({"size": 2}, ((2, 2), (2, 2), 0)),
        ({"size": (3, 2), "stride": (2, 1), "padding": 1}, ((3, 2), (2, 1), 1)),
    ):
        want = slope(weighted(lambda x, k=known: oracle(x, *k)), (x,), 0)
        for placement in ({}, {"a": S(0)}, {"a": S(1)}, {"a": S(3)}):
            given = put(x, TWO, **placement)
            close(pool(given, **how), oracle(x, *known))
            close(gradients(lambda x, h=how: pool(x, **h), given)[0], want, 1e-8)
    close(pool(put(x), (2,)), oracle(x, (1, 2), (1, 2), 0))


def test_pools_of_whole_numbers() -> None:
    x = np.arange(-8, 0).reshape(2, 4)
    for dtype in (np.int8, np.int16, np.int64):
        close(nn.max_pool(x.astype(dtype), 2, padding=np.int64(1)), np.array([[-8, -6, -5], [-4, -2, -1]]), 0.0)
    none = nn.max_pool(sx.zeros((2, 4), bool), 2, padding=1)
    assert none.dtype == bool and not none.numpy().any()


def test_patches() -> None:
    x = draw(2, 3, 4, 6)
    want = np.stack(
        [x[:, :, i : i + 2, j : j + 3].reshape(2, -1) for i in (0, 2) for j in (0, 3)],
        1,
    )
    for placement in ({}, {"a": S(0)}):
        y = nn.patchify(put(x, TWO, **placement), (2, 3))
        close(y, want, 0.0)
        close(nn.unpatchify(y, (2, 3), (3, 4, 6)), x, 0.0)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: nn.conv2d(put(draw(2, 3, 5, 5)), put(draw(4, 2, 3, 3))), "in / groups"),
        (lambda: nn.conv2d(put(draw(2, 4, 5, 5)), put(draw(3, 2, 3, 3)), groups=2), "groups=1"),
        (lambda: nn.conv2d(put(draw(2, 3, 5, 5)), put(draw(4, 3, 3, 3)), stride=(1, 2, 3)), "stride"),
        (lambda: nn.patchify(put(draw(3, 5, 6)), 2), "no whole patches"),
        (lambda: nn.conv2d(put(draw(2, 3, 5, 5)), put(draw(4, 3, 3, 3)), stride=1.5), "stride"),
        (lambda: nn.conv2d(put(draw(2, 3, 5, 5)), put(draw(4, 3, 3, 3)), padding=-1), "padding"),
        (lambda: nn.conv2d(put(draw(2, 3, 5, 5)), put(draw(4, 3, 3, 3)), padding="SAME"), 'Write padding=1, "same"'),
        (lambda: nn.max_pool(put(draw(2, 5, 5)), 1.5), "size"),
    ],
)
def test_what_does_not_fit(call: Any, words: str) -> None:
    with pytest.raises(sx.SpmdxError, match=words):
        call()
