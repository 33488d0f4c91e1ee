"""Products of matrices: with a narrow one by our own kernel (cuda/product.h), else by MKL where it is installed (``pip
install 'spmdx[mkl]'``), and by NumPy's own BLAS where not.

NumPy's wheels bring OpenBLAS. MKL is opened for one thread, and the threads of our kernels share a product's rows or
columns; and it is told to give the same bits whatever the alignment of its operands and the number of threads, for
replicas of a value must be equal. SPMDX_BLAS=numpy leaves all to NumPy.
"""

from __future__ import annotations

import ctypes
import os
import sysconfig
from collections.abc import Callable
from functools import lru_cache
from glob import glob
from threading import Lock
from typing import Any

import numpy as np

from spmdx.runtime import kernels, pool

_SEQUENTIAL = 1  # a threading layer, in mkl_service.h
_asking = Lock()  # sysconfig gives a thread what another has not finished
_STRICT = 0x10000  # as below: the same bits for any alignment and number of threads


def matmul(xp: Any) -> Callable[[Any, Any], Any]:
    """The function that multiplies blocks of a namespace."""
    mkl()
    return kernels.matmul if xp is np else xp.matmul  # type: ignore[no-any-return]


def _by_numpy(x: Any, y: Any) -> Any:
    if 0 in x.strides or 0 in y.strides:
        return _repeated(x, y)
    if x.nbytes <= 2**16 or not x.ndim == y.ndim == 2 or x.dtype != y.dtype:
        return np.matmul(x, y)
    return np.matmul(x, y, out=pool.empty((x.shape[0], y.shape[1]), x.dtype))


def _repeated(x: Any, y: Any) -> Any:
    """The product where an operand is a broadcast, as the gradient of a sum is: a row of x that is every row, and a
    column of y that is every column, are multiplied once. (So does bindings/products.cpp.)"""
    if x.ndim == y.ndim == 2 and x.size and y.size:
        shape = x.shape[0], y.shape[1]
        x = np.ascontiguousarray(x[:1]) if x.strides[0] == 0 else x
        y = np.ascontiguousarray(y[:, :1]) if y.strides[1] == 0 else y
        return np.broadcast_to(np.matmul(x, y), shape)
    return np.matmul(x, y)


@lru_cache(maxsize=1)
def mkl() -> str:
    """MKL's version, once it is what multiplies; "" where it is not installed, not wanted, or NumPy's already."""
    of_numpy = np.show_config(mode="dicts")["Build Dependencies"]["blas"]["name"]
    with _asking:
        library = _opened() if (own := os.environ.get("SPMDX_BLAS") != "numpy") and "mkl" not in of_numpy else None
    if library is None:
        kernels.use_blas(0, 0, pool.take, _by_numpy, own)
        return ""
    library.MKL_Set_Threading_Layer(_SEQUENTIAL)
    branch = library.MKL_CBWR_Get_Auto_Branch()
    if library.MKL_CBWR_Set(branch | _STRICT):  # an instruction set that has no strict mode
        library.MKL_CBWR_Set(branch)
    kernels.use_blas(*(_address(getattr(library, f"cblas_{kind}gemm_64")) for kind in "sd"), pool.take, _by_numpy, own)
    text = ctypes.create_string_buffer(200)
    library.MKL_Get_Version_String(text, len(text))
    return text.value.decode().strip()


def _opened() -> Any:
    """The library as PyPI's and conda's packages put it: beside this Python, or where a user's own packages lie."""
    places = [sysconfig.get_path("data"), sysconfig.get_path("data", sysconfig.get_preferred_scheme("user"))]
    for path in (path for place in places for path in sorted(glob(os.path.join(place, "lib", "libmkl_rt.so*")))[::-1]):
        try:
            library = ctypes.CDLL(path)
            library.cblas_sgemm_64  # noqa: B018  # from 2022 on
        except (OSError, AttributeError):
            continue
        return library
    return None


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0
