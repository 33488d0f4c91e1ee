"""Checkpoints: the same bits on any mesh; files that are whole or not there; the format that others read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from placements import assembled, simulated, specs

import spmdx as sx
from spmdx import checkpoint, dtypes, nn, optim, plans, tree
from spmdx.array import Array
from spmdx.checkpoint import parts
from spmdx.errors import ArgumentError, CheckpointError
from spmdx.mesh import Mesh
from spmdx.spec import place
from spmdx.testing import spmd

DTYPES = ["bool", "int8", "uint16", "int32", "uint64", "float16", "float32", "float64", "complex64", "complex128"]


class State(NamedTuple):
    params: Any
    step: int
    key: Any


def draw(*shape: int, dtype: Any = "float64") -> Any:
    return (np.random.default_rng([1, *shape]).normal(size=shape) * 9).astype(dtype)


def same_bits(a: Any, b: Any) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def state(mesh: Mesh, **placement: Any) -> State:
    params = {
        "w": sx.asarray(draw(6, 9), mesh=mesh, placement=placement),
        "half": [sx.asarray(draw(5, dtype=ml_dtypes.bfloat16), mesh=mesh), sx.asarray(draw(0, 3), mesh=mesh)],
        "scalar": sx.asarray(-0.0, mesh=mesh),
        "numpy": draw(2, 2, dtype="float32"),
    }
    return State(params, 17, sx.random.key(5))


def equal(a: State, b: State) -> bool:
    """The same structure, and the same bits."""
    pairs = zip(tree.leaves(a), tree.leaves(b))
    return a.key == b.key and a.step == b.step and all(same_bits(np.asarray(x), np.asarray(y)) for x, y in pairs)


WAYS: dict[str, dict[str, Any]] = {
    "whole": {},
    "rows": {"a": sx.Shard(0)},
    "columns": {"a": sx.Shard(1)},
    "interleaved": {"a": sx.Shard(1, interleave=3)},
    "partial": {"a": sx.Partial()},
}


@pytest.mark.parametrize("before", WAYS)
def test_ranks_resume_what_other_ranks_saved(before: str, tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    spmd(3)(lambda: checkpoint.save(path, state(sx.make_mesh({"a": 3}), **WAYS[before])))()
    assert [p.name for p in tmp_path.iterdir()] == ["state.safetensors"]

    def resume(size: int, after: str) -> None:
        mesh = sx.make_mesh({"a": size})
        like = state(mesh, **WAYS[after])
        with sx.debug.trace() as trace:
            found = checkpoint.load(path, like)
        assert not trace
        assert found.params["w"].spec == like.params["w"].spec.replace(partial=())
        assert equal(found, state(mesh))

    for size, after in ((1, "whole"), (2, "columns"), (2, "rows"), (3, "interleaved"), (4, "rows"), (2, "partial")):
        spmd(size)(lambda size=size, after=after: resume(size, after))()


def test_saving_sends_nothing_but_what_finishes_partial_values(tmp_path: Path) -> None:
    def save() -> None:
        mesh = sx.make_mesh({"a": 2})
        with sx.debug.trace() as trace:
            checkpoint.save(tmp_path / "x", state(mesh, a=sx.Shard(1)))
        assert not trace
        with sx.debug.trace() as trace:
            checkpoint.save(tmp_path / "x", state(mesh, a=sx.Partial()))
        assert [r.verb for r in trace] == ["all_reduce"]

    spmd(2)(save)()


@pytest.mark.parametrize("grain", [0, parts.GRAIN])
@pytest.mark.parametrize("sizes", [(2,), (2, 2)], ids=str)
def test_every_placement_and_dtype(
    sizes: tuple[int, ...], grain: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exact, also where the parts that ranks read are not their blocks."""
    monkeypatch.setattr(parts, "GRAIN", grain)
    mesh, path = simulated(*sizes), tmp_path / "x"
    options = specs(mesh, (5, 6), np.dtype("float64"), ("sum",))
    draws, moved = np.random.default_rng(0), 0
    for i, spec in enumerate(options[:: 1 + len(options) // 40]):
        dtype = np.dtype(DTYPES[i % len(DTYPES)])
        value = draw(5, 6, dtype=dtype)
        start, end = (s.replace(dtype=dtype, partial=()) for s in (spec, options[draws.integers(len(options))]))
        checkpoint.save(path, [sx.asarray(value, mesh=mesh, placement=start.placement)])
        with sx.debug.trace() as trace:
            [found] = checkpoint.load(path, [end])
        moved += len(trace)
        assert found.spec == end
        assert same_bits(assembled(end, found._block), value)
    assert (moved > 0) == (grain == 0)


def test_other_programs_read_it_and_are_read(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.numpy", reason="the library of the format is not installed")
    mesh, path = sx.make_mesh({"a": 2}, device="sim"), tmp_path / "x"
    given = {"w": draw(4, 6, dtype="float32"), "n": np.arange(5), "flag": np.array([True, False])}
    checkpoint.save(path, {n: sx.asarray(v, mesh=mesh, placement={"a": sx.Shard(0)}) for n, v in given.items()})
    found = library.load_file(path)
    assert all(same_bits(found[n], v) for n, v in given.items())
    library.save_file(given, path)
    back = checkpoint.load(path, mesh=mesh)
    assert all(same_bits(back[n].numpy(), v) for n, v in given.items())


def test_specs_and_descriptors_say_where_arrays_go(tmp_path: Path) -> None:
    """eval_shape describes the state; or a plan places nn.Param."""
    mesh, path = sx.make_mesh({"a": 2}, device="sim"), tmp_path / "x"
    plan = sx.Plan({"w": {"a": sx.Shard(1)}})
    model = {"w": nn.Param((3, 4), sx.random.normal), "b": nn.Param((4,))}
    params = nn.init(model, sx.random.key(0), mesh=mesh)
    checkpoint.save(path, params)
    described = sx.eval_shape(lambda: nn.init(model, sx.random.key(0), plan, mesh), mesh=mesh)
    for like in (described, model):
        found = checkpoint.load(path, like, mesh=mesh, plan=plan)
        assert found["w"].placement == {"a": sx.Shard(1)}
        assert all(same_bits(found[n].numpy(), params[n].numpy()) for n in params)
    assert set(checkpoint.load(path)) == {"w", "b"}


def test_ndarrays_in_another_byte_order_and_of_types_that_files_lack(tmp_path: Path) -> None:
    path, swapped = tmp_path / "x", np.arange(3, dtype=">i4")
    checkpoint.save(path, [swapped])
    [found] = checkpoint.load(path, [swapped])
    assert np.array_equal(found, swapped)
    for value in (np.zeros(2, np.longdouble), np.array(["a"])):
        with pytest.raises(CheckpointError, match="files do not know"):
            checkpoint.save(path, {"w": value})
    with pytest.raises(CheckpointError, match="another key"):
        checkpoint.save(path, {"__metadata__": swapped})
    assert np.array_equal(checkpoint.load(path, [swapped])[0], swapped)


# Training


def loss(p: Any, x: Any) -> Any:
    return sx.mean((sx.tanh(sx.name(x, "batch") @ p["up"]) @ p["down"]) ** 2)


MODEL = {"up": nn.Param((6, 8), sx.random.normal), "down": nn.Param((8, 3), sx.random.normal)}


def train(mesh: Mesh, plan: Any, steps: range, path: Path | None = None) -> Any:
    """Training from the beginning, or from a checkpoint."""
    optimizer = optim.adamw(1e-2)
    with plan.on(mesh):
        params = nn.init(MODEL, sx.random.key(0))
        full = State(params, 0, sx.random.key(9))._asdict() | {"optimizer": optimizer.init(params)}
        if path is not None:
            full = checkpoint.load(path, full)
            assert full["step"] == steps.start
        for i in steps:
            x = sx.random.normal(sx.random.fold_in(full["key"], i), (8, 6))
            grads = sx.grad(loss)(full["params"], x)
            updates, full["optimizer"] = optimizer.update(grads, full["optimizer"], full["params"])
            full["params"] = optim.apply_updates(full["params"], updates)
            full["step"] = i + 1
        return full


def bits(full: Any) -> list[bytes]:
    return [np.asarray(x).tobytes() for x in tree.leaves(full)]


def test_training_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    path = tmp_path / "run"
    first, second = plans.zero3("a"), plans.tensor_parallel("a", {"up": 1, "down": 0})

    def run() -> None:
        mesh = sx.make_mesh({"a": 2})
        half = train(mesh, first, range(3))
        checkpoint.save(path, half)
        assert bits(train(mesh, first, range(3, 6), path)) == bits(train(mesh, first, range(6)))  # exact
        assert bits(train(mesh, second, range(3, 3), path)) == bits(half)  # exact, placed by another plan

    spmd(2)(run)()
    alone = sx.make_mesh({"a": 1})
    resumed, straight = train(alone, first, range(3, 6), path), train(alone, first, range(6))
    for x, y in zip(tree.leaves(resumed), tree.leaves(straight)):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=1e-10)


# Whole, or not at all


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    checkpoint.save(path, {"w": sx.ones(3)})
    before = path.read_bytes()
    monkeypatch.setattr(os, "fsync", lambda fd: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(CheckpointError, match="No space left"):
        checkpoint.save(path, {"w": sx.zeros(3)})
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_a_rank_that_cannot_write_is_told_of_on_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    write = checkpoint.files.write
    told: list[str] = []

    def failing(fd: int, tensor: Any, block: Any, pieces: Any) -> None:
        if sx.make_mesh().rank == 1:
            raise OSError(5, "Input/output error")
        write(fd, tensor, block, pieces)

    def save() -> None:
        try:
            checkpoint.save(tmp_path / "x", {"w": sx.asarray(draw(4), placement={"world": sx.Shard(0)})})
        except CheckpointError as error:
            told.append(str(error))

    monkeypatch.setattr(checkpoint.files, "write", failing)
    spmd(3)(save)()
    assert len(told) == 3 and sum("rank 1" in text for text in told) == 2
    assert not list(tmp_path.iterdir())


def written(path: Path) -> bytes:
    checkpoint.save(path, {"w": sx.asarray(draw(4, 4))})
    return path.read_bytes()


@pytest.mark.parametrize("keep", [0, 5, 20, 100, -1])
def test_a_file_that_is_cut_short_says_so(keep: int, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(written(path)[:keep])
    with pytest.raises(CheckpointError, match=r"cut short|no safetensors file"):
        checkpoint.load(path)


@pytest.mark.parametrize(
    "header",
    [
        [],
        {"w": {"dtype": "F64", "shape": [4], "data_offsets": [0, 8]}},
        {"w": {"dtype": "F64", "shape": [-1], "data_offsets": [0, -8]}},
        {"w": {"dtype": "PICKLE", "shape": [1], "data_offsets": [0, 8]}},
        {"w": {"shape": [1], "data_offsets": [0, 8]}},
        {"w": {"dtype": "F64", "shape": [1], "data_offsets": [-8, 0]}},
    ],
    ids=str,
)
def test_a_header_that_lies_says_so(header: Any, tmp_path: Path) -> None:
    text = json.dumps(header).encode()
    path = tmp_path / "x"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(64))
    with pytest.raises(CheckpointError, match="no safetensors file"):
        checkpoint.load(path)


def test_what_does_not_fit_says_so(tmp_path: Path) -> None:
    path = tmp_path / "x"
    written(path)
    with pytest.raises(CheckpointError, match="there is no file"):
        checkpoint.load(tmp_path / "y")
    with pytest.raises(CheckpointError, match=r"lacks b and has also w"):
        checkpoint.load(path, {"b": sx.ones(3)})
    with pytest.raises(CheckpointError, match=r"float64\[4, 4\] at w, where the tree has float64\[4\]"):
        checkpoint.load(path, {"w": sx.ones(4)})
    with pytest.raises(CheckpointError, match="float32"):
        checkpoint.load(path, {"w": sx.ones((4, 4), dtype="float32")})
    with pytest.raises(CheckpointError, match="an array at w"):
        checkpoint.load(path, {"w": 3})
    with pytest.raises(CheckpointError, match="f is a builtin_function_or_method"):
        checkpoint.save(path, {"f": print})
    with pytest.raises(CheckpointError, match=r"two leaves .* 'a\.b'"):
        checkpoint.save(path, {"a.b": sx.ones(1), "a": {"b": sx.ones(1)}})
    assert isinstance(checkpoint.load(path)["w"], Array)


VIEWS: dict[str, Any] = {
    "as it is": lambda x: x,
    "transposed": lambda x: x.T,
    "in other dimensions": lambda x: x.T.reshape(5, 2, 2, 6),
    "columns": lambda x: x[..., 3:7],
    "backwards": lambda x: x[::-1, :, ::-2],
    "one row": lambda x: x[1],
    "nothing": lambda x: x[:, :0],
    "a number": lambda x: x[1, 1, 3:4].reshape(()),
}


@pytest.mark.parametrize("grain", [0, parts.GRAIN])
@pytest.mark.parametrize("form", VIEWS)
def test_reading_views(form: str, grain: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact, in every placement, and cast as NumPy casts."""
    monkeypatch.setattr(parts, "GRAIN", grain)
    mesh, path = simulated(2, 2), tmp_path / "x"
    checkpoint.save(path, {"w": draw(6, 2, 10)})
    view = VIEWS[form](checkpoint.views(path)["w"])
    options = specs(mesh, view.shape, view.dtype, ("sum",))
    for i, spec in enumerate(options[:: 1 + len(options) // 20]):
        dtype = [None, "float32", "bfloat16", "complex128"][i % 4]
        found = checkpoint.read(view, dtype, mesh=mesh, placement=spec.placement)
        end = place(mesh, view.shape, dtypes.checked(dtype or float), spec.placement)
        assert found.spec is end
        assert same_bits(assembled(end, found._block), view.astype(end.dtype))


def test_what_is_read_lies_in_a_file() -> None:
    with pytest.raises(ArgumentError, match=r"read takes an array in a file; got str[^v]*views\(path\)\[name\]"):
        checkpoint.read("x.safetensors")


def test_views_read_what_is_looked_at(tmp_path: Path) -> None:
    """Of a file mapped by four ranks, each reads its own part: all together the file once, not four times."""
    smaps = Path("/proc/self/smaps")
    if not smaps.exists():
        pytest.skip("no /proc/self/smaps, which says how much of a mapped file was read")
    path, n = tmp_path / "theirs.safetensors", 2048  # pages may be as large as 2 MiB
    whole = np.arange(n * n, dtype=np.float64).reshape(n, n)
    checkpoint.save(path, {"w": whole, "none": np.zeros((0, 3))})

    def look() -> Any:
        views = checkpoint.views(path)
        assert views["none"].shape == (0, 3) and not views["w"].flags.writeable
        own = sx.asarray(views["w"].T, placement={"a": sx.Shard(1)}, mesh=sx.make_mesh({"a": 4}))
        return own, views

    each = spmd(4)(look)()
    np.testing.assert_array_equal(np.concatenate([x.block for x, _ in each], 1), whole.T)
    lines = smaps.read_text().splitlines()
    ours = [i for i, line in enumerate(lines) if line.endswith(str(path))]
    resident = [int(next(line for line in lines[i:] if line.startswith("Rss")).split()[1]) * 1024 for i in ours]
    assert whole.nbytes <= sum(resident) < 2 * whole.nbytes
