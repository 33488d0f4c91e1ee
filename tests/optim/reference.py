"""Every optimizer once more in NumPy, leaf by leaf, as its paper (or torch) writes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Step = Callable[[Any, Any, dict[str, Any], int], Any]  # gradient, parameter, memory, step from 1 -> new parameter


def adamw(g: Any, p: Any, memory: dict[str, Any], t: int, rate: float = 1e-2, decay: float = 0.1) -> Any:
    """torch.optim.AdamW, single tensor: the order of its operations."""
    b1, b2, eps = 0.9, 0.999, 1e-8
    p = p * (1 - rate * decay)
    m = memory["m"] = b1 * memory.get("m", 0) + (1 - b1) * g
    v = memory["v"] = b2 * memory.get("v", 0) + (1 - b2) * g * g
    return p - rate / (1 - b1**t) * m / (np.sqrt(v) / np.sqrt(1 - b2**t) + eps)


def adam(g: Any, p: Any, memory: dict[str, Any], t: int) -> Any:
    return adamw(g, p, memory, t, decay=0.0)


def sgd(
    g: Any, p: Any, memory: dict[str, Any], t: int, mu: float = 0.0, nesterov: bool = False, decay: float = 0.0
) -> Any:
    """torch.optim.SGD."""
    g = g + decay * p
    if mu:
        v = memory["v"] = mu * memory["v"] + g if "v" in memory else g
        g = g + mu * v if nesterov else v
    return p - 0.1 * g


def lion(g: Any, p: Any, memory: dict[str, Any], t: int) -> Any:
    m = memory.get("m", 0)
    memory["m"] = 0.99 * m + 0.01 * g
    return p - 1e-2 * (np.sign(0.9 * m + 0.1 * g) + 0.1 * p)


def adafactor(g: Any, p: Any, memory: dict[str, Any], t: int, least: int = 4) -> Any:
    """Algorithms 4 and 5 of the paper."""
    share = 1 - t**-0.8
    square = g * g + 1e-30
    if g.ndim > 1 and min(g.shape[-2:]) >= least:
        r = memory["r"] = share * memory.get("r", 0) + (1 - share) * square.mean(-1)
        c = memory["c"] = share * memory.get("c", 0) + (1 - share) * square.mean(-2)
        v = r[..., :, None] * c[..., None, :] / r.mean(-1)[..., None, None]
    else:
        v = memory["v"] = share * memory.get("v", 0) + (1 - share) * square
    u = g / np.sqrt(v)
    u = u / max(1.0, np.sqrt((u * u).mean()))
    return p - 1e-2 * max(1e-3, np.sqrt((p * p).mean())) * u


def muon(g: Any, p: Any, memory: dict[str, Any], t: int) -> Any:
    """Jordan's program for matrices (inputs first, as in x @ w), the cube with two dimensions of inputs; AdamW for the
    others."""
    if g.ndim < 2:
        return adamw(g, p, memory, t, 3e-4, 0.1)
    shape = g.shape
    g, p = (a.reshape(-1, shape[-1]) for a in (g, p))
    m = memory["m"] = 0.95 * memory.get("m", 0) + 0.05 * g
    u = 0.05 * g + 0.95 * m
    x = u.T if g.shape[0] > g.shape[1] else u
    x = x / (np.linalg.norm(x) + 1e-7)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    x = x.T if g.shape[0] > g.shape[1] else x
    return (p - 0.02 * (max(1, g.shape[1] / g.shape[0]) ** 0.5 * x + 0.1 * p)).reshape(shape)
