"""The device's kernels against the CPU's: random values, activations and packing exact, sums and attention close.

Without a GPU the kernels' source runs on the CPU, thread by thread, with guards around every array.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from spmdx.runtime import boxes, draws, kernels, launch
from spmdx.runtime.gpu import here

KEYS = {"philox": (7, 1, 2, 3), "threefry": (5, 9)}
SLOW = pytest.mark.slow  # compiling the sources for each dtype takes most of the time
FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
MOSTLY_SLOW = [t if t is ml_dtypes.bfloat16 else pytest.param(t, marks=SLOW) for t in FLOATS]
# Global shapes, and what a block holds: all, a part, ragged or interleaved pieces in several dimensions, nothing.
BLOCKS: dict[str, tuple[tuple[int, ...], list[list[tuple[int, int]]]]] = {
    "whole": ((5, 7, 6), [[(0, 5)], [(0, 7)], [(0, 6)]]),
    "rows": ((50, 7), [[(3, 31)], [(0, 7)]]),
    "columns": ((9, 700), [[(0, 9)], [(13, 401)]]),
    "middle": ((4, 9, 5), [[(1, 3)], [(2, 8)], [(0, 5)]]),
    "pieces": ((6, 12), [[(0, 2), (4, 5)], [(1, 3), (5, 6), (9, 12)]]),
    "far": ((2**20, 2**20), [[(5, 7)], [(2**19 + 1, 2**19 + 40)]]),
    "none": ((6, 4), [[(0, 6)], [(2, 2)]]),
    "scalar": ((), []),
}
DRAWS: dict[str, Any] = {
    "bits": lambda k, *at: [k.bits(*at, np.dtype(t)) for t in ("u1", "u2", "u4", "u8")],
    "uniform": lambda k, *at: [k.uniform(*at, np.dtype(t), -1.5, 2.0) for t in FLOATS],
    "normal": lambda k, *at: [k.normal(*at, np.dtype(t)) for t in FLOATS],
    "complex": lambda k, *at: [k.complex_normal(*at, np.dtype(t)) for t in ("c8", "c16")],
    "randint": lambda k, *at: [
        k.randint(*at, np.dtype(t), low, high)
        for t, low, high in [("i1", -5, 100), ("u2", 3, 4), ("i4", -(2**31), 2**31), ("u4", 5, 17), ("i8", -9, 2**40),
                             ("u8", 0, 2**64), ("u8", 2, 2**63 + 9)]
    ],
    "bernoulli": lambda k, *at: [k.bernoulli(*at, 0.3)],
    "continuous": lambda k, *at: [
        k.continuous(name, *at, np.dtype(t))
        for name in ("exponential", "gumbel", "rayleigh", "laplace", "logistic", "cauchy") for t in FLOATS
    ] + [k.continuous("unit", *at, np.dtype("f4"))],
    "truncated": lambda k, *at: [k.truncated_normal(*at, np.dtype(t), -1.0, 2.5) for t in FLOATS],
    "open": lambda k, *at: [k.open_uniform(*at, np.dtype(t)) for t in ("f4", "f8")],
    "streams": lambda k, *at: [
        k.streams("gamma", *at, 0.3), k.streams("gamma", *at, 4.5), k.streams("log_gamma", *at, 0.01),
        k.streams("poisson", *at, 3.0), k.streams("poisson", *at, 1e4), k.streams("binomial", *at, 20.0, 0.2),
        k.streams("binomial", *at, 1e6, 0.7),
    ],
}  # fmt: skip


def same(a: Any, b: Any) -> bool:
    """The same bits, NaNs' too."""
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("generator", ["philox", pytest.param("threefry", marks=SLOW)])
@pytest.mark.parametrize("block", [b if b == "pieces" else pytest.param(b, marks=SLOW) for b in BLOCKS])
@pytest.mark.parametrize("draw", DRAWS)
def test_random_values(draw: str, block: str, generator: str, device: Any) -> None:
    """Exact: every distribution and dtype, of every kind of block."""
    shape, intervals = BLOCKS[block]
    at = (KEYS[generator], shape, intervals)
    with np.errstate(all="ignore"):
        wanted, found = DRAWS[draw](kernels.HOST, *at), DRAWS[draw](kernels.on("cuda"), *at)
    for w, f in zip(wanted, found):
        assert same(f.get(), w), (draw, w.dtype, f.get(), w)


@pytest.mark.parametrize("dtype", [*FLOATS, np.complex64, np.complex128])
@pytest.mark.parametrize("block", ["whole", "columns", "pieces"])
def test_dropout(block: str, dtype: Any, device: Any) -> None:
    """Exact."""
    shape, intervals = BLOCKS[block]
    x = np.random.default_rng(0).normal(size=kernels.empty(intervals, np.dtype("f8")).shape).astype(dtype)
    for words in KEYS.values():
        wanted = kernels.dropout(words, shape, intervals, x, 0.7)
        on = kernels.on("cuda")
        given = here().xp.asarray(x)
        assert same(on.dropout(words, shape, intervals, given, 0.7).get(), wanted)
        data = here().xp.asarray(np.array(words, np.uint32))
        assert same(on.dropout(data, shape, intervals, given, 0.7).get(), wanted)


def test_functions(device: Any) -> None:
    """Exact: those of cuda/map.h, with operands that stand for all."""
    draw, xp, on = np.random.default_rng(1), here().xp, kernels.on("cuda")
    x, p = draw.normal(size=1000), draw.random(1000)
    counts = draw.integers(0, 50, 1000).astype(float)
    cases = [
        ("exp64", x * 100), ("exp32", (x * 30).astype("f4")), ("log64", p), ("log1p", x * 0.2), ("ndtr", x * 5),
        ("ndtri", p), ("truncated", p, -1.0, 2.0), ("between64", p, -1.0, 2.0, 0.999), ("log_poisson", counts, 7.0),
        ("between32", p.astype("f4"), -1.0, 2.0, 0.5), ("log_binomial", counts, 60.0, 0.3),
        ("multiply_high", draw.integers(0, 2**63, 9).astype("u8"), np.array(11, "u8")),
    ]  # fmt: skip
    for name, *operands in cases:
        wanted = kernels.apply(name, *operands)
        assert same(on.apply(name, *(xp.asarray(o) if np.ndim(o) else o for o in operands)).get(), wanted), name


ACTIVATIONS = {
    "gelu": (1, 0), "gelu_back": (2, 0), "gelu_erf": (1, 0), "gelu_erf_back": (2, 0), "silu": (1, 0),
    "silu_back": (2, 0), "swiglu": (2, 0), "mix": (2, 2), "mix_square": (2, 2), "adam_step": (2, 3),
    "adamw_step": (3, 4),
}  # fmt: skip


@pytest.mark.parametrize("dtype", MOSTLY_SLOW)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str, dtype: Any, device: Any) -> None:
    """Exact, float16 and bfloat16 computed in float32 and rounded once; also where blocks lie apart from 16 bytes."""
    arrays, numbers = ACTIVATIONS[name]
    draw, xp, wide = np.random.default_rng(2), here().xp, np.float64 if dtype is np.float64 else np.float32
    for n, start in [(1037, 0), (64, 0), (33, 1), (1, 0)]:
        inputs = [np.abs(draw.normal(size=n + start) * 3).astype(dtype) for _ in range(arrays)]
        inputs[0] *= np.array(-1, dtype)
        given = [0.9, 0.1, 1e-8, 0.01][:numbers]
        wanted = np.empty(n, wide)
        kernels.activate(wanted, name, [np.ascontiguousarray(x[start:], wide) for x in inputs], given)
        out = xp.empty(n, np.dtype(dtype))
        kernels.on("cuda").build.activate(out, name, [xp.asarray(x)[start:] for x in inputs], given)
        assert same(out.get(), wanted.astype(dtype))


ROWS = [(3, 8), (5, 129), (2, 1024), (1, 40000), (300, 16), (4, 1), (7, 2050)]
CLOSE = {np.float16: 2e-3, ml_dtypes.bfloat16: 2e-2, np.float32: 2e-6, np.float64: 1e-13}


def close(found: Any, wanted: Any, dtype: Any, scale: float = 1.0) -> None:
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    assert a.shape == b.shape
    error = np.abs(a - b) / np.maximum(1.0, np.abs(b))
    assert (error <= CLOSE[dtype] * scale).all(), error.max()


@pytest.mark.parametrize("dtype", MOSTLY_SLOW)
@pytest.mark.parametrize("centered", [True, False])
def test_norms(centered: bool, dtype: Any, device: Any) -> None:
    """Close to float64: rows in registers, rows read again, rows of odd lengths; with and without scale and bias."""
    draw, xp, build = np.random.default_rng(3), here().xp, kernels.on("cuda").build
    for rows, n in ROWS:
        x, g = (draw.normal(size=(rows, n)).astype(dtype) for _ in range(2))
        scale, bias = (draw.normal(size=n).astype(dtype) for _ in range(2))
        for s, b in [(scale, bias), (None, None)]:
            dev = [None if a is None else xp.asarray(a) for a in (x, s, b, g)]
            ref = [None if a is None else a.astype(np.float64) for a in (x, s, b, g)]
            wanted, out = np.zeros((rows, n)), xp.zeros((rows, n), np.dtype(dtype))
            kernels.HOST.build.norm(wanted, *ref[:3], 1e-5, centered)
            build.norm(out, *dev[:3], 1e-5, centered)
            close(out.get(), wanted, dtype, 4 if n > 1 else 400)
            wants = [np.zeros((rows, n)), np.zeros(n), np.zeros(n)]
            outs = [xp.zeros(w.shape, np.dtype(dtype)) for w in wants]
            kernels.HOST.build.norm_back(*wants, ref[0], ref[1], ref[3], 1e-5, centered)
            build.norm_back(*outs, dev[0], dev[1], dev[3], 1e-5, centered)
            for out, wanted, loose in zip(outs, wants, (4 if n > 1 else 400, 40, 40)):
                close(out.get(), wanted, dtype, loose)


@pytest.mark.parametrize("dtype", MOSTLY_SLOW)
def test_bias_and_gelu(dtype: Any, device: Any) -> None:
    """Exact, as the CPU's: rows that are whole packs, and rows that are not."""
    draw, xp, wide = np.random.default_rng(5), here().xp, np.float64 if dtype is np.float64 else np.float32
    for rows, n in [(5, 48), (3, 7), (1, 1)]:
        x, g = (draw.normal(size=(rows, n)).astype(dtype) for _ in range(2))
        bias, dev = draw.normal(size=n).astype(dtype), kernels.on("cuda").build
        for slope in (None, g):
            wanted, out = np.empty((rows, n), wide), xp.empty((rows, n), np.dtype(dtype))
            given = [None if a is None else a.astype(wide) for a in (x, bias, slope)]
            kernels.HOST.build.bias_gelu(wanted, *given, None)
            dev.bias_gelu(out, *(None if a is None else xp.asarray(a) for a in (x, bias, slope)), None)
            assert same(out.get(), wanted.astype(dtype))
        total = xp.empty(n, np.dtype(dtype))
        dev.bias_gelu(out, xp.asarray(x), xp.asarray(bias), xp.asarray(g), total)
        close(total.get(), out.get().astype(np.float64).sum(0), dtype, 10)


@pytest.mark.parametrize("dtype", MOSTLY_SLOW)
def test_softmax(dtype: Any, device: Any) -> None:
    """Close to float64, with its gradient; NaN and infinities where NumPy has them."""
    draw, xp, build = np.random.default_rng(4), here().xp, kernels.on("cuda").build
    for rows, n in ROWS:
        x = (draw.normal(size=(rows, n)) * 5).astype(dtype)
        wide = x.astype(np.float64)
        powers = np.exp(wide - wide.max(1, keepdims=True))
        total = powers.sum(1, keepdims=True)
        for logarithm in (False, True):
            out = xp.zeros((rows, n), np.dtype(dtype))
            build.softmax(out, xp.asarray(x), logarithm)
            wanted = wide - wide.max(1, keepdims=True) - np.log(total) if logarithm else powers / total
            close(out.get(), wanted, dtype, 4)
            made, g = wanted.astype(dtype), draw.normal(size=(rows, n)).astype(dtype)
            y, slope = made.astype(np.float64), g.astype(np.float64)
            sums = (slope if logarithm else slope * y).sum(1, keepdims=True)
            build.softmax_back(out, xp.asarray(made), xp.asarray(g), logarithm)
            close(out.get(), slope - np.exp(y) * sums if logarithm else y * (slope - sums), dtype, 40)
    odd = np.array([[1.0, np.nan, 2.0, 0.0], [np.inf, 0, 0, 0], [-np.inf] * 4, [-np.inf, 0, 0, 0]], np.float32)
    for logarithm in (False, True):
        out = xp.zeros((4, 4), np.dtype(np.float32))
        build.softmax(out, xp.asarray(odd), logarithm)
        assert np.isnan(out.get()[:3]).all()
        assert np.isfinite(out.get()[3, 1:]).all()


@pytest.mark.parametrize("dtype", MOSTLY_SLOW)
def test_cross_entropy(dtype: Any, device: Any) -> None:
    """Close to float64: the sums of powers, and the gradient, with labels of other blocks among them."""
    draw, xp, build = np.random.default_rng(5), here().xp, kernels.on("cuda").build
    wide = np.float64 if dtype is np.float64 else np.float32
    for rows, n in ROWS:
        x = draw.normal(size=(rows, n)).astype(dtype)
        top, g = x.astype(np.float64).max(1), draw.normal(size=rows)
        labels = draw.integers(-1, n, rows)
        sums = np.exp(x.astype(np.float64) - top[:, None]).sum(1)
        out = xp.zeros(rows, np.dtype(wide))
        build.sum_exp(out, xp.asarray(x), xp.asarray(top.astype(wide)))
        close(out.get(), sums, np.float64 if wide is np.float64 else np.float32, 4)
        back = np.exp(x.astype(np.float64) - top[:, None]) / sums[:, None] - 0.1 / n
        back[np.arange(rows)[labels >= 0], labels[labels >= 0]] -= 0.9
        got = xp.zeros((rows, n), np.dtype(dtype))
        given = [xp.asarray(a.astype(wide)) for a in (top, 1 / sums, g)]
        build.cross_back(got, xp.asarray(x), *given, xp.asarray(labels), 0.1 / n, 0.9)
        close(got.get(), g[:, None] * back, dtype, 4)


ATTENTION = [
    # leading dimensions, heads, rows, columns, inner, outer, mask, limits
    ((), 1, 3, 5, 4, 6, False, False),
    ((2,), 3, 33, 40, 16, 24, True, False),
    ((2, 1), 2, 70, 70, 64, 64, False, True),
    ((1,), 1, 40, 97, 100, 128, True, True),
    ((3,), 1, 5, 9, 200, 256, False, False),
]


@pytest.mark.parametrize("dtype", MOSTLY_SLOW)
@pytest.mark.parametrize("case", [0, 1, *(pytest.param(i, marks=SLOW) for i in range(2, len(ATTENTION)))])
def test_attention(case: int, dtype: Any, device: Any) -> None:
    """Close to the CPU's kernel in float64: output and gradients; heads that share k and v; rows that see nothing."""
    lead, heads, rows, columns, inner, outer, masked, limited = ATTENTION[case]
    draw, xp, build = np.random.default_rng(6), here().xp, kernels.on("cuda").build
    q, k, v = (
        draw.normal(size=(*lead, *s)).astype(dtype) for s in ((heads, rows, inner), (columns, inner), (columns, outer))
    )
    g = draw.normal(size=(*lead, heads, rows, outer)).astype(dtype)
    some = draw.random((*lead, 1, rows, columns)) < 0.7
    mask = np.broadcast_to(some, (*lead, heads, rows, columns)) if masked else None
    limits = np.arange(rows) + columns - rows - 2 if limited else None
    wide = [a.astype(np.float64) for a in (q, k, v, g)]
    wanted = np.zeros((*lead, heads, rows, outer))
    kernels.attend(*wide[:3], mask, limits, 0.3, None, wanted, None, None, None)
    dev = [xp.asarray(a) for a in (q, k, v, g)]
    seen = [None if a is None else xp.asarray(np.array(a)) for a in (mask, limits)]
    out = xp.zeros(wanted.shape, np.dtype(dtype))
    build.attend(*dev[:3], *seen, 0.3, None, out, None, None, None)
    close(out.get(), wanted, dtype, 4)
    if dtype is np.float64 and inner + outer > 400:
        with pytest.raises(NotImplementedError, match="rows of 200 and 256"):  # more than a block's shared memory
            build.attend(*dev[:3], *seen, 0.3, dev[3], out, out, None, None)
        return
    slopes = [np.zeros(a.shape) for a in (q, k, v)]
    kernels.attend(*wide[:3], mask, limits, 0.3, wide[3], wanted, *slopes)
    both = xp.zeros((*lead, columns, inner + outer), np.dtype(dtype))  # side by side: rows lie apart
    to_q = xp.zeros(q.shape, np.dtype(dtype))
    build.attend(*dev[:3], *seen, 0.3, dev[3], out, to_q, both[..., :inner], both[..., inner:])
    close(to_q.get(), slopes[0], dtype, 40)
    close(both.get(), np.concatenate(slopes[1:], -1), dtype, 100)


def test_attention_over_more_rows_than_a_grid_has(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact: the same whether a block has one row of each warp or goes over many; too many are an error before it."""
    draw, xp, build = np.random.default_rng(6), here().xp, kernels.on("cuda").build
    q, k, v, g = (xp.asarray(draw.normal(size=(2, 20, 8)).astype("f4")) for _ in range(4))
    k, v, found = k[:1].reshape(20, 8), v[:1].reshape(20, 8), []
    for most in (65535, 1):
        monkeypatch.setattr(launch, "MOST_ALONG", most)
        out, to_q = (xp.zeros(q.shape, np.dtype("f4")) for _ in range(2))
        build.attend(q, k, v, None, None, 0.3, None, out, None, None, None)
        build.attend(q, k, v, None, None, 0.3, g, out, to_q, None, None)
        found.append(to_q.get())
    assert found[0].any() and same(*found)
    monkeypatch.setattr(launch, "MOST_ALONG", 0)
    with pytest.raises(NotImplementedError, match="attention over 20 rows"):
        build.attend(q, k, v, None, None, 0.3, None, out, None, None, None)


@pytest.mark.parametrize("dtype", MOSTLY_SLOW)
def test_rotations(dtype: Any, device: Any) -> None:
    """Close: halves and neighbours, with angles of every row or of the sequence."""
    draw, xp, build = np.random.default_rng(7), here().xp, kernels.on("cuda").build
    x = draw.normal(size=(2, 5, 3, 8)).astype(dtype)
    for lead in ((5,), (2, 5)):
        angle = draw.normal(size=(*lead, 4))
        wide = np.float64 if dtype is np.float64 else np.float32
        for neighbours in (False, True):
            a, b = (x[..., 0::2], x[..., 1::2]) if neighbours else (x[..., :4], x[..., 4:])
            a, b = a.astype(np.float64), b.astype(np.float64)
            c, s = np.cos(angle)[..., None, :], np.sin(angle)[..., None, :]
            wanted = np.empty(x.shape)
            first, second = (wanted[..., 0::2], wanted[..., 1::2]) if neighbours else (wanted[..., :4], wanted[..., 4:])
            first[...], second[...] = a * c - b * s, b * c + a * s
            out = xp.empty(x.shape, np.dtype(dtype))
            given = [xp.asarray(f(angle).astype(wide)) for f in (np.cos, np.sin)]
            build.rotate(out, xp.asarray(x), *given, neighbours)
            close(out.get(), wanted, dtype, 2)


class Part:
    """Boxes of a block, as geometry lists them."""

    def __init__(self, *found: tuple[slice, ...]) -> None:
        self.boxes, self.shapes = found, [tuple(s.stop - s.start for s in box) for box in found]


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8, 16])
def test_boxes(itemsize: int, device: Any) -> None:
    """Exact: packed as one box after another is, member by member, and back; more blocks than one launch takes."""
    dtype = {1: "u1", 2: "u2", 4: "f4", 8: "f8", 16: "c16"}[itemsize]
    draw, xp, launch = np.random.default_rng(8), here().xp, here().launch
    shapes = [(5, 6, 8), (7,), (3, 9), ()] * 5
    blocks = [draw.integers(0, 250, s).astype(dtype) for s in shapes]

    def cut(shape: tuple[int, ...], member: int) -> Part:
        if not shape:
            return Part(()) if member == 0 else Part()
        n = shape[-1]
        ends = [slice(0, n // 3), slice(n // 3, n)]
        rest = tuple(slice(0, m) for m in shape[:-1])
        if len(shape) == 3 and member:
            return Part((slice(0, 2), *rest[1:], ends[1]), (slice(2, 5), slice(1, 4), ends[1]))
        return Part((*rest, ends[member]))

    parts = [[cut(s, member) for s in shapes] for member in range(2)]
    flat = np.concatenate([b[box].ravel() for own in parts for b, part in zip(blocks, own) for box in part.boxes])
    plan, dev = boxes.Plan(parts, shapes, itemsize), [xp.asarray(b) for b in blocks]
    out = xp.empty(len(flat), np.dtype(dtype))
    launch.copy(plan, dev, out, True)
    assert same(out.get(), flat)
    fresh = [xp.zeros(s, np.dtype(dtype)) for s in shapes]
    launch.copy(plan, fresh, out, False)
    for block, got, *own in zip(blocks, fresh, *parts):
        wanted = np.zeros_like(block)
        for part in own:
            for box in part.boxes:
                wanted[box] = block[box]
        assert same(got.get(), wanted)


def test_moduli() -> None:
    """Exact: the magic numbers of remainders."""
    draw = np.random.default_rng(9)
    for bits in (32, 64):
        for divisor in [2, 3, 7, 10, 2**bits - 1, 2 ** (bits - 1) + 1, 2**20, *draw.integers(2, 2**31, 50).tolist()]:
            d, magic, shift = draws.modulus(divisor, bits)
            for x in [0, 1, d - 1, d, 2**bits - 1, *draw.integers(0, 2**31, 20).tolist()]:
                high = x * magic >> bits
                assert x - ((((x - high) % 2**bits >> 1) + high) % 2**bits >> shift) * d == x % d
