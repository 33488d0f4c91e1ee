"""Muon: what it takes for matrices, which way round, and what it sends."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "plans"))

from cases import drawn
from tiny_gpt import TINY, model

import spmdx as sx
from spmdx import nn, optim, tree

ONE = sx.make_mesh({"a": 2}, device="sim")


def steps(optimizer: Any, params: Any, grads: Any) -> Any:
    return optimizer.update(grads, optimizer.init(params), params)[0]


def singular(x: Any) -> Any:
    return np.linalg.svd(x)[1]


def test_orthogonal() -> None:
    """Singular values within 0.35 of 1, for a matrix of condition 30."""
    draw = np.random.default_rng(0)
    u, _ = np.linalg.qr(draw.normal(size=(6, 6)))
    v, _ = np.linalg.qr(draw.normal(size=(9, 6)))
    x = u * np.geomspace(1, 30, 6) @ v.T
    assert np.all(np.abs(singular(optim.orthogonal(sx.asarray(x, mesh=ONE)).numpy()) - 1) < 0.35)


def test_all_matrices_are_gathered_in_one_message() -> None:
    matrices = {k: sx.asarray(drawn(0)[k], mesh=ONE, placement={"a": sx.Shard(0)}) for k in ("weight", "tall")}
    step = optim.scale_by_muon()
    with sx.debug.trace() as trace:
        step.update(matrices, step.init(matrices), matrices)
    assert [r.verb for r in trace] == ["all_gather"], trace


@pytest.mark.parametrize("form", ["gpt2", "llama"])
def test_the_matrices_of_the_gpt(form: str) -> None:
    """By default, the products of attention and of the hidden layer: inputs by outputs, with heads and their sizes
    together; neither biases nor norms, positions, tokens or the head."""
    config = TINY._replace(form=form, kv_heads=2, layers=1, hidden=32, tied=False)
    params = nn.init(model.parameters(config), sx.random.key(0), mesh=ONE)
    optimizer = optim.muon(1.0)
    state = optimizer.init(params)
    taken = tree.paths(state["muon"][0])
    names = ["down", "k", "out", "q", "up", "v", *(["gate"] if form == "llama" else [])]
    assert taken == [f"0.blocks.0.{name}" for name in sorted(names)]
    updates = steps(optimizer, params, params)["blocks"][0]
    width, heads, size = config.width, config.heads, config.size
    for name, shape in {"q": (width, -1), "k": (width, -1), "out": (-1, width), "up": (width, -1)}.items():
        found = singular(updates[name].numpy().reshape(shape))
        inputs, outputs = updates[name].numpy().reshape(shape).shape
        assert np.all(np.abs(found / max(1, outputs / inputs) ** 0.5 - 1) < 0.4), name
    assert updates["q"].shape == (width, heads, size)


@pytest.mark.parametrize(
    "matrices",
    [
        {"*.experts": optim.Matrix(1, 2), "deep.*": False, "w?": optim.Matrix((0, 1), 2), "v": True},
        lambda params: {
            "deep": {"experts": optim.Matrix(-2, -1), "x": False},
            "v": optim.Matrix(),
            "w0": optim.Matrix((0, 1), 2),
        },
    ],
    ids=["patterns", "function"],
)
def test_matrices_are_told(matrices: Any) -> None:
    """A stack of matrices, dimensions that are joined, and what stays with AdamW; the last pattern counts."""
    draw = np.random.default_rng(1)
    shapes = {"deep": {"experts": (2, 3, 4), "x": (4, 4)}, "v": (5, 3, 3), "w0": (2, 3, 4)}
    params = tree.map(
        lambda x: sx.asarray(x, mesh=ONE),
        {
            k: {n: draw.normal(size=s) for n, s in v.items()} if isinstance(v, dict) else draw.normal(size=v)
            for k, v in shapes.items()
        },
    )
    if isinstance(matrices, dict):
        matrices = {**dict(list(matrices.items())[1:]), **dict(list(matrices.items())[:1])}
    optimizer = optim.muon(1.0, matrices=matrices)
    assert tree.paths(optimizer.init(params)["muon"][0]) == ["0.deep.experts", "0.v", "0.w0"]
    updates = steps(optimizer, params, params)
    for x in (*updates["deep"]["experts"].numpy(), *updates["v"].numpy()):
        assert np.all(np.abs(singular(x) / max(1, x.shape[1] / x.shape[0]) ** 0.5 - 1) < 0.4)
    assert np.all(np.abs(singular(updates["w0"].numpy().reshape(6, 4)) - 1) < 0.4)


def test_a_function_tells_from_all_parameters() -> None:
    """Whichever of them Muon moves."""
    params = {k: sx.asarray(drawn(0)[k], mesh=ONE) for k in ("weight", "tall")}
    optimizer = optim.muon(1.0, matrices=lambda p: {"weight": p["tall"].ndim == 2, "tall": p["weight"].ndim > 2})
    state = optimizer.init(params)
    assert tree.paths(state["muon"][0]) == ["0.weight"]
    updates, _ = optimizer.update(params, state, params)
    assert np.all(np.abs(singular(updates["weight"].numpy()) - 1) < 0.6)


def test_a_vector_is_no_matrix() -> None:
    params = {"a": {"v": sx.ones((3,), mesh=ONE)}}
    for wrong in (
        lambda: optim.scale_by_muon().init(params),
        lambda: optim.muon(1.0, matrices={"*": True}).init(params),
    ):
        with pytest.raises(sx.errors.ShapeError, match=r"a\.v of shape \(3,\) is no matrix.*\n  Write optim\.muon"):
            wrong()
    with pytest.raises(sx.errors.ArgumentError, match=r"True, False or a Matrix; got 3\.\n  Write optim\.Matrix"):
        optim.muon(1.0, matrices={"a": {"v": 3}}).init(params)


def test_labels_by_path() -> None:
    params = {"a": {"bias": 1.0, "w": 2.0}, "b": [3.0]}
    labels = optim.by_path({"*": "adamw", "*.w": "muon", re.compile("^b"): "sgd"})
    assert labels(params) == {"a": {"bias": "adamw", "w": "muon"}, "b": ["sgd"]}
    assert optim.by_path({"*.w": True}, False)(params) == {"a": {"bias": False, "w": True}, "b": [False]}
    with pytest.raises(sx.errors.ArgumentError, match=r"no pattern fits 'a.bias'.\n  Write optim.by_path"):
        optim.by_path({"*.w": True})(params)
    with pytest.raises(sx.errors.ArgumentError, match="dict of patterns"):
        optim.by_path(["*.w"])  # type: ignore[arg-type]
