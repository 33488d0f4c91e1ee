"""One example of an operation for the law suite: how it is called, what NumPy says, and on which inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Case:
    """An example.

    Args:
        op: name of the registered operation that it is an example of (a key of ``spmdx.op.registry``).
        call: the spmdx expression, a function of Arrays.
        oracle: the same in NumPy, a function of ndarrays.
        inputs: the global values.
        close: 0 compares exactly; otherwise the bound on |a - b| / max(1, |b|).
        grad: numbers of the inputs to differentiate, against central differences of the oracle.
    """

    op: str
    call: Callable[..., Any]
    oracle: Callable[..., Any]
    inputs: tuple[Any, ...]
    close: float = 0.0
    grad: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """What a report calls it."""
        return f"{self.op}[{', '.join(f'{x.dtype.name}{list(x.shape)}' for x in self.inputs)}]"


def values(*shape: int, kind: str = "real", dtype: Any = "float64", seed: int = 0) -> Any:
    """Reproducible values: "real" (both signs, distinct, away from 0), "positive", "unit" (inside (-1, 1)),
    "integer" (-4..4), "natural" (0..6), "bool", "special" (with NaN, infinities and both zeros)."""
    draw = np.random.default_rng([seed, *shape])
    n = int(np.prod(shape, dtype=np.int64))
    ramp = draw.permutation(np.arange(1, n + 1))
    if kind == "bool":
        return draw.integers(0, 2, shape).astype(bool)
    if kind in ("integer", "natural"):
        return draw.integers(-4 if kind == "integer" else 0, 5 if kind == "integer" else 7, shape).astype(dtype)
    if kind == "unit":
        flat = (ramp / (n + 1.0)) * draw.choice([-1.0, 1.0], n)
    elif kind == "positive":
        flat = 0.25 + 2.0 * ramp / max(n, 1)
    else:
        flat = (0.25 + 2.0 * ramp / max(n, 1)) * draw.choice([-1.0, 1.0], n)
    if kind == "special" and n:
        odd = [np.nan, np.inf, -np.inf, 0.0, -0.0]
        flat[: min(n, 5)] = odd[: min(n, 5)]
        flat = draw.permutation(flat)
    if np.dtype(dtype).kind == "c":
        flat = flat + 1j * draw.permutation(flat)
    return flat.reshape(shape).astype(dtype)
