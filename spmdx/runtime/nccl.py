"""Messages between GPUs by NCCL, enqueued on the stream of messages: the host waits for none of them.

Gathering and exchanging are NCCL's; sums are made by the same steps, in the same order, as everywhere else, so that
they have the same bits. SPMDX_REDUCE=nccl lets NCCL add instead, in an order of its own.
"""

from __future__ import annotations

import atexit
import hashlib
import mmap
import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from spmdx.errors import WorldError
from spmdx.mesh import Mesh
from spmdx.runtime import gpu
from spmdx.runtime.comm import Comm, Counts, Group, cut
from spmdx.runtime.message import Block, Message
from spmdx.runtime.pending import Arrived, Pending

try:
    from spmdx import _nccl  # type: ignore[attr-defined]
except ImportError:  # not built: messages go by way of the host
    _nccl = None

NAMES = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16")
TYPES = {name: number for number, name in enumerate(NAMES)}
BYTES = TYPES["uint8"]
Flat = Any  # a flat array of CuPy
OPS = {"sum": 0, "prod": 1}  # its min and max lose NaN
SEVERAL = "NCCL_MULTI_RANK_GPU_ENABLE"  # NCCL's own word for ranks that share a GPU


def limit() -> float:
    """Seconds that a collective may take: SPMDX_TIMEOUT, or 300."""
    said = os.environ.get("SPMDX_TIMEOUT", "")
    try:
        return float(said or 300)
    except ValueError:
        raise WorldError(f"SPMDX_TIMEOUT={said} is not a number of seconds.", "SPMDX_TIMEOUT=300") from None


def places() -> list[str]:
    """Where a library may be: the one that SPMDX_NCCL names, the wheel's, the system's."""
    if os.environ.get("SPMDX_NCCL"):
        return [os.environ["SPMDX_NCCL"]]
    wheel = find_spec("nvidia.nccl") if find_spec("nvidia") else None
    folders = list(wheel.submodule_search_locations or ()) if wheel else []
    return [str(Path(folder) / "lib" / "libnccl.so.2") for folder in folders] + ["libnccl.so.2"]


def found() -> tuple[Any, str]:
    """The library and its path, or None and why there is none."""
    if _nccl is None:
        return None, "spmdx._nccl is not built"
    why = "SPMDX_NCCL=off"
    for path in places():
        if path != "off":
            try:
                return _nccl.Library(path), path
            except _nccl.Error as error:
                why = str(error)
    return None, why


def shares_gpus(path: str) -> bool:
    """True if a library has the switch that lets several ranks share a GPU."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            return text.find(SEVERAL.encode()) >= 0
    except OSError:  # the system's, whose path is not known
        return False


def agreed(plain: Group) -> tuple[Any, str]:
    """The library that the ranks of a group can all use, or None and why they cannot: one answer on every rank."""
    library, path = found()
    device = gpu.here()
    name = f"{socket.gethostname()} {device.properties.get('uuid', device.number)}"
    which = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest(), "little")
    mine = np.array([library.version if library else 0, bool(library) and shares_gpus(path), which], np.int64)
    each = np.array(plain.all_gather(mine, [3] * plain.size)).reshape(-1, 3).T
    versions, switches, devices = (set(row.tolist()) for row in each)
    if 0 in versions:
        return None, path if not library else "a rank finds no NCCL"
    if len(versions) > 1:
        return None, f"ranks have different versions of NCCL: {sorted(versions)}"
    if len(devices) < plain.size:
        if 0 in switches:
            return None, f"ranks share a GPU, which this NCCL does not allow (it has no {SEVERAL})"
        os.environ[SEVERAL] = "1"
    return library, path


class Watch:
    """Looks after what is enqueued: what fails, or takes too long, ends the run."""

    def __init__(self, fail: Callable[[str], None]) -> None:
        self.fail = fail
        self.going: deque[tuple[Any, float, NcclGroup, str]] = deque()
        self.begun = threading.Lock()
        self.thread: threading.Thread | None = None

    def add(self, event: Any, group: NcclGroup, what: str) -> None:
        """``event`` is recorded behind a collective of a group."""
        self.going.append((event, time.monotonic(), group, what))
        if self.thread is None:
            with self.begun:
                if self.thread is None:
                    self.thread = threading.Thread(target=self._run, name="spmdx NCCL", daemon=True)
                    self.thread.start()

    def _run(self) -> None:
        while True:
            time.sleep(0.2)
            try:
                self.look()
            except Exception as error:  # CuPy's too: a launch that broke down shows in every event after it
                self.fail(str(gpu.failure("what a collective waits for", error)))
                return

    def look(self) -> None:
        """Forget what is done.

        Raises:
            WorldError: the oldest that is not done has failed, or has taken too long.
        """
        while self.going and self.going[0][0].done:
            self.going.popleft()
        if self.going:
            _, start, group, what = self.going[0]
            group.checked(what, group.comm.check)
            if time.monotonic() - start > group.limit:
                raise group.error(what, f"not done after {group.limit:g} seconds")


class NcclGroup(Group):
    """One communicator of NCCL, beside the host's group of the same ranks."""

    def __init__(self, comm: Any, plain: Group, axes: tuple[str, ...], ranks: Sequence[int], watch: Watch) -> None:
        self.comm, self.plain, self.axes, self.ranks, self.watch = comm, plain, axes, ranks, watch
        self.rank, self.size, self.begins = plain.rank, plain.size, plain.size > 1
        self.device, self.limit = gpu.here(), limit()
        self.take = self.device.xp.empty
        self.native = os.environ.get("SPMDX_REDUCE") == "nccl"

    def error(self, what: str, why: str) -> WorldError:
        """What to say of a collective that went wrong."""
        return WorldError(
            f"{what} over {', '.join(self.axes)} among ranks {list(self.ranks)}: {why}.",
            "NCCL_DEBUG=INFO for what NCCL did, SPMDX_TIMEOUT=... for more seconds, SPMDX_NCCL=off to do without",
        )

    def checked(self, what: str, call: Callable[..., None], *args: Any) -> None:
        """Call NCCL; what it raises names the collective, its axes and ranks."""
        try:
            call(*args)
        except _nccl.Error as error:
            self.comm.abort()
            raise self.error(what, str(error)) from error

    def _enqueue(self, what: str, call: Callable[..., None], *args: Any) -> None:
        """A call of the communicator on the stream of messages."""
        with self.device.sending() as stream:
            self._call(stream, what, call, *args)

    def _call(self, stream: Any, what: str, call: Callable[..., None], *args: Any) -> Any:
        self.checked(what, call, *args, stream.ptr)
        event = stream.record()
        if not stream.is_capturing():  # what is captured has not happened yet
            self.watch.add(event, self, what)
        return event

    def begin(self, message: Message, blocks: Sequence[Block]) -> Pending | None:
        """An exchange, a gathering or a sum by NCCL that goes on beside what is computed next; sums in member order
        are made when it has come."""
        whole, dtype = message.verb == "all_reduce", message.dtype
        if not self.begins or (whole and not self._natively(dtype, message.op)):
            return None
        compute, messages = self.device.cupy.cuda.get_current_stream(), self.device.messages
        self.device.seen(blocks)
        flat: Any = message.packed(blocks, self.buffer)
        reduces = message.reduces and not whole
        counts = [message.counts[self.rank]] * self.size if reduces else message.incoming
        out = self.take(sum(counts), dtype)
        messages.wait_event(compute.record())
        call, args = self.comm.exchange, (_ranges(flat, message.counts), _ranges(out, counts), BYTES)
        if whole:
            call, args = self.comm.all_reduce, self._summed(flat, out, str(message.op))
        elif message.verb == "all_gather":
            call, args = self.comm.gather_ranges, (flat.data.ptr, _ranges(out, counts), BYTES)
        event = self._call(messages, message.what, call, *args)
        arrived = Arrived(cut(out, counts))
        arrived.take = self.take
        request = _Enqueued(self.device, event, compute, messages.is_capturing())
        return Pending(message, flat, (), request, arrived)

    def _gather(self, send: Any, counts: Counts, out: Any, what: str) -> list[Flat]:
        self.device.seen((send,))
        out = self.take(sum(counts), send.dtype) if out is None else out
        if min(counts) == max(counts):
            self._enqueue(what, self.comm.all_gather, send.data.ptr, out.data.ptr, send.nbytes, BYTES)
        else:
            self._enqueue(what, self.comm.gather_ranges, send.data.ptr, _ranges(out, counts), BYTES)
        return cut(out, counts)

    def _exchange(
        self, send: Flat, send_counts: Counts, recv_counts: Counts, out: Flat | None, what: str
    ) -> list[Flat]:
        self.device.seen((send,))
        out = self.take(sum(recv_counts), send.dtype) if out is None else out
        self._enqueue(what, self.comm.exchange, _ranges(send, send_counts), _ranges(out, recv_counts), BYTES)
        return cut(out, recv_counts)

    def reduce_scatter(self, send: Flat, counts: Counts, op: str) -> Flat:
        if not self._natively(send.dtype, op) or min(counts) != max(counts):
            return super().reduce_scatter(send, counts, op)
        out: Any = self.take(counts[self.rank], send.dtype)
        args = send.data.ptr, out.data.ptr, counts[self.rank], TYPES[send.dtype.name], OPS[op]
        self._enqueue(f"reduce_scatter {op}", self.comm.reduce_scatter, *args)
        return out

    def all_reduce(self, send: Flat, op: str) -> Flat:
        if not self._natively(send.dtype, op):
            return super().all_reduce(send, op)
        out: Any = self.take(len(send), send.dtype)
        self._enqueue(f"all_reduce {op}", self.comm.all_reduce, *self._summed(send, out, op))
        return out

    def _natively(self, dtype: Any, op: str | None) -> bool:
        return self.native and self.size > 1 and op in OPS and dtype.name in TYPES

    @staticmethod
    def _summed(send: Any, out: Any, op: str) -> tuple[Any, ...]:
        """What NCCL's own all-reduce takes."""
        return [(send.data.ptr, out.data.ptr, len(send))], TYPES[send.dtype.name], OPS[op]

    def broadcast(self, buf: Flat, root: int) -> None:
        """In place."""
        self._enqueue("broadcast", self.comm.broadcast, buf.data.ptr, buf.nbytes, BYTES, root)

    def send(self, buf: Flat, to: int) -> None:
        """Enqueued like the others."""
        self._enqueue(f"send to {self.ranks[to]}", self.comm.exchange, self._alone(buf, to), [], BYTES)

    def recv(self, buf: Flat, source: int) -> None:
        """Enqueued like the others."""
        self._enqueue(f"receive from {self.ranks[source]}", self.comm.exchange, [], self._alone(buf, source), BYTES)

    def _alone(self, buf: Flat, member: int) -> list[tuple[int, int]]:
        return [(buf.data.ptr, buf.nbytes if i == member else 0) for i in range(self.size)]

    def barrier(self) -> None:
        """Of the hosts."""
        self.plain.barrier()


def _ranges(flat: Flat, counts: Counts) -> list[tuple[int, int]]:
    """Where consecutive pieces of a flat array begin, and their bytes."""
    item, start = flat.dtype.itemsize, flat.data.ptr
    return [(start + item * at, item * n) for at, n in zip(accumulate((0, *counts)), counts)]


class _Enqueued:
    """What travels on the stream of messages, by the names that `runtime.pending` has for it."""

    def __init__(self, device: Any, event: Any, began: Any, captured: bool) -> None:
        self.device, self.event, self.began, self.captured = device, event, began, captured

    def test(self) -> bool:
        """What is captured into a graph has not happened: its event may be waited for there, and not asked."""
        return not self.captured and bool(self.event.done)

    def wait(self) -> None:
        """What is enqueued from here on comes after it; the host goes on. So does what is enqueued where it began: what
        was sent goes back to that stream's memory."""
        current = self.device.cupy.cuda.get_current_stream()
        current.wait_event(self.event)
        if self.began != current:
            self.began.wait_event(self.event)


class NcclComm(Comm[NcclGroup]):
    """The groups of a mesh of GPUs: one communicator for all its ranks, split for each set of axes when first used."""

    def __init__(self, mesh: Mesh, rank: int, plain: Any, library: Any, fail: Callable[[str], None]) -> None:
        super().__init__(mesh, rank)
        self.plain, self.watch, self.device = plain, Watch(fail), gpu.here()
        self.all = plain.group(mesh.axis_names)
        identity = np.zeros(128, np.uint8)
        if self.all.rank == 0:
            identity[:] = np.frombuffer(library.unique_id(), np.uint8)
        self.all.broadcast(identity, 0)
        try:
            self.comm = _nccl.Communicator(library, self.all.size, identity.tobytes(), self.all.rank, limit())
        except _nccl.Error as error:
            raise WorldError(
                f"NCCL makes no communicator of ranks {list(mesh.ranks)}: {error}.",
                "NCCL_DEBUG=INFO for its reasons, SPMDX_NCCL=off to do without",
            ) from error
        atexit.register(self._end)

    def _make(self, axes: tuple[str, ...], positions: list[int]) -> NcclGroup:
        plain = self.plain.group(axes)
        ranks = [self.mesh.ranks[i] for i in positions]
        # Groups over the same axes are split from all ranks at once: each has the number of its first member.
        comm = self.comm if len(ranks) == self.mesh.size else self.comm.split(positions[0], plain.rank)
        return NcclGroup(comm, plain, axes, ranks, self.watch)

    def _end(self) -> None:
        """At the program's end: what others wait for is sent; then nothing is left to wait for."""
        self.device.messages.synchronize()
        self.comm.abort()


def told(rank: int, abort: Callable[[int], None]) -> Callable[[str], None]:
    """What the watch does with a failure: say it, and end every rank."""

    def fail(text: str) -> None:
        print(f"spmdx: rank {rank}: {text}", file=sys.stderr, flush=True)
        abort(1)

    return fail
