"""Train a vision transformer to read handwritten digits.

    python examples/vit/train.py
    mpiexec -n 4 python examples/vit/train.py --mesh data=2,model=2 --plan megatron+sp+zero3
    python examples/vit/train.py --mesh data=64,model=4 --plan megatron+zero3 --estimate

The loop is that of one device; the plan says where the pieces lie, and the losses stay those of one rank. A fifth of
the images is held out. Leaves a picture of the losses.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from model import Config, logits, loss, parameters
from plans import plan
from sklearn.datasets import load_digits
from tqdm import tqdm

import spmdx as sx
from spmdx import nn

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import adamw, make_step, parser, picture


class Digits(NamedTuple):
    """Images [count, 8, 8] in [0, 1], and what they show."""

    images: Any
    labels: Any


def digits() -> tuple[Digits, Digits]:
    """Those to train on, and those held out."""
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8) / 16.0
    order = np.random.default_rng(0).permutation(len(images))
    return Digits(images[order[360:]], labels[order[360:]]), Digits(images[order[:360]], labels[order[:360]])


def batch(data: Digits, size: int, seed: tuple[int, ...]) -> Digits:
    """Some of the digits, a few of them moved by a pixel: the same on every rank."""
    draw = np.random.default_rng(seed)
    chosen = draw.choice(len(data.images), size, replace=False)
    wider = np.pad(data.images[chosen], ((0, 0), (1, 1), (1, 1)))
    down, right = draw.choice(3, (2, size), p=(0.1, 0.8, 0.1))
    i, j, k = np.ogrid[:size, :8, :8]
    return Digits(wider[i, j + down[:, None, None], k + right[:, None, None]], data.labels[chosen])


class Run(NamedTuple):
    """What a run leaves behind."""

    losses: list[float]
    held_out: list[tuple[int, float]]
    accuracy: float  # on the digits held out


def train(config: Config, options: argparse.Namespace, hide: bool | None) -> Run:
    """Train under whatever plan is running."""
    used, held = digits()
    images, labels = sx.asarray(held.images.astype(options.dtype)), sx.asarray(held.labels)
    optimizer = adamw(options, weight_decay=0.05)
    params = nn.init(parameters(config), sx.random.key(options.seed), dtype=np.dtype(options.dtype))
    state, dropout = optimizer.init(params), sx.random.key(options.seed + 1)
    step = make_step(lambda params, images, labels, key: loss(params, images, labels, config, key), optimizer)
    losses, held_out = [], []
    progress = tqdm(range(options.steps), desc=f"{nn.count(params):,} parameters", disable=hide)
    for i in progress:
        some = batch(used, options.batch, (options.seed, i))
        given = sx.asarray(some.images.astype(options.dtype)), sx.asarray(some.labels)
        params, state, value = step(params, state, *given, sx.random.fold_in(dropout, i))
        losses.append(float(value))
        if i % options.validate == options.validate - 1 or i == options.steps - 1:
            held_out.append((i + 1, float(loss(params, images, labels, config))))
        progress.set_postfix(loss=f"{losses[-1]:.3f}", held_out=f"{held_out[-1][1]:.3f}" if held_out else "-")
    right = sx.argmax(logits(params, images, config), axis=1) == labels
    return Run(losses, held_out, float(sx.mean(right.astype(float))))


def main() -> None:
    """Train, tell how many digits are read rightly, draw."""
    sizes = {"layers": 3, "width": 48, "heads": 4, "batch": 64, "validate": 50}
    options = parser(__doc__, steps=800, rate=3e-3, plot="vit-loss.png", **sizes).parse_args()
    config = Config(width=options.width, layers=options.layers, heads=options.heads, hidden=2 * options.width)
    chosen = plan(options.plan)
    if options.estimate:
        given = np.zeros((options.batch, 8, 8), options.dtype), np.zeros(options.batch, np.int64)
        gradient = sx.value_and_grad(lambda params, images, labels: loss(params, images, labels, config))
        print(chosen.estimate(gradient, parameters(config), *given, mesh=options.mesh, dtype=options.dtype))
        return
    mesh = sx.make_mesh(options.mesh)
    with chosen.on(mesh) as running:
        run = train(config, options, hide=None if mesh.rank == 0 else True)
    if mesh.rank == 0:
        print(chosen.check(parameters(config), running.used))
        print(f"loss {run.losses[-1]:.4f}, held out {run.held_out[-1][1]:.4f}, accuracy {run.accuracy:.4f}")
        curves = {"training": list(enumerate(run.losses, 1)), "held out": run.held_out}
        picture(options.plot, f"Digits on {mesh.size} ranks, {options.plan}", "loss", curves)


if __name__ == "__main__":
    main()
