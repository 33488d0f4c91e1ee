"""Every optimizer with its like in NumPy, and the parameters that they are tried on."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import reference

from spmdx import optim, tree

SHAPES = {"bias": (7,), "deep": {"cube": (3, 4, 5)}, "weight": (5, 7), "tall": (8, 4)}
CASES = {
    "adamw": (optim.adamw(1e-2, weight_decay=0.1), reference.adamw),
    "adam": (optim.adam(1e-2), reference.adam),
    "sgd": (optim.sgd(0.1), reference.sgd),
    "momentum": (optim.sgd(0.1, 0.9, weight_decay=0.1), partial(reference.sgd, mu=0.9, decay=0.1)),
    "nesterov": (optim.sgd(0.1, 0.9, True), partial(reference.sgd, mu=0.9, nesterov=True)),
    "lion": (optim.lion(1e-2, weight_decay=0.1), reference.lion),
    "adafactor": (optim.adafactor(least_size=4), reference.adafactor),
    "muon": (optim.muon(0.02, weight_decay=0.1), reference.muon),
}
STATELESS = ("sgd",)


def drawn(seed: int) -> Any:
    draw = np.random.default_rng(seed)
    return tree.map(lambda x: draw.normal(size=x.shape), leaves(SHAPES))


def leaves(shapes: Any) -> Any:
    """Shapes as leaves: zeros."""
    return {k: leaves(v) if isinstance(v, dict) else np.zeros(v) for k, v in shapes.items()}


def close(got: Any, want: Any, bound: float) -> None:
    for a, b in zip(tree.leaves(got), tree.leaves(want)):
        assert np.max(np.abs(a.numpy() - b)) <= bound * max(1.0, np.max(np.abs(b)))
