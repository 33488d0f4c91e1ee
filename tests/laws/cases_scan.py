"""Examples of what runs along one dimension: sorting, running sums and products, softmax, picking by index."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from case import Case, values

from spmdx.ops import scan, soft

CLOSE = 1e-12
CASES: list[Case] = []
LANES = (((5, 7), 0), ((5, 7), -1), ((0, 3), 0), ((4, 0), 0), ((7,), 0), ((2, 3, 2), 1))
special = values(5, 7, kind="special")
ties = values(5, 7, kind="natural", dtype="int32")
zeros = np.array([[2.0, 0.0, 3.0, 4.0], [1.5, 2.0, -3.0, 0.5], [0.0, 0.0, 1.0, 2.0], [2.0, 3.0, 0.0, 0.0]])
indices = np.array([[0, -1, 2], [6, 6, 1], [3, 0, 0], [2, 5, -7], [1, 1, 1]])


def descending(x: object, axis: int) -> object:
    """The order from the greatest to the least, equals as they come, NaN last."""
    key = -np.asarray(x, np.float64)
    return np.argsort(key, axis, kind="stable")


def softmax(x: object, axis: int) -> object:
    """As the textbook has it."""
    powers = np.exp(x - x.max(axis, keepdims=True)) if x.size else x
    return powers / powers.sum(axis, keepdims=True)


def log_softmax(x: object) -> object:
    low = np.asarray(x, np.float64) - x.max(-1, keepdims=True)
    return (low - np.log(np.exp(low).sum(-1, keepdims=True))).astype(x.dtype)


def in_float32(x: object) -> object:
    return softmax(x.astype("f4"), -1).astype(x.dtype)


def softmax_back(y: object, g: object, axis: int) -> object:
    return y * (g - (g * y).sum(axis, keepdims=True))


def log_softmax_back(y: object, g: object, axis: int) -> object:
    return g - np.exp(y) * g.sum(axis, keepdims=True)


for shape, axis in LANES:
    x = values(*shape, kind="unit")
    for name, f, g, close, differentiable in (
        ("sort", scan.sort, np.sort, 0, True),
        ("argsort", scan.argsort, np.argsort, 0, False),
        ("cumulative_sum", scan.cumsum, np.cumsum, CLOSE, True),
        ("cumulative_prod", scan.cumprod, np.cumprod, CLOSE, True),
        ("softmax", soft.softmax, softmax, CLOSE, True),
        ("log_softmax", soft.log_softmax, lambda x, a: np.log(softmax(x, a)), CLOSE, True),
    ):
        CASES.append(
            Case(
                name,
                lambda x, f=f, a=axis: f(x, a),
                lambda x, g=g, a=axis: g(x, a),
                (x,),
                close,
                (0,) if differentiable else (),
            )
        )

    for name, f, g in (
        ("softmax_back", soft._softmax_back, softmax_back),
        ("log_softmax_back", soft._log_softmax_back, log_softmax_back),
    ):
        CASES.append(
            Case(
                name,
                lambda y, d, f=f, a=axis: f(y, d, a % y.ndim),
                lambda y, d, g=g, a=axis: g(y, d, a),
                (values(*shape), values(*shape, seed=1)),
                CLOSE,
            )
        )

for x in (special, ties, ties > 3, special.astype("float16")):
    CASES += [
        Case("sort", lambda x: scan.sort(x, 1), lambda x: np.sort(x, 1, kind="stable"), (x,)),
        Case("argsort", lambda x: scan.argsort(x, 1), lambda x: np.argsort(x, 1, kind="stable"), (x,)),
        Case(
            "sort",
            lambda x: scan.sort(x, axis=0, descending=True),
            lambda x: np.take_along_axis(x, descending(x, 0), 0),
            (x,),
        ),
        Case("argsort", lambda x: scan.argsort(x, descending=True), lambda x: descending(x, -1), (x,)),
    ]
brain = special.astype(ml_dtypes.bfloat16)
CASES += [
    Case("sort", lambda x: scan.sort(x), lambda x: np.sort(x.astype("f4"), kind="stable").astype(x.dtype), (brain,)),
    Case("sort", lambda x: scan.sort(x, descending=True), lambda x: -np.sort(-x), (values(5, 7),), 0, (0,)),
    Case("cumulative_sum", lambda x: scan.cumsum(x), lambda x: np.cumsum(x), (values(3, 4),), CLOSE, (0,)),
    Case("cumulative_prod", lambda x: scan.cumprod(x), lambda x: np.cumprod(x), (values(3, 4),), CLOSE, (0,)),
    Case("cumulative_prod", lambda x: scan.cumprod(x, 1), lambda x: np.cumprod(x, 1), (zeros,), CLOSE, (0,)),
    Case("cumulative_prod", lambda x: scan.cumprod(x, 0), lambda x: np.cumprod(x, 0), (zeros,), CLOSE, (0,)),
    Case("cumulative_sum", lambda x: scan.cumsum(x, 1), lambda x: np.cumsum(x, 1), (ties > 3,)),
    Case("cumulative_sum", lambda x: scan.cumsum(x, 1), lambda x: np.cumsum(x, 1), (ties.astype("uint8"),)),
    Case("cumulative_prod", lambda x: scan.cumprod(x, 1), lambda x: np.cumprod(x, 1), (ties,)),
    Case(
        "cumulative_sum",
        lambda x: scan.cumsum(x, 0),
        lambda x: np.cumsum(x, 0),
        (values(3, 4, dtype="complex128"),),
        CLOSE,
    ),
    Case(
        "cumulative_sum",
        lambda x: scan.cumsum(x, 1),
        lambda x: np.cumsum(x, 1, "f4").astype("f2"),
        (values(3, 4, dtype="float16"),),
        4e-3,
    ),
    Case(
        "cumulative_sum",
        lambda x: scan.cumulative_sum(x, axis=1, include_initial=True),
        lambda x: np.cumulative_sum(x, axis=1, include_initial=True),
        (values(3, 4),),
        CLOSE,
        (0,),
    ),
    Case(
        "cumulative_prod",
        lambda x: scan.cumulative_prod(x, axis=0, include_initial=True),
        lambda x: np.cumulative_prod(x, axis=0, include_initial=True),
        (values(3, 4),),
        CLOSE,
        (0,),
    ),
    Case("softmax", lambda x: soft.softmax(x), lambda x: softmax(x, -1), (values(3, 5) * 1000,), CLOSE),
    Case("softmax", lambda x: soft.softmax(x), lambda x: softmax(x, -1), (values(6, 40, dtype="f4"),), 1e-6),
    Case("softmax", lambda x: soft.softmax(x), lambda x: softmax(x, -1), (special,), CLOSE),
    Case("softmax", lambda x: soft.softmax(x), in_float32, (values(3, 5, dtype="float16"),), 1e-3),
    Case(
        "log_softmax",
        lambda x: soft.log_softmax(x, 0),
        lambda x: x - np.log(np.exp(x).sum(0)),
        (values(3, 5),),
        CLOSE,
        (0,),
    ),
    Case("log_softmax", lambda x: soft.log_softmax(x), log_softmax, (special,), CLOSE),
    Case(
        "take_along_axis",
        lambda x, i: scan.take_along_axis(x, i, 1),
        lambda x, i: np.take_along_axis(x, i, 1),
        (values(5, 7), indices),
        0,
        (0,),
    ),
    Case(
        "take_along_axis",
        lambda x, i: scan.take_along_axis(x, i, 0),
        lambda x, i: np.take_along_axis(x, i, 0),
        (ties, np.array([[4, 0, 1, 2, 3, -1, -5]])),
    ),
    Case(
        "take_along_axis",
        lambda x, i: scan.take_along_axis(x, i),
        lambda x, i: np.take_along_axis(x, i, -1),
        (values(1, 4), np.array([[0, 3], [1, 1], [2, -1]])),
        0,
        (0,),
    ),
    Case(
        "add_along_axis",
        lambda x, i: scan.take_along_axis(x, i, 0),
        lambda x, i: np.take_along_axis(x, i, 0),
        (values(4, 2), np.array([[3, 0], [3, 1], [0, 1]])),
        0,
        (0,),
    ),
    Case("searchsorted", lambda x, v: scan.searchsorted(x, v), np.searchsorted, (np.sort(values(7)), values(2, 3))),
    Case(
        "searchsorted",
        lambda x, v: scan.searchsorted(x, v, side="right"),
        lambda x, v: np.searchsorted(x, v, "right"),
        (np.array([1, 1, 2, 5, 5]), np.array([0, 1, 5, 9])),
    ),
    Case("searchsorted", lambda x, v: scan.searchsorted(x, v), np.searchsorted, (values(0), values(2))),
]
