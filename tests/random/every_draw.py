"""Every function that draws, with the arguments and dtypes that the suites draw with."""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from spmdx import random

FLOATS = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)


class Draw(NamedTuple):
    """``random.name(key, shape, *arguments, dtype=)``; ``event``: the dimensions that follow the shape."""

    name: str
    arguments: tuple[Any, ...] = ()
    dtypes: tuple[Any, ...] = FLOATS
    event: tuple[int, ...] = ()

    def __call__(self, key: Any, shape: Any, **more: Any) -> Any:
        return getattr(random, self.name)(key, shape, *self.arguments, **more)

    def __str__(self) -> str:
        return f"{self.name}{self.arguments}"


DRAWS = [
    Draw("bits", (), (np.uint8, np.uint16, np.uint32, np.uint64)),
    Draw("uniform"),
    Draw("uniform", (-3.0, 0.5)),
    Draw("normal", (), (*FLOATS, np.complex64, np.complex128)),
    Draw("normal", (2.0, 0.3), (*FLOATS, np.complex64)),
    Draw("randint", (-5, 90), (np.int8, np.int16, np.int32, np.int64)),
    Draw("randint", (0, 2**64), (np.uint64,)),
    Draw("bernoulli", (0.4,), (np.bool_, np.int32)),
    Draw("exponential", (0.5,)),
    Draw("laplace", (1.0, 2.0)),
    Draw("logistic"),
    Draw("cauchy"),
    Draw("gumbel"),
    Draw("rayleigh"),
    Draw("truncated_normal", (-1.0, 2.5)),
    Draw("lognormal", (0.5, 0.7)),
    Draw("weibull", (1.7,)),
    Draw("pareto", (2.5,)),
    Draw("gamma", (0.3,)),
    Draw("gamma", (4.0, 2.0)),
    Draw("beta", (0.5, 2.0)),
    Draw("chisquare", (3.0,)),
    Draw("t", (4.0,)),
    Draw("poisson", (3.5,), (np.int64, np.int8)),
    Draw("poisson", (70.0,), (np.int64,)),
    Draw("binomial", (10, 0.3), (np.int64, np.int8)),
    Draw("binomial", (200, 0.6), (np.int64,)),
    Draw("geometric", (0.2,), (np.int64, np.uint8)),
    Draw("rademacher", (), (np.int64, np.float32)),
]
EVENTS = [  # exact
    Draw("dirichlet", ([0.5, 1.0, 3.0],), (np.float32, np.float64), (3,)),
    Draw("ball", (3,), (np.float64,), (3,)),
    Draw("ball", (2, 1.0), (np.float32,), (2,)),
]
CLOSE = [
    Draw("multivariate_normal", ([1.0, -1.0], [[2.0, 0.5], [0.5, 1.0]]), (np.float32, np.float64), (2,)),
    Draw("orthogonal", (4,), (np.float64,), (4, 4)),
    Draw("orthogonal", (2, 3), (np.float32,), (2, 3)),
]
