"""Elementwise operations where the law suite does not look: all dtypes, mixed operands, corners, errors."""

from __future__ import annotations

from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import spmdx as sx
from spmdx import autodiff
from spmdx.mesh import Mesh
from spmdx.ops import elementwise as e
from spmdx.ops import operators  # noqa: F401  # attaches the operators
from spmdx.runtime import kernels

BFLOAT16 = ml_dtypes.bfloat16
DTYPES = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32")
DTYPES += ("float64", "complex64", "complex128")
STRICTER = ("left_shift", "right_shift", "bitwise_left_shift", "bitwise_right_shift", "round")  # no bools
NAMES = [n for n in e.__all__ if hasattr(np, n) and hasattr(getattr(e, n), "op")]
UNARY = [n for n in NAMES if getattr(e, n).op.arrays == 1]
BINARY = [n for n in NAMES if getattr(e, n).op.arrays == 2]


def outcome(function: Any, *args: Any) -> Any:
    """The value as a NumPy array, or the exception."""
    try:
        with np.errstate(all="ignore"):
            out = function(*args)
    except (TypeError, ValueError, OverflowError) as error:
        return error
    return out.numpy() if isinstance(out, sx.Array) else np.asarray(out)


def same(name: str, *args: Any) -> None:
    """The result is NumPy's in dtype and value (exact), or both refuse, ours with an error that teaches."""
    want = outcome(getattr(np, name), *args)
    got = outcome(getattr(e, name), *(sx.asarray(a) if isinstance(a, np.ndarray) else a for a in args))
    if isinstance(got, Exception):
        ordered = any(np.asarray(a).dtype.kind == "c" for a in args)  # NumPy orders complex numbers; nobody else does
        stricter = name in STRICTER and all(np.asarray(a).dtype.kind == "b" for a in args)
        assert isinstance(want, Exception) or ordered or stricter, f"{name}{args}: {got!r}"
        assert isinstance(got, sx.SpmdxError), f"{name}{args}: {got!r}"
        return
    assert not isinstance(want, Exception), f"{name}{args}: {want!r}"
    assert got.dtype == want.dtype, f"{name}{args}: {got.dtype}, not {want.dtype}"
    assert np.array_equal(got, want, equal_nan=want.dtype.kind in "fc"), f"{name}{args}: {got}, not {want}"


@pytest.mark.parametrize("name", UNARY)
def test_every_dtype_is_as_numpys(name: str) -> None:
    for dtype in DTYPES:
        same(name, np.array([0, 1, 2], dtype))


@pytest.mark.parametrize("name", BINARY)
def test_every_pair_of_dtypes_is_as_numpys(name: str) -> None:
    for one, other in product(DTYPES, DTYPES):
        same(name, np.array([1, 2, 3], one), np.array([1, 1, 2], other))


@pytest.mark.parametrize("name", BINARY)
def test_python_scalars_are_weak(name: str) -> None:
    for dtype, scalar in product(DTYPES, (True, 2, 2.5, 1j)):
        same(name, np.array([1, 2, 3], dtype), scalar)
        same(name, scalar, np.array([1, 2, 3], dtype))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64"])
def test_integers_of_any_size_meet_floating_point_arrays(dtype: str) -> None:
    x = np.array([1, 2, 3], dtype)
    with np.errstate(over="ignore"):
        for number in (2**70, -(2**64)):
            for _ in range(2):
                same("hypot" if dtype == "float64" else "add", x, number)
            assert (sx.subtract(number, sx.asarray(x)).numpy() == number - x).all()


@pytest.mark.parametrize("name", ["add", "multiply"])
def test_large_operands_on_threads(name: str) -> None:
    """Exact: blocks that lie alike, rows and a vector, and such as are left to NumPy."""
    x = np.random.default_rng(0).normal(size=(400, 700))
    threads = kernels.threads()
    for count in (1, 3):
        kernels.set_threads(count)
        for dtype in ("float32", "float64", "complex64", "float16"):
            a = x.astype(dtype)
            for b in (a, a[0], a[3:4], a[:, :1], a[::-1], 2.0):
                same(name, a, b)
                same(name, b, a)
            same(name, a.reshape(4, 100, 700), a[:100])
            same(name, a, x)
    kernels.set_threads(threads)


@pytest.mark.parametrize("call", [lambda x: x + x, lambda x: x * x, lambda x: x + x[0]])
def test_large_operands_on_threads_heed_errstate(call: Any) -> None:
    threads = kernels.threads()
    kernels.set_threads(3)
    x = sx.asarray(np.full((2, 2**18), 1.7e308))
    with np.errstate(over="ignore"):
        assert np.isinf(call(x).numpy()).all()
    with np.errstate(over="raise"), pytest.raises(FloatingPointError, match="overflow"):
        call(x)
    kernels.set_threads(threads)


def test_a_block_is_large_by_its_own_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """The small blocks of a large array are not."""
    asked: list[Any] = []
    monkeypatch.setattr(sx.add.op, "large", lambda run, x, y: asked.append(x.shape) or run(x, y))
    mesh = Mesh(("a",), (4,), None, "sim")
    for n in (2**16 + 4, 2**18 + 4):
        x = sx.asarray(np.ones(n), mesh=mesh, placement={"a": sx.Shard(0)})
        _ = x + x
    assert set(asked) == {(2**16 + 1,)}


X = np.array([-2.5, -1, -0.3, 0.0, -0.0, 0.4, 1, 1.5, 2.5, np.inf, -np.inf, np.nan]).astype(BFLOAT16)
Y = np.array([1, 2, -3, 0.5, 2, 3, -1, 0.25, 2, 1, 1, 1]).astype(BFLOAT16)


ON_FLOATS = [n for n in (*UNARY, *BINARY) if not n.startswith("bit") and "shift" not in n and n != "invert"]


@pytest.mark.parametrize("name", ON_FLOATS)
def test_bfloat16_is_float32_rounded_once(name: str) -> None:
    """Exact; nextafter alone has a meaning of its own."""
    blocks = (X,) if name in UNARY else (X, Y)
    got = outcome(getattr(e, name), *map(sx.asarray, blocks))
    with np.errstate(all="ignore"):
        function = getattr(np, name)
        want = function(*blocks) if name == "nextafter" else function(*(b.astype(np.float32) for b in blocks))
    want = want.astype(BFLOAT16) if want.dtype == np.float32 else want
    assert got.dtype == want.dtype
    assert np.array_equal(got.astype(float), want.astype(float), equal_nan=True), f"{got}, not {want}"


@pytest.mark.parametrize(
    ("other", "want"),
    [
        (np.ones(3, "int64"), BFLOAT16),
        (np.ones(3, "uint32"), BFLOAT16),
        (np.ones(3, "bool"), BFLOAT16),
        (np.ones(3, "float16"), "float32"),
        (np.ones(3, "float64"), "float64"),
        (np.ones(3, "complex64"), "complex64"),
        (1, BFLOAT16),
        (1.5, BFLOAT16),
        (True, BFLOAT16),
        (1j, "complex64"),
        (np.float32(1), "float32"),
    ],
)
def test_bfloat16_promotes(other: Any, want: Any) -> None:
    x = sx.asarray(np.ones(3, BFLOAT16))
    assert (x + other).dtype == (other + x).dtype == np.dtype(want)
    assert e.where(x > 0, x, other).dtype == np.dtype(want)


# Gradients

SMOOTH = {
    "positive": ("sqrt", "log", "log1p", "log2", "log10", "pow", "divide", "reciprocal", "square", "hypot", "atan2"),
    "unit": ("exp", "expm1", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "atanh"),
    "more": ("acosh", "logaddexp", "multiply", "abs", "sigmoid"),
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        (name, dtype)
        for names in SMOOTH.values()
        for name in names
        for dtype in ("float64", "complex128")
        if dtype == "float64" or name not in ("hypot", "atan2", "logaddexp", "sigmoid")  # of real numbers alone
    ],
)
def test_second_derivatives(name: str, dtype: str) -> None:
    """The gradient of the gradient is that of central differences of it, to 1e-6."""
    function = getattr(e, name)
    low, high = (1.2, 2.0) if name in SMOOTH["more"] else (0.3, 0.8)
    draw = np.random.default_rng(1)
    values = [draw.uniform(low, high, 4).astype(dtype) for _ in range(function.op.arrays)]
    if dtype == "complex128":
        values = [v + 1j * draw.uniform(0.1, 0.2, 4) for v in values]

    def slope(*xs: Any) -> Any:
        grads = sx.grad(lambda *a: e.real(function(*a)).sum(), tuple(range(len(xs))))(*xs)
        weighted = [(e.real(g) * (1.0 + i) + e.imag(g) * 0.5).sum() for i, g in enumerate(grads)]
        return sum(weighted[1:], weighted[0])

    xs = [sx.asarray(v) for v in values]
    found = sx.grad(slope, tuple(range(len(xs))))(*xs)
    for i, g in enumerate(found):
        want = np.zeros(4, dtype)
        for k in range(4):
            for step in (1e-6, 1e-6j) if dtype == "complex128" else (1e-6,):
                up, down = [v.copy() for v in values], [v.copy() for v in values]
                up[i][k] += step
                down[i][k] -= step
                rise = float(slope(*map(sx.asarray, up))) - float(slope(*map(sx.asarray, down)))
                want[k] += rise / 2e-6 * (1 if isinstance(step, float) else -1j)
        assert np.allclose(g.numpy(), want, 1e-6, 1e-6), f"{name}, argument {i}: {g.numpy()}, not {want}"


def gradient(function: Any, *values: Any) -> Any:
    arrays = [sx.asarray(np.asarray(v)) for v in values]
    with np.errstate(all="ignore"):
        found = sx.grad(lambda *a: function(*a).sum(), tuple(range(len(arrays))))(*arrays)
    return [g.numpy().tolist() for g in found]


@pytest.mark.parametrize(
    ("function", "at", "want"),
    [
        (e.abs, [[0.0, -2.0]], [[0.0, -1.0]]),
        (lambda x: e.real(e.abs(x)), [[0j, 3 + 4j]], [[0j, 0.6 - 0.8j]]),
        (lambda x: e.real(e.sign(x)), [[0j]], [[0j]]),
        (e.hypot, [[0.0], [0.0]], [[0.0], [0.0]]),
        (e.maximum, [[1.0, 2.0, 0.0], [1.0, 1.0, 3.0]], [[0.5, 1.0, 0.0], [0.5, 0.0, 1.0]]),
        (e.minimum, [[1.0, 2.0, 0.0], [1.0, 1.0, 3.0]], [[0.5, 0.0, 1.0], [0.5, 1.0, 0.0]]),
        (lambda x: e.clip(x, 0, 1), [[-1.0, 0.0, 0.5, 1.0, 2.0]], [[0.0, 0.5, 1.0, 0.5, 0.0]]),
        (e.relu, [[-1.0, 0.0, 1.0]], [[0.0, 0.0, 1.0]]),
        (lambda x: x**0, [[0.0, 2.0]], [[0.0, 0.0]]),
        (lambda x: x**1, [[0.0, 2.0]], [[1.0, 1.0]]),
        (lambda x: x**2, [[0.0, 2.0]], [[0.0, 4.0]]),
        (lambda x: x**3.0, [[0.0, 2.0]], [[0.0, 12.0]]),
        (e.pow, [[0.0, 0.0, 0.0], [0.0, 1.0, 2.0]], [[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]]),
        (lambda y: 0.0**y, [[1.0, 2.0]], [[0.0, 0.0]]),
        (e.logaddexp, [[-np.inf, -np.inf], [0.0, 1.0]], [[0.0, 0.0], [1.0, 1.0]]),
        (e.logaddexp, [[np.inf], [0.0]], [[1.0], [0.0]]),
        (lambda x: e.where(x > 0, e.sqrt(e.where(x > 0, x, 1)), 0), [[-1.0, 4.0]], [[0.0, 0.25]]),
        (lambda x: e.floor(x) + e.round(x) + e.sign(x), [[0.5]], [[0.0]]),
        (e.sigmoid, [[-800.0, 0.0, 800.0]], [[0.0, 0.25, 0.0]]),
    ],
)
def test_corners_of_gradients(function: Any, at: Any, want: Any) -> None:
    """Exact."""
    assert gradient(function, *at) == want


def test_gradients_of_angles_beside_large_integers() -> None:
    """Whose squares no int64 holds."""
    x = sx.asarray(np.array([1.0, -2.0]))
    for number in (2**32, 2**70):
        assert np.allclose(sx.grad(lambda x, n=number: sx.atan2(x, n).sum())(x).numpy(), 1 / number, rtol=1e-14)
        got = sx.grad(lambda x, n=number: sx.atan2(n, x).sum())(x).numpy()
        assert np.allclose(got, -1 / number, rtol=1e-14)


def test_gradient_of_a_cast_has_the_operands_dtype() -> None:
    x = sx.asarray(np.ones(3, BFLOAT16))
    g = sx.grad(lambda x: (x.astype("float64") * np.arange(3.0)).sum())(x)
    assert g.dtype == BFLOAT16 and g.numpy().tolist() == [0, 1, 2]


def test_a_real_operand_of_a_complex_function_has_a_real_gradient() -> None:
    assert gradient(lambda x: e.real(x * (2 + 3j)), [1.0]) == [[2.0]]


# Placements


def simulated(value: Any, placement: Any, ranks: int = 3) -> Any:
    return sx.asarray(np.asarray(value), mesh=Mesh(("p",), (ranks,), None, "sim"), placement={"p": placement})


def test_linear_operations_leave_a_sum_partial() -> None:
    x = simulated(np.arange(4.0), sx.Partial("sum"))
    chosen = e.where(np.ones(4, bool), x, 0.0)
    for y in (-x, x * 2.0, x / 4.0, x + x, x - 1.0, e.conj(x), x.astype("complex128"), chosen):
        assert y.spec.partial == ("p",), y.spec
    for y in (e.exp(x), abs(x), 1.0 / (x + 1), x.astype("float32"), x.astype("complex64"), x.astype(int)):
        assert y.spec.partial == (), y.spec


def test_falling_operations_turn_partial_limits_where_limits_are_symmetric() -> None:
    floats = simulated([1.0, -2.0], sx.Partial("max"))
    assert (-floats).spec.op == "min" and (-floats).numpy().tolist() == [-1.0, 2.0]
    lopsided = simulated(np.array([1, -2], "int8"), sx.Partial("max"))
    assert (-lopsided).numpy().tolist() == [-1, 2]


def test_a_partial_sum_of_bools_is_finished_before_it_is_counted() -> None:
    mesh = Mesh(("p",), (2,), None, "sim")
    x = sx.from_block([np.array([True, False])] * 2, {"p": sx.Partial("sum")}, mesh=mesh)
    assert (x * 3).numpy().tolist() == [3, 0]
    assert x.astype(int).numpy().tolist() == [1, 0]


# Errors


@pytest.mark.parametrize("placement", [sx.Shard(0), sx.Replicate(), sx.Partial("sum")])
def test_a_number_out_of_range_is_refused_on_every_rank(placement: Any) -> None:
    x = simulated(np.array([1, 2], "uint8"), placement, 4)  # two blocks are empty
    assert (x + 2).numpy().tolist() == [3, 4]
    with pytest.raises(OverflowError, match="300"):
        _ = x + 300


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda x: x & 1, TypeError, "bitwise_and takes integers and bools; got float64 and int"),
        (lambda x: ~x, TypeError, r"x\.astype\(int\)"),
        (lambda x: e.floor(x * 1j), TypeError, "floor takes real numbers"),
        (lambda x: x * 1j < 1, TypeError, r"Write real\(x\), imag\(x\) or abs\(x\)"),
        (lambda x: -(x > 0), TypeError, "negative takes numbers; got bool"),
        (lambda x: (x > 0) - (x > 0), TypeError, "logical_xor"),
        (lambda x: e.where(x, x, 0), TypeError, r"where\(condition != 0, x, y\)"),
        (lambda x: (x * 1j).astype("float32"), TypeError, r"real\(x\)\.astype\(float32\)"),
        (lambda x: x.astype(object), TypeError, "dtype object"),
        (lambda x: x + np.array([None, 1]), TypeError, "dtype object"),
        (lambda x: x + "text", TypeError, "numbers and bools"),
        (lambda x: sx.add(x, None), TypeError, "dtype object"),
        (lambda x: x + np.ones((4, 2)), ValueError, r"shapes \(3,\) and \(4, 2\) do not broadcast"),
        (lambda x: x.astype(int) ** -1, ValueError, r"x\.astype\(float\) \*\* -1"),
        (lambda x: x.astype(int)[:0] ** -2, ValueError, r"x\.astype\(float\) \*\* -2"),
        (lambda x: x.astype("float32", device="cuda"), TypeError, r"x\.to\(mesh, placement\)"),
    ],
)
def test_errors_say_what_to_write(call: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(sx.SpmdxError, match=words) as error:
        call(sx.asarray(np.arange(3.0)))
    assert isinstance(error.value, kind)


def test_the_gradient_of_an_integer_is_refused() -> None:
    with pytest.raises(TypeError, match="floating-point"):
        autodiff.grad(lambda x: x.sum())(sx.asarray([1, 2]))
