"""Groups of ranks whose GPUs talk by NCCL: thread ranks with stand-ins for CuPy and for NCCL show that counts, offsets,
order and errors are right. On real GPUs scripts/gpu_check runs the suites of ranks on NCCL itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fake
import ml_dtypes
import numpy as np
import pytest

import spmdx as sx
from spmdx.errors import WorldError
from spmdx.mesh import Mesh
from spmdx.runtime import gpu, nccl
from spmdx.runtime import world as worlds
from spmdx.runtime.comm import cut
from spmdx.runtime.message import flat_message
from spmdx.runtime.reduction import reduce_ordered
from spmdx.testing import spmd

_nccl = pytest.importorskip("spmdx._nccl", reason="the module is not built")
DTYPES = [np.float32, np.float64, np.int8, np.int64, np.bool_, np.complex128, np.float16, ml_dtypes.bfloat16]


@pytest.fixture(autouse=True)
def library(device: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if device is None:
        pytest.skip("a real GPU: the suites of ranks run there")
    monkeypatch.setenv("SPMDX_NCCL", str(fake.library()))
    yield
    fake.control().fake_slow(0)
    fake.control().fake_async(0)


def made(axes: dict[str, int], fail: Callable[[str], None] = lambda text: None) -> nccl.NcclComm:
    """This rank's communicator of a mesh of GPUs."""
    mesh, here = sx.make_mesh(axes, device="cuda"), worlds.current()
    gpu.here()
    return nccl.NcclComm(mesh, here.rank, here.comm(mesh.host), _nccl.Library(str(fake.library())), fail)


def values(rank: int, count: int, dtype: Any) -> Any:
    draw = np.random.default_rng([rank, count]).integers(0, 5, count)
    return draw.astype(dtype) + (draw.astype(dtype) * 1j if np.dtype(dtype).kind == "c" else np.zeros((), dtype))


def up(x: Any) -> Any:
    return gpu.here().xp.asarray(x)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("axes", [("a",), ("b",), ("a", "b")], ids="".join)
def test_verbs(axes: tuple[str, ...], dtype: Any) -> None:
    """Exact: what NumPy says, sums in the order of the ranks."""

    def program() -> None:
        comm = made({"a": 2, "b": 2})
        group = comm.group(axes)
        n, members = group.size, [comm.mesh.ranks[i] for i in comm.positions(axes)]
        counts = [3, 0, 5, 2][:n]
        each = [values(r, counts[i], dtype) for i, r in enumerate(members)]
        for part, want in zip(group.all_gather(up(each[group.rank]), counts), each):
            np.testing.assert_array_equal(part.get(), want)
        even = [values(r, 4, dtype) for r in members]
        np.testing.assert_array_equal(
            np.concatenate([p.get() for p in group.all_gather(up(even[group.rank]), [4] * n)]), np.concatenate(even)
        )

        def parts(i: int) -> list[Any]:
            return [values(10 * members[i] + j, (i + 2 * j) % 4, dtype) for j in range(n)]

        mine = parts(group.rank)
        sent, received = list(map(len, mine)), [len(parts(i)[group.rank]) for i in range(n)]
        arrived = group.all_to_all(up(np.concatenate(mine)), sent, received)
        for i, part in enumerate(arrived):
            np.testing.assert_array_equal(part.get(), parts(i)[group.rank])
        whole = [values(r, 7, dtype) for r in members]
        cuts = [2, 5, 0, 0][:n]
        for op in ("sum", "prod") if np.dtype(dtype).kind == "c" else ("sum", "prod", "min", "max"):
            want = reduce_ordered(whole, op)
            np.testing.assert_array_equal(group.all_reduce(up(whole[group.rank]), op).get(), want)
            part = group.reduce_scatter(up(whole[group.rank]), cuts, op)
            np.testing.assert_array_equal(part.get(), cut(want, cuts)[group.rank])
        buf = up(whole[group.rank])
        group.broadcast(buf, n - 1)
        np.testing.assert_array_equal(buf.get(), whole[-1])
        if group.rank == 0:
            group.send(up(even[0]), n - 1)
        elif group.rank == n - 1:
            buf = up(np.zeros(4, dtype))
            group.recv(buf, 0)
            np.testing.assert_array_equal(buf.get(), even[0])
        group.barrier()

    spmd(4)(program)()


def test_min_and_max_keep_nan() -> None:
    def program() -> None:
        group = made({"a": 3}).group(("a",))
        x = np.array([1.0, np.nan if group.rank == 1 else 2.0, -float(group.rank)])
        np.testing.assert_array_equal(group.all_reduce(up(x), "max").get(), [1, np.nan, 0])
        np.testing.assert_array_equal(group.all_reduce(up(x), "min").get(), [1, np.nan, -2])

    spmd(3)(program)()


def test_sums_by_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where SPMDX_REDUCE=nccl says so; exact here, of small integers. Others are made as ever."""
    monkeypatch.setenv("SPMDX_REDUCE", "nccl")
    calls: list[str] = []

    def program() -> None:
        group = made({"a": 2}).group(("a",))
        enqueue = group._enqueue
        group._enqueue = lambda what, *args: (calls.append(what), enqueue(what, *args))[1]  # type: ignore[method-assign]
        x = np.arange(6.0) + group.rank
        np.testing.assert_array_equal(group.all_reduce(up(x), "sum").get(), 2 * np.arange(6.0) + 1)
        even = group.reduce_scatter(up(x), [3, 3], "prod").get()
        np.testing.assert_array_equal(even, (np.arange(6.0) * np.arange(1.0, 7))[3 * group.rank :][:3])
        uneven = group.reduce_scatter(up(x), [4, 2], "sum").get()
        np.testing.assert_array_equal(uneven, cut(2 * np.arange(6.0) + 1, [4, 2])[group.rank])
        group.all_reduce(up(x), "max")
        group.all_reduce(up(np.ones(2, bool)), "sum")

    spmd(2)(program)()
    # a native sum is one call a rank, and of the others those that exchange or gather
    assert calls.count("reduce_scatter prod") == 2 and calls.count("reduce_scatter sum") == 2
    assert calls.count("all_reduce sum") == 2 + 2


def test_an_operation_on_the_mesh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays, redistribution and a gradient, from world to blocks. Close to 1e-12."""
    a = np.arange(30.0).reshape(5, 6)

    def program() -> None:
        here = worlds.current()
        here.of_gpu = lambda world, mesh: nccl.NcclComm(
            mesh, world.rank, world.comm(mesh.host), _nccl.Library(str(fake.library())), lambda text: None
        )
        mesh = sx.make_mesh({"a": 2, "b": 2}, device="cuda")
        x = sx.asarray(a, mesh=mesh, placement={"a": sx.Shard(0), "b": sx.Shard(1)})
        assert isinstance(here.comm(mesh), nccl.NcclComm)
        y = x.redistribute({"a": sx.Shard(1)})
        np.testing.assert_array_equal(y.numpy(), a)
        np.testing.assert_allclose((x @ x.T).numpy(), a @ a.T, rtol=1e-12)
        np.testing.assert_allclose(
            sx.grad(lambda x: (x.sum(0) ** 2).sum())(x).numpy(), 2 * a.sum(0) + 0 * a, rtol=1e-12
        )

    spmd(4)(program)()


def test_what_has_begun() -> None:
    """Exact. Packing comes before the message, and what needs the result after it, by events alone; nothing waits."""

    def program() -> None:
        group = made({"a": 3}).group(("a",))
        r, n = group.rank, group.size
        log = stand_in.log
        for verb in ("all_gather", "all_to_all", "reduce_scatter"):
            op = "sum" if verb == "reduce_scatter" else None
            counts = {"all_gather": (2 + r,), "all_to_all": (2, 0, 1), "reduce_scatter": (1, 3, 2)}[verb]
            incoming = {"all_gather": (2, 3, 4), "all_to_all": ((2, 0, 1)[r],) * n, "reduce_scatter": ((1, 3, 2)[r],)}
            message = flat_message(verb, op, np.dtype(float), counts, incoming[verb], verb)
            each = [np.arange(sum(counts if verb != "all_gather" else (2 + i,))) + 10.0 * i for i in range(n)]
            group.barrier()  # the log is everybody's
            before = len(log)
            group.barrier()
            pending = group.begin(message, [up(each[r])])
            assert pending is not None
            (block,) = pending.wait()
            group.barrier()
            since = log[before:]
            group.barrier()
            assert not [entry for entry in since if entry[0] == "wait"]
            if verb == "all_gather":
                want = np.concatenate(each)
            elif verb == "all_to_all":
                want = np.concatenate([cut(x, counts)[r] for x in each])
            else:
                want = cut(each[0] + each[1] + each[2], counts)[r]
            np.testing.assert_array_equal(block.get(), want)
        message = flat_message("all_reduce", "sum", np.dtype(float), (2,), (2,), "all_reduce sum")
        assert group.begin(message, [up(np.ones(2))]) is None

    import stand_in

    spmd(3)(program)()


def test_a_sum_in_two_halves() -> None:
    """Exact. The second half begins at a line of the program; no host waits."""

    def program() -> None:
        group = made({"a": 3}).group(("a",))
        each = [np.arange(7.0) + 10.0**i for i in range(3)]
        message = flat_message("all_reduce", "sum", np.dtype(float), (7,), (7,), "all_reduce sum")
        group.barrier()  # the log is everybody's
        before = len(stand_in.log)
        group.barrier()
        first, second = (group.half(message, [up(sign * each[group.rank])]) for sign in (1, -1))
        assert first is not None and second is not None
        first.gather()
        assert first._whole is not None and second._whole is None
        whole = reduce_ordered(each, "sum")
        blocks = [half.wait()[0] for half in (second, first)]
        group.barrier()
        since = stand_in.log[before:]
        group.barrier()
        assert not [entry for entry in since if entry[0] == "wait"]
        for block, want in zip(blocks, (-whole, whole)):
            np.testing.assert_array_equal(block.get(), want)
        gathers = flat_message("all_gather", None, np.dtype(float), (7,), (7, 7, 7), "all_gather")
        assert group.half(gathers, [up(each[0])]) is None

    import stand_in

    spmd(3)(program)()


def test_a_sum_by_nccl_begins_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact here, of small integers: one call, and nothing to be done when it has come."""
    monkeypatch.setenv("SPMDX_REDUCE", "nccl")
    calls: list[str] = []

    def program() -> None:
        group = made({"a": 2}).group(("a",))
        call = group._call
        group._call = lambda stream, what, *args: (calls.append(what), call(stream, what, *args))[1]  # type: ignore[method-assign]
        message = flat_message("all_reduce", "sum", np.dtype(float), (6,), (6,), "all_reduce sum")
        pending = group.begin(message, [up(np.arange(6.0) + group.rank)])
        assert pending is not None
        (block,) = pending.wait()
        np.testing.assert_array_equal(block.get(), 2 * np.arange(6.0) + 1)

    spmd(2)(program)()
    assert calls == ["all_reduce sum"] * 2


# Errors


def test_an_error_names_operation_axis_and_ranks() -> None:
    def program() -> str:
        comm = made({"a": 2, "b": 1})
        group = comm.group(("a",))
        group.barrier()
        if group.rank == 0:
            fake.control().fake_fail(b"ncclGroupEnd", 6, 0)
            with pytest.raises(WorldError) as caught:
                group.all_gather(up(np.ones(3)), [3, 3])
            with pytest.raises(WorldError, match="closed, or was aborted"):
                group.all_gather(up(np.ones(3)), [3, 3])
            return str(caught.value)
        return ""

    text = spmd(2)(program)()[0]
    assert text.startswith(
        "all_gather over a among ranks [0, 1]: ncclAllGather: remote process exited (the last words)."
    )
    assert "SPMDX_NCCL=off to do without" in text


def test_no_communicator_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPMDX_TIMEOUT", "0.2")
    fake.control().fake_slow(-1)
    with pytest.raises(WorldError, match=r"NCCL makes no communicator of ranks \[0\]: .* not done after 0\.2"):
        made({"a": 1})


def test_a_timeout_that_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPMDX_TIMEOUT", "soon")
    with pytest.raises(WorldError, match="SPMDX_TIMEOUT=soon is not a number"):
        nccl.limit()


class Event:
    done = False


def test_the_watch_ends_what_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPMDX_TIMEOUT", "0.3")
    told: list[str] = []
    comm = made({"a": 1}, told.append)
    done = Event()
    done.done = True  # type: ignore[misc]
    comm.watch.add(done, comm.group(("a",)), "a sum")
    comm.watch.add(Event(), comm.group(("a",)), "all_reduce sum")
    limit = time.monotonic() + 5
    while not told and time.monotonic() < limit:
        time.sleep(0.05)
    assert told[0].startswith("all_reduce sum over a among ranks [0]: not done after 0.3 seconds")


def test_the_watch_sees_what_failed_elsewhere() -> None:
    comm = made({"a": 1})
    comm.watch.going.append((Event(), time.monotonic(), comm.group(("a",)), "all_to_all"))
    comm.watch.look()
    fake.control().fake_async(6)
    with pytest.raises(WorldError, match=r"all_to_all over a among ranks \[0\]: .*remote process exited"):
        comm.watch.look()


def test_the_watch_tells_of_a_device_that_broke_down() -> None:
    """Every event raises then, and not as NCCL does."""

    class CUDARuntimeError(RuntimeError):
        __module__ = "cupy_backends.cuda.api.runtime"

    class Broken:
        @property
        def done(self) -> bool:
            raise CUDARuntimeError("cudaErrorIllegalAddress: an illegal memory access was encountered")

    told: list[str] = []
    comm = made({"a": 1}, told.append)
    comm.watch.add(Broken(), comm.group(("a",)), "a sum")
    limit = time.monotonic() + 5
    while not told and time.monotonic() < limit:
        time.sleep(0.05)
    assert told[0].startswith("what a collective waits for failed on the GPU: CUDARuntimeError: cudaErrorIllegalAddr")


def test_nobody_asks_for_what_is_captured() -> None:
    """In a graph a message that has begun is waited for, by an event; asking for it would end the capture."""

    class Asked:
        @property
        def done(self) -> bool:
            raise AssertionError("asked")

    here = gpu.here()
    compute = here.cupy.cuda.get_current_stream()
    assert not nccl._Enqueued(here, Asked(), compute, True).test()
    assert nccl._Enqueued(here, here.messages.record(), compute, False).test()


def test_what_was_sent_goes_back_to_its_own_stream() -> None:
    """A message that begins on one stream and is waited for on another: both come after it."""
    import stand_in

    here = gpu.here()
    began, other = here.cupy.cuda.get_current_stream(), here.cupy.cuda.Stream(non_blocking=True)
    event = here.messages.record()
    for stream, waiting in ((began, [began]), (other, [other, began])):
        stand_in.log.clear()
        with stream:
            nccl._Enqueued(here, event, began, False).wait()
        assert stand_in.log.of("after") == [(s.name, event.number) for s in waiting]


# Which library


def agreed(versions: list[int], switch: bool, devices: list[int], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What ranks with these libraries and devices agree on."""

    class Library:
        def __init__(self, version: int) -> None:
            self.version = version

    def program() -> Any:
        here = worlds.current()
        version, number = versions[here.rank], devices[here.rank]
        monkeypatch.setattr(
            nccl, "found", lambda: (Library(mine.version), "path") if mine.version else (None, "no file")
        )
        mine.version, mine.number = version, number
        library, why = nccl.agreed(here.comm(Mesh(("a",), (2,))).group(("a",)))
        return library.version if library else why

    import threading

    mine = threading.local()
    monkeypatch.setattr(nccl, "shares_gpus", lambda path: switch)
    monkeypatch.setattr(nccl.gpu, "here", lambda: type("Device", (), {"properties": {}, "number": mine.number}))
    return spmd(2)(program)()


def test_what_ranks_agree_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """One answer on every rank."""
    monkeypatch.delenv(nccl.SEVERAL, raising=False)
    assert agreed([22700, 22700], False, [0, 1], monkeypatch) == [22700, 22700]
    assert nccl.SEVERAL not in nccl.os.environ
    assert agreed([22700, 0], False, [0, 1], monkeypatch) == ["a rank finds no NCCL", "no file"]
    different = "ranks have different versions of NCCL: [21900, 22700]"
    assert agreed([22700, 21900], False, [0, 1], monkeypatch) == [different] * 2
    shared = agreed([22700, 22700], False, [1, 1], monkeypatch)
    assert shared == [f"ranks share a GPU, which this NCCL does not allow (it has no {nccl.SEVERAL})"] * 2
    assert agreed([22700, 22700], True, [1, 1], monkeypatch) == [22700, 22700]
    assert nccl.os.environ[nccl.SEVERAL] == "1"
    monkeypatch.setenv(nccl.SEVERAL, "1")  # so that it is taken away again


def test_where_it_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library, path = nccl.found()
    assert library.version == 22700 and path == str(fake.library())
    monkeypatch.setenv("SPMDX_NCCL", "off")
    assert nccl.found() == (None, "SPMDX_NCCL=off")
    monkeypatch.setenv("SPMDX_NCCL", "/nowhere/libnccl.so.2")
    assert nccl.found()[0] is None and "/nowhere" in nccl.found()[1]
    monkeypatch.delenv("SPMDX_NCCL")
    assert nccl.places()[-1] == "libnccl.so.2"
    for text, has in ((f"xx{nccl.SEVERAL}\0", True), ("NCCL_MULTI", False)):
        (tmp_path / "lib").write_text(text)
        assert nccl.shares_gpus(str(tmp_path / "lib")) is has
    assert not nccl.shares_gpus("libnccl.so.2")
