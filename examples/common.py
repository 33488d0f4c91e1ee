"""What the training programs in gpt/, vit/ and dit/ share: command line, optimizer, step and picture."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib

import spmdx as sx
from spmdx import optim, plans

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # after the backend is chosen


def parser(text: str, steps: int, rate: float, plot: str, **sizes: int) -> argparse.ArgumentParser:
    """A command line with what every program asks, and whole numbers of its own."""
    made = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--mesh", type=axes, default="data=-1,model=1", help="axes and sizes, as data=2,model=2")
    made.add_argument("--plan", default="dp", help=f"of {', '.join(plans.WORDS)}, joined by +")
    for name, value in {**sizes, "steps": steps, "seed": 0}.items():
        made.add_argument(f"--{name}", type=int, default=value)
    made.add_argument("--rate", type=float, default=rate, help="the highest learning rate")
    made.add_argument("--dtype", default="float32")
    made.add_argument("--plot", default=plot, help="where the picture goes")
    made.add_argument("--estimate", action="store_true", help="print what a step would move, and stop")
    return made


def axes(text: str) -> dict[str, int]:
    """``"data=2,model=2"`` as axes and their sizes."""
    return {name: int(size) for name, size in (entry.split("=") for entry in text.split(","))}


def adamw(options: argparse.Namespace, weight_decay: float) -> optim.GradientTransformation:
    """AdamW, its rate warmed up and then lowered along a cosine, with clipped gradients."""
    schedule = optim.warmup_cosine_decay_schedule(options.rate, options.steps // 20 + 1, options.steps)
    return optim.chain(optim.clip_by_global_norm(1.0), optim.adamw(schedule, weight_decay=weight_decay))


def make_step(loss: Callable[..., sx.Array], optimizer: optim.GradientTransformation) -> Callable[..., Any]:
    """A step of training: ``step(params, state, *batch) -> (params, state, loss)``."""
    gradient = sx.value_and_grad(loss)

    def step(params: Any, state: Any, *batch: Any) -> tuple[Any, Any, sx.Array]:
        value, grads = gradient(params, *batch)
        updates, state = optimizer.update(grads, state, params)
        return optim.apply_updates(params, updates), state, value

    return step


def picture(path: str, title: str, unit: str, curves: dict[str, Sequence[tuple[int, float]]]) -> None:
    """Curves of (step, loss), as a PNG."""
    plt.figure()
    for name, points in curves.items():
        plt.plot(*zip(*points), "-" if len(points) > 20 else "o-", label=name)
    plt.xlabel("step")
    plt.ylabel(unit)
    plt.title(title)
    plt.legend()
    plt.savefig(path, dpi=120)
