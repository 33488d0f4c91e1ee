"""Triangles, grids and one_hot: examples for the law suite. Exact. (The rest of creation is in test_create.py.)"""

from __future__ import annotations

from typing import Any

import numpy as np
from case import Case, values

import spmdx.ops.operators  # attaches the methods
from spmdx.ops import create

assert spmdx.ops.operators
A, STACK, SPECIAL = values(5, 7), values(2, 3, 4), values(5, 3, kind="special")
LABELS = np.array([[0, 3, 2, 9], [1, -1, 0, 4]])


def _one_hot(labels: Any, n: int, axis: int) -> Any:
    return np.moveaxis((labels[..., None] == np.arange(n)).astype(float), -1, axis)


CASES = [
    Case("tril", create.tril, np.tril, (A,), grad=(0,)),
    Case("tril", lambda x: create.tril(x, k=-2), lambda x: np.tril(x, -2), (STACK,)),
    Case("tril", lambda x: create.tril(x, k=1), lambda x: np.tril(x, 1), (SPECIAL,)),
    Case("triu", create.triu, np.triu, (A,), grad=(0,)),
    Case("triu", lambda x: create.triu(x, k=2), lambda x: np.triu(x, 2), (values(5, 3, kind="bool"),)),
    Case("one_hot", lambda x: create.one_hot(x, 5), lambda x: _one_hot(x, 5, -1), (LABELS,)),
    Case("one_hot", lambda x: create.one_hot(x, 3, axis=0), lambda x: _one_hot(x, 3, 0), (LABELS[0],)),
    Case(
        "broadcast_to",
        lambda x, y: create.meshgrid(x, y)[1],
        lambda x, y: np.meshgrid(x, y)[1],
        (values(3), values(5, seed=1)),
        grad=(1,),
    ),
]
