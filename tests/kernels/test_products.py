"""Products by our own kernel, and by a BLAS that Python opens. A stand-in for MKL: the OpenBLAS that NumPy's wheels
bring."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spmdx as sx
from spmdx.ops import contract
from spmdx.runtime import blas, kernels

SETS = kernels.instruction_sets()
NEEDS_MKL = pytest.mark.skipif(not blas.mkl(), reason="MKL is not installed: pip install 'spmdx[mkl]'")


@pytest.fixture
def openblas() -> Iterator[None]:
    """Products by NumPy's OpenBLAS; by none, or by MKL, after the test."""
    found = sorted(Path(np.__file__).parent.parent.glob("numpy.libs/libscipy_openblas64_*"))
    if not found:
        pytest.skip("this NumPy brings no OpenBLAS of its own to stand in for MKL")
    library = ctypes.CDLL(str(found[0]))
    addresses = (blas._address(getattr(library, f"scipy_cblas_{kind}gemm64_")) for kind in "sd")
    kernels.use_blas(*addresses, otherwise=blas._by_numpy)
    threads = kernels.threads()
    yield
    kernels.set_threads(threads)
    blas.mkl.cache_clear()
    blas.mkl()


def whole_numbers(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    """Small ones: their products and sums are exact, in whatever order they are added."""
    return drawn(shape, seed).astype(dtype)


@lru_cache
def drawn(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng((seed, *shape)).integers(-8, 9, shape, np.int8)


LAYOUTS = {
    "rows": lambda x: x,
    "columns": np.asfortranarray,
    "part of rows": lambda x: np.concatenate([x, x], 1)[:, : x.shape[1]],
    "part of columns": lambda x: np.asfortranarray(np.concatenate([x, x], 0))[: x.shape[0]],
    "every other row": lambda x: np.repeat(x, 2, 0)[::2],
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("right", LAYOUTS)
@pytest.mark.parametrize("left", LAYOUTS)
@pytest.mark.usefixtures("openblas")
def test_layouts(left: str, right: str, dtype: str) -> None:
    """Exact: whole numbers."""
    for m, k, n in [(5, 7, 3), (1, 7, 3), (5, 1, 3), (5, 7, 1), (1, 1, 1), (70, 33, 65)]:
        x, y = whole_numbers(m, k, dtype=dtype), whole_numbers(k, n, dtype=dtype, seed=1)
        found = kernels.product(LAYOUTS[left](x), LAYOUTS[right](y))
        assert found.dtype == x.dtype and found.flags.c_contiguous
        assert np.array_equal(found, x @ y), (m, k, n)


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize("shape", [(700, 300, 130), (130, 300, 700), (64, 4000, 65), (1, 2000, 9000), (9000, 2000, 1)])
@pytest.mark.usefixtures("openblas")
def test_pieces_of_threads(shape: tuple[int, int, int], threads: int) -> None:
    """Exact: whole numbers, in every division among threads."""
    m, k, n = shape
    x, y = whole_numbers(m, k), whole_numbers(k, n, seed=1)
    kernels.set_threads(threads)
    for a, b in [(x, y), (np.asfortranarray(x), y), (x, np.asfortranarray(y))]:
        assert np.array_equal(kernels.product(a, b), x @ y)


NO_KERNEL = pytest.param(
    "none", marks=pytest.mark.skip(reason="the kernel is built for AVX2 and AVX-512: neither is here")
)


@pytest.fixture(params=[name for name in SETS if name in ("avx2", "avx512")] or [NO_KERNEL])
def kernel(request: pytest.FixtureRequest) -> Iterator[str]:
    """Products by our own kernel alone."""
    kernels.use_blas(0, 0, otherwise=blas._by_numpy, kernel=True)
    threads = kernels.threads()
    kernels.set_instruction_set(request.param)
    yield request.param
    kernels.set_instruction_set(SETS[-1])
    kernels.set_threads(threads)
    blas.mkl.cache_clear()
    blas.mkl()


WIDE = {"float32": 512, "float64": 256}  # columns of a block, and the longest side that is the kernel's
# Rows, depth and columns: one and several blocks of each, strips and panels that are full and not.
SHAPES = [(9, 256, 257), (65, 64, 43), (66, 65, 32), (131, 129, 20), (97, 257, 31), (94, 250, 544), (200, 1030, 90)]
SHAPES += [(600, 140, 600), (700, 3, 700), (520, 520, 27)]


@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.parametrize("right", LAYOUTS)
@pytest.mark.parametrize("left", LAYOUTS)
def test_the_kernel(kernel: str, left: str, right: str, dtype: str) -> None:
    """Exact: whole numbers, on one thread and on three, also added to what is there."""
    for m, k, n in SHAPES:
        x, y = whole_numbers(m, k, dtype=dtype), whole_numbers(k, n, dtype=dtype, seed=1)
        a, b, want = LAYOUTS[left](x), LAYOUTS[right](y), x @ y
        for threads in (1, 3):
            kernels.set_threads(threads)
            assert np.array_equal(kernels.product(a, b), want), (m, k, n)
            onto = whole_numbers(m, n, dtype=dtype, seed=2)
            total = onto + want
            assert kernels.product(a, b, onto) is onto and np.array_equal(onto, total), (m, k, n)


def test_every_build_of_the_kernel_gives_the_same_bits(kernel: str) -> None:
    """Exact: of the numbers drawn here. Products and sums in one rounding, one after another: in 64 bits a product of
    two float32s is exact, and the sum is rounded where it can do no harm."""
    draw = np.random.default_rng(5)
    x, y = draw.standard_normal((97, 300)).astype("f"), draw.standard_normal((300, 45)).astype("f")
    want = np.zeros((97, 45), "f")
    for k in range(300):
        want = (np.longdouble(1) * x[:, k, None] * y[k] + want).astype("f")
    assert np.array_equal(kernels.product(x, y), want)
    assert np.array_equal(kernels.product(np.asfortranarray(x), np.asfortranarray(y)), want)


@pytest.mark.parametrize("dtype", WIDE)
def test_the_kernel_adds_in_the_order_of_k(kernel: str, dtype: str) -> None:
    """Exact: bits that do not depend on rows, columns, threads or where operands lie. Close to NumPy's in twice the
    precision: depth roundings of half an ulp of what is added up."""
    draw = np.random.default_rng(3)
    x, y = draw.standard_normal((331, 700)).astype(dtype), draw.standard_normal((700, 213)).astype(dtype)
    want = kernels.product(x, y)
    size = np.abs(x).astype(np.longdouble) @ np.abs(y).astype(np.longdouble)
    error = np.abs(want - x.astype(np.longdouble) @ y.astype(np.longdouble))
    assert np.all(error <= 700 * np.finfo(dtype).eps / 2 * size) and error.max() > 0
    for a in (x, np.asfortranarray(x), np.concatenate([x, x], 1)[:, :700]):
        for b in (y, np.asfortranarray(y)):
            for threads in (1, 2, 3):
                kernels.set_threads(threads)
                assert np.array_equal(kernels.product(a, b), want)
            rows = [kernels.product(part, b) for part in (a[:10], a[10:100], a[100:])]
            columns = [kernels.product(a, part) for part in (b[:, :27], b[:, 27:140], b[:, 140:])]
            assert np.array_equal(np.concatenate(rows), want) and np.array_equal(np.concatenate(columns, 1), want)
    by_k = kernels.product(x[:, :300], y[:300])
    assert np.array_equal(kernels.product(x[:, 300:], y[300:], by_k), want)


def test_what_is_not_the_kernels(kernel: str) -> None:
    """Few rows, columns that would leave a panel half empty, a small matrix, and one whose shorter side is long, are
    left to a BLAS; here there is none. Few are four; where the matrix is turned over or shallow, those for which that
    costs more than is won: the fewer, the longer its shorter side."""
    across = np.asfortranarray
    for dtype, side in WIDE.items():
        x, y = whole_numbers(9, side + 1, dtype=dtype), whole_numbers(side + 1, side + 1, dtype=dtype, seed=1)
        few, panel = 2048 // side, side // 16
        assert kernels.product(x, y) is None
        assert kernels.product(x[:, 1:], y[1:]) is not None and kernels.product(x, y[:, 1:]) is not None
        assert kernels.product(x[:4, 1:], y[1:]) is None and kernels.product(x[:5, 1:], y[1:]) is not None
        assert kernels.product(x[:few, 1:], across(y)[1:]) is None
        assert kernels.product(x[: few + 1, 1:], across(y)[1:]) is not None
        for columns, is_own in [(1, False), (panel // 2, False), (panel * 5 // 8, True), (panel + 1, False)]:
            assert (kernels.product(x, y[:, :columns]) is not None) == is_own, columns
        assert kernels.product(x[:, :31], y[:31]) is None and kernels.product(x[:, :32], y[:32]) is not None
        assert kernels.product(x[:, :4], y[:4]) is None
        x, y = whole_numbers(129, 16, dtype=dtype), whole_numbers(16, 128, dtype=dtype, seed=1)
        assert kernels.product(x[:128], y) is None and kernels.product(x, y) is not None
        assert np.array_equal(kernels.matmul(x[:4], y), x[:4] @ y)
    kernels.set_instruction_set(SETS[0])
    assert kernels.product(x, y) is None


def test_a_row_like_any_other(kernel: str) -> None:
    """What is not a number stays in its row and its column, and nothing beside the operands is read: behind them lie
    pages that may not be."""
    x, y = whole_numbers(47, 64), whole_numbers(64, 45, seed=1)
    x[3, 5], y[7, 40] = np.nan, np.inf
    found = kernels.product(x, y)
    bad = ~np.isfinite(found)
    assert bad[3].all() and bad[:, 40].sum() >= 40 and not np.delete(np.delete(bad, 3, 0), 40, 1).any()
    across = np.asfortranarray
    for a, b in [(x, y), (across(x), y), (x, across(y)), (across(x), across(y))]:
        got = kernels.product(at_the_end_of_a_page(a), at_the_end_of_a_page(b))
        assert np.array_equal(got, found, equal_nan=True)


def at_the_end_of_a_page(x: np.ndarray) -> np.ndarray:
    """The same array, directly before memory that may not be read."""
    page = mmap.PAGESIZE
    size = -(-x.nbytes // page) * page
    memory = mmap.mmap(-1, size + page)
    whole = np.frombuffer(memory, np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    last = ctypes.c_void_p(whole.ctypes.data + size)
    assert libc.mprotect(last, ctypes.c_size_t(page), 0) == 0
    flat = whole[size - x.nbytes : size].view(x.dtype)
    flat[:] = x.ravel("K")
    return flat.reshape(x.shape, order="C" if x.flags.c_contiguous else "F")


@pytest.mark.parametrize("dtype", WIDE)
def test_a_vector_that_is_repeated(kernel: str, dtype: str) -> None:
    """Exact: whole numbers; and bits that depend on no division, on which side of a product it is, and on no thread.
    Nothing beside the matrix is read."""
    for m, k in [(1, 1), (3, 1), (1, 70), (5, 64), (7, 129), (64, 63), (130, 300), (517, 1000)]:
        v, y = whole_numbers(1, k, dtype=dtype), whole_numbers(k, m, dtype=dtype, seed=1)
        row = np.broadcast_to(v, (9, k))
        for layout in LAYOUTS.values():
            assert np.array_equal(kernels.product(row, layout(y)), row.copy() @ y), (m, k)
            assert np.array_equal(kernels.product(layout(y).T, row.T), y.T @ row.T.copy()), (m, k)
        for b in (at_the_end_of_a_page(y), at_the_end_of_a_page(np.asfortranarray(y))):
            assert np.array_equal(kernels.product(row, b), row.copy() @ y)
    draw = np.random.default_rng(4)
    v, y = draw.standard_normal((1, 1000)).astype(dtype), draw.standard_normal((1000, 517)).astype(dtype)
    row = np.broadcast_to(v, (2, 1000))
    size = np.abs(v).astype(np.longdouble) @ np.abs(y).astype(np.longdouble)
    for b in (y, np.asfortranarray(y)):
        kernels.set_threads(1)
        want = kernels.product(row, b)
        error = np.abs(want - v.astype(np.longdouble) @ y.astype(np.longdouble))
        assert np.all(error <= 1000 * np.finfo(dtype).eps / 2 * size) and error.max() > 0
        assert want.strides[0] == 0 and np.array_equal(kernels.product(b.T, row.T), want.T)
        kernels.set_threads(3)
        parts = [kernels.product(row, part) for part in (b[:, :7], b[:, 7:140], b[:, 140:])]
        assert np.array_equal(kernels.product(row, b), want) and np.array_equal(np.concatenate(parts, 1), want)


@pytest.mark.usefixtures("openblas")
def test_what_is_left_to_numpy() -> None:
    x, y = whole_numbers(4, 6), whole_numbers(6, 5, seed=1)
    others = [
        (x[:, ::-1], y),
        (x, y[::-1]),
        (np.repeat(x, 2, 1)[:, ::2], y),
        (np.broadcast_to(x[:, :1], x.shape), y),
        (x, y.astype("float64")),
        (x.astype(">f4"), y),
        (x.astype(">f8"), y.astype(">f8")),
        (x.astype("int32"), y.astype("int32")),
        (x.astype(complex), y.astype(complex)),
        (x.astype(sx.bfloat16), y.astype(sx.bfloat16)),
        (x[:0], y),
        (x[:, :0], y[:0]),
        (x, y[:, :0]),
        (x[0], y),
        (x, y[:, 0]),
        (x[None], y[None]),
        (x, y[:5]),
    ]
    for a, b in others:
        assert kernels.product(a, b) is None
    for a, b in others[:4]:
        assert np.array_equal(kernels.matmul(a, b), a @ b)
    with pytest.raises(ValueError, match="matmul"):
        kernels.matmul(x, y[:5])


@pytest.mark.usefixtures("openblas")
def test_added_to_what_is_there() -> None:
    """Exact: whole numbers."""
    x, y = whole_numbers(70, 33), whole_numbers(33, 65, seed=1)
    for threads in (1, 3):
        kernels.set_threads(threads)
        for a in (x, np.asfortranarray(x)):
            onto = whole_numbers(70, 65, seed=2)
            want = onto + x @ y
            assert kernels.product(a, y, onto) is onto
            assert np.array_equal(onto, want)
    onto = whole_numbers(70, 65, seed=2)
    locked = onto.copy()
    locked.flags.writeable = False
    others = [onto[:, ::-1], onto[:69], np.asfortranarray(onto), onto.astype("float64"), locked, onto[None]]
    before = onto.copy()
    for bad in others:
        assert kernels.product(x, y, bad) is None
    assert kernels.product(np.broadcast_to(x[:1], x.shape), y, onto) is None
    assert np.array_equal(onto, before) and np.array_equal(locked, before)


def of_sums(h: Any, a: Any, b: Any, c: Any) -> Any:
    return sum(sx.sum(sx.einsum("btd,dhk->bthk", h, w) * (i + 1.0) * h[..., :1, None]) for i, w in enumerate((a, b, c)))


LOSSES: dict[str, tuple[Callable[..., Any], int]] = {  # and how many products are added to another's gradient
    "three products of one": (of_sums, 0),
    "three and nothing else": (
        lambda h, a, b, c: sum(sx.sum(sx.einsum("btd,dhk->bthk", h, w) ** 2) for w in (a, b, c)),
        2,
    ),
    "a product and a sum with its operand": (
        lambda h, a, b, c: sx.sum((sx.einsum("btd,dk->btk", h, a[:, 0] + b[:, 0]) + h) ** 2),
        0,
    ),
    "a product with itself": (lambda h, a, b, c: sx.sum(sx.einsum("btd,bsd->bts", h, h)), 0),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.usefixtures("openblas")
def test_gradients_added_up_by_products(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact: whole numbers. A gradient that only products make is added up by them; what others may hold is not."""
    loss, times = LOSSES[name]
    arrays = [sx.asarray(whole_numbers(2, 3, 4))]
    arrays += [sx.asarray(whole_numbers(4, 2, 4, seed=i)) for i in (1, 2, 3)]
    gradient = sx.grad(loss, argnums=(0, 1, 2, 3))
    before = [x.numpy().copy() for x in arrays]
    gradient(*arrays)  # from the second call on: what was seen before is made together
    calls = []

    def counted(x: Any, y: Any, *onto: Any) -> Any:
        found = kernels.product(x, y, *onto)
        calls.append(bool(onto) and found is not None)
        return found

    monkeypatch.setattr(contract, "product", counted)
    found = [g.numpy().copy() for g in gradient(*arrays)]
    assert sum(calls) == times
    monkeypatch.setattr(contract.contract.op, "onto", None)
    for got, want, x, was in zip(found, gradient(*arrays), arrays, before):
        assert np.array_equal(got, want.numpy())
        assert np.array_equal(x.numpy(), was)


def test_without_mkl() -> None:
    """NumPy's own function, to the bit, where MKL is not installed or is not wanted."""
    program = """
import numpy as np
from spmdx.runtime import blas
multiply = blas.matmul(np)
draw = np.random.default_rng(0).standard_normal
for left, right in [((3, 4), (4, 5)), ((300, 200), (200, 100)), ((2, 3, 4), (4, 5)), ((4,), (4, 5)), ((3, 0), (0, 2))]:
    for dtype in (np.float32, np.float64, np.float16, int, complex):
        x, y = draw(left).astype(dtype), draw(right).astype(dtype)
        found, want = multiply(x, y), np.matmul(x, y)
        assert found.dtype == want.dtype and found.tobytes() == want.tobytes(), (left, dtype)
print(repr(blas.mkl()))
"""
    env = {**os.environ, "SPMDX_BLAS": "numpy"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env, check=True)
    assert done.stdout == "''\n"


def test_what_cannot_be_multiplied_is_an_error_of_numpys() -> None:
    multiply = blas.matmul(np)
    for x, y in [(np.ones((2, 3)), np.ones((2, 3))), (np.ones(()), np.ones(3))]:
        with pytest.raises(ValueError, match="matmul"):
            multiply(x, y)
    with pytest.raises(TypeError):
        multiply(np.ones(3))


@pytest.mark.parametrize("multiply", [blas._by_numpy, kernels.matmul])
@pytest.mark.usefixtures("openblas")
def test_broadcast_operands(multiply: Callable[[Any, Any], Any]) -> None:
    """Exact: whole numbers. What is repeated is multiplied once, and repeated in the result."""
    x, y = whole_numbers(4, 6), whole_numbers(6, 5, seed=1)
    row, column = np.broadcast_to(x[:1], x.shape), np.broadcast_to(y[:, :1], y.shape)
    one, ones = np.broadcast_to(x[:1, :1], x.shape), np.broadcast_to(y[:1, :1], y.shape)
    along = np.broadcast_to(x[:, :1], x.shape)
    for a, b, repeats in [
        (row, y, (True, False)),
        (x, column, (False, True)),
        (row, column, (True, True)),
        (one, y, (True, False)),
        (x, ones, (False, True)),
        (one, ones, (True, True)),
        (one, y[:, :1], (True, True)),
        (along, y, (False, False)),
        (np.asfortranarray(x), column, (False, True)),
    ]:
        found = multiply(a, b)
        assert np.array_equal(found, a.copy() @ b.copy())
        assert (found.strides[0] == 0 or len(found) == 1, found.strides[1] == 0 or found.shape[1] == 1) == repeats
    for a, b in [(row[:0], y), (row[:, :0], column[:0]), (row, column[:, :0]), (row, y[:, 0]), (x[0], column)]:
        assert np.array_equal(multiply(a, b), a.copy() @ b.copy())
    with pytest.raises(ValueError, match="matmul"):
        multiply(row, y[:5])


@NEEDS_MKL
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_mkl_gives_the_same_bits(dtype: str) -> None:
    """Exact: whatever the alignment, the number of threads, and where rows are divided."""
    draw = np.random.default_rng(3)
    x, y = draw.standard_normal((513, 300)).astype(dtype), draw.standard_normal((300, 259)).astype(dtype)
    before = kernels.threads()
    kernels.set_threads(1)
    want = kernels.product(x, y)
    assert np.allclose(want, x @ y, rtol=1e-4 if dtype == "float32" else 1e-12)
    for shift in (1, 3, 5):
        room = np.empty(x.size + shift, dtype)
        moved = room[shift:].reshape(x.shape)
        moved[:] = x
        assert np.array_equal(kernels.product(moved, y), want)
    for threads in (2, 3):
        kernels.set_threads(threads)
        assert np.array_equal(kernels.product(x, y), want)
    kernels.set_threads(before)
    parts = [kernels.product(part, y) for part in (x[:100], x[100:101], x[101:])]
    assert np.array_equal(np.concatenate(parts), want)


def test_threads_may_look_for_mkl_at_once() -> None:
    """Python's sysconfig fails where threads ask it for the first time together; each run is a process of its own."""
    program = """
import sys
from threading import Barrier, Thread
from spmdx.runtime import blas
sys.setswitchinterval(1e-6)
together, found = Barrier(8), []
def look():
    together.wait()
    found.append(blas.mkl())
threads = [Thread(target=look) for _ in range(8)]
for t in threads:
    t.start()
for t in threads:
    t.join()
assert len(found) == 8 and len(set(found)) == 1, found
"""
    for _ in range(4):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
