"""Products of matrices by cuBLAS where CuPy's own way will not do: stacks of narrow numbers, which it makes in float32
without tensor cores, and whatever is captured into a graph, which it refuses.

cuBLAS counts by columns: what it is given is y' x' = (x y)', whose columns are the rows of the product. Rows may lie
apart, and a matrix may be turned over, so that most views are multiplied where they lie.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

MOST = 2**31  # numbers of cuBLAS have 32 bits, but for strides
SINGLE, DOUBLE = 68, 70  # CUBLAS_COMPUTE_32F and _64F
ALGORITHM = -1  # CUBLAS_GEMM_DEFAULT: tensor cores for narrow numbers, and no rounding that was not asked for
WORKSPACE = 2**25  # bytes that cuBLAS may work in, as NVIDIA advises for Hopper
# Of each type: what CUDA calls it, what is added in, and the type of what multiplies a product.
TYPES: dict[np.dtype[Any], tuple[int, int, type]] = {
    np.dtype(np.float16): (2, SINGLE, np.float32),
    np.dtype(ml_dtypes.bfloat16): (14, SINGLE, np.float32),
    np.dtype(np.float32): (0, SINGLE, np.float32),
    np.dtype(np.float64): (1, DOUBLE, np.float64),
    np.dtype(np.complex64): (4, SINGLE, np.complex64),
    np.dtype(np.complex128): (5, DOUBLE, np.complex128),
}
Shape = tuple[int, ...]


class Lying(NamedTuple):
    """How the matrices of a stack lie, for cuBLAS."""

    turned: int  # 1: down its columns elements lie side by side
    apart: int  # elements from a row (or column) to the next
    step: int  # elements from a matrix to the next; 0: one matrix for all


def lying(lead: Shape, shape: Shape, strides: Sequence[int]) -> Lying | None:
    """Of a stack [*lead, rows, columns] with strides in elements; None where cuBLAS knows no such."""
    (rows, columns), (down, along) = shape[-2:], strides[-2:]
    if (along == 1 or columns == 1) and (rows == 1 or down >= columns):
        turned, apart = 0, down if rows > 1 else columns
    elif (down == 1 or rows == 1) and (columns == 1 or along >= rows):
        turned, apart = 1, along if columns > 1 else rows
    else:
        return None
    step: int | None = None
    following = 0  # the stride that the next dimension has if all of them are one
    for n, stride in zip(reversed(lead), reversed(strides[:-2])):
        if n == 1:
            continue
        if step is None and stride >= 0:
            step = stride
        elif step is None or stride != following:
            return None
        following = stride * n
    return Lying(turned, apart, step or 0) if apart < MOST else None


def _laid(xp: Any, lead: Shape, x: Any) -> tuple[Any, Lying | None]:
    """A stack as cuBLAS can read it, copied if it must be."""
    found = _of(lead, x)
    if found is None:
        x = xp.ascontiguousarray(x)
        found = _of(lead, x)
    if found is None:  # it stands for several along some of the leading dimensions, and not along others
        x = xp.ascontiguousarray(xp.broadcast_to(x, (*lead, *x.shape[-2:])))
        found = _of(lead, x)
    return x, found


def _of(lead: Shape, x: Any) -> Lying | None:
    strides = [s // x.itemsize for s in x.strides]
    own = [0 if n == 1 else s for n, s in zip(x.shape, strides[:-2])]
    return lying(lead, x.shape, (*[0] * (len(lead) - len(own)), *own, *strides[-2:]))


def multiplied(xp: Any, gemm: Callable[..., None], x: Any, y: Any) -> Any:
    """x @ y as `np.matmul` has it, of arrays of one type in TYPES, none of them empty; None where a number is more
    than cuBLAS counts."""
    left = x[None] if x.ndim == 1 else x
    right = y[:, None] if y.ndim == 1 else y
    lead = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    rows, inner, columns, count = left.shape[-2], left.shape[-1], right.shape[-1], math.prod(lead)
    if right.shape[-2] != inner:
        return None
    (left, a), (right, b) = _laid(xp, lead, left), _laid(xp, lead, right)
    if a is None or b is None or max(rows, inner, columns, count) >= MOST:
        return None
    out = xp.empty((*lead, rows, columns), x.dtype)
    kind, computed, number = TYPES[x.dtype]
    one: Any = np.ones(1, number)
    nothing: Any = np.zeros(1, number)
    gemm(
        b.turned, a.turned, columns, rows, inner, one.ctypes.data,
        right.data.ptr, kind, b.apart, b.step, left.data.ptr, kind, a.apart, a.step, nothing.ctypes.data,
        out.data.ptr, kind, columns, rows * columns, count, computed, ALGORITHM,
    )  # fmt: skip
    if x.ndim == 1:
        out = out[..., 0, :]
    return out[..., 0] if y.ndim == 1 else out


def by_cupy(cupy: Any) -> Callable[..., None]:
    """cuBLAS as CuPy calls it."""
    cublas = import_module(f"{cupy.__name__}_backends.cuda.libs.cublas")
    handle = cupy.cuda.device.get_cublas_handle

    def gemm(*args: Any) -> None:
        cublas.gemmStridedBatchedEx(handle(), *args)

    return gemm


def library(version: int) -> Any:
    """The library that CuPy has opened."""
    try:
        return ctypes.CDLL(f"libcublas.so.{version}")
    except OSError as error:
        raise NotImplementedError(f"products in a graph need cuBLAS: {error}") from error


_INT, _LONG, _AT = ctypes.c_int, ctypes.c_longlong, ctypes.c_void_p


class Captured:
    """cuBLAS, the library that CuPy has opened, on a stream that writes down what it is given. It works in memory of
    the graph's own: what it would allocate itself would be a part of the graph."""

    def __init__(self, cupy: Any) -> None:
        self.cupy, self.handle = cupy, cupy.cuda.device.get_cublas_handle()
        self.library = library(cupy.cuda.runtime.runtimeGetVersion() // 1000)
        self.workspace = cupy.cuda.alloc(WORKSPACE)
        self.stream = cupy.cuda.get_current_stream().ptr
        first, operand = (*[_INT] * 5, _AT), (_AT, _INT, _INT)
        self._call("cublasSetStream_v2", (_AT,), self.stream)
        self._call("cublasSetWorkspace_v2", (_AT, ctypes.c_size_t), self.workspace.ptr, WORKSPACE)
        self._one = (*first, *operand, *operand, _AT, *operand, _INT, _INT)
        self._many = (*first, *operand, _LONG, *operand, _LONG, _AT, *operand, _LONG, _INT, _INT, _INT)

    def _call(self, name: str, types: Sequence[Any], *args: Any) -> None:
        function = getattr(self.library, name)
        function.argtypes, function.restype = [_AT, *types], _INT
        if status := function(self.handle, *args):
            error = import_module(f"{self.cupy.__name__}_backends.cuda.libs.cublas").CUBLASError
            raise error(status)

    def gemm(self, *args: Any) -> None:
        """As `by_cupy` gives it; one product by the function that CuPy has for one."""
        if args[19] > 1:
            self._call("cublasGemmStridedBatchedEx", self._many, *args)
        else:
            self._call("cublasGemmEx", self._one, *(a for i, a in enumerate(args) if i not in (9, 13, 18, 19)))
