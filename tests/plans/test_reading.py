"""Of a file that a rank reads its part of, the pages that this lies on come into memory, and no others."""

from __future__ import annotations

import ctypes
import itertools
import json
import math
import mmap
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_from_hf as files
from tiny_gpt import plans

import spmdx as sx
from spmdx import context
from spmdx.ops import mapped
from spmdx.ops.mapped import spans
from spmdx.testing import spmd

import from_hf  # isort: skip  # beside model.py, which tiny_gpt makes importable

PAGE = mmap.PAGESIZE
BESIDE = 2**18  # bytes of the header, and what is read ahead of it
WIDTH = 1024  # 4 KB: a row of a matrix divided in two is less than a page
GPT2 = {**files.GPT2, "vocab_size": 2048, "n_embd": WIDTH, "n_layer": 1, "n_head": 16}
LLAMA = {
    **files.LLAMA,
    "vocab_size": 1024,
    "hidden_size": WIDTH,
    "num_hidden_layers": 1,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "intermediate_size": 2048,
}


def in_memory(path: Path) -> Any:
    """Of every page of a file whether it is in memory."""
    data = np.memmap(path, np.uint8, "r")
    found = np.zeros(-(-len(data) // PAGE), np.uint8)
    where = ctypes.c_void_p(data.ctypes.data), ctypes.c_size_t(len(data)), ctypes.c_void_p(found.ctypes.data)
    if ctypes.CDLL(None).mincore(*where):
        pytest.skip("this system does not tell which pages are in memory")
    return found & 1


def forget(path: Path) -> None:
    """Have the system drop the file's pages."""
    if not hasattr(os, "posix_fadvise"):
        pytest.skip("this system cannot be asked to drop a file's pages")
    fd = os.open(path, os.O_RDWR)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
    if in_memory(path).mean() > 0.05:
        pytest.skip("the temporary files lie in memory")


def model_file(folder: Path, config: Any) -> Path:
    """Weights in bfloat16."""
    shapes = files.gpt2_shapes(config) if config["model_type"] == "gpt2" else files.llama_shapes(config)
    (folder / "config.json").write_text(json.dumps(config))
    path = folder / "model.safetensors"
    values = np.arange(16381, dtype=np.uint16).view(sx.bfloat16)  # a prime, so that no two rows are alike
    sx.checkpoint.save(path, {name: np.resize(values, shape) for name, shape in shapes.items()})
    return path


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Of every rank the pages of mapped files that it has read."""
    found: dict[int, set[int]] = defaultdict(set)
    read = mapped.reading

    def told(block: Any) -> Any:
        if (file := mapped.file_of(block)) is not None:
            first = np.frombuffer(file, np.uint8).ctypes.data
            for start, stop in mapped.spans(block):
                found[context.rank()].update(range((start - first) // PAGE, -(-(stop - first) // PAGE)))
        return read(block)

    monkeypatch.setattr(mapped, "reading", told)
    return found


def most(pages: dict[int, set[int]]) -> int:
    """Bytes of the rank that has read most."""
    return PAGE * max(map(len, pages.values()))


PLANS = [
    *((words, {axis: n}) for n in (2, 3, 4) for words, axis in (("zero3", "data"), ("megatron", "model"))),
    ("megatron+zero3", {"data": 2, "model": 2}),
    ("dp", {"data": 3}),
    ("megatron+dp", {"data": 2, "model": 2}),
]


@pytest.mark.parametrize(
    ("words", "axes"), PLANS, ids=lambda x: x if isinstance(x, str) else "x".join(map(str, x.values()))
)
@pytest.mark.parametrize("config", [GPT2, LLAMA], ids=["gpt2", "llama"])
def test_weights_from_elsewhere(config: Any, words: str, axes: dict[str, int], tmp_path: Path, pages: Any) -> None:
    """Exact values; every rank reads its share of the file, whichever dimension the plan divides."""
    path = model_file(tmp_path, config)
    expected = [x.numpy() for x in sx.tree.leaves(from_hf.load(tmp_path)[1])]
    pages.clear()

    def on_rank() -> None:
        with plans.plan(words).on(sx.make_mesh(axes)) as running:
            made = from_hf.load(tmp_path)[1]
            for name, x, value in zip(sx.tree.paths(made), sx.tree.leaves(made), expected):
                assert x.spec == running.plan.spec(name, x.shape, np.dtype(np.float32), x.mesh)
                assert x.block.flags.c_contiguous
                assert np.array_equal(x.block, sx.asarray(value, mesh=x.mesh, placement=x.placement).block)

    spmd(n := math.prod(axes.values()))(on_rank)()
    assert most(pages) < 1.1 * path.stat().st_size / n + BESIDE


SAVED = np.arange(700 * 1500, dtype=np.float64).reshape(700, 1500)  # 12 KB a row
LAID: dict[str, Any] = {
    "rows": {"a": sx.Shard(0)},
    "columns": {"a": sx.Shard(1)},
    "ragged": {"a": sx.Shard(1, sizes=(100, 900, 500))},
    "interleaved": {"a": sx.Shard(1, interleave=5)},
    "whole": {},
}


@pytest.mark.parametrize("laid", LAID)
def test_checkpoints_under_another_plan(laid: str, tmp_path: Path, pages: Any) -> None:
    """Exact: three ranks read the file once."""
    path = tmp_path / "x"
    sx.checkpoint.save(path, {"x": SAVED, "small": SAVED[:3]})

    def on_rank() -> None:
        mesh = sx.make_mesh({"a": 3})
        spec = sx.spec.place(mesh, SAVED.shape, SAVED.dtype, LAID[laid])
        with sx.debug.trace() as trace:
            found = sx.checkpoint.load(path, {"x": spec, "small": sx.spec.place(mesh, (3, 1500), SAVED.dtype)})
        assert len(trace) == (laid != "rows")
        assert found["x"].spec is spec and found["x"].block.flags.c_contiguous
        assert np.array_equal(found["x"].block, sx.asarray(SAVED, placement=LAID[laid], mesh=mesh).block)

    spmd(3)(on_rank)()
    assert most(pages) < 1.1 * path.stat().st_size / 3 + BESIDE


def test_ranks_that_want_different_things(tmp_path: Path) -> None:
    """Exact. They send each other nothing: each reads its block, or all of it."""
    sx.checkpoint.save(path := tmp_path / "x", {"x": SAVED})

    def on_rank() -> None:
        mesh = sx.make_mesh({"a": 2})
        like = {"x": sx.spec.place(mesh, SAVED.shape, SAVED.dtype, {"a": sx.Shard(1)})} if mesh.rank else None
        with sx.debug.trace() as trace:
            found = sx.checkpoint.load(path, like)["x"]
        assert not trace
        assert np.array_equal(found.block, SAVED[:, 750:] if mesh.rank else SAVED)

    spmd(2)(on_rank)()


@pytest.mark.parametrize("dim", [0, 1])
def test_checkpoints(dim: int, tmp_path: Path) -> None:
    path, n, width = tmp_path / "x.safetensors", 512, 8 * PAGE // 4
    sx.checkpoint.save(path, {"x": np.zeros((n, width), np.float32)})
    forget(path)

    def on_rank() -> None:
        mesh = sx.make_mesh({"data": 4})
        sx.checkpoint.load(path, {"x": sx.spec.place(mesh, (n, width), np.dtype(np.float32), {"data": sx.Shard(dim)})})

    before = in_memory(path).sum()
    one = spmd(1)(lambda: sx.checkpoint.views(path)["x"])()[0]
    quarter = one[: n // 4] if dim == 0 else one[:, : width // 4]
    sx.asarray(quarter)
    assert PAGE * (in_memory(path).sum() - before) < quarter.nbytes * (1.5 if dim else 1) + BESIDE
    spmd(4)(on_rank)()
    assert in_memory(path).all()


def test_spans() -> None:
    """An array's bytes, by strides of either sign, and gaps of a page or less as if they were not there."""
    x = np.zeros((6, 5, 4 * PAGE), np.uint8)
    first = x.ctypes.data
    told = [
        (x, [(0, x.size)]),
        (x[:0], []),
        (x[1], [(x.strides[0], 2 * x.strides[0])]),
        (x[..., :PAGE].transpose(2, 0, 1), [(i * 4 * PAGE, i * 4 * PAGE + PAGE) for i in range(30)]),
        (x[..., : 3 * PAGE], [(0, x.size - PAGE)]),
        (x[::-5, ::-4, 0], [(i * 4 * PAGE, i * 4 * PAGE + 1) for i in (0, 4, 25, 29)]),
        (x[0, 0, 3:4], [(3, 4)]),
    ]
    for block, expected in told:
        assert [(a - first, b - first) for a, b in spans(block)] == expected


@pytest.mark.parametrize("shape", [(300, 5, 170), (257, 1, 129), (3, 700, 2, 130), (4000, 3), (0, 400), ()], ids=str)
def test_turned_copies(shape: tuple[int, ...]) -> None:
    """Exact: tile by tile, from any order of the dimensions and from either end."""
    x = np.arange(math.prod(shape), dtype=np.int32).reshape(shape)
    for order in itertools.permutations(range(len(shape))):
        for laid in (x.transpose(order), np.flip(x).transpose(order)):
            out = mapped.turned(laid, tuple(range(len(shape))))
            assert out.flags.c_contiguous and np.array_equal(out, laid)


def test_many_small_matrices_are_turned_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call for each would take longer than what it copies."""
    calls: list[int] = []
    monkeypatch.setattr(np, "copyto", lambda out, x: calls.append(x.size))
    mapped.turned(np.zeros((3000, 128, 4), np.int8), (0, 2, 1))
    assert calls == [3000 * 128 * 4]
