"""Tokens drawn one by one with keys and values kept: the scores and tokens of the model that reads all of the text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tiny_gpt import TINY, model, plans

import spmdx as sx
from spmdx import nn
from spmdx.testing import spmd

import generate  # isort: skip  # beside model.py, which tiny_gpt makes importable

PROMPT = np.array([[1, 2, 3], [4, 5, 6]])
CONFIGS = {
    "gpt2": TINY._replace(length=12, width=16),
    "llama": TINY._replace(form="llama", length=12, width=16, kv_heads=2, stretch=model.Stretch(length=16)),
}
WAYS: list[tuple[str, dict[str, int]]] = [
    ("", {"all": 1}),
    ("megatron", {"model": 2}),
    ("zero3", {"data": 2}),
    ("megatron+sp+zero3", {"data": 2, "model": 2}),
]


def parameters(config: Any) -> Any:
    """Weights large enough for the tokens to depend on all of the text."""
    made = nn.init(model.parameters(config), sx.random.key(0), dtype=np.float64)
    return sx.tree.map(lambda x: x * 10.0 if x.ndim > 1 else x, made)


def again(params: Any, config: Any, count: int, key: Any, temperature: float) -> Any:
    """The same tokens from whole passes; a text that is too long is read again from its last half."""
    text, begin = PROMPT, 0
    for i in range(count):
        if text.shape[1] - begin > config.length:
            begin = text.shape[1] - (config.length // 2 + 1)
        scores = model.logits(params, sx.asarray(text[:, begin:]), config)[:, -1]
        if temperature == 0:
            new = scores.numpy().argmax(-1)
        else:
            new = sx.random.categorical(sx.random.fold_in(key, i), scores / temperature).numpy()
        text = np.concatenate([text, new[:, None]], 1)
    return text[:, PROMPT.shape[1] :]


def running(words: str, mesh: Any) -> Any:
    return (plans.plan(words) if words else sx.Plan()).on(mesh)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("form", CONFIGS)
def test_tokens(form: str, temperature: float) -> None:
    """Exact, for scores are close and no two are closer; 14 tokens are more than the model sees at once."""
    config, key = CONFIGS[form], sx.random.key(3)
    with running("", sx.make_mesh({"all": 1}, device="sim")):
        expected = again(parameters(config), config, 14, key, temperature)
    assert len(set(expected.ravel())) > 3
    for words, axes in WAYS:
        with running(words, sx.make_mesh(axes, device="sim")):
            found = generate.generate(parameters(config), config, PROMPT, 14, key, temperature)
            np.testing.assert_array_equal(found.numpy(), expected)


@pytest.mark.parametrize("words, axes", WAYS, ids=str)
@pytest.mark.parametrize("form", CONFIGS)
def test_scores(form: str, words: str, axes: dict[str, int]) -> None:
    """Close: 1e-12 of the largest, in float64, in whatever pieces the text comes."""
    config, text = CONFIGS[form], np.random.default_rng(0).integers(0, 16, (2, 12))
    with running(words, sx.make_mesh(axes, device="sim")):
        params, cache = parameters(config), None
        whole = model.logits(params, sx.asarray(text), config).numpy()
        for start, stop in ((0, 4), (4, 5), (5, 8), (8, 9), (9, 12)):
            scores, cache = model.extend(params, sx.asarray(text[:, start:stop]), config, cache)
            np.testing.assert_allclose(scores.numpy(), whole[:, stop - 1], rtol=0, atol=1e-12 * abs(whole).max())
            assert cache.used == stop
            if "megatron" in words:  # heads stay where they are made
                assert "model" in cache.layers[0][0].spec.layouts[2].axes


def test_ranks_draw_the_same_tokens() -> None:
    config, key = CONFIGS["llama"], sx.random.key(5)
    with running("", sx.make_mesh({"all": 1}, device="sim")):
        expected = generate.generate(parameters(config), config, PROMPT, 6, key).numpy()

    def draw() -> Any:
        with running("megatron", sx.make_mesh({"model": 2})):
            return generate.generate(parameters(config), config, PROMPT, 6, key).numpy()

    for found in spmd(2)(draw)():
        np.testing.assert_array_equal(found, expected)
