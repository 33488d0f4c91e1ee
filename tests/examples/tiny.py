"""The vision and the diffusion transformer of the examples, small, and what the tests of both do with them."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

import spmdx as sx
from spmdx import nn, optim, tree
from spmdx.nn.dropout import dropout

EXAMPLES = Path(__file__).parents[2] / "examples"
BATCH, STEPS, RATE = 4, 4, 0.25


def load(example: str, *names: str) -> Any:
    """Modules of one example. Those of all examples are called alike, so none of them stays in `sys.modules`."""
    before = {name: sys.modules.pop(name, None) for name in names}
    sys.path.insert(0, str(EXAMPLES / example))
    try:
        return SimpleNamespace(**{name: importlib.import_module(name) for name in names})
    finally:
        sys.path.remove(str(EXAMPLES / example))
        for name, module in before.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module


VIT, DIT = load("vit", "model", "plans"), load("dit", "model", "diffusion", "plans")
SIZES: Any = {"image": 4, "patch": 2, "classes": 3, "width": 8, "layers": 2, "heads": 4, "hidden": 16, "dropout": RATE}


def _vit_loss(params: Any, images: Any, labels: Any, key: Any) -> sx.Array:
    return VIT.model.loss(params, images, labels, VIT.model.Config(**SIZES), key)


def _dit_loss(params: Any, images: Any, labels: Any, key: Any) -> sx.Array:
    return DIT.diffusion.loss(params, images, labels, key, DIT.model.Config(**SIZES))


LOSS = {"vit": _vit_loss, "dit": _dit_loss}


def parameters(example: str) -> Any:
    """Descriptors of a small model's parameters."""
    model = {"vit": VIT, "dit": DIT}[example].model
    return model.parameters(model.Config(**SIZES))


class Run(NamedTuple):
    """What some steps leave behind, all of it whole."""

    initial: list[Any]  # parameters
    drawn: list[Any]  # noise, times and whatever else a step draws
    masks: list[Any]  # of dropout
    placements: list[Any]  # of the masks, as they were drawn
    losses: list[float]


_watched = threading.local()  # the run of this rank's thread


def _kept(name: str, original: Any) -> Any:
    """A function of the library that draws; a run keeps what it drew."""

    def draw(*args: Any, **kwargs: Any) -> Any:
        run, found = getattr(_watched, "run", None), original(*args, **kwargs)
        if run is not None and name in ("dropout", "add_norm"):
            key, x, rate = args if name == "dropout" else (kwargs["key"], found[0], kwargs["rate"])
            mask = dropout(key, sx.ones_like(x), rate)
            run.masks.append(mask.numpy() != 0)
            run.placements.append(mask.placement)
        elif run is not None:
            run.drawn.append(found.numpy())
        return found

    return draw


@contextmanager
def _watching() -> Iterator[None]:
    """Have runs keep what they draw."""
    with ExitStack() as stack:
        names = ((nn, ("dropout", "add_norm")), (sx.random, ("normal", "uniform", "bernoulli")))
        for module, name in ((module, name) for module, some in names for name in some):
            stack.enter_context(patch.object(module, name, _kept(name, getattr(module, name))))
        yield


def train(example: str, words: str, axes: dict[str, int], dtype: Any) -> Run:
    """Some steps of AdamW, on this rank."""
    images = np.random.default_rng(0).normal(size=(BATCH, 4, 4)).astype(dtype)
    labels = np.arange(BATCH) % 3
    step, optimizer = sx.value_and_grad(LOSS[example]), optim.adamw(1e-2)
    plan = {"vit": VIT, "dit": DIT}[example].plans.plan(words)
    with plan.on(sx.make_mesh(axes)):
        params = nn.init(parameters(example), sx.random.key(1), dtype=dtype)
        state = optimizer.init(params)
        run = Run([x.numpy() for x in tree.leaves(params)], [], [], [], [])
        for i in range(STEPS):
            _watched.run = run
            key = sx.random.fold_in(sx.random.key(2), i)
            value, grads = step(params, sx.asarray(images), sx.asarray(labels), key)
            _watched.run = None
            updates, state = optimizer.update(grads, state, params)
            params = optim.apply_updates(params, updates)
            run.losses.append(float(value))
    return run


@cache
def on_ranks(example: str, words: str, axes: tuple[tuple[str, int], ...], dtype: Any) -> list[Run]:
    """The same on threads, one for each rank."""
    sizes = dict(axes)
    with _watching():
        return sx.testing.spmd(int(np.prod(list(sizes.values()))))(lambda: train(example, words, sizes, dtype))()
