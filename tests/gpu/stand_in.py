"""A module that plays CuPy's part on a machine without a GPU: its arrays lie in host memory, and are as strict as
CuPy's.

They become NumPy arrays only when asked to, and no NumPy function takes them. Streams, events and launches are written
down, and so is whatever makes the host wait. Launches run the kernels' own source (emulator.py), their arrays between
guards that nothing may write to. What is shown is logic; that a GPU does the same is for scripts/gpu_check to show.
"""

from __future__ import annotations

import ctypes
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

import emulator
import ml_dtypes
import numpy as np
import scipy.special

GUARD = 64  # bytes before and after every array
PATTERN = 0xA5
ADDED = ("i4", "i8", "f2", "f4", "f8", "u4", "u8", "c8", "c16")  # dtypes of add.at
LIMITS = {"threads": 1024, "y": 65535, "shared": 232448}


class Log(list[tuple[str, Any]]):
    """What was done, in order: ("launch", name), ("wait", why), ("event", (stream, number)), ..."""

    def of(self, what: str) -> list[Any]:
        """The entries of a kind."""
        return [entry for kind, entry in self if kind == what]


log = Log()


def waits(why: str) -> None:
    """The host waits for the device."""
    assert not capturing, f"{why} inside a graph"
    log.append(("wait", why))


capturing: list[Any] = []


def _guarded(shape: Any, dtype: Any) -> Any:
    dtype = np.dtype(dtype)
    shape = tuple(shape) if np.iterable(shape) else (int(shape),)
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    raw = np.full(nbytes + 2 * GUARD + 16, PATTERN, np.uint8)
    shift = GUARD + (-(raw.ctypes.data + GUARD)) % 16
    return (
        np.frombuffer(raw.data, np.uint8, nbytes, shift).view(dtype).reshape(shape)
        if nbytes
        else np.empty(shape, dtype)
    )


def _root(a: Any) -> Any:
    while isinstance(a, np.ndarray) and a.base is not None:
        a = a.base
    return a.obj if isinstance(a, memoryview) else None


def _intact(a: Any, name: str) -> None:
    raw = _root(a)
    if raw is None or a.nbytes == 0:
        return
    first = raw.ctypes.data
    flat = a
    while isinstance(flat.base, np.ndarray):
        flat = flat.base
    start = flat.ctypes.data - first
    edges = np.concatenate([raw[:start], raw[start + flat.nbytes :]])
    assert (edges == PATTERN).all(), f"{name} writes outside of an array"


def _own(a: Any) -> Any:
    """A NumPy result in memory of the device."""
    a = np.asarray(a)
    if isinstance(_root(a), np.ndarray) and _root(a).dtype == np.uint8 and a.base is not None:
        return ndarray(a)
    out = _guarded(a.shape, a.dtype)
    out[...] = a
    return ndarray(out)


def _in(x: Any) -> Any:
    if isinstance(x, ndarray):
        return x._a
    if isinstance(x, (tuple, list)):
        return type(x)(map(_in, x)) if not hasattr(x, "_fields") else x
    if isinstance(x, np.ndarray):
        raise TypeError(f"Unsupported type {type(x)}: a NumPy array among the device's")
    return x


def _view(x: Any, whole: ndarray) -> Any:
    """A result, which remembers what it is a view of."""
    out = _out(x)
    if isinstance(out, ndarray) and isinstance(x, np.ndarray) and np.shares_memory(x, whole._a):
        out._whole = whole if whole.base is None else whole.base
    return out


def _out(x: Any) -> Any:
    if isinstance(x, (tuple, list)):
        return type(x)(map(_out, x))
    return _own(x) if isinstance(x, (np.ndarray, np.generic)) else x


class Data:
    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


class ndarray:  # noqa: N801  # CuPy's name
    """An array of the device."""

    __array_ufunc__ = None
    _whole: Any = None

    def __init__(self, a: Any) -> None:
        self._a = a

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()`.")

    def __getattr__(self, name: str) -> Any:
        if name in ("shape", "ndim", "size", "dtype", "itemsize", "nbytes", "strides", "flags"):
            return getattr(self._a, name)
        if name in ("T", "mT", "real", "imag"):
            return _view(getattr(self._a, name), self)
        if name in (
            "reshape",
            "transpose",
            "ravel",
            "copy",
            "astype",
            "view",
            "take",
            "squeeze",
            "swapaxes",
            "sum",
            "any",
            "all",
            "min",
            "max",
            "argmax",
            "argmin",
            "argsort",
            "diagonal",
            "cumsum",
            "mean",
            "prod",
            "conj",
        ):
            return lambda *args, **more: _view(
                getattr(self._a, name)(*map(_in, args), **{k: _in(v) for k, v in more.items()}), self
            )
        raise AttributeError(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("real", "imag"):
            setattr(self._a, name, _in(value))
        else:
            object.__setattr__(self, name, value)

    @property
    def base(self) -> Any:
        """The array that a view is of, CuPy's way: one, however many views lie between."""
        return self._whole

    @property
    def data(self) -> Data:
        return Data(self._a.ctypes.data)

    @property
    def __cuda_array_interface__(self) -> Any:
        return self._a.__array_interface__

    def get(self, stream: Any = None, order: str = "C", out: Any = None, blocking: bool = True) -> Any:
        if blocking:
            waits("get")
        elif out is None or out.base is None:
            raise TypeError("a copy that the host does not wait for needs pinned memory")
        log.append(("down", self.nbytes))
        if out is None:
            return np.array(self._a)
        out[...] = self._a
        return out

    def set(self, a: Any, stream: Any = None) -> None:
        assert isinstance(a, np.ndarray) and a.dtype == self.dtype and a.shape == self.shape
        log.append(("up", a.nbytes))
        self._a[...] = a

    def item(self) -> Any:
        waits("item")
        return self._a.item()

    def tolist(self) -> Any:
        waits("tolist")
        return self._a.tolist()

    def __len__(self) -> int:
        return len(self._a)

    def __bool__(self) -> bool:
        waits("bool")
        return bool(self._a)

    def __int__(self) -> int:
        waits("int")
        return int(self._a)

    def __float__(self) -> float:
        waits("float")
        return float(self._a)

    __hash__ = None  # type: ignore[assignment]

    def _index(self, key: Any) -> Any:
        for k in key if isinstance(key, tuple) else (key,):
            if isinstance(k, ndarray) and k.dtype.kind == "b":
                waits("a mask")
        return _in(key)

    def __getitem__(self, key: Any) -> Any:
        return _view(self._a[self._index(key)], self)

    def __setitem__(self, key: Any, value: Any) -> None:
        scalar = not isinstance(value, ndarray) or value.ndim == 0
        self._a[_in(key) if scalar else self._index(key)] = _in(value)


def _operator(name: str, inplace: bool = False) -> Callable[..., Any]:
    def method(self: ndarray, *others: Any) -> Any:
        if any(isinstance(o, np.ndarray) and not isinstance(o, np.generic) for o in others):
            raise TypeError("Unsupported type <class 'numpy.ndarray'>")
        found = getattr(self._a, name)(*map(_in, others))
        if found is NotImplemented:
            return found
        return self if inplace else _out(found)

    return method


for _name in [
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "and",
    "or",
    "xor",
    "lshift",
    "rshift",
    "matmul",
]:
    setattr(ndarray, f"__{_name}__", _operator(f"__{_name}__"))
    setattr(ndarray, f"__r{_name}__", _operator(f"__r{_name}__"))
    setattr(ndarray, f"__i{_name}__", _operator(f"__i{_name}__", inplace=True))
for _name in ["neg", "pos", "abs", "invert", "eq", "ne", "lt", "le", "gt", "ge"]:
    setattr(ndarray, f"__{_name}__", _operator(f"__{_name}__"))


def _function(function: Any) -> Callable[..., Any]:
    def call(*args: Any, **more: Any) -> Any:
        out = more.get("out")
        with np.errstate(all="ignore"):
            found = function(*map(_in, args), **{k: _in(v) for k, v in more.items()})
        return out if out is not None else _out(found)

    return call


class Ufunc:
    """As CuPy's: only sums and products reduce, and few have ``at``."""

    def __init__(self, ufunc: Any) -> None:
        self._ufunc, self.name = ufunc, ufunc.__name__

    def __call__(self, *args: Any, **more: Any) -> Any:
        return _function(self._ufunc)(*args, **more)

    def reduce(self, *args: Any, **more: Any) -> Any:
        if self.name not in ("add", "multiply"):
            raise NotImplementedError(f"`cupy_{self.name}.reduce` is not supported yet")
        return _function(self._ufunc.reduce)(*args, **more)

    def accumulate(self, *args: Any, **more: Any) -> Any:
        if self.name not in ("add", "multiply"):
            raise NotImplementedError(f"`cupy_{self.name}.accumulate` is not supported yet")
        return _function(self._ufunc.accumulate)(*args, **more)

    def at(self, a: Any, index: Any, values: Any) -> None:
        if self.name not in ("add", "maximum", "minimum"):
            raise NotImplementedError(f"`cupy_{self.name}.at` is not supported yet")
        if a.dtype not in list(map(np.dtype, ADDED)):
            raise TypeError(f"cupy.{self.name}.at does not support {a.dtype}")
        self._ufunc.at(a._a, _in(index), _in(values))


# Explicit transfers


def asarray(x: Any, dtype: Any = None) -> Any:
    if isinstance(x, ndarray):
        return x if dtype is None or x.dtype == dtype else x.astype(dtype)
    assert not capturing or np.ndim(x) == 0, "an upload inside a graph"
    log.append(("up", np.asarray(x).nbytes))
    return _own(np.array(x, dtype))


def array(x: Any, dtype: Any = None, copy: bool = True, order: str = "K") -> Any:
    return asarray(x, dtype).copy() if copy else asarray(x, dtype)


def ascontiguousarray(x: Any, dtype: Any = None) -> Any:
    x = asarray(x, dtype)
    return x if x.flags.c_contiguous else _out(np.ascontiguousarray(x._a))


def empty(shape: Any, dtype: Any = float, order: str = "C") -> Any:
    out = _guarded(shape, dtype)
    out.reshape(-1).view(np.uint8)[...] = 0xEE  # what nobody has written is seen
    return ndarray(out)


def nonzero(x: Any) -> Any:
    waits("nonzero")
    return _out(np.nonzero(x._a))


def ndim(x: Any) -> int:
    return int(x.ndim) if isinstance(x, ndarray) else np.ndim(x)


def broadcast_to(x: Any, shape: Any) -> Any:
    return ndarray(np.broadcast_to(x._a, shape))


def broadcast_arrays(*arrays: Any) -> Any:
    return [ndarray(a) for a in np.broadcast_arrays(*(x._a for x in arrays))]


def searchsorted(a: Any, v: Any, side: str = "left", sorter: Any = None) -> Any:
    if not isinstance(v, ndarray) or a.dtype != v.dtype:
        raise NotImplementedError("searchsorted of two arrays of one dtype")
    return _out(np.searchsorted(a._a, v._a, side))


def argmax(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    return _out(np.argmax(a._a, axis, keepdims=keepdims))


def argmin(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    return _out(np.argmin(a._a, axis, keepdims=keepdims))


# The device


class Event:
    count = 0

    def __init__(self, stream: str) -> None:
        Event.count += 1
        self.number, self.stream, self.done = Event.count, stream, True
        log.append(("event", (stream, self.number)))


class Stream:
    current: ClassVar[list[Any]] = []
    ptr = 0

    def __init__(self, null: bool = False, non_blocking: bool = False) -> None:
        self.name = "compute" if null else f"stream {id(self) % 997}"
        self.null = null

    def record(self, event: Any = None) -> Event:
        return Event(self.name)

    def is_capturing(self) -> bool:
        return bool(capturing)

    def wait_event(self, event: Event) -> None:
        log.append(("after", (self.name, event.number)))

    def synchronize(self) -> None:
        waits(f"synchronize {'compute' if self.null else 'messages'}")

    def __enter__(self) -> Stream:
        Stream.current.append(self)
        return self

    def __exit__(self, *_: Any) -> None:
        Stream.current.pop()

    def begin_capture(self, mode: Any = None) -> None:
        capturing.append(Graph())

    def end_capture(self) -> Any:
        return capturing.pop()


class Graph:
    """What was launched while capturing, to be launched again."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def launch(self, stream: Any = None) -> None:
        log.append(("replay", len(self.calls)))
        for call in self.calls:
            call()


NULL = Stream(null=True)
Stream.null = NULL  # type: ignore[attr-defined,assignment]


class RawModule:
    def __init__(self, *, path: str) -> None:
        self.module = path.rpartition("/")[2]

    def get_function(self, name: str) -> Kernel:
        return Kernel(self.module, name)


class Kernel:
    max_dynamic_shared_size_bytes = 48 * 1024

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name

    def __call__(self, grid: Any, block: Any, args: Any, shared_mem: int = 0) -> None:
        threads = int(np.prod(block))
        assert 0 < threads <= LIMITS["threads"], f"{self.name}: {threads} threads"
        assert all(g > 0 for g in grid) and (len(grid) < 2 or grid[1] <= LIMITS["y"]), f"{self.name}: grid {grid}"
        assert shared_mem <= min(self.max_dynamic_shared_size_bytes, LIMITS["shared"]), (
            f"{self.name}: {shared_mem} bytes"
        )
        stream = Stream.current[-1].name if Stream.current else "compute"
        log.append(("launch", (self.name, stream, tuple(grid), tuple(block))))
        held, pointers = [], []
        for a in args:
            if isinstance(a, ndarray) or a is None:
                a = np.array([0 if a is None else a.data.ptr], np.uint64)
            elif isinstance(a, np.ndarray):
                assert a.size == 1, f"{self.name}: only arrays of one element go by value"
            else:
                assert isinstance(a, np.generic), f"{self.name}: {type(a).__name__} says no width"
                a = np.array([a])
            held.append(a)
            pointers.append(a.ctypes.data)

        def run() -> None:
            emulator.launch(self.module, self.name, grid, block, pointers)
            for x in args:
                if isinstance(x, ndarray):
                    _intact(x._a, self.name)
            _ = held

        if capturing:  # written down, and done when the graph is launched
            capturing[-1].calls.append(run)
        else:
            run()


class Device:
    def __init__(self, number: int) -> None:
        self.number = number

    def use(self) -> None:
        log.append(("device", self.number))


# cuBLAS

ELEMENTS = {0: "f4", 1: "f8", 2: "f2", 4: "c8", 5: "c16", 14: ml_dtypes.bfloat16}


def _columns(at: int, kind: int, turned: int, rows: int, columns: int, apart: int) -> Any:
    """A matrix as cuBLAS reads it: its columns lie `apart`, or its rows if it is turned over."""
    dtype = np.dtype(ELEMENTS[kind])
    rows, columns = (columns, rows) if turned else (rows, columns)
    assert apart >= max(1, rows), f"{apart} elements from a column of {rows} to the next"
    memory = (ctypes.c_uint8 * (((columns - 1) * apart + rows) * dtype.itemsize)).from_address(at)
    found = np.lib.stride_tricks.as_strided(
        np.frombuffer(memory, dtype), (rows, columns), (dtype.itemsize, apart * dtype.itemsize)
    )
    return found.T if turned else found


def _strided_batched(
    handle: int, turn_a: int, turn_b: int, m: int, n: int, k: int, alpha: int,
    a: int, a_kind: int, a_apart: int, a_step: int, b: int, b_kind: int, b_apart: int, b_step: int, beta: int,
    c: int, c_kind: int, c_apart: int, c_step: int, count: int, computed: int, algorithm: int,
) -> int:  # fmt: skip
    """cublasGemmStridedBatchedEx, of memory of the host."""
    wide = {1: "f8", 4: "c8", 5: "c16"}.get(a_kind, "f4")
    assert handle and a_kind == b_kind == c_kind and computed == (70 if a_kind in (1, 5) else 68)
    factors = [(ctypes.c_uint8 * np.dtype(wide).itemsize).from_address(at) for at in (alpha, beta)]
    assert [np.frombuffer(f, wide)[0] for f in factors] == [1, 0]
    item = np.dtype(ELEMENTS[a_kind]).itemsize
    log.append(("product", (count, turn_a, turn_b)))

    def run() -> None:
        for i in range(count):
            x = _columns(a + i * a_step * item, a_kind, turn_a, m, k, a_apart)
            y = _columns(b + i * b_step * item, b_kind, turn_b, k, n, b_apart)
            out = _columns(c + i * c_step * item, c_kind, 0, m, n, c_apart)
            out[...] = (x.astype(wide) @ y.astype(wide)).astype(out.dtype)

    capturing[-1].calls.append(run) if capturing else run()
    return 0


def _gemm(*args: int) -> int:
    (head, a, b, beta, c, more) = args[:7], args[7:10], args[10:13], args[13], args[14:17], args[17:]
    return _strided_batched(*head, *a, 0, *b, 0, beta, *c, 0, 1, *more)


def _by_cupy(*args: int) -> None:
    if capturing:
        raise NotImplementedError("calling cuBLAS API during stream capture is currently unsupported")
    _strided_batched(*args)


cublas = types.SimpleNamespace(
    gemmStridedBatchedEx=_by_cupy,
    cublasGemmStridedBatchedEx=_strided_batched,
    cublasGemmEx=_gemm,
    cublasSetStream_v2=lambda handle, stream: 0,
    cublasSetWorkspace_v2=lambda handle, at, nbytes: 0,
)


PROPERTIES = {"major": 9, "minor": 0, "multiProcessorCount": 2, "sharedMemPerBlockOptin": LIMITS["shared"]}


def make() -> types.ModuleType:
    """The module."""
    cupy = types.ModuleType("cupy")
    own = {
        "asarray": asarray,
        "array": array,
        "ascontiguousarray": ascontiguousarray,
        "empty": empty,
        "nonzero": nonzero,
        "ndim": ndim,
        "ndarray": ndarray,
        "broadcast_to": broadcast_to,
        "broadcast_arrays": broadcast_arrays,
        "searchsorted": searchsorted,
        "argmax": argmax,
        "argmin": argmin,
        "RawModule": RawModule,
    }
    for name, value in own.items():
        setattr(cupy, name, value)
    runtime = types.SimpleNamespace(
        getDeviceCount=lambda: 2,
        getDeviceProperties=lambda number: PROPERTIES,
        runtimeGetVersion=lambda: 13000,
        driverGetVersion=lambda: 13000,
    )
    cupy.cuda = types.SimpleNamespace(  # type: ignore[attr-defined]
        runtime=runtime,
        Device=Device,
        Stream=Stream,
        get_current_stream=lambda: Stream.current[-1] if Stream.current else NULL,
        alloc_pinned_memory=lambda n: memoryview(bytearray(n)),
        alloc=lambda n: types.SimpleNamespace(ptr=0),
        device=types.SimpleNamespace(get_cublas_handle=lambda: 1),
    )
    cupy.cuda.MemoryPool = lambda: types.SimpleNamespace(malloc=None)  # type: ignore[attr-defined]
    cupy.cuda.using_allocator = lambda malloc: nullcontext()  # type: ignore[attr-defined]
    cupy.lib = types.SimpleNamespace(  # type: ignore[attr-defined]
        stride_tricks=types.SimpleNamespace(
            as_strided=lambda x, *args: ndarray(np.lib.stride_tricks.as_strided(x._a, *args))
        )
    )
    cupy.linalg = types.SimpleNamespace(qr=lambda x: _out(tuple(np.linalg.qr(x._a))))  # type: ignore[attr-defined]

    def matmul(x: Any, y: Any, **more: Any) -> Any:
        if capturing and x.dtype.kind in "fcV":
            raise NotImplementedError("calling cuBLAS API during stream capture is currently unsupported")
        if x.dtype.itemsize > 2 or x.dtype.kind not in "fV":
            return _function(np.matmul)(x, y, **more)
        if max(x.ndim, y.ndim) > 2 and "V" in (x.dtype.kind, y.dtype.kind):  # as CuPy 14.2 does
            raise TypeError("data type 'E' not understood")
        return _out(np.matmul(x._a.astype(np.float32), y._a.astype(np.float32)).astype(x.dtype))  # as cuBLAS

    cupy.matmul = matmul  # type: ignore[attr-defined]

    def missing(name: str) -> Any:
        found = getattr(np, name, None)
        if found is None or name in ("errstate", "broadcast_shapes", "erf"):
            raise AttributeError(f"module 'cupy' has no attribute {name!r}")
        if isinstance(found, np.ufunc) and name != "matmul":
            return Ufunc(found)
        return _function(found) if callable(found) and not isinstance(found, type) else found

    cupy.__getattr__ = missing  # type: ignore[method-assign]
    return cupy


@contextmanager
def playing() -> Iterator[Log]:
    """The stand-in as CuPy, and a device that knows no other."""
    from spmdx.op import registry
    from spmdx.runtime import gpu, kernels, nvrtc, products

    special = types.ModuleType("cupyx.scipy.special")
    special.erf = _function(scipy.special.erf)  # type: ignore[attr-defined]
    modules = {"cupy": make(), "cupyx": types.ModuleType("cupyx"), "cupyx.scipy": types.ModuleType("cupyx.scipy")}
    modules["cupyx.scipy.special"] = special
    modules["cupy_backends.cuda.libs.cublas"] = cublas  # type: ignore[assignment]
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    cached, nvrtc.cached = nvrtc.cached, lambda module, version, architecture: Path("/") / module  # type: ignore[assignment]
    library, products.library = products.library, lambda version: cublas
    log.clear()
    capturing.clear()
    try:
        yield log
    finally:
        nvrtc.cached, products.library = cached, library
        gpu._here.clear()
        kernels._gpu.clear()
        for operation in registry.values():  # they are bound to this device
            operation.memo.clear()
            operation.entries.clear()
        for name, module in before.items():
            sys.modules.pop(name) if module is None else sys.modules.update({name: module})
