"""The device itself: what waits for what, what makes the host wait, graphs, fallbacks, messages by way of the host."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from there import REAL

import spmdx as sx
from spmdx import context
from spmdx.runtime import gpu, memory
from spmdx.runtime.staged import StagedComm
from spmdx.runtime.world import SelfWorld

stand_in_only = pytest.mark.skipif(REAL, reason="a real device does not tell what it did: the stand-in does")


def waits(log: Any) -> list[str]:
    """What made the host wait since the last time."""
    found = log.of("wait")
    log.clear()
    return list(found)


@stand_in_only
def test_a_training_step_makes_nobody_wait(device: Any) -> None:
    """Layers, attention, dropout, cross-entropy, gradients and AdamW: the host enqueues and never waits; to read the
    loss is one wait, which the trace lists."""
    mesh = sx.make_mesh({"p": 1}, device="cuda")
    key = sx.random.key(0)
    with sx.use_mesh(mesh):
        tokens = sx.random.randint(key, (2, 8), 0, 16)
        params = {
            "embed": sx.random.normal(key, (16, 8), dtype=np.float32),
            "scale": sx.ones(8, dtype=np.float32),
            "qkv": sx.random.normal(key, (8, 24), dtype=np.float32),
            "out": sx.random.normal(key, (8, 16), dtype=np.float32),
        }
        adamw = sx.optim.adamw(1e-3)
        state = adamw.init(params)

        def loss_of(p: Any) -> Any:
            x = p["embed"][tokens]
            x = sx.nn.layer_norm(x, p["scale"])
            q, k, v = sx.split((x @ p["qkv"]).reshape(2, 8, 3, 2, 4), 3, axis=2)
            q, k, v = (a.reshape(2, 8, 2, 4) for a in (q, k, v))
            seen = sx.nn.attention(q, k, v, causal=True).reshape(2, 8, 8)
            x, h = sx.nn.add_norm(seen, x, p["scale"], key=key, rate=0.1)
            x = x + sx.nn.dropout(key, sx.nn.gelu(h), 0.1)
            return sx.mean(sx.nn.cross_entropy(x @ p["out"], tokens))

        def step() -> Any:
            nonlocal params, state
            loss, grads = sx.value_and_grad(loss_of)(params)
            params, state = adamw.update(grads, state, params)[:2]
            return loss

        step()  # the first time operations look for their dtypes
        waits(device)
        loss = step()
        assert waits(device) == []
        with sx.debug.trace() as t:
            float(loss)
        assert waits(device) == ["get"] and [r.verb for r in t] == ["host"]
        assert gpu.noted == {}


@stand_in_only
def test_streams_wait_for_one_another(device: Any) -> None:
    """Messages begin when what was enqueued before is done, and what is enqueued later waits for them."""
    here = gpu.here()
    device.clear()
    with here.sending():
        device.append(("message", None))
    [(before, first), (after, second)] = device.of("event")
    order = [what for what, _ in device]
    assert order == ["event", "after", "message", "event", "after"]
    assert (before, first) == ("compute", device.of("after")[0][1]) and device.of("after")[1] == ("compute", second)
    assert device.of("after")[0][0] == after != "compute"


def test_messages_by_way_of_the_host(device: Any) -> None:
    """The verbs of a staged group, of one rank, give what they are given; the host waits once for what goes down."""
    mesh = sx.make_mesh({"p": 1}, device="cuda")
    world = SelfWorld()
    group = StagedComm(mesh, 0, world.comm(mesh.host)).group(("p",))
    x = gpu.here().xp.arange(5.0)
    if device is not None:
        device.clear()
    for op in ("sum", "max"):
        assert group.all_reduce(x, op).get().tolist() == [0, 1, 2, 3, 4]
        assert group.reduce_scatter(x, [5], op).get().tolist() == [0, 1, 2, 3, 4]
    out = gpu.here().xp.empty(5)
    [view] = group._gather(x, [5], out, "all_gather")
    assert view.get().tolist() == out.get().tolist() == [0, 1, 2, 3, 4]
    assert group._exchange(x, [5], [5], None, "all_to_all")[0].get().tolist() == [0, 1, 2, 3, 4]
    group.send(x, 0)
    group.recv(out, 0)
    assert out.get().tolist() == [0, 1, 2, 3, 4]


def test_graph_draws_anew(device: Any) -> None:
    """Exact: call number r of a graph draws what fold_in(key, r) gives, and results of earlier calls stay."""
    mesh, key = sx.make_mesh({"p": 1}, device="cuda"), sx.random.key(5)
    x = sx.ones(7, dtype=np.float32, mesh=mesh)

    @sx.cuda.graph
    def step(x: Any) -> Any:
        return {
            "drawn": sx.random.normal(key, (5, 3), dtype=np.float32, mesh=mesh),
            "dropped": sx.nn.dropout(key, x, 0.5),
        }

    results = [step(x) for _ in range(4)]
    host = sx.make_mesh({"p": 1})
    for r, found in enumerate(results):
        own = sx.random.fold_in(key, r)
        wanted = sx.random.normal(own, (5, 3), dtype=np.float32, mesh=host)
        assert found["drawn"].numpy().tobytes() == wanted.numpy().tobytes()
        wanted = sx.nn.dropout(own, sx.ones(7, dtype=np.float32, mesh=host), 0.5)
        assert found["dropped"].numpy().tobytes() == wanted.numpy().tobytes()
    again = sx.random.normal(key, (5, 3), dtype=np.float32, mesh=mesh).numpy()
    assert again.tobytes() == sx.random.normal(key, (5, 3), dtype=np.float32, mesh=host).numpy().tobytes()


@stand_in_only
def test_graph_refuses_to_wait(device: Any) -> None:
    mesh = sx.make_mesh({"p": 1}, device="cuda")
    x = sx.ones(3, mesh=mesh)

    @sx.cuda.graph
    def step(x: Any) -> Any:
        return x * float(x.sum())

    step(x)
    with pytest.raises(sx.cuda.GraphError, match="inside a graph"):
        step(x)
    with pytest.raises(sx.errors.MeshError, match="GPUs"):
        sx.cuda.graph(lambda x: x)(sx.ones(3, mesh=mesh.host))


def test_what_the_device_cannot_do_the_host_does(device: Any) -> None:
    """With a warning, and the same value; what is wrong on the host too is raised."""
    calls = []

    def on_device(x: Any) -> Any:
        calls.append(x)
        raise NotImplementedError("not on this device")

    run = gpu.guarded("made up", on_device, lambda x: np.asarray(x) + 1)
    x = gpu.here().xp.asarray(np.arange(3))
    with pytest.warns(gpu.HostFallback, match="made up is done on the host .* not on this device"):
        assert run(x).get().tolist() == [1, 2, 3]
    assert run(x).get().tolist() == [1, 2, 3] and len(calls) == 1
    assert gpu.noted.pop("made up") == "NotImplementedError: not on this device"
    with pytest.raises(TypeError):
        gpu.guarded("wrong", on_device, lambda x: x + "1")(x)
    assert "wrong" not in gpu.noted


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_products_of_stacks(dtype: str, device: Any) -> None:
    """Close to the host's, on the device: many rows with one matrix, stacks of matrices, vectors, and nothing."""
    draw, mesh = np.random.default_rng(4), sx.make_mesh({"p": 1}, device="cuda")
    gpu.noted.clear()
    for shapes in [((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)), ((3, 1, 2, 4), (2, 4, 3)), ((4,), (2, 4, 3)),
                   ((2, 3, 4), (4,)), ((2, 0, 4), (4, 5)), ((0, 3, 4), (4, 5)), ((2, 3, 0), (0, 5))]:  # fmt: skip
        values = [draw.normal(size=s).astype(getattr(sx, dtype)) for s in shapes]
        found, wanted = (sx.matmul(*(sx.asarray(v, mesh=m) for v in values)).numpy() for m in (mesh, mesh.host))
        assert found.shape == wanted.shape and found.dtype == wanted.dtype
        bound = {"float16": 4e-3, "bfloat16": 4e-2, "float32": 2e-6}[dtype]
        assert np.allclose(found.astype("f8"), wanted.astype("f8"), rtol=bound, atol=bound), shapes
    assert gpu.noted == {}


def test_values_in_and_out(device: Any) -> None:
    """Arrays lie on the device, come from NumPy and from CuPy, and go back."""
    mesh = sx.make_mesh({"p": 1}, device="cuda")
    x = sx.asarray(np.arange(6.0).reshape(2, 3), mesh=mesh)
    assert x.device == "cuda" and isinstance(x.block, gpu.here().cupy.ndarray)
    assert isinstance(x.numpy(), np.ndarray) and x.numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert float(x.sum()) == 15 and "[0. 1. 2.]" in repr(x)
    own = gpu.here().cupy.asarray(np.arange(3))
    assert sx.asarray(own, mesh=mesh).numpy().tolist() == [0, 1, 2]
    assert sx.from_block(own, {"p": sx.Shard(0)}, mesh=mesh).numpy().tolist() == [0, 1, 2]
    assert (x + np.ones(3)).numpy().tolist() == [[1, 2, 3], [4, 5, 6]]
    assert memory.host(3.0) == 3.0 and context.world().size == 1


def test_local_ranks_choose_devices(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """LOCAL_RANK and its like choose, where MPI has not said which rank of its node a process is."""
    if device is None:
        pytest.skip("the device of a process is chosen once")
    before = gpu._here[:]
    try:
        for given, wanted in [("1", 1), ("3", 1), ("2", 0)]:
            gpu._here.clear()
            monkeypatch.setenv("LOCAL_RANK", given)
            assert gpu.here().number == wanted
        device.clear()
        thread = threading.Thread(target=gpu.here)  # which has a current device of its own
        thread.start()
        thread.join()
        assert device.of("device") == [0]
    finally:
        gpu._here[:] = before


def test_the_words_of_a_launch_that_breaks_down(device: Any) -> None:
    """What CuPy raises is told with the operation and its operands, and the host does not do it instead."""

    class CompileException(Exception):  # CuPy's name
        __module__ = "cupy.cuda.compiler"

    class CUDADriverError(RuntimeError):
        __module__ = "cupy_backends.cuda.api.driver"

    x = gpu.here().xp.asarray(np.arange(6.0).reshape(2, 3))
    for kind, said, hint in [
        (CompileException, "cupy/carray.cuh(9): catastrophic error: cannot open source file\nmore", "headers"),
        (CUDADriverError, "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access", "CUDA_LAUNCH_BLOCKING=1"),
    ]:

        def on_device(x: Any, kind: Any = kind, said: str = said) -> Any:
            raise kind(said)

        with pytest.raises(sx.errors.DeviceError) as caught:
            gpu.guarded("broken", on_device, lambda x: np.asarray(x))(x)
        text = str(caught.value)
        assert f"broken of float64[2, 3] failed on the GPU: {kind.__name__}: {said.splitlines()[0]}" in text
        assert hint in text and type(caught.value.__cause__) is kind and "broken" not in gpu.noted
    full = type("OutOfMemoryError", (MemoryError,), {"__module__": "cupy.cuda.memory"})("Out of memory")
    assert gpu.failure("large", full) is full
    own = RuntimeError("of a program")
    assert gpu.failure("a call", own) is own


def test_between_meshes_of_one_rank(device: Any) -> None:
    """An array moves from mesh to mesh on the device, where nothing is sent."""
    one, other = (sx.make_mesh({name: 1}, device="cuda") for name in ("one", "other"))
    x = sx.asarray(np.arange(6.0).reshape(2, 3), mesh=one)
    found = x.to(other, {"other": sx.Shard(0)})
    assert found.mesh is other and not isinstance(found._block, np.ndarray)
    assert found.numpy().tolist() == [[0, 1, 2], [3, 4, 5]]


def test_one_example_after_another(device: Any) -> None:
    """An operation that vmap makes for each example stays on the device: exact, as in host memory."""
    value, key = np.random.default_rng(2).normal(size=(3, 4, 5)).astype("f4"), sx.random.key(3)
    mesh = sx.make_mesh({"p": 1}, device="cuda")
    gpu.noted.clear()
    found, wanted = (
        sx.vmap(lambda v: sx.nn.dropout(key, v, 0.5))(sx.asarray(value, mesh=m)).numpy() for m in (mesh, mesh.host)
    )
    assert found.tobytes() == wanted.tobytes() and gpu.noted == {}


def test_ranks_that_are_threads_capture_nothing(device: Any) -> None:
    def program() -> None:
        mesh = sx.make_mesh({"p": 2}, device="cuda")
        with pytest.raises(sx.errors.MeshError, match="share a stream"):
            sx.cuda.graph(lambda x: x + 1)(sx.ones(3, mesh=mesh))

    sx.testing.spmd(2)(program)()


def test_a_step_that_fails_is_run_again(device: Any) -> None:
    """What was raised in the first call counts for nothing; a graph within a graph is a part of it."""
    mesh, calls = sx.make_mesh({"p": 1}, device="cuda"), list[int]()

    @sx.cuda.graph
    def inner(x: Any) -> Any:
        return sx.exp(x)

    @sx.cuda.graph
    def step(x: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("once")
        return inner(x)

    x = sx.zeros(3, dtype=np.float32, mesh=mesh)
    with pytest.raises(ValueError, match="once"):
        step(x)
    results = [step(x).numpy().tolist() for _ in range(3)]
    assert results[0] == [1, 1, 1] and len(calls) == 3
