"""Activations, norms and attention against plain NumPy in float64, for every instruction set.

Exact: any number of threads; for activations and norms any instruction set. Close: the values, to the bounds below.
"""

from __future__ import annotations

from collections.abc import Callable
from math import erfc
from typing import Any

import numpy as np
import pytest

from spmdx.runtime import kernels

SETS, BUILD = kernels.instruction_sets(), kernels.HOST.build
BOUND = {np.float32: 2e-6, np.float64: 4e-15}  # of the greatest value
RANDOM = np.random.default_rng(5)


def on_every_set(run: Callable[[], list[Any]]) -> list[list[Any]]:
    """What ``run`` gives with each instruction set, and with 1 and 3 threads: bits do not depend on the threads."""
    found = []
    for name in SETS:
        kernels.set_instruction_set(name)
        kernels.set_threads(1)
        found.append(run())
        kernels.set_threads(3)
        for a, b in zip(found[-1], run()):
            assert a.tobytes() == b.tobytes()
    return found


def close(found: Any, want: Any, bound: float) -> None:
    assert np.abs(found - want).max(initial=0) <= bound * max(1.0, np.abs(want).max(initial=0))


def inner(x: Any) -> Any:
    return np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))


def gelu_slope(x: Any) -> Any:
    t = inner(x)
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * x * x)


def below(x: Any) -> Any:
    """The standard normal distribution function."""
    return 0.5 * np.vectorize(erfc, otypes=[float])(-x / np.sqrt(2))


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def silu_slope(x: Any) -> Any:
    return sigmoid(x) * (1 + x * (1 - sigmoid(x)))


ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "gelu": lambda x: 0.5 * x * (1 + inner(x)),
    "gelu_back": lambda g, x: g * gelu_slope(x),
    "gelu_erf": lambda x: x * below(x),
    "gelu_erf_back": lambda g, x: g * (below(x) + x * np.exp(-x * x / 2) / np.sqrt(2 * np.pi)),
    "silu": lambda x: x * sigmoid(x),
    "silu_back": lambda g, x: g * silu_slope(x),
    "swiglu": lambda gate, x: gate * sigmoid(gate) * x,
}


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation(name: str, dtype: Any) -> None:
    want, n = ACTIVATIONS[name], 100_003
    inputs = [RANDOM.uniform(-9, 9, n).astype(dtype) for _ in range(want.__code__.co_argcount)]

    def run() -> list[Any]:
        out = np.empty(n, dtype)
        kernels.activate(out, name, inputs)
        return [out]

    found = [out.tobytes() for [out] in on_every_set(run)]
    assert found == found[:1] * len(SETS)
    close(run()[0], want(*(x.astype(np.float64) for x in inputs)), BOUND[dtype])


def test_activations_at_the_ends() -> None:
    """Close to 1e-20: far out they are the identity or 0, and their slopes 1 or 0; nothing is NaN but of NaN."""
    x = np.array([-3e4, -200, 200, 3e4], np.float32)
    for name, far in (("gelu", False), ("silu", False), ("gelu_erf", True)):
        for back in (False, True):
            given = np.array([*x, *([-np.inf, np.inf] if far and back else [])], np.float32)
            for dtype in BOUND:
                given, out = given.astype(dtype), np.empty(given.size, dtype)
                kernels.activate(out, name + back * "_back", [np.ones_like(given), given] if back else [given])
                np.testing.assert_allclose(out, given > 0 if back else np.where(given > 0, given, 0), atol=1e-20)
                odd = np.full(2, np.nan, dtype)
                kernels.activate(odd, name + back * "_back", [np.ones_like(odd), odd] if back else [odd])
                assert np.isnan(odd).all()


@pytest.mark.parametrize("dtype", BOUND)
def test_gelu_with_erf_in_the_tail(dtype: Any) -> None:
    """Close, relative to the value: 2e-6 and 1e-13, down to where float32 ends."""
    x = np.linspace(-12.5, -1, 2001).astype(dtype)
    out = np.empty_like(x)
    kernels.activate(out, "gelu_erf", [x])
    want = x.astype(float) * below(x.astype(float))
    assert np.abs(out / want - 1).max() <= (2e-6 if dtype is np.float32 else 1e-13)


@pytest.mark.parametrize("dtype", BOUND)
def test_what_optimizers_do(dtype: Any) -> None:
    """Exact: the steps and their order are those written here."""
    m, v, p = (RANDOM.uniform(0.1, 2, 1003).astype(dtype) for _ in range(3))
    a, b, c, d = 0.9, 0.3, 1e-3, 0.01
    step = m / (np.sqrt(v) / dtype(b) + dtype(c)) * dtype(-a)
    for name, arrays, numbers, want in (
        ("mix", (m, v), (a, b), m * dtype(a) + v * dtype(b)),
        ("mix_square", (m, v), (a, b), v * v * dtype(b) + m * dtype(a)),
        ("adam_step", (m, v), (a, b, c), step),
        ("adamw_step", (m, v, p), (a, b, c, d), step - p * dtype(d)),
    ):

        def run(name: str = name, arrays: Any = arrays, numbers: Any = numbers) -> list[Any]:
            out = np.empty(m.size, dtype)
            kernels.activate(out, name, arrays, numbers)
            return [out]

        for [out] in on_every_set(run):
            assert out.tobytes() == want.tobytes()


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("shape", [(3, 5), (1, 7), (3, 4, 5), (2, 1, 3), (2, 70_001)])
def test_what_is_repeated_along_the_first_dimension(shape: tuple[int, ...], dtype: Any) -> None:
    """Exact: an operand that is a row, a number, or either in the later dimensions, repeated, as its copy; on one
    thread and on three."""
    x = RANDOM.standard_normal(shape).astype(dtype)
    x.reshape(-1)[::3] = 0
    rows = [x[0] + dtype(1), np.full((), 1.5, dtype), x[:1, ..., :1] - dtype(1)]
    for row in rows:
        g = np.broadcast_to(row, shape)
        want = np.where(x > 0, g, np.where(x == 0, g * dtype(0.5), dtype(0)))
        for threads in (1, 3):
            kernels.set_threads(threads)
            out = np.empty_like(x)
            kernels.activate(out, "passed", [g, x], [0.0, 0.5, 1.0])
            assert np.array_equal(out, want), (row.shape, threads)
    kernels.set_threads(1)


def test_what_lies_otherwise_is_an_error() -> None:
    x = np.ones((3, 4))
    for wrong in (np.broadcast_to(x[:, :1], (3, 4)), np.ones((4, 3)).T, np.broadcast_to(1.0, (4, 3)), x[:2]):
        with pytest.raises(ValueError, match="expected"):
            kernels.activate(np.empty_like(x), "passed", [wrong, x], [0.0, 0.5, 1.0])


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("sizes", [(1003,), (5, 0, 40_000, 1), (1_100_000, 3)])
def test_adam(sizes: tuple[int, ...], dtype: Any) -> None:
    """Exact: all parameters in one pass, small ones and such as go past the caches, as each by itself."""
    draws = [[RANDOM.uniform(0.1, 2, n).astype(dtype) for _ in range(4)] for n in sizes]
    b1, b2, rate, root, eps, decay = 0.9, 0.999, 0.3, 0.5, 1e-3, 0.01
    wanted = []
    for i, (g, m, v, p) in enumerate(draws):
        m, v = m * dtype(b1) + g * dtype(1 - b1), g * g * dtype(1 - b2) + v * dtype(b2)
        step = m / (np.sqrt(v) / dtype(root) + dtype(eps)) * dtype(-rate)
        wanted += [m, v, step - p * dtype(decay) if i % 2 else step]

    def run() -> list[Any]:
        outs = [[np.empty_like(g) for _ in range(3)] for g, *_ in draws]
        given = [[*a[:3], *out, *(a[3:] if i % 2 else [])] for i, (a, out) in enumerate(zip(draws, outs))]
        BUILD.adam(given, (b1, 1 - b1, b2, 1 - b2, rate, root, eps, decay))
        return [a for out in outs for a in out]

    for outs in on_every_set(run):
        assert [a.tobytes() for a in outs] == [a.tobytes() for a in wanted]


@pytest.mark.parametrize("dtype", BOUND)
def test_passed(dtype: Any) -> None:
    """Exact: what an extreme with a number passes on; half of a tie; nothing, not NaN, of what is not passed."""
    x = RANDOM.integers(-3, 4, 1003).astype(dtype)
    g = np.where(x == -3, np.inf, RANDOM.normal(0, 1, x.size)).astype(dtype)
    for sign in (1.0, -1.0):
        want = np.where(x == 1, g * dtype(0.5), np.where(x * sign > sign, g, dtype(0)))

        def run(sign: float = sign) -> list[Any]:
            out = np.empty(x.size, dtype)
            kernels.activate(out, "passed", [g, x], [sign, 0.5, sign])
            return [out]

        for [out] in on_every_set(run):
            assert (out == want).all()


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (900, 67)])
def test_scores(shape: tuple[int, int], dtype: Any) -> None:
    """Sums of powers, and the gradient of cross-entropy; labels may be of other ranks' classes. Exact: any set."""
    rows, n = shape
    x, labels = RANDOM.normal(0, 3, shape).astype(dtype), RANDOM.integers(-1, n + 1, rows)
    top, part, g = (RANDOM.normal(0, 1, rows).astype(dtype) for _ in range(3))

    def run() -> list[Any]:
        outs = [np.empty(rows, dtype), np.empty(shape, dtype), np.empty(rows, dtype)]
        BUILD.sum_scores(outs[0], x, top, True)
        BUILD.scores_back(outs[1], x, top, part, labels, g, 0.25, 0.75)
        BUILD.sum_scores(outs[2], x, top, False)
        return outs

    found = on_every_set(run)
    for other in found[1:]:
        assert [a.tobytes() for a in other] == [a.tobytes() for a in found[0]]
    powers = np.exp(x.astype(np.float64) - top[:, None])
    target = 0.25 + 0.75 * (np.arange(n) == labels[:, None])
    close(found[0][0], powers.sum(1), 20 * BOUND[dtype])
    close(found[0][1], (powers * part[:, None] - target) * g[:, None], 20 * BOUND[dtype])
    close(found[0][2], (x - top.astype(np.float64)[:, None]).sum(1), 20 * BOUND[dtype])


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("shape", [(1, 1), (1, 16), (3, 2), (5, 7), (401, 16), (70, 131), (2, 5000)])
@pytest.mark.parametrize("logarithm", [False, True])
def test_softmax(logarithm: bool, shape: tuple[int, int], dtype: Any) -> None:
    """And its gradient; with scores that are out of reach. Exact: any set."""
    x, g = RANDOM.normal(0, 5, shape).astype(dtype), RANDOM.normal(0, 1, shape).astype(dtype)
    x[RANDOM.random(shape) < 0.3] = -1e30
    x[::7, 0] = -np.inf if shape[1] > 1 else 0
    x[:, shape[1] // 2] = 3

    def run() -> list[Any]:
        outs = [np.full(shape, 9, dtype) for _ in range(2)]
        BUILD.softmax(outs[0], x, logarithm)
        BUILD.softmax_back(outs[1], outs[0], g, logarithm)
        return outs

    found = on_every_set(run)
    for other in found[1:]:
        assert [a.tobytes() for a in other] == [a.tobytes() for a in found[0]]
    low = x.astype(np.float64) - x.max(1, keepdims=True)
    powers = np.exp(low)
    total = powers.sum(1, keepdims=True)
    want = low - np.log(total) if logarithm else powers / total
    np.testing.assert_allclose(found[0][0], want, 8 * BOUND[dtype], 8 * BOUND[dtype])
    y, share = found[0][0].astype(np.float64), powers / total
    back = g - share * g.sum(1, keepdims=True, dtype=float) if logarithm else y * (g - (g * y).sum(1, keepdims=True))
    close(found[0][1], back, 30 * BOUND[dtype])


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("shape", [(1, 1, 2), (3, 5, 7), (40, 3, 2), (2, 70, 16), (2, 9, 1000), (1, 2100, 33)])
@pytest.mark.parametrize("logarithm", [False, True])
def test_softmax_of_columns(logarithm: bool, shape: tuple[int, int, int], dtype: Any) -> None:
    """And its gradient, over the middle dimension; some are no numbers. Exact: any set, any number of threads."""
    x, g = RANDOM.normal(0, 5, shape).astype(dtype), RANDOM.normal(0, 1, shape).astype(dtype)
    x[RANDOM.random(shape) < 0.3] = -1e30
    x[:, 0] = 3
    x[-1, -1, 0], x[-1, :, -1] = np.nan, -np.inf
    flat = (shape[0], -1)

    def run(threads: int = 1) -> list[Any]:
        outs = [np.full(shape, 9, dtype) for _ in range(2)]
        kernels.set_threads(threads)
        try:
            BUILD.softmax(outs[0].reshape(flat), x.reshape(flat), logarithm, shape[2])
            BUILD.softmax_back(outs[1].reshape(flat), *(a.reshape(flat) for a in (outs[0], g)), logarithm, shape[2])
        finally:
            kernels.set_threads(1)
        return outs

    found = [*on_every_set(run), run(3)]
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])
    with np.errstate(invalid="ignore"):
        low = x.astype(np.float64) - x.max(1, keepdims=True)
        powers = np.exp(low)
        total = powers.sum(1, keepdims=True)
        want = low - np.log(total) if logarithm else powers / total
        np.testing.assert_allclose(found[0][0], want, 8 * BOUND[dtype], 8 * BOUND[dtype])
        y, sums = found[0][0].astype(np.float64), (g if logarithm else g * want).sum(1, keepdims=True, dtype=float)
        back = g - powers / total * sums if logarithm else y * (g - sums)
    np.testing.assert_allclose(found[0][1], back, 60 * BOUND[dtype], 60 * BOUND[dtype])


@pytest.mark.parametrize("across", [False, True])
def test_sums_of_long_rows_keep_their_digits(across: bool) -> None:
    """In float32: off by less than 70 half ulps (cuda/lanes.h), and 5 more of the powers and the result. A few terms
    are far above the others, whose last digits a sum of them all in one number would lose."""
    n = 1 << 19
    x = np.full(n, -9, np.float32)
    x[:16] = 0
    want = np.exp(x.astype(np.float64))
    total = want.sum()
    u = 2.0**-24
    rows = np.zeros((2 if across else 1, n), np.float32)
    rows[:] = x
    given = np.ascontiguousarray(rows.T).reshape(1, -1) if across else rows
    out, inner = np.empty_like(given), len(rows)
    for logarithm in (False, True):
        BUILD.softmax(out, given, logarithm, inner)
        found = out.reshape(n, inner).T if across else out
        off = np.abs(found[:, 0] + np.log(total) if logarithm else found[:, 0] * total - 1)
        assert off.max() < 75 * u, off.max() / u
    ones = np.full_like(given, 1 + 2.0**-12)
    BUILD.softmax_back(out, np.full_like(given, -np.log(n)), ones, True, inner)
    assert np.abs(out / ones).max() < 75 * u
    if not across:
        sums = np.empty(1, np.float32)
        BUILD.sum_scores(sums, rows, np.zeros(1, np.float32), True)
        assert abs(sums[0] / total - 1) < 75 * u


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("n", [1, 3, 16, 37])
def test_softmax_of_what_is_no_number(n: int, dtype: Any) -> None:
    """NaN all along a row with a NaN, or whose greatest is an infinity: as NumPy's formula has it. Exact: any set."""
    x = RANDOM.normal(0, 1, (7, n)).astype(dtype)
    x[0, n // 2], x[1, -1], x[2], x[3], x[4, 0], x[5, 0] = np.nan, np.inf, -np.inf, np.nan, np.nan, -np.inf
    x[4, -1] = np.inf
    for logarithm in (False, True):
        with np.errstate(invalid="ignore"):
            low = x - x.max(1, keepdims=True)
            total = np.exp(low).sum(1, keepdims=True)
            want = low - np.log(total) if logarithm else np.exp(low) / total

        def run(logarithm: bool = logarithm) -> list[Any]:
            outs = [np.empty_like(x) for _ in range(2)]
            BUILD.softmax(outs[0], x, logarithm)
            BUILD.softmax_back(outs[1], outs[0], np.ones_like(x), logarithm)
            return outs

        found = on_every_set(run)
        assert all(other[0].tobytes() == found[0][0].tobytes() for other in found)
        for out, back in found:
            np.testing.assert_allclose(out, want, 8 * BOUND[dtype], 8 * BOUND[dtype])
            assert (np.isnan(back).all(1) == np.isnan(want).all(1)).all()


@pytest.mark.parametrize("dtype", BOUND)
def test_softmax_where_powers_underflow(dtype: Any) -> None:
    """Close to NumPy's exp, down to the least subnormal number; 0 beyond."""
    x = np.append(0, np.linspace(-80, -110, 61) if dtype is np.float32 else np.linspace(-700, -760, 61)).astype(dtype)
    out = np.empty_like(x)
    BUILD.softmax(out, x, False)
    with np.errstate(under="ignore"):
        np.testing.assert_allclose(
            out, np.exp(x.astype(np.longdouble)).astype(dtype), 1e-6, np.finfo(dtype).tiny * 1e-6
        )


def test_arrays_that_softmax_does_not_take() -> None:
    x = np.zeros((3, 4))
    for out, more in ((np.zeros((3, 5)), ()), (np.zeros((3, 4), "f4"), ()), (x.copy(), (np.zeros(4),)), (None, ())):
        with pytest.raises(ValueError):
            (BUILD.softmax_back if more else BUILD.softmax)(out, x, *more, False)
    for inner in (0, 3, -4):
        with pytest.raises(ValueError, match="no whole number of columns"):
            BUILD.softmax(x.copy(), x, False, inner)
    BUILD.softmax(np.zeros((0, 4)), np.zeros((0, 4)), False)
    BUILD.softmax(np.zeros((4, 0)), np.zeros((4, 0)), True)


@pytest.mark.parametrize("dtype", BOUND)
def test_add_rows(dtype: Any) -> None:
    """Exact: rows that repeat are added one after another."""
    rows, values = RANDOM.integers(0, 5, 999), RANDOM.normal(0, 1, (999, 300)).astype(dtype)
    start = RANDOM.normal(0, 1, (5, 300)).astype(dtype)
    want = start.copy()
    for row, value in zip(rows, values):
        want[row] += value

    def run() -> list[Any]:
        out = start.copy()
        kernels.add_rows(out, rows, values)
        return [out]

    for [out] in on_every_set(run):
        assert out.tobytes() == want.tobytes()


def test_arrays_that_do_not_fit() -> None:
    rows, x = np.zeros(3, np.int64), np.zeros((3, 4))
    with pytest.raises(ValueError, match="a row that is not there"):
        kernels.add_rows(np.zeros((2, 4)), rows + 2, x)
    with pytest.raises(ValueError, match="as long as the values"):
        kernels.add_rows(np.zeros((2, 5)), rows, x)
    with pytest.raises(ValueError, match="a number for each row"):
        BUILD.sum_scores(np.zeros(2), x, np.zeros(3), True)
    with pytest.raises(ValueError, match="labels are int64"):
        BUILD.scores_back(x.copy(), x, *[np.zeros(3)] * 4, 0.0, 0.0)


def normal(x: Any, eps: float, centered: bool) -> tuple[Any, Any]:
    x = x - x.mean(-1, keepdims=True) if centered else x
    root = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    return x * root, root


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("centered", [True, False])
@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (3, 16), (401, 130)])
def test_norm(shape: tuple[int, int], centered: bool, dtype: Any) -> None:
    x, g = (RANDOM.normal(1, 2, shape).astype(dtype) for _ in range(2))
    scale, bias = (RANDOM.normal(0, 1, shape[1]).astype(dtype) for _ in range(2))

    def run() -> list[Any]:
        outs = [np.empty(shape, dtype), np.empty(shape, dtype), *(np.empty(shape[1], dtype) for _ in range(2))]
        BUILD.norm(outs[0], x, scale, bias, 1e-3, centered)
        BUILD.norm_back(*outs[1:], x, scale, g, 1e-3, centered)
        alone = [np.empty_like(out) for out in outs[1:]]
        for i, out in enumerate(alone):
            BUILD.norm_back(*(out if i == k else None for k in range(3)), x, scale, g, 1e-3, centered)
        assert [a.tobytes() for a in alone] == [a.tobytes() for a in outs[1:]]
        return outs

    found = on_every_set(run)
    for other in found[1:]:
        assert [a.tobytes() for a in other] == [a.tobytes() for a in found[0]]
    x, g, scale, bias = (a.astype(np.float64) for a in (x, g, scale, bias))
    y, root = normal(x, 1e-3, centered)
    d = g * scale
    back = d - y * (d * y).mean(-1, keepdims=True) - (d.mean(-1, keepdims=True) if centered else 0)
    for out, want in zip(found[0], (y * scale + bias, back * root, (g * y).sum(0), g.sum(0))):
        close(out, want, 20 * BOUND[dtype])


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (64, 16), (65, 7), (1000, 130)])
def test_sums_over_rows(shape: tuple[int, int], dtype: Any) -> None:
    """Exact: chunks of 64 rows, each added up from its first, and then these; NumPy's own order up to 64."""
    x = RANDOM.normal(1, 2, shape).astype(dtype)
    chunks = [np.add.accumulate(x[i : i + 64])[-1] for i in range(0, len(x), 64)]
    want = np.add.accumulate(chunks)[-1] if chunks else np.zeros(shape[1], dtype)

    def run() -> list[Any]:
        out = np.empty(shape[1], dtype)
        BUILD.sum_rows(out, x)
        return [out]

    for [out] in on_every_set(run):
        assert out.tobytes() == want.tobytes()
    if len(x) <= 64 and shape[1] >= 16:
        assert np.add.reduce(x).tobytes() == want.tobytes()


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (300, 130)])
def test_bias_and_gelu(shape: tuple[int, int], dtype: Any) -> None:
    """Exact: what the sum and GELU give one after another, and the sum of the gradient over rows."""
    x, g = (RANDOM.normal(0, 3, shape).astype(dtype) for _ in range(2))
    bias = RANDOM.normal(0, 1, shape[1]).astype(dtype)

    def run() -> list[Any]:
        outs = [np.empty(shape, dtype), np.empty(shape, dtype), np.empty(shape[1], dtype)]
        BUILD.bias_gelu(outs[0], x, bias, None, None)
        BUILD.bias_gelu(outs[1], x, bias, g, outs[2])
        return outs

    def want() -> list[Any]:
        outs = [np.empty(shape, dtype), np.empty(shape, dtype), np.empty(shape[1], dtype)]
        kernels.activate(outs[0], "gelu", [x + bias])
        kernels.activate(outs[1], "gelu_back", [g, x + bias])
        BUILD.sum_rows(outs[2], outs[1])
        return outs

    wanted = [a.tobytes() for a in want()]
    for outs in on_every_set(run):
        assert [a.tobytes() for a in outs] == wanted


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("neighbours", [False, True])
def test_rotation(neighbours: bool, dtype: Any) -> None:
    """Exact: the products and sums written here; angles for each position, or for the last dimensions alone."""
    x, cos, sin = (RANDOM.normal(0, 1, shape).astype(dtype) for shape in ((3, 40, 5, 34), (40, 17), (40, 17)))
    a, b = (x[..., ::2], x[..., 1::2]) if neighbours else (x[..., :17], x[..., 17:])
    c, s = cos[:, None], sin[:, None]
    parts = a * c - b * s, b * c + a * s
    want = np.stack(parts, -1).reshape(x.shape) if neighbours else np.concatenate(parts, -1)

    def run() -> list[Any]:
        outs = [np.empty_like(x), np.empty_like(x[0])]
        kernels.rotate(outs[0], x, cos, sin, neighbours)
        kernels.rotate(outs[1], x[0].copy(), cos, sin, neighbours)
        return outs

    for outs in on_every_set(run):
        assert outs[0].tobytes() == want.tobytes()
        assert outs[1].tobytes() == want[0].tobytes()


@pytest.mark.parametrize("dtype", BOUND)
def test_add_to_rows(dtype: Any) -> None:
    x, bias = RANDOM.normal(0, 1, (3000, 130)).astype(dtype), RANDOM.normal(0, 1, 130).astype(dtype)

    def run() -> list[Any]:
        out = np.empty_like(x)
        BUILD.add_to_rows(out, x, bias)
        return [out]

    for [out] in on_every_set(run):
        assert out.tobytes() == (x + bias).tobytes()


def attention(q: Any, k: Any, v: Any, g: Any, limits: Any, mask: Any, scale: float, kept: Any = 1.0) -> list[Any]:
    """out, and the gradients with respect to q, k and v, in float64. ``kept``: what weights are multiplied by."""
    scores = np.einsum("gtd,sd->gts", q, k) * scale
    if limits is not None:
        scores = np.where(np.arange(len(k)) > limits[:, None], -np.inf, scores)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    top = scores.max(-1, keepdims=True, initial=-1e300)
    powers = np.exp(scores - top)
    totals = powers.sum(-1, keepdims=True)
    weights = powers / np.where(totals == 0, 1, totals)
    out = weights * kept @ v
    slope = weights * (np.einsum("gte,se->gts", g, v) * kept - (g * out).sum(-1, keepdims=True)) * scale
    return [out, slope @ k, np.einsum("gts,gtd->sd", slope, q), np.einsum("gts,gte->se", weights * kept, g)]


def weights_kept(heads: int, rows: int, columns: int) -> tuple[Any, Any]:
    """What weights are multiplied by, of heads and rows apart in a larger array; and how the kernel is told."""
    of_head, of_row, length = 2**33 + 3 * np.arange(heads), 5 + 2 * np.arange(rows), 2 * rows + 9
    drawn = np.empty((heads, rows, columns), bool)
    at = [[(n, n + 1) for n in some.tolist()] for some in (of_head, of_row)]
    BUILD.fill(drawn, "bernoulli", "u8", [1, 2, 3, 4], (2**34, length, columns), [*at, [(0, columns)]], (0.6, 0.0, 0.0))
    return drawn / 0.6, ([1, 2, 3, 4], 0.6, 1 / 0.6, of_head, of_row, length)


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("way", ["all", "causal", "causal and masked", "limits in no order", "masked and dropped"])
@pytest.mark.parametrize("sizes", [(2, 5, 7, 3, 4), (1, 100, 100, 32, 32), (3, 49, 130, 17, 9), (1, 1, 1, 1, 1)])
def test_attention(sizes: tuple[int, ...], way: str, dtype: Any) -> None:
    heads, rows, columns, inner, outer = sizes
    shapes = (heads, rows, inner), (columns, inner), (columns, outer), (heads, rows, outer)
    q, k, v, g = (RANDOM.normal(0, 1, shape).astype(dtype) for shape in shapes)
    limits = None if way == "all" else np.arange(rows) + columns - rows - 1  # the first may see nothing
    limits = RANDOM.integers(-1, columns + 1, rows) if way == "limits in no order" else limits
    mask = RANDOM.random((heads, rows, columns)) < 0.7 if "masked" in way else None
    kept, dropped = weights_kept(heads, rows, columns) if "dropped" in way else (1.0, None)

    def run() -> list[Any]:
        out, dq, dk, dv = (np.full(x.shape, 7, dtype) for x in (g, q, k, v))
        kernels.attend(q, k, v, mask, limits, 0.3, None, out, None, None, None, dropped)
        kernels.attend(q, k, v, mask, limits, 0.3, g, out, dq, dk, dv, dropped)
        rows_only, columns_only = np.empty_like(q), [np.empty_like(k), np.empty_like(v)]
        kernels.attend(q, k, v, mask, limits, 0.3, g, out, rows_only, None, None, dropped)
        kernels.attend(q, k, v, mask, limits, 0.3, g, out, None, *columns_only, dropped)
        assert [a.tobytes() for a in (rows_only, *columns_only)] == [a.tobytes() for a in (dq, dk, dv)]
        return [out, dq, dk, dv]

    want = attention(*(x.astype(np.float64) for x in (q, k, v, g)), limits, mask, 0.3, kept)
    every = on_every_set(run)
    for found in every:
        for a, b in zip(found, want):
            close(a, b, 30 * BOUND[dtype])
    fused = [[a.tobytes() for a in found] for name, found in zip(SETS, every) if name != "baseline"]
    assert fused == fused[:1] * len(fused)  # exact: sets that multiply and add at once


def test_attention_of_arrays_that_lie_otherwise() -> None:
    """Exact: heads between rows, batches that are one array, outputs in a larger one."""
    q, g = (RANDOM.normal(0, 1, (2, 6, 3, 4)).transpose(0, 2, 1, 3)[:, :, None] for _ in range(2))
    k = np.broadcast_to(RANDOM.normal(0, 1, (3, 5, 4)), (2, 3, 5, 4))
    both = np.zeros((2, 3, 5, 8))
    out, dq = np.zeros(q.shape), np.zeros(q.shape)
    kernels.attend(q, k, k, None, None, 0.5, None, out, None, None, None)
    kernels.attend(q, k, k, None, None, 0.5, g, out, dq, both[..., :4], both[..., 4:])
    for b in range(2):
        for h in range(3):
            one, dk, dv, dq1 = np.zeros((1, 6, 4)), np.zeros((5, 4)), np.zeros((5, 4)), np.zeros((1, 6, 4))
            some = [np.ascontiguousarray(x[b, h]) for x in (q, k, k, g)]
            kernels.attend(*some[:3], None, None, 0.5, None, one, None, None, None)
            kernels.attend(*some[:3], None, None, 0.5, some[3], one, dq1, dk, dv)
            assert (one == out[b, h]).all() and (dq1 == dq[b, h]).all()
            assert (both[b, h] == np.concatenate([dk, dv], -1)).all()


def drop_some(heads: Any, rows: Any, words: int = 4) -> None:
    x = np.zeros((2, 3, 4))
    dropped = [1] * words, 0.5, 2.0, heads, rows, 3
    kernels.attend(x, x[0], x[0], None, None, 1.0, None, x.copy(), None, None, None, dropped)


def test_what_is_refused() -> None:
    x, v = np.zeros((2, 3)), np.zeros(3)
    for call, message in (
        (lambda: kernels.activate(x, "tanh", [x]), "no such activation"),
        (lambda: kernels.activate(x, "gelu", [x, x]), "another number"),
        (lambda: kernels.activate(x, "gelu", [x.astype(np.float32)]), "differ in dtype"),
        (lambda: kernels.activate(x, "gelu", [x[:, :2]]), "of one size"),
        (lambda: BUILD.norm(x, x, v[:2].copy(), None, 0.1, True), "another length"),
        (lambda: BUILD.norm(x.astype(int), x, None, None, 0.1, True), "differ in dtype"),
        (lambda: BUILD.norm(v, x, None, None, 0.1, True), "another size"),
        (lambda: BUILD.norm_back(None, v[:2].copy(), None, x, None, x, 0.1, True), "another length"),
        (lambda: BUILD.norm_back(x, None, None, x, None, None, 0.1, True), "no gradient"),
        (lambda: BUILD.sum_rows(v, x[:, :2]), "another length"),
        (lambda: BUILD.bias_gelu(x, x, v, None, v), "missing"),
        (lambda: BUILD.add_to_rows(x, x, v[:2].copy()), "another length"),
        (lambda: kernels.rotate(x, x, x, x, False), "an angle for every pair"),
        (lambda: BUILD.adam([[x, x, x, x, x]], (0.0,) * 8), "three outputs"),
        (lambda: BUILD.adam([[x, x, x, x, x, v]], (0.0,) * 8), "of one size"),
        (lambda: kernels.attend(x, x, x, None, None, 1.0, None, x, None, None, None), "other shapes"),
        (lambda: drop_some(np.arange(1), np.arange(3)), "every head and row"),
        (lambda: drop_some(np.arange(2), np.arange(3.0)), "every head and row"),
        (lambda: drop_some(np.arange(2), np.arange(3), 3), "a key has four words"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
