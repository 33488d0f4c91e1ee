"""Train a classifier of handwritten digits on a mesh of ranks, and compare with the same program on one rank.

    mpiexec -n 4 python examples/digits.py        two data-parallel rows of two tensor-parallel ranks
    python examples/digits.py                     the same file on one rank

The model and the training loop are written for one device. Where things lie is said once, in `main`: the batch is
divided over "data", the weights of the hidden layer over "model".
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from sklearn.datasets import load_digits
from tqdm import tqdm

import spmdx as sx

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # after the backend is chosen

HIDDEN, CLASSES = 128, 10
RATE, SMOOTHING = 0.2, 0.1  # of hidden units dropped; of each label spread over the other classes
STEPS, LEARNING_RATE, MOMENTUM = 150, 0.2, 0.8


# The model: for one device, with no word of parallelism


def logits(params: Any, images: sx.Array, mask: sx.Array | None = None) -> sx.Array:
    """Two layers; the mask, where given, drops hidden units."""
    hidden = sx.tanh(images @ params["w1"] + params["b1"])
    if mask is not None:
        hidden = sx.where(mask, hidden / (1.0 - RATE), 0.0)
    return hidden @ params["w2"] + params["b2"]


def loss(params: Any, images: sx.Array, labels: sx.Array, mask: sx.Array | None = None) -> sx.Array:
    """Mean cross-entropy, with smoothed labels."""
    scores = logits(params, images, mask)
    wanted = (1.0 - SMOOTHING) * sx.one_hot(labels, CLASSES, dtype=scores.dtype) + SMOOTHING / CLASSES
    return -sx.mean(sx.sum(wanted * sx.log_softmax(scores, axis=1), axis=1))


def momentum_step(params: Any, velocity: Any, grads: Any) -> tuple[Any, Any]:
    """Gradient descent with momentum."""
    velocity = {name: MOMENTUM * velocity[name] + grads[name] for name in params}
    return {name: params[name] - LEARNING_RATE * velocity[name] for name in params}, velocity


# The run: the same on any mesh


class Run(NamedTuple):
    """What a training run leaves behind, for comparison."""

    losses: list[float]
    accuracy: float
    weights: Any  # initial, as NumPy arrays
    masks: list[Any]  # of the first steps


def train(mesh: sx.Mesh, dtype: Any, steps: int, show: bool = False) -> Run:
    """Train on a mesh with axes "data" and "model"."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype(dtype)
    order = np.random.default_rng(0).permutation(len(images))
    held, used = order[:360], order[360:]

    batch = sx.P("data")
    x = sx.asarray(images[used], mesh=mesh, placement=batch)
    y = sx.asarray(labels[used], mesh=mesh, placement=batch)

    key = sx.random.key(2026)
    k1, k2, k_drop = sx.random.split(key, 3)
    scale1, scale2 = (2.0 / 64) ** 0.5, (2.0 / HIDDEN) ** 0.5
    hidden_columns, hidden_rows = sx.P(None, "model"), sx.P("model", None)
    params = {
        "w1": scale1 * sx.random.normal(k1, (64, HIDDEN), dtype=dtype, mesh=mesh, placement=hidden_columns),
        "b1": sx.zeros((HIDDEN,), dtype=dtype, mesh=mesh, placement=sx.P("model")),
        "w2": scale2 * sx.random.normal(k2, (HIDDEN, CLASSES), dtype=dtype, mesh=mesh, placement=hidden_rows),
        "b2": sx.zeros((CLASSES,), dtype=dtype, mesh=mesh),
    }
    weights = {name: value.numpy() for name, value in params.items()}
    velocity = {name: sx.zeros_like(value) for name, value in params.items()}

    gradient = sx.value_and_grad(loss)
    losses, masks = [], []
    bar = tqdm(range(steps), desc=f"{np.dtype(dtype).name} on {mesh.shape}", disable=None if show else True)
    for step in bar:
        drawn = sx.random.fold_in(k_drop, step)
        mask = sx.random.bernoulli(drawn, (len(used), HIDDEN), 1.0 - RATE, mesh=mesh, placement=sx.P("data", "model"))
        value, grads = gradient(params, x, y, mask)
        params, velocity = momentum_step(params, velocity, grads)
        losses.append(float(value))
        if step < 3:
            masks.append(mask.numpy())
        bar.set_postfix(loss=f"{losses[-1]:.4f}")

    test = sx.asarray(images[held], mesh=mesh, placement=batch)
    guess = sx.argmax(logits(params, test), axis=1)
    right = guess == sx.asarray(labels[held], mesh=mesh, placement=batch)
    return Run(losses, float(sx.mean(sx.astype(right, np.float64))), weights, masks)


def compare(name: str, many: Run, one: Run, bound: float) -> bool:
    """Print one block of the table; True if everything is as promised."""
    same_weights = all(np.array_equal(many.weights[k], one.weights[k]) for k in one.weights)
    same_masks = all(np.array_equal(a, b) for a, b in zip(many.masks, one.masks))
    apart = max(abs(a - b) / abs(b) for a, b in zip(many.losses, one.losses))
    rows = [
        ("initial weights", "equal to the last bit", same_weights),
        ("dropout masks", "equal to the last bit", same_masks),
        ("losses, largest relative difference", f"{apart:.1e}  (bound {bound:.0e})", apart <= bound),
        ("final loss", f"{many.losses[-1]:.6f} / {one.losses[-1]:.6f}", True),
        ("test accuracy", f"{many.accuracy:.4f} / {one.accuracy:.4f}", many.accuracy >= 0.95),
    ]
    for what, found, good in rows:
        print(f"  {name:<9}{what:<38}{found:<38}{'ok' if good else 'NOT AS PROMISED'}")
    return all(good for *_, good in rows)


def main() -> None:
    """Train in both precisions on all ranks and on one, save the loss curve, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=STEPS)
    beside = Path(__file__).with_name("digits-loss.png")
    parser.add_argument(
        "--plot", type=Path, default=beside, help="where the loss curve goes; default: beside this file"
    )
    options = parser.parse_args()

    start = time.perf_counter()
    ranks = sx.make_mesh().size
    mesh = sx.make_mesh({"data": 2, "model": ranks // 2} if ranks % 2 == 0 else {"data": ranks, "model": 1})
    first = mesh.rank == 0
    runs = {kind: train(mesh, kind, options.steps, show=first) for kind in (np.float32, np.float64)}

    alone = sx.make_mesh({"data": 1, "model": 1}, ranks=[0])
    if not alone.contains_me():
        return  # rank 0 has the rest of the work, and it needs no one else
    print(f"\n{mesh.size} ranks {mesh.shape} against the same program on one rank, {options.steps} steps")
    good = True
    for kind, bound in ((np.float32, 1e-6), (np.float64, 1e-12)):
        good &= compare(np.dtype(kind).name, runs[kind], train(alone, kind, options.steps), bound)

    plt.plot(runs[np.float32].losses)
    plt.xlabel("step")
    plt.ylabel("training loss")
    plt.title(f"Digits on {mesh.size} ranks")
    plt.savefig(options.plot, dpi=120)
    print(f"  loss curve in {options.plot}; {time.perf_counter() - start:.1f} s")
    if not good:
        raise SystemExit("the run differs from one rank's by more than promised")


if __name__ == "__main__":
    main()
