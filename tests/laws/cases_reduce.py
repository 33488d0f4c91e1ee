"""Examples of reductions, of where extremes are, and of moments and norms."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
from case import Case, values

from spmdx.ops import extremes, moments
from spmdx.ops import reduce as r

CLOSE = 1e-12
WAYS: tuple[tuple[tuple[int, ...], dict[str, Any]], ...] = (
    ((5, 7), {}),
    ((5, 7), {"axis": 0}),
    ((5, 7), {"axis": -1, "keepdims": True}),
    ((5, 7), {"axis": (0, 1), "keepdims": True}),
    ((5, 7), {"axis": ()}),
    ((3, 1), {"axis": 1}),
    ((2, 3, 2), {"axis": (0, 2)}),
    ((0, 3), {"axis": 0}),
    ((4, 0), {"axis": 0}),
    ((), {}),
)
real, integers, bools = values(5, 7), values(5, 7, kind="integer", dtype="int32"), values(5, 7, kind="bool")
special = values(5, 7, kind="special")
complexes = values(5, 3, dtype="complex128")
half = values(5, 7, dtype="float16")
small = values(3, 4, kind="unit")
zeros = values(5, 4) * (values(5, 4, kind="natural") > 1) * (np.arange(5) > 0)[:, None] + (np.arange(5) == 1)[:, None]
ties = values(5, 7, kind="natural", dtype="float64")


def narrow(x: object, dtype: object, function: object, **how: object) -> object:
    """The oracle of float16 and bfloat16: float32 NumPy, rounded."""
    return function(np.asarray(x, np.float32), **how).astype(dtype)


CASES: list[Case] = []
for shape, how in WAYS:
    x = values(*shape, kind="unit")
    CASES.append(Case("sum", lambda x, h=how: r.sum(x, **h), lambda x, h=how: np.sum(x, **h), (x,), CLOSE, (0,)))
    CASES.append(Case("prod", lambda x, h=how: r.prod(x, **h), lambda x, h=how: np.prod(x, **h), (x,), CLOSE, (0,)))
    CASES.append(Case("any", lambda x, h=how: r.any(x, **h), lambda x, h=how: np.any(x, **h), (x > 0,)))
    CASES.append(Case("all", lambda x, h=how: r.all(x, **h), lambda x, h=how: np.all(x, **h), (x > -0.9,)))
    if 0 not in shape or shape == (4, 0):
        CASES.append(Case("max", lambda x, h=how: r.max(x, **h), lambda x, h=how: np.max(x, **h), (x,), 0, (0,)))
        CASES.append(Case("min", lambda x, h=how: r.min(x, **h), lambda x, h=how: np.min(x, **h), (x,), 0, (0,)))
        CASES.append(
            Case("sum", lambda x, h=how: moments.mean(x, **h), lambda x, h=how: np.mean(x, **h), (x,), CLOSE, (0,))
        )

for axis in (None, 1):
    for x in (integers, bools, integers.astype("uint8"), complexes, values(5, 7, dtype="float32")):
        close = {"c": CLOSE, "f": 1e-5}.get(x.dtype.kind, 0)
        CASES.append(Case("sum", lambda x, a=axis: r.sum(x, a), lambda x, a=axis: np.sum(x, a), (x,), close))
        CASES.append(Case("prod", lambda x, a=axis: r.prod(x, a), lambda x, a=axis: np.prod(x, a), (x,), close))
        CASES.append(Case("any", lambda x, a=axis: r.any(x, a), lambda x, a=axis: np.any(x, a), (x,)))
        CASES.append(Case("all", lambda x, a=axis: r.all(x, a), lambda x, a=axis: np.all(x, a), (x,)))
    for x in (integers, bools, special, complexes, special.astype("float16")):
        CASES.append(
            Case(
                "count_nonzero", lambda x, a=axis: r.count_nonzero(x, a), lambda x, a=axis: np.count_nonzero(x, a), (x,)
            )
        )
    for x in (integers, bools, special, special.astype("float16"), special.astype(ml_dtypes.bfloat16)):
        CASES.append(Case("max", lambda x, a=axis: r.max(x, a), lambda x, a=axis: np.max(x, a), (x,)))
        CASES.append(Case("min", lambda x, a=axis: r.min(x, a), lambda x, a=axis: np.min(x, a), (x,)))
    for kind in ("float16", ml_dtypes.bfloat16):
        x = values(5, 7).astype(kind)
        for name, f, g in (("sum", r.sum, np.sum), ("prod", r.prod, np.prod), ("sum", moments.mean, np.mean)):
            CASES.append(
                Case(
                    name,
                    lambda x, f=f, a=axis: f(x, a),
                    lambda x, g=g, a=axis: narrow(x, x.dtype, g, axis=a),
                    (x,),
                    4e-3 if kind == "float16" else 4e-2,
                )
            )

CASES += [
    Case("sum", lambda x: r.sum(x, 0, "float32"), lambda x: np.sum(x, 0, "float32"), (integers,), 1e-6),
    Case("sum", lambda x: r.sum(x, 0, dtype="complex128"), lambda x: np.sum(x, 0, "complex128"), (small,), CLOSE, (0,)),
    Case("sum", lambda x: r.sum(x, 1, dtype="float64"), lambda x: np.sum(x, 1, "float64"), (half,), CLOSE),
    Case("sum", lambda x: r.sum(x, 1, dtype="int64"), lambda x: np.sum(x, 1, "int64"), (half,)),
    Case("prod", lambda x: r.prod(x, 1, dtype="float64"), lambda x: np.prod(x, 1, "float64"), (half,), CLOSE),
    Case("prod", lambda x: r.prod(x, 1), lambda x: np.prod(x, 1), (zeros,), CLOSE, (0,)),
    Case("prod", lambda x: r.prod(x, 0), lambda x: np.prod(x, 0), (zeros,), CLOSE, (0,)),
    Case("sum", lambda x: moments.var(x), np.var, (real,), CLOSE, (0,)),
    Case("sum", lambda x: moments.var(x, 0, ddof=1), lambda x: np.var(x, 0, ddof=1), (values(7, 2),), CLOSE, (0,)),
    Case("sum", lambda x: moments.var(x, 0, ddof=1), lambda x: np.full(3, np.nan), (values(1, 3),)),
    Case("sum", lambda x: moments.var(x, 0, ddof=3), lambda x: np.full(2, np.inf), (values(3, 2),)),
    Case("sum", lambda x: moments.var(x, 1, correction=1), lambda x: np.var(x, 1, ddof=1), (complexes,), CLOSE),
    Case("sum", lambda x: moments.var(x), lambda x: np.var(x), (integers,), CLOSE),
    Case(
        "sum", lambda x: moments.std(x, 1, keepdims=True), lambda x: np.std(x, 1, keepdims=True), (real,), CLOSE, (0,)
    ),
    Case("sum", lambda x: moments.mean(x), lambda x: np.float64(np.nan), (values(0),)),
    Case("sum", lambda x: moments.mean(x, 0), lambda x: np.mean(x, 0), (integers,), CLOSE),
    Case("sum", lambda x: moments.mean(x, 1), lambda x: np.mean(x, 1), (bools,), CLOSE),
]

for x, (axis, keepdims) in itertools.product(
    (real, bools, special, ties, special.astype(ml_dtypes.bfloat16)), ((None, False), (0, False), (1, True))
):
    for name, f, g in (("argmax", extremes.argmax, np.argmax), ("argmin", extremes.argmin, np.argmin)):
        CASES.append(
            Case(
                name,
                lambda x, f=f, a=axis, k=keepdims: f(x, a, k),
                lambda x, g=g, a=axis, k=keepdims: g(x, a, keepdims=k),
                (x,),
            )
        )
for shape, axis in (((0, 3), 1), ((3, 1), 0), ((2, 3, 2), 1), ((1,), 0)):
    x = values(*shape)
    CASES.append(Case("argmax", lambda x, a=axis: extremes.argmax(x, a), lambda x, a=axis: np.argmax(x, a), (x,)))
    CASES.append(Case("first_index", lambda x, a=axis: extremes.argmin(x, a), lambda x, a=axis: np.argmin(x, a), (x,)))

for axis in (None, 1, (0, 1)):
    for shift in (0.0, 1000.0):
        CASES.append(
            Case(
                "sum",
                lambda x, a=axis: moments.logsumexp(x, a),
                lambda x, a=axis: np.max(x) + np.log(np.exp(x - np.max(x)).sum(a)),
                (small + shift,),
                1e-9 if shift else CLOSE,
                () if shift else (0,),
            )
        )
    for order in (None, 2, 1, np.inf, -np.inf, 0, 3, 0.5, -1) if axis == 1 else (None,):
        CASES.append(
            Case(
                "sum",
                lambda x, a=axis, p=order: moments.norm(x, p, a),
                lambda x, a=axis, p=order: np.linalg.norm(x, p, a),
                (real,),
                CLOSE,
                () if order == 0 else (0,),
            )
        )
for order in ("fro", 1, -1, np.inf, -np.inf):
    CASES.append(
        Case(
            "sum", lambda x, p=order: moments.norm(x, p), lambda x, p=order: np.linalg.norm(x, p), (real,), CLOSE, (0,)
        )
    )
infinite = np.where(values(3, 4) > 0, -np.inf, values(3, 4))
CASES += [
    Case("sum", lambda x: moments.norm(x, axis=0), lambda x: np.linalg.norm(x, axis=0), (complexes,), CLOSE),
    Case(
        "sum",
        lambda x: moments.logsumexp(x, 1, keepdims=True),
        lambda x: np.log(np.exp(x).sum(1, keepdims=True)),
        (infinite,),
        CLOSE,
    ),
    Case("finished", r.finished, lambda x: x, (real,), 0, (0,)),
    Case(
        "spread",
        lambda g, x: r.spread(g, x, (0,), False),
        lambda g, x: np.broadcast_to(g, x.shape),
        (values(7), values(5, 7)),
        0,
        (0,),
    ),
]
