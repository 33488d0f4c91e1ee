"""Shapes: examples for the law suite. Exact: nothing is computed."""

from __future__ import annotations

from typing import Any

import numpy as np
from case import Case, values

import spmdx.ops.operators  # attaches the methods
from spmdx.ops import shape

assert spmdx.ops.operators
A, B, C = values(5, 7), values(4, 6), values(2, 3, 4)
EMPTY, ONE = values(0, 5), values(1, 5, 1)


def _reshape(x: Any, *sizes: int) -> Case:
    return Case("reshape", lambda x: shape.reshape(x, sizes), lambda x: x.reshape(sizes), (x,), grad=(0,))


def _broadcast(x: Any, *sizes: int) -> Case:
    return Case(
        "broadcast_to", lambda x: shape.broadcast_to(x, sizes), lambda x: np.broadcast_to(x, sizes), (x,), grad=(0,)
    )


CASES = [
    _reshape(A, -1),
    _reshape(A, 7, 5),  # nothing in common
    _reshape(B, 8, 3),  # cut in the middle of a dimension
    _reshape(B, 2, 2, -1),
    _reshape(values(4, 3), 6, 2),  # a common factor, then nothing
    _reshape(values(24), 4, 6),
    _reshape(C, 6, 4),
    _reshape(EMPTY, 5, 0),
    _reshape(ONE, 5),
    _reshape(values(1)),
    Case("reshape", lambda x: x.ravel(), np.ravel, (values(5, 3, kind="bool"),)),
    Case("permute_dims", lambda x: x.T, np.transpose, (A,), grad=(0,)),
    Case("permute_dims", lambda x: x.mT, lambda x: np.swapaxes(x, -1, -2), (C,), grad=(0,)),
    Case("permute_dims", lambda x: shape.moveaxis(x, 0, -1), lambda x: np.moveaxis(x, 0, -1), (C,)),
    Case("permute_dims", lambda x: shape.swapaxes(x, 0, 1), lambda x: np.swapaxes(x, 0, 1), (EMPTY,)),
    Case("expand_dims", lambda x: shape.expand_dims(x, (0, -1)), lambda x: np.expand_dims(x, (0, -1)), (A,), grad=(0,)),
    Case("expand_dims", lambda x: shape.expand_dims(x, 0), lambda x: x[None], (EMPTY,)),
    Case("squeeze", lambda x: shape.squeeze(x, (0, 2)), np.squeeze, (ONE,), grad=(0,)),
    Case("squeeze", shape.squeeze, np.squeeze, (values(1, 1),)),
    _broadcast(values(5, 1), 2, 5, 3),
    _broadcast(values(7), 5, 7),
    _broadcast(values(1, 5), 0, 5),
    Case(
        "broadcast_to",
        lambda x, y: shape.broadcast_arrays(x, y)[0],
        lambda x, y: np.broadcast_arrays(x, y)[0],
        (values(5, 1), values(3)),
    ),
]
