"""Of a file that a rank reads its part of, the pages that this lies on come into memory, and no others."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_from_hf as files
from tiny_gpt import plans

import spmdx as sx
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
    """Weights in float32; nobody looks at their values."""
    shapes = files.gpt2_shapes(config) if config["model_type"] == "gpt2" else files.llama_shapes(config)
    (folder / "config.json").write_text(json.dumps(config))
    path = folder / "model.safetensors"
    sx.checkpoint.save(path, {name: np.zeros(shape, np.float32) for name, shape in shapes.items()})
    return path


def positions(path: Path) -> dict[str, Any]:
    """In place of every number of a file the place of its first byte."""
    views = sx.checkpoint.views(path)
    start = min(view.ctypes.data for view in views.values()) - path.stat().st_size
    start += sum(view.nbytes for view in views.values())
    return {k: v.ctypes.data - start + 4 * np.arange(v.size).reshape(v.shape) for k, v in views.items()}


@pytest.mark.parametrize("words", ["zero3", "megatron"])
@pytest.mark.parametrize("config", [GPT2, LLAMA], ids=["gpt2", "llama"])
def test_weights_from_elsewhere(config: Any, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = model_file(tmp_path, config)
    axes = {"data" if words == "zero3" else "model": 4}

    def on_rank(dtype: Any) -> Any:
        mesh = sx.make_mesh(axes)
        if mesh.rank != 2:
            return []
        with plans.plan(words).on(mesh):
            return [x.block for x in sx.tree.leaves(from_hf.load(tmp_path, dtype=dtype)[1])]

    with monkeypatch.context() as patch:
        patch.setattr(from_hf, "_views", lambda folder: positions(path))
        places = np.concatenate([x.ravel() for x in spmd(4)(on_rank)(np.int64)[2]])
    wanted = np.unique(places // PAGE)
    forget(path)
    spmd(4)(on_rank)(np.float32)
    found = np.flatnonzero(in_memory(path))
    assert not set(wanted) - set(found)
    assert PAGE * len(set(found) - set(wanted)) < BESIDE
    if words == "zero3" and config is GPT2:  # rows, of matrices that are not divided into q, k and v
        assert PAGE * len(wanted) < 0.3 * path.stat().st_size


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
