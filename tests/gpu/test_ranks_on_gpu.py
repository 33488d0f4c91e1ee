"""Ranks that send to one another, their blocks on the device: by MPI and NCCL under mpiexec, else as threads
(SPMDX_THREAD_RANKS=4: so many). Exact where nothing rounds, else close, against the same in host memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import law
import numpy as np
import pytest
from law import Laid, expected, outputs, placements, sample
from test_laws_on_gpu import close

import spmdx as sx
from spmdx import context
from spmdx.runtime import world
from spmdx.spec import place

LAUNCHED = world.launched()
THREADS = int(os.environ.get("SPMDX_THREAD_RANKS", "2"))
SHAPES = [("float32", (13, 6)), ("int64", (4, 9)), ("bool", (7, 5)), ("bfloat16", (8, 8)), ("complex64", (5, 3))]
OPS = ("matmul", "sum", "max", "mean", "softmax", "gather", "add", "exp", "norm", "attend", "take_along_axis", "sort")
FIRST = {c.op: c for c in reversed(law.cases())}


def on_ranks(function: Callable[[int], None]) -> None:
    """On all ranks there are, or on thread ranks."""
    if LAUNCHED is not None and LAUNCHED.size > 1:
        function(context.world().size)
    else:
        sx.testing.spmd(THREADS)(lambda: function(THREADS))()


@pytest.mark.parametrize(("dtype", "shape"), SHAPES)
def test_every_move(dtype: str, shape: tuple[int, ...], device: Any) -> None:
    """Exact: from every placement of two axes to every other in a sample, and back to the same value."""

    def check(n: int) -> None:
        mesh = sx.make_mesh({"a": 2, "b": n // 2} if n % 2 == 0 and n > 2 else {"a": n}, device="cuda")
        value = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 9, shape).astype(sx.asarray(0).dtype)
        value = value.astype(np.dtype(dtype) if dtype != "bfloat16" else sx.bfloat16)
        ops = ("sum",) if dtype in ("complex64", "bool") else ("sum", "max")
        from placements import specs

        found = specs(mesh, shape, value.dtype, ops)
        draw = np.random.default_rng(1)
        for _ in range(12):
            start, end = (found[draw.integers(len(found))] for _ in range(2))
            x = sx.asarray(value, mesh=mesh, placement=start.placement)
            y = x.redistribute(end.placement)
            wanted = place(mesh, shape, value.dtype, end.placement)  # a placement does not say all that a spec does
            assert y.spec is wanted and y.numpy().tobytes() == value.tobytes(), (start, end)

    on_ranks(check)


@pytest.mark.parametrize("op", [op for op in OPS if op in FIRST])
def test_operations(op: str, device: Any) -> None:
    """Close: an example of an operation in four placements."""

    def check(n: int) -> None:
        case = FIRST[op]
        mesh = sx.make_mesh({"a": n}, device="cuda")
        laid = Laid(case, mesh, expected(case))
        for chosen in sample(placements(case, mesh, ("sum", "max")), 4, case.name):
            with np.errstate(all="ignore"):
                results = outputs(case.call(*laid.inputs(chosen)))
            for k, y in enumerate(results):
                laid.check(k, y, close(case, laid.want[k].dtype))

    on_ranks(check)


def test_random_bits(device: Any) -> None:
    """Exact: the same values however the array is divided, on the device as in host memory."""

    def check(n: int) -> None:
        key, shape = sx.random.key(11), (9, 14)
        mesh = sx.make_mesh({"a": n}, device="cuda")
        for draw in (sx.random.normal, sx.random.uniform):
            wanted = draw(key, shape, dtype=np.float32, mesh=mesh.host).numpy()
            for placement in ({"a": sx.Shard(0)}, {"a": sx.Shard(1)}, {"a": sx.Shard(1, interleave=2)}, {}):
                found = draw(key, shape, dtype=np.float32, mesh=mesh, placement=placement).numpy()
                assert found.tobytes() == wanted.tobytes(), placement

    on_ranks(check)


def test_training(device: Any) -> None:
    """Close: three steps of a network of two layers, its batch divided, as in host memory."""

    def train(mesh: Any) -> list[float]:
        draw, losses = np.random.default_rng(3), []
        x, t = draw.normal(size=(8, 6)).astype("f4"), draw.integers(0, 4, 8)
        params = {n: sx.asarray((draw.normal(size=s) * 0.3).astype("f4"), mesh=mesh) for n, s in
                  (("up", (6, 16)), ("down", (16, 4)))}  # fmt: skip
        rows = {mesh.axis_names[0]: sx.Shard(0)}
        data, labels = (sx.asarray(v, mesh=mesh, placement=rows) for v in (x, t))
        adamw = sx.optim.adamw(1e-2)
        state = adamw.init(params)

        def loss_of(p: Any) -> Any:
            return sx.mean(sx.nn.cross_entropy(sx.nn.gelu(data @ p["up"]) @ p["down"], labels))

        for _ in range(3):
            loss, grads = sx.value_and_grad(loss_of)(params)
            updates, state = adamw.update(grads, state, params)
            params = {name: p + updates[name] for name, p in params.items()}
            losses.append(float(loss))
        return losses

    def check(n: int) -> None:
        mesh = sx.make_mesh({"a": n}, device="cuda")
        assert np.allclose(train(mesh), train(mesh.host), rtol=2e-5)

    on_ranks(check)


def test_reading_a_file(device: Any, tmp_path: Path) -> None:
    """Exact: rows are read, sent from device to device, and turned there; a checkpoint under another placement too."""
    folder = tmp_path if LAUNCHED is None else Path(tempfile.gettempdir())  # one folder for all ranks
    whole = np.random.default_rng(0).normal(size=(700, 900)).astype(sx.bfloat16)

    def check(n: int) -> None:
        mesh = sx.make_mesh({"a": n}, device="cuda")
        sx.checkpoint.save(folder / "spmdx-read.safetensors", {"w": whole})
        view = sx.checkpoint.views(folder / "spmdx-read.safetensors")["w"]
        for placement in ({"a": sx.Shard(0)}, {"a": sx.Shard(1)}, {}):
            found = sx.checkpoint.read(view.T, "float32", mesh=mesh, placement=placement)
            assert found.spec is place(mesh, (900, 700), np.dtype("float32"), placement)
            assert np.array_equal(found.numpy(), whole.T.astype(np.float32))
            like = {"w": place(mesh, whole.shape, whole.dtype, placement)}
            found = sx.checkpoint.load(folder / "spmdx-read.safetensors", like)["w"]
            assert found.spec is like["w"] and found.numpy().tobytes() == whole.tobytes()

    on_ranks(check)
