"""The table of what training a large model would move and hold, on up to thousands of ranks, in docs/train.rst.

    python docs/scaling.py      prints it

Nothing runs: the numbers are those of ``plan.estimate``, which tests/plans/test_estimate.py holds against closed forms.
"""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tables import list_table

import spmdx as sx
from spmdx import nn, optim
from spmdx.plans import parse

GPT = Path(__file__).parents[1] / "examples" / "gpt"
SIZES = {
    "vocabulary": 50_304,
    "length": 2048,
    "width": 4096,
    "layers": 32,
    "heads": 32,
    "kv_heads": 32,
    "hidden": 16_384,
}
RANKS = (8, 64, 512, 4096)
GRIDS = {8: (2, 4), 64: (8, 8), 512: (64, 8), 4096: (512, 8)}  # along data and model
SQUARES = {8: (4, 2), 64: (8, 8), 512: (32, 16), 4096: (64, 64)}  # for "2d"
PLANS = (
    *("dp", "zero1", "zero2", "zero3", "megatron", "megatron+sp", "2d"),
    *("megatron+dp", "megatron+zero1", "megatron+zero3", "megatron+sp+zero3"),
)


def meshes(words: str) -> Iterator[dict[str, int]]:
    """The meshes of a row: all ranks along the one axis that the plan speaks of, or a grid of them."""
    parts = set(words.split("+"))
    both = bool(parts & {"megatron", "sp"}) and bool(parts - {"megatron", "sp"})
    for p in RANKS:
        if words == "2d" or both:
            yield dict(zip(("data", "model"), (SQUARES if words == "2d" else GRIDS)[p]))
        else:
            yield {"model" if "megatron" in parts else "data": p}


def rows() -> Iterator[tuple[str, dict[str, int], Any]]:
    """Plan, mesh and estimate of a step of AdamW, with one sequence for every rank along "data"."""
    model = runpy.run_path(str(GPT / "model.py"))
    dims = runpy.run_path(str(GPT / "plans.py"))["DIMS"]
    config, optimizer = model["Config"]("gpt2", **SIZES), optim.adamw(1e-3, weight_decay=0.1)
    shapes = model["parameters"](config)
    gradient = sx.value_and_grad(lambda params, tokens: model["loss"](params, tokens, config))

    def step(params: Any, tokens: Any) -> Any:
        _, grads = gradient(params, tokens)
        updates, _ = optimizer.update(grads, optimizer.init(params), params)
        return optim.apply_updates(params, updates)

    for words in PLANS:
        for mesh in meshes(words):
            tokens = np.broadcast_to(np.int64(0), (mesh.get("data", 1), config.length + 1))
            yield words, mesh, parse(words, dims).estimate(step, shapes, tokens, mesh=mesh)


def parameters() -> int:
    """How many the model has."""
    model = runpy.run_path(str(GPT / "model.py"))
    return nn.count(model["parameters"](model["Config"]("gpt2", **SIZES)))


def cells() -> list[list[str]]:
    """A row a plan, its ranks side by side; the first is the head."""
    found: dict[str, list[str]] = {}
    for words, mesh, estimate in rows():
        each = dict.fromkeys(mesh, 0)
        for axes, sent in estimate.moved.items():  # what goes over both is a few biases
            each[axes[0]] += sent
        sent = ", ".join(f"{each[axis] / 1e9:.2f} along {axis}" for axis in mesh)
        found.setdefault(words, []).append(f"{sent}; {estimate.params / 1e9:.3g}")
    head = ["plan", *(f"{p:,} ranks" for p in RANKS)]
    return [head, *([f"``{words}``", *each] for words, each in found.items())]


def scaling() -> str:
    """The table in reStructuredText, with what it is of."""
    words = ", ".join(f"{name.replace('_', ' ')} {size:,}" for name, size in SIZES.items())
    grids, squares = (", ".join(f"{d} x {m}" for d, m in of.values()) for of in (GRIDS, SQUARES))
    text = (
        f"GPT-2's form with {parameters():,} parameters ({words}), float32, one sequence for every rank along *data*. "
        f"Where a plan speaks of both axes, ranks are {grids} along *data* and *model*; for ``2d``, {squares}."
    )
    return "\n".join([text, "", *list_table(cells(), "16 21 21 21 21")])


if __name__ == "__main__":
    print(scaling())
