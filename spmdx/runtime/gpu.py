"""The GPU of this process, through CuPy: one device, its pool of memory, a stream to compute on and one for messages.

Computing happens on the stream that is current in CuPy, so that a user's own CuPy code stands in line with ours. Thread
ranks share device and stream: what they enqueue runs in the order of their meetings.
"""

from __future__ import annotations

import math
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np

from spmdx import context
from spmdx.dtypes import NARROW
from spmdx.errors import DeviceError, MeshError, SpmdxError
from spmdx.runtime import products


class HostFallback(RuntimeWarning):
    """An operation that CuPy cannot do is done by NumPy: its operands go to the host and its result comes back."""


# Operations that are done on the host, and why. Everything else runs on the GPU.
ON_HOST = {
    "put_with": "CuPy has no multiply.at, and its maximum.at knows few dtypes",
    "cumulative_prod": "CuPy's cumprod runs in another order where a factor is 0 or infinite",
}
noted: dict[str, str] = {}  # operations that were found to fail on the GPU, and what CuPy said


SMALL = 4096  # bytes of a constant that is kept


class Device:
    """What a process has of its GPU."""

    def __init__(self, cupy: Any, number: int) -> None:
        self.cupy, self.number = cupy, number
        self.properties: dict[str, Any] = cupy.cuda.runtime.getDeviceProperties(number)
        self.xp = Namespace(cupy)
        self._kept: list[tuple[Any, Any]] = []
        self._constants: dict[Any, Any] = {}
        self.guarded = guarded
        self.counter: Any = None  # inside a graph: the number of the replay, on the device
        self.capturing: Capturing | None = None

    @property
    def architecture(self) -> int:
        """As compilers write it: 90 for sm_90."""
        return int(self.properties["major"]) * 10 + int(self.properties["minor"])

    @property
    def multiprocessors(self) -> int:
        """How many blocks of threads run at least at once."""
        return int(self.properties["multiProcessorCount"])

    @property
    def shared_memory(self) -> int:
        """Bytes that a block of threads can share at most."""
        return int(self.properties["sharedMemPerBlockOptin"])

    @cached_property
    def launch(self) -> Any:
        """The kernels."""
        from spmdx.runtime.launch import Launcher  # here: it imports the kernels of the CPU as well

        return Launcher(self)

    @cached_property
    def messages(self) -> Any:
        """The stream that messages travel on."""
        return self.cupy.cuda.Stream(non_blocking=True)

    @contextmanager
    def sending(self) -> Iterator[Any]:
        """Inside, the stream of messages is current. It begins when all that was enqueued before is done, and what is
        enqueued afterwards waits for it: two events, and the host waits for neither."""
        compute, messages = self.cupy.cuda.get_current_stream(), self.messages
        messages.wait_event(compute.record())
        with messages:
            yield messages
        compute.wait_event(messages.record())

    def constant(self, block: Any) -> Any:
        """A NumPy array on the device. Small ones are kept there: in every step they are the same, and no graph could
        hold their upload."""
        if block.nbytes > SMALL:
            return self.cupy.asarray(block)
        key = block.dtype, block.shape, block.tobytes()
        found = self._constants.get(key)
        if found is None:
            if len(self._constants) >= 1024:
                self._constants.clear()
            found = self._constants[key] = self.cupy.asarray(block)
        return self.held(found)

    def held(self, memory: Any) -> Any:
        """What launches find by its address alone, and a store may let go: a graph that is captured keeps it."""
        if self.capturing is not None:
            self.capturing.kept.append(memory)
        return memory

    def seen(self, blocks: Iterable[Any]) -> None:
        """What a launch is given: if these outlive the capture of a graph, it keeps them."""
        if self.capturing is not None:
            self.capturing.see(blocks)

    def keep(self, stream: Any, memory: Any) -> None:
        """Keep host memory until the stream has done with it."""
        self._kept = [pair for pair in self._kept if not pair[0].done] + [(stream.record(), memory)]

    def pinned(self, count: int, dtype: Any) -> Any:
        """Host memory that the device reads and writes without a copy in between."""
        dtype = np.dtype(dtype)
        memory = self.cupy.cuda.alloc_pinned_memory(max(1, count * dtype.itemsize))
        return np.frombuffer(memory, np.uint8, count * dtype.itemsize).view(dtype)


class Capturing:
    """A graph while it is captured. Its launches find arrays by their addresses, so whatever does not come from the
    graph's own memory must stay for as long as the graph."""

    def __init__(self, cupy: Any) -> None:
        self.cupy, self.kept = cupy, list[Any]()
        self._seen: dict[int, Any] = {}

    @cached_property
    def blas(self) -> products.Captured:
        """cuBLAS for this graph."""
        return products.Captured(self.cupy)

    def see(self, blocks: Iterable[Any]) -> None:
        for block in blocks:
            if isinstance(block, self.cupy.ndarray):
                whole = block if block.base is None else block.base
                self._seen[id(whole)] = weakref.ref(whole)

    def settle(self) -> None:
        """At the end: what was made meanwhile and is gone was the graph's own."""
        self.kept += [block for block in (ref() for ref in self._seen.values()) if block is not None]
        self._seen.clear()


class _Thread(threading.local):
    entered = False


_thread = _Thread()
_here: list[Device] = []
LOCAL = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")


def here() -> Device:
    """This process's device: number local rank, modulo how many there are.

    Raises:
        MeshError: CuPy or a GPU is missing.
    """
    if not _here:
        cupy, count = _found()
        local = context.world().local
        if local is None:
            local = next((int(os.environ[v]) for v in LOCAL if os.environ.get(v, "").isdecimal()), 0)
        _here.append(Device(cupy, local % count))
    found = _here[0]
    if not _thread.entered:  # which device is current, CUDA keeps for each thread
        found.cupy.cuda.Device(found.number).use()
        _thread.entered = True
    return found


def _found() -> tuple[Any, int]:
    try:
        import cupy

        count = int(cupy.cuda.runtime.getDeviceCount())
    except Exception as error:  # CuPy is not installed, or finds no driver: one clear error for all of it
        raise MeshError(f'device="cuda" cannot be used: it needs CuPy and a GPU ({error}).', 'device="cpu"') from error
    if not count:
        raise MeshError('device="cuda" cannot be used: CuPy finds no GPU.', 'device="cpu"')
    return cupy, count


# CuPy under NumPy's names


class Ufunc:
    """A ufunc of CuPy with the methods of NumPy's that bodies use."""

    def __init__(self, call: Any, reduce: Any = None, accumulate: Any = None, identity: Any = None) -> None:
        self.call, self._reduce, self.identity = call, reduce, identity
        self.accumulate, self.at = accumulate, getattr(call, "at", None)

    def __call__(self, *args: Any, **more: Any) -> Any:
        return self.call(*args, **more)

    def reduce(self, x: Any, axis: Any = 0, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        """As NumPy's, over one dimension, several, all (None) or none: ``()``."""
        if axis == ():
            first = x.reshape(-1)[:1]
            return x.astype(dtype or self._reduce(first, None, None, False).dtype)
        found = self._reduce(x, axis, dtype, keepdims)
        if out is None:
            return found
        out[...] = found
        return out


def _real_or_both(cupy: Any, call: Any) -> Any:
    """Logic of complex numbers too: of whether they are 0."""

    def truth(x: Any) -> Any:
        return x != 0 if getattr(x, "dtype", np.dtype(bool)).kind == "c" else x

    return lambda *args, **more: call(*map(truth, args), **more)


def _sign(cupy: Any) -> Any:
    def sign(x: Any) -> Any:
        if x.dtype.kind != "c":
            return cupy.sign(x)
        size = cupy.abs(x)
        return cupy.where(size == 0, x, x / cupy.where(size == 0, 1, size))

    return sign


def _searchsorted(cupy: Any) -> Any:
    def searchsorted(x: Any, v: Any, side: str = "left") -> Any:
        common = np.result_type(x.dtype, v.dtype)
        return cupy.searchsorted(x.astype(common, copy=False), v.astype(common, copy=False), side)

    return searchsorted


def _matmul(cupy: Any) -> Any:
    """Products of many rows with one matrix as one product, which CuPy would make matrix by matrix. Others, that it
    makes badly or not at all, by cuBLAS itself (products.py); where that cannot, narrow numbers in float32."""

    def matmul(x: Any, y: Any) -> Any:
        if x.ndim > 2 and y.ndim == 2 and x.shape[-1] == y.shape[0]:
            rows = matmul(x.reshape(math.prod(x.shape[:-1]), x.shape[-1]), y)
            return rows.reshape(*x.shape[:-1], y.shape[1])
        stack = max(x.ndim, y.ndim) > 2 and x.dtype in NARROW  # and y of the same
        device = here()
        if device.capturing is not None and x.dtype != y.dtype:
            common = np.result_type(x.dtype, y.dtype)
            x, y = x.astype(common, copy=False), y.astype(common, copy=False)
        if (stack or device.capturing is not None) and x.dtype == y.dtype and x.size and y.size:
            gemm = None
            if device.capturing is not None and x.dtype in products.TYPES:
                gemm = device.capturing.blas.gemm
            elif stack and device.architecture >= 80:
                gemm = products.by_cupy(cupy)
            found = None if gemm is None else products.multiplied(cupy, gemm, x, y)
            if found is not None:
                return found
        if stack:
            return cupy.matmul(x.astype(np.float32), y.astype(np.float32)).astype(x.dtype)
        return cupy.matmul(x, y)

    return matmul


def _asarray(cupy: Any) -> Any:
    """Numbers are filled in on the device: an upload of one would not go into a graph."""

    def asarray(x: Any, dtype: Any = None, *args: Any, **more: Any) -> Any:
        if type(x) in (bool, int, float, complex):
            return cupy.full((), x, np.asarray(x).dtype if dtype is None else dtype)
        return cupy.asarray(x, dtype, *args, **more)

    return asarray


def _ascontiguousarray(cupy: Any) -> Any:
    asarray = _asarray(cupy)
    return lambda x, dtype=None: cupy.ascontiguousarray(asarray(x, dtype))


def _erf(cupy: Any) -> Any:
    from importlib import import_module

    return import_module(f"{cupy.__name__}x.scipy.special").erf


# What CuPy lacks, or does otherwise than NumPy.
OWN: dict[str, Callable[[Any], Any]] = {
    "add": lambda c: Ufunc(c.add, lambda x, a, d, k: c.sum(x, a, d, None, k), c.add.accumulate, 0),
    "multiply": lambda c: Ufunc(c.multiply, lambda x, a, d, k: c.prod(x, a, d, None, k), c.multiply.accumulate, 1),
    "maximum": lambda c: Ufunc(c.maximum, lambda x, a, d, k: c.amax(x, a, None, k)),
    "minimum": lambda c: Ufunc(c.minimum, lambda x, a, d, k: c.amin(x, a, None, k)),
    "logical_or": lambda c: Ufunc(_real_or_both(c, c.logical_or), lambda x, a, d, k: c.any(x, a, None, k)),
    "logical_and": lambda c: Ufunc(_real_or_both(c, c.logical_and), lambda x, a, d, k: c.all(x, a, None, k)),
    "logical_xor": lambda c: _real_or_both(c, c.logical_xor),
    "logical_not": lambda c: _real_or_both(c, c.logical_not),
    "matmul": _matmul,
    "asarray": _asarray,
    "ascontiguousarray": _ascontiguousarray,
    "sign": _sign,
    "searchsorted": _searchsorted,
    "erf": _erf,
    "errstate": lambda c: np.errstate,  # the device warns of nothing
    "broadcast_shapes": lambda c: np.broadcast_shapes,
}


class Namespace:
    """CuPy's functions, with those of OWN in their stead. It is what bodies know as ``xp``."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy

    def __getattr__(self, name: str) -> Any:
        own = OWN.get(name)
        found = getattr(self._cupy, name) if own is None else own(self._cupy)
        setattr(self, name, found)  # the next time there is nothing to look up
        return found

    def __repr__(self) -> str:
        return "<CuPy under NumPy's names>"


# Operations on the host


def guarded(name: str, on_device: Callable[..., Any], on_host: Callable[..., Any]) -> Callable[..., Any]:
    """A body that is done on the host where it has to be: named in ON_HOST, or found to fail on the device."""

    def host(*blocks: Any) -> Any:
        xp = here().cupy
        return xp.asarray(on_host(*(b.get() if isinstance(b, xp.ndarray) else b for b in blocks)))

    if name in ON_HOST:
        return host

    device = here()

    def run(*blocks: Any) -> Any:
        if device.capturing is not None:
            device.seen(blocks)
        if name in noted:
            return host(*blocks)
        try:
            return on_device(*blocks)
        except SpmdxError:
            raise
        except (TypeError, ValueError, NotImplementedError, AttributeError) as error:
            if device.capturing is not None:  # the host cannot take part in a graph
                raise
            out = host(*blocks)  # what is wrong on the host too is the caller's mistake, and raises here
            noted[name] = f"{type(error).__name__}: {error}"
            warnings.warn(f"{name} is done on the host from now on: {noted[name]}", HostFallback, stacklevel=2)
            return out
        except Exception as error:
            raise failure(f"{name} of {', '.join(map(_named, blocks))}", error) from error

    return run


def _named(block: Any) -> str:
    return f"{block.dtype.name}{list(block.shape)}" if hasattr(block, "dtype") else type(block).__name__


def failure(what: str, error: Exception) -> Exception:
    """What to raise of an error that came on the way to the GPU: CuPy's are told in our words, others as they are."""
    if type(error).__module__.partition(".")[0] not in ("cupy", "cupy_backends") or isinstance(error, MemoryError):
        return error
    said = next((line for line in str(error).splitlines() if "error" in line.lower()), str(error).partition("\n")[0])
    compiling = type(error).__name__ == "CompileException"
    return DeviceError(
        f"{what} failed on the GPU: {type(error).__name__}: {said.strip()[:300]}.",
        "pip install 'cupy-cuda13x[ctk]', which brings the headers that kernels are compiled with"
        if compiling
        else "CUDA_LAUNCH_BLOCKING=1 before the command: the launch that broke down may be an earlier one",
    )
