"""Train a diffusion transformer to draw handwritten digits.

    python examples/dit/train.py
    mpiexec -n 4 python examples/dit/train.py --mesh data=2,model=2 --plan megatron+sp+zero3
    python examples/dit/train.py --mesh data=64,model=4 --plan megatron+zero3 --estimate

The loop is that of one device; the plan says where the pieces lie. Noise, times and dropout are drawn by keys folded
from the step: they are the same to the last bit under every plan, and the losses stay those of one rank. Leaves a
picture of the losses and one of samples.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from diffusion import loss, sample
from model import Config, parameters
from plans import plan
from sklearn.datasets import load_digits
from tqdm import tqdm

import spmdx as sx
from spmdx import nn

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import adamw, make_step, parser, picture, plt


class Run(NamedTuple):
    """What a run leaves behind."""

    losses: list[float]
    params: Any


def train(config: Config, options: argparse.Namespace, hide: bool | None) -> Run:
    """Train under whatever plan is running."""
    images, labels = load_digits(return_X_y=True)
    images = (images.reshape(-1, 8, 8) / 8.0 - 1.0).astype(options.dtype)
    optimizer = adamw(options, weight_decay=0.0)
    params = nn.init(parameters(config), sx.random.key(options.seed), dtype=np.dtype(options.dtype))
    state, noise = optimizer.init(params), sx.random.key(options.seed + 1)
    step = make_step(lambda params, images, labels, key: loss(params, images, labels, key, config), optimizer)
    losses: list[float] = []
    progress = tqdm(range(options.steps), desc=f"{nn.count(params):,} parameters", disable=hide)
    for i in progress:
        chosen = np.random.default_rng((options.seed, i)).choice(len(images), options.batch, replace=False)
        given = sx.asarray(images[chosen]), sx.asarray(labels[chosen])
        params, state, value = step(params, state, *given, sx.random.fold_in(noise, i))
        losses.append(float(value))
        progress.set_postfix(loss=f"{np.mean(losses[-50:]):.4f}")
    return Run(losses, params)


def show_samples(images: Any, path: str) -> None:
    """Images [rows * 10, 8, 8], a column a class, as a PNG."""
    apart = np.pad(images, ((0, 0), (1, 1), (1, 1)), constant_values=-1)
    rows = apart.reshape(-1, 10, 10, 10).transpose(0, 2, 1, 3).reshape(-1, 100)
    plt.imsave(path, np.kron(rows, np.ones((6, 6))), cmap="gray_r", vmin=-1, vmax=1)


def main() -> None:
    """Train, sample, draw."""
    sizes = {"layers": 3, "width": 64, "heads": 4, "batch": 64, "rows": 6}
    command = parser(__doc__, steps=1500, rate=2e-3, plot="dit-loss.png", **sizes)
    command.add_argument("--drawn", default="dit-samples.png", help="where the picture of samples goes")
    options = command.parse_args()
    config = Config(width=options.width, layers=options.layers, heads=options.heads, hidden=2 * options.width)
    chosen = plan(options.plan)
    if options.estimate:
        given = np.zeros((options.batch, 8, 8), options.dtype), np.zeros(options.batch, np.int64)
        gradient = sx.value_and_grad(
            lambda params, images, labels: loss(params, images, labels, sx.random.key(0), config)
        )
        print(chosen.estimate(gradient, parameters(config), *given, mesh=options.mesh, dtype=options.dtype))
        return
    mesh = sx.make_mesh(options.mesh)
    with chosen.on(mesh) as running:
        run = train(config, options, hide=None if mesh.rank == 0 else True)
        wanted, key = np.arange(10 * options.rows) % 10, sx.random.key(options.seed + 2)
        drawn = sample(run.params, wanted, key, config, dtype=np.dtype(options.dtype)).numpy()
    if mesh.rank == 0:
        print(chosen.check(parameters(config), running.used))
        print(f"loss {np.mean(run.losses[-50:]):.4f}, the mean of the last 50 steps")
        losses = [float(np.mean(run.losses[max(0, i - 20) : i])) for i in range(1, len(run.losses) + 1)]
        picture(options.plot, f"{mesh.size} ranks, {options.plan}", "loss", {"training": list(enumerate(losses, 1))})
        show_samples(drawn, options.drawn)


if __name__ == "__main__":
    main()
