"""Joining and repeating: examples for the law suite. Exact, for nothing is computed; diff of sums is close."""

from __future__ import annotations

from typing import Any

import numpy as np
from case import Case, values

import spmdx.ops.operators  # attaches the methods
from spmdx.ops import join

assert spmdx.ops.operators
A, B, SHORT, EMPTY = values(5, 7), values(5, 7, seed=1), values(2, 7), values(5, 0)
WIDTHS = ((1, 2), (0, 3))


def _pad(x: Any, widths: Any, value: float = 0.0, grad: tuple[int, ...] = (0,)) -> Case:
    return Case(
        "unslice",
        lambda x: join.pad(x, widths, constant_values=value),
        lambda x: np.pad(x, widths, constant_values=value),
        (x,),
        grad=grad,
    )


def _pad_by(mode: Any) -> Case:
    return Case("gather", lambda x: join.pad(x, WIDTHS, mode), lambda x: np.pad(x, WIDTHS, mode), (A,), grad=(0,))


CASES = [
    Case("concat", lambda x, y: join.concat([x, y]), lambda x, y: np.concatenate([x, y]), (A, SHORT), grad=(0, 1)),
    Case(
        "concat",
        lambda x, y: join.concat([x, y, x], axis=-1),
        lambda x, y: np.concatenate([x, y, x], -1),
        (A, EMPTY),
        grad=(0,),
    ),
    Case(
        "concat",
        lambda x, y: join.concat([x, y], axis=None),
        lambda x, y: np.concatenate([x, y], axis=None),
        (values(3), values(2, 2, kind="integer", dtype="int32")),
    ),
    Case("stack", lambda x, y: join.stack([x, y]), lambda x, y: np.stack([x, y]), (A, B), grad=(0, 1)),
    Case(
        "stack",
        lambda x, y: join.stack([x, y, y], axis=-1),
        lambda x, y: np.stack([x, y, y], -1),
        (values(1), values(1, seed=1)),
        grad=(0, 1),
    ),
    Case("slicing", lambda x: join.split(x, [2, 3])[0], lambda x: np.split(x, [2, 3])[0], (A,), grad=(0,)),
    Case("slicing", lambda x: join.split(x, 7, axis=1)[3], lambda x: np.split(x, 7, 1)[3], (A,)),
    Case("slicing", lambda x: join.unstack(x, axis=1)[3], lambda x: x[:, 3], (A,)),
    _pad(A, 1),
    _pad(A, WIDTHS, 7.5),
    _pad(EMPTY, 2, 3.0),
    _pad(values(5, 3, kind="integer", dtype="int32"), 1, grad=()),
    *map(_pad_by, ("edge", "reflect", "symmetric", "wrap")),
    Case("flip", join.flip, np.flip, (A,), grad=(0,)),
    Case("flip", lambda x: join.flip(x, axis=1), lambda x: np.flip(x, 1), (A,)),
    Case("roll", lambda x: join.roll(x, 3), lambda x: np.roll(x, 3), (A,), grad=(0,)),
    Case("roll", lambda x: join.roll(x, (1, -2), axis=(0, 1)), lambda x: np.roll(x, (1, -2), (0, 1)), (A,), grad=(0,)),
    Case("subtract", join.diff, np.diff, (A,), 1e-12, (0,)),
    Case("subtract", lambda x: join.diff(x, axis=0, n=2), lambda x: np.diff(x, 2, 0), (A,), 1e-12, (0,)),
    Case(
        "subtract",
        lambda x, y: join.diff(x, axis=0, prepend=y),
        lambda x, y: np.diff(x, axis=0, prepend=y),
        (A, SHORT),
        1e-12,
        (0, 1),
    ),
    Case("not_equal", join.diff, np.diff, (values(7, kind="bool"),)),
    Case("repeat", lambda x: join.repeat(x, 3, axis=0), lambda x: np.repeat(x, 3, 0), (A,), grad=(0,)),
    Case("repeat", lambda x: join.repeat(x, 2), lambda x: np.repeat(x, 2), (values(5, 3),)),
    Case(
        "gather",
        lambda x: join.repeat(x, [0, 1, 2, 0, 3], axis=0),
        lambda x: np.repeat(x, [0, 1, 2, 0, 3], 0),
        (values(5, 3),),
        grad=(0,),
    ),
    Case("tile", lambda x: join.tile(x, (2, 1)), lambda x: np.tile(x, (2, 1)), (A,), grad=(0,)),
    Case("tile", lambda x: join.tile(x, (2, 1, 3)), lambda x: np.tile(x, (2, 1, 3)), (values(2, 3),), grad=(0,)),
]
