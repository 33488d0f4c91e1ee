"""Examples of the operation behind dropout; its mask is that of bernoulli, drawn once for the oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
from case import Case, values

import spmdx as sx
from spmdx import random
from spmdx.nn.dropout import dropout

KEY = random.key(3)


def dropped(rate: float) -> Any:
    def oracle(x: Any) -> Any:
        mask = random.bernoulli(KEY, x.shape, 1 - rate).numpy()
        wide = x.astype(np.float32) if x.itemsize == 2 else x
        scale = wide.real.dtype.type(1 / (1 - rate))
        return np.where(mask, (wide * scale).astype(x.dtype), np.zeros((), x.dtype))

    return oracle


def example(x: Any, rate: float = 0.4) -> Case:
    grad = (0,) if x.dtype.itemsize > 2 else ()
    return Case("dropped", lambda x: dropout(KEY, x, rate), dropped(rate), (x,), grad=grad)


CASES = [
    example(values(4, 6)),
    example(values(5)),
    example(values()),
    example(values(0, 3)),
    example(values(2, 3, 2), 0.75),
    example(values(3, 4, dtype="float32")),
    example(values(3, 4, dtype="float16")),
    example(values(6).astype(sx.bfloat16)),
    example(values(3, 2, dtype="complex128")),
    example(values(4, dtype="complex64")),
    example(values(4, 3, kind="special")),
]
