"""Examples of what networks and optimizers are made of; the oracles are the textbook's formulas."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
from case import Case, values

from spmdx import random
from spmdx.ops import arithmetic, attend, likelihood, neural, rotate, special, update, windows

CLOSE = 1e-12
WORDS = random.key_data(random.key(3))
CASES: list[Case] = []
erf = np.vectorize(math.erf, otypes=[float])


def sigmoid(x: object) -> object:
    return 1 / (1 + np.exp(-x))


# Activations, and their slopes


def tanh_gelu(x: object) -> object:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def tanh_slope(x: object) -> object:
    t = np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * x * x)


def erf_gelu(x: object) -> object:
    return 0.5 * x * (1 + erf(x / np.sqrt(2)))


def erf_slope(x: object) -> object:
    return 0.5 * (1 + erf(x / np.sqrt(2))) + x * np.exp(-x * x / 2) / np.sqrt(2 * np.pi)


def silu(x: object) -> object:
    return x * sigmoid(x)


def silu_slope(x: object) -> object:
    return sigmoid(x) * (1 + x * (1 - sigmoid(x)))


for shape in ((5, 7), (0, 3), ()):
    x, g = np.asarray(2 * values(*shape)), values(*shape, seed=1)
    for name, f in (("gelu_tanh", tanh_gelu), ("gelu_erf", erf_gelu), ("silu", silu)):
        CASES.append(Case(name, getattr(neural, f"_{name}"), f, (x,), CLOSE, (0,)))
    for name, f in (("gelu_tanh_back", tanh_slope), ("gelu_erf_back", erf_slope), ("silu_back", silu_slope)):
        CASES.append(Case(name, getattr(neural, f"_{name}"), lambda g, x, f=f: g * f(x), (g, x), CLOSE))
    CASES += [
        Case("bias_gelu", neural._bias_gelu, lambda x, b: tanh_gelu(x + b), (x, g), CLOSE),
        Case("bias_gelu_back", neural._bias_gelu_back, lambda g, x, b: g * tanh_slope(x + b), (g, x, x), CLOSE),
    ]
    CASES.append(Case("erf", special.erf, lambda x: erf(x), (x,), 1e-15, (0,)))
    CASES.append(Case("swiglu", neural._swiglu, lambda gate, x: silu(gate) * x, (x, g), CLOSE, (0, 1)))
for dtype, close in (("float16", 2e-3), (ml_dtypes.bfloat16, 1e-2), ("float32", 1e-6)):
    x = values(3, 5).astype(dtype)
    for name, f in (("gelu_tanh", tanh_gelu), ("gelu_erf", erf_gelu), ("silu", silu)):
        oracle = lambda x, f=f: f(x.astype(float)).astype(x.dtype)  # noqa: E731  # one line of a table
        CASES.append(Case(name, getattr(neural, f"_{name}"), oracle, (x,), close))
CASES.append(Case("silu", neural._silu, silu, (np.array([-800.0, 800.0, 0.0]),), CLOSE))

x, g, bias = values(5, 7), values(5, 7, seed=1), values(7, seed=2)
CASES += [
    Case("bias_gelu", neural._bias_gelu, lambda x, b: tanh_gelu(x + b), (x, bias), CLOSE),
    Case("bias_gelu", neural._bias_gelu, lambda x, b: tanh_gelu(x + b), (bias, x), CLOSE),
    Case("bias_gelu_back", neural._bias_gelu_back, lambda g, x, b: g * tanh_slope(x + b), (g, x, bias), CLOSE),
]

# What an extreme with a number passes on


def passed(g: object, x: object, bound: float, ties: float, sign: float) -> object:
    return np.where(x == bound, g * g.dtype.type(ties), np.where(sign * x > sign * bound, g, g.dtype.type(0)))


for dtype in ("float64", "float32", ml_dtypes.bfloat16):
    x, g = np.round(2 * values(5, 7)).astype(dtype), values(5, 7, seed=1).astype(dtype)
    for numbers in ((1.0, 0.5, 1), (0, 0, 1), (1.0, 0.5, -1)):
        call, oracle = (lambda g, x, f=f, n=numbers: f(g, x, *n) for f in (arithmetic._passed, passed))
        CASES.append(Case("passed", call, oracle, (g, x)))
CASES.append(Case("beside", attend._beside, lambda x: x, (values(5, 7),), 0, (0,)))
CASES.append(Case("gradient_beside", attend._gradient_beside, lambda x: x, (values(5, 7),), 0, (0,)))

# Norms


def normal(x: object, centered: bool) -> object:
    x = x - x.mean(-1, keepdims=True) if centered else x
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-3)


def normal_back(g: object, x: object, scale: object, centered: bool) -> object:
    low = x - x.mean(-1, keepdims=True) if centered else x
    root = 1 / np.sqrt((low * low).mean(-1, keepdims=True) + 1e-3)
    y, d = low * root, g * scale
    d = d - y * (d * y).mean(-1, keepdims=True) - (d.mean(-1, keepdims=True) if centered else 0)
    return d * root


for shape in ((5, 4), (0, 3), (3,)):
    x, g = values(*shape), values(*shape, seed=1)
    scale, bias = values(shape[-1], seed=2), values(shape[-1], seed=3)
    for centered in (True, False) if shape == (5, 4) else (True,):
        c = {"centered": centered}
        CASES += [
            Case(
                "norm",
                lambda x, s, b, c=c: neural._norm(x, s, b, 1e-3, **c),
                lambda x, s, b, c=c: normal(x, **c) * s + b,
                (x, scale, bias),
                CLOSE,
            ),
            Case(
                "norm", lambda x, c=c: neural._norm(x, 1.0, 0.0, 1e-3, **c), lambda x, c=c: normal(x, **c), (x,), CLOSE
            ),
            Case(
                "norm_back",
                lambda g, x, s, c=c: neural._norm_back(g, x, s, 1e-3, **c),
                lambda g, x, s, c=c: normal_back(g, x, s, **c),
                (g, x, scale),
                CLOSE,
            ),
            Case(
                "norm_scale_back",
                lambda g, x, c=c: neural._norm_scale_back(g, x, 1e-3, **c),
                lambda g, x, c=c: (g * normal(x, **c)).sum(tuple(range(x.ndim - 1))),
                (g, x),
                CLOSE,
            ),
        ]

# Cross-entropy

logits, labels = values(5, 7), np.array([0, 6, 3, 3, 1])
CASES += [
    Case("from_zero", lambda i: likelihood._from_zero(i, 7), lambda i: i, (labels,)),
    Case("sum_exp", likelihood._sum_exp, lambda x, t: np.exp(x - t[..., None]).sum(-1), (logits, values(5)), CLOSE),
    Case("sum_exp", likelihood._sum_exp, lambda x, t: np.exp(x).sum(-1), (values(3, 0), values(3)), CLOSE),
    Case("sum_exp", likelihood._sum_exp, lambda x, t: t, (values(0, 3), values(0)), CLOSE),
    Case("sum_low", likelihood._sum_low, lambda x, t: (x - t[..., None]).sum(-1), (logits, values(5)), CLOSE),
    Case("sum_low", likelihood._sum_low, lambda x, t: 0 * t, (values(3, 0), values(3)), CLOSE),
]
for smooth in (0.0, 0.25):
    CASES.append(
        Case(
            "cross_entropy_back",
            lambda g, x, t, z, i, s=smooth: likelihood._cross_entropy_back(g, x, t, z, i, s, 7),
            lambda g, x, t, z, i, s=smooth: (
                g[:, None] * (np.exp(x - t[:, None]) / z[:, None] - (1 - s) * np.eye(7)[i] - s / 7)
            ),
            (values(5), logits, values(5), np.exp(logits).sum(-1), labels),
            CLOSE,
        )
    )

# Attention


def weights(q: object, k: object, mask: object, offset: int | None) -> object:
    scores = 0.5 * q @ np.swapaxes(k, -1, -2)[..., None, :, :]
    seen = np.broadcast_to(True if mask is True else mask, scores.shape)
    if offset is not None:
        seen = seen & np.tri(*scores.shape[-2:], offset, dtype=bool)
    scores = np.where(seen, scores, -1e30)
    powers = np.where(seen, np.exp(scores - scores.max(-1, keepdims=True)), 0)
    total = powers.sum(-1, keepdims=True)
    return powers / np.where(total == 0, 1, total)


def kept(shape: tuple[int, ...], rate: float) -> object:
    """What dropout multiplies weights by."""
    return random.bernoulli(random.wrap_key_data(WORDS), shape, 1 - rate).numpy() / (1 - rate) if rate else 1.0


def attention(q: object, k: object, v: object, mask: object, offset: int | None, rate: float = 0) -> object:
    w = weights(q, k, mask, offset)
    return (w * kept(w.shape, rate)) @ v[..., None, :, :]


def slopes(
    g: object, q: object, k: object, v: object, mask: object, offset: int | None, rate: float = 0
) -> tuple[object, object]:
    w = weights(q, k, mask, offset)
    by = kept(w.shape, rate)
    d = g @ np.swapaxes(v, -1, -2)[..., None, :, :] * by
    return w * by, 0.5 * w * (d - (d * w).sum(-1, keepdims=True))


def rows_back(g: object, q: object, k: object, v: object, mask: object, offset: int | None, rate: float = 0) -> object:
    return slopes(g, q, k, v, mask, offset, rate)[1] @ k[..., None, :, :]


def columns_back(
    g: object, q: object, k: object, v: object, mask: object, offset: int | None, rate: float = 0
) -> object:
    w, slope = slopes(g, q, k, v, mask, offset, rate)
    parts = (np.swapaxes(slope, -1, -2) @ q).sum(-3), (np.swapaxes(w, -1, -2) @ g).sum(-3)
    return np.concatenate(parts, -1)


def all_back(g: object, q: object, k: object, v: object, mask: object, offset: int | None, rate: float = 0) -> object:
    rows, columns = (back(g, q, k, v, mask, offset, rate) for back in (rows_back, columns_back))
    n = k.shape[-1]
    if q.shape[-2:] == k.shape[-2:] == v.shape[-2:]:
        return np.concatenate([rows, columns[..., None, :, :n], columns[..., None, :, n:]], -3)
    flat = (x.reshape((*columns.shape[:-2], -1)) for x in (rows, columns[..., :n], columns[..., n:]))
    return np.concatenate([*flat], -1)


q, k, v, g = values(2, 4, 2), values(5, 2, seed=1), values(5, 3, seed=2), values(2, 4, 3, seed=3)
seen = values(1, 4, 5, kind="bool")
seen[0, 1] = False
for mask, offset in ((True, 1), (seen, None), (seen, 1)):
    more = () if mask is True else (mask,)
    out = attention(q, k, v, mask, offset)
    CASES += [
        Case(
            "attend",
            lambda q, k, v, *m, o=offset: attend._attend(q, k, v, m[0] if m else True, 0.5, True, 0, o),
            lambda q, k, v, *m, o=offset: attention(q, k, v, m[0] if m else True, o),
            (q, k, v, *more),
            CLOSE,
        ),
        Case(
            "attend_rows_back",
            lambda g, out, q, k, v, *m, o=offset: attend._attend_rows_back(
                g, out, q, k, v, m[0] if m else True, 0.5, True, 0, o
            ),
            lambda g, out, q, k, v, *m, o=offset: rows_back(g, q, k, v, m[0] if m else True, o),
            (g, out, q, k, v, *more),
            CLOSE,
        ),
        Case(
            "attend_columns_back",
            lambda g, out, q, k, v, *m, o=offset: attend._attend_columns_back(
                g, out, q, k, v, m[0] if m else True, 0.5, True, 0, o
            ),
            lambda g, out, q, k, v, *m, o=offset: columns_back(g, q, k, v, m[0] if m else True, o),
            (g, out, q, k, v, *more),
            CLOSE,
        ),
        Case(
            "attend_back",
            lambda g, out, q, k, v, *m, o=offset: attend._attend_back(
                g, out, q, k, v, m[0] if m else True, 0.5, True, 0, o
            ),
            lambda g, out, q, k, v, *m, o=offset: all_back(g, q, k, v, m[0] if m else True, o),
            (g, out, q, k, v, *more),
            CLOSE,
        ),
    ]
# Dropout of the weights that bernoulli's numbers tell. First k has a batch that q has not, and q heads that k has not.
q, k, v = values(2, 2, 3, 2), values(3, 1, 4, 2, seed=1), values(3, 1, 4, 3, seed=2)
for more, offset, rate in (((), 1, 0.4), ((values(2, 1, 3, 4, kind="bool"),), None, 0.75)):
    CASES.append(
        Case(
            "attend",
            lambda q, k, v, *m, o=offset, r=rate: attend._attend(q, k, v, *(m or (True,)), 0.5, WORDS, r, o),
            lambda q, k, v, *m, o=offset, r=rate: attention(q, k, v, *(m or (True,)), o, r),
            (q, k, v, *more),
            CLOSE,
        )
    )
k, v, g = values(2, 4, 2, seed=1), values(2, 4, 3, seed=2), values(2, 2, 3, 3, seed=3)
CASES += [
    Case(
        back.__name__,
        lambda g, out, q, k, v, b=back: b(g, out, q, k, v, True, 0.5, WORDS, 0.4, 1),
        lambda g, out, q, k, v, b=oracle: b(g, q, k, v, True, 1, 0.4),
        (g, attention(q, k, v, True, 1, 0.4), q, k, v),
        CLOSE,
    )
    for back, oracle in (
        (attend._attend_rows_back, rows_back),
        (attend._attend_columns_back, columns_back),
        (attend._attend_back, all_back),
    )
]
batched = values(2, 1, 3, 2), values(2, 2, 2, seed=1), values(2, 2, 3, seed=2)
alike = values(2, 2, 3, 2, seed=4), values(2, 3, 2, seed=5), values(2, 3, 2, seed=6)
nothing = values(1, 1, 2, 2), values(1, 0, 2), values(1, 0, 3)
CASES += [
    Case(
        "attend",
        lambda q, k, v: attend._attend(q, k, v, True, 0.5, True, 0, None),
        lambda q, k, v: attention(q, k, v, True, None),
        batched,
        CLOSE,
    ),
    Case(
        "attend",
        lambda q, k, v: attend._attend(q, k, v, True, 0.5, True, 0, None),
        lambda q, k, v: np.zeros((1, 1, 2, 3)),
        nothing,
    ),
    Case(  # heads of one size
        "attend_back",
        lambda g, out, q, k, v: attend._attend_back(g, out, q, k, v, True, 0.5, True, 0, 0),
        lambda g, out, q, k, v: all_back(g, q, k, v, True, 0),
        (values(2, 2, 3, 2), attention(*alike, True, 0), *alike),
        CLOSE,
    ),
]


def rotated(x: object, cos: object, sin: object, neighbours: bool) -> object:
    c, s = cos[:, None], sin[:, None]
    a, b = (x[..., ::2], x[..., 1::2]) if neighbours else np.split(x, 2, -1)
    parts = a * c - b * s, b * c + a * s
    return np.stack(parts, -1).reshape(x.shape) if neighbours else np.concatenate(parts, -1)


for neighbours in (False, True):
    CASES.append(
        Case(
            "rotate",
            lambda x, c, s, n=neighbours: rotate._rotate(x, c, s, n),
            lambda x, c, s, n=neighbours: rotated(x, c, s, n),
            (values(2, 5, 3, 4), values(5, 2, seed=1), values(5, 2, seed=2)),
            CLOSE,
            (0,),
        )
    )

# Windows


def windowed(x: object, sizes: object, strides: object, dilations: object) -> object:
    spans = [(n - 1) * d + 1 for n, d in zip(sizes, dilations)]
    view = np.lib.stride_tricks.sliding_window_view(x, spans, tuple(range(-len(sizes), 0)))
    return view[(..., *(slice(None, None, s) for s in strides), *(slice(None, None, d) for d in dilations))]


def overlapped(g: object, sizes: object, strides: object, dilations: object, lengths: object) -> object:
    out = np.zeros((*g.shape[: g.ndim - 2 * len(sizes)], *lengths))
    numbers = windowed(np.arange(out[0].size).reshape(lengths), sizes, strides, dilations)
    for i in range(len(out)):
        np.add.at(out[i].reshape(-1), numbers, g[i])
    return out


for shape, how in (
    ((3, 7), ((3,), (2,), (1,))),
    ((3, 7), ((2,), (1,), (3,))),
    ((2, 5, 4), ((2, 3), (1, 1), (1, 1))),
    ((2, 5, 5), ((2, 2), (2, 3), (2, 1))),
):
    x = values(*shape)
    view = windowed(x, *how)
    CASES += [
        Case("windows", lambda x, h=how: windows._windows(x, *h), lambda x, h=how: windowed(x, *h), (x,), 0, (0,)),
        Case(
            "overlap",
            lambda g, h=how, n=shape[1:]: windows._overlap(g, *h, n),
            lambda g, h=how, n=shape[1:]: overlapped(g, *h, n),
            (values(*view.shape),),
            CLOSE,
            (0,),
        ),
    ]
CASES.append(
    Case("windows", lambda x: windows._windows(x, (3,), (1,), (1,)), lambda x: np.empty((2, 0, 3)), (values(2, 2),))
)

# Optimizers

m, v, p = values(5, 7), values(5, 7, kind="positive"), values(5, 7, seed=2)
CASES += [
    Case("mix", lambda x, y: update._mix(x, 0.9, y, 0.1), lambda x, y: 0.9 * x + 0.1 * y, (m, p), CLOSE),
    Case(
        "mix_square", lambda x, y: update._mix_square(x, 0.9, y, 0.1), lambda x, y: 0.9 * x + 0.1 * y * y, (v, p), CLOSE
    ),
    Case(
        "adam_step",
        lambda m, v, p: update._adam_step(m, v, p, 0.1, 0.5, 1e-3, 0.2),
        lambda m, v, p: -0.1 * m / (np.sqrt(v) / 0.5 + 1e-3) - 0.2 * p,
        (m, v, p),
        CLOSE,
    ),
    Case("square_sum", update._square_sum, lambda x: (x * x).sum(), (m,), CLOSE, grad=(0,)),
    Case("square_sum", update._square_sum, lambda x: (x * x).sum(), (values(0, 3),), CLOSE),
    Case("square_sum", update._square_sum, lambda x: x * x, (np.array(2.5),), CLOSE, grad=(0,)),
    Case("square_sum", update._square_sum, lambda x: (x * 1.0 * x).sum(), (np.array([100, 100], "i1"),), CLOSE),
    Case("square_sum", update._square_sum, lambda x: (abs(x) ** 2).sum(), (m * (1 + 2j),), CLOSE, grad=(0,)),
]
