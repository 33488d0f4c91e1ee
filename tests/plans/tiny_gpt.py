"""The GPT of the examples, small, and what the tests of plans do with it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

import spmdx as sx
from spmdx import nn, optim

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "gpt"))

import model
import plans

TINY = model.Config("gpt2", vocabulary=16, length=6, width=12, layers=2, heads=4, kv_heads=4, hidden=24)


def tokens(config: Any = TINY, size: int = 6, seed: int = 0) -> Any:
    """A batch, the same on every rank: counting from anywhere, in steps of 1 or 3."""
    draw = np.random.default_rng(seed)
    start, step = draw.integers(0, config.vocabulary, (size, 1)), draw.choice([1, 3], (size, 1))
    return (start + step * np.arange(config.length + 1)) % config.vocabulary


def gradient(config: Any = TINY) -> Any:
    """``(params, tokens) -> (loss, gradients)``."""
    return sx.value_and_grad(lambda params, batch: model.loss(params, batch, config))


def run(words: str, mesh: Any, steps: int, dtype: Any = np.float64, config: Any = TINY) -> list[float]:
    """Losses of some steps of AdamW."""
    optimizer = optim.chain(optim.clip_by_global_norm(1.0), optim.adamw(1e-2, weight_decay=0.1))
    step, losses = gradient(config), []
    with (plans.plan(words) if words else sx.Plan()).on(mesh):
        params = nn.init(model.parameters(config), sx.random.key(1), dtype=dtype)
        state = optimizer.init(params)
        for i in range(steps):
            value, grads = step(params, sx.asarray(tokens(config, seed=i)))
            updates, state = optimizer.update(grads, state, params)
            params = optim.apply_updates(params, updates)
            losses.append(float(value))
    return losses
