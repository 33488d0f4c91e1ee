"""Every distribution and dtype with the arguments it is tested with: (name, kernel, oracle), for one set of words."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import philox_oracle as oracle

from spmdx.runtime import kernels

WORDS = (0x12345678, 0x9ABCDEF0, 0x0F1E2D3C, 0x4B5A6978)


class Case(NamedTuple):
    name: str
    kernel: Callable[..., Any]  # (shape, intervals) -> block
    oracle: Callable[[int], Any]  # flat index -> value


def case(function: str, *args: Any) -> Case:
    dtype = np.dtype(args[0]) if function != "bernoulli" else None
    given = (dtype, *args[1:]) if dtype is not None else args
    kernel, slow = getattr(kernels, function), getattr(oracle, function)
    text = ", ".join(map(str, given))
    return Case(
        f"{function}({text})",
        lambda shape, intervals: kernel(WORDS, shape, intervals, *given),
        partial(lambda i: slow(WORDS, i, *given)),
    )


def named(name: str, dtype: Any) -> Case:
    """A standard continuous distribution."""
    kind = np.dtype(dtype)
    return Case(
        f"{name}({kind})",
        lambda shape, intervals: kernels.continuous(name, WORDS, shape, intervals, kind),
        lambda i: oracle.continuous(WORDS, i, name, kind),
    )


def streams(name: str, *parameters: float) -> Case:
    """A distribution with a stream for each element. Where no second implementation is written, the oracle is the
    element alone in its block."""

    def kernel(shape: Any, intervals: Any) -> Any:
        return kernels.streams(name, WORDS, shape, intervals, *parameters)

    def alone(i: int) -> Any:
        return kernel((i + 1,), [[(i, i + 1)]])[0]

    slow = getattr(oracle, name, None) if max(parameters) < 10 else None
    return Case(f"{name}{parameters}", kernel, (lambda i: slow(WORDS, i, *parameters)) if slow else alone)


BF16 = ml_dtypes.bfloat16
CONTINUOUS = ("exponential", "gumbel", "rayleigh", "laplace", "logistic", "cauchy")
CASES = [
    *(case("bits", t) for t in (np.uint8, np.uint16, np.uint32, np.uint64)),
    *(case("uniform", t) for t in (np.float16, BF16, np.float32, np.float64)),
    case("uniform", np.float16, -3.0, -0.01),
    case("uniform", BF16, -1.0, 2.0),
    case("uniform", np.float32, -0.1, 0.3),
    case("uniform", np.float32, 1.0, np.nextafter(np.float32(1), np.float32(2))),  # rounds up to high half the time
    case("uniform", np.float64, -1e300, 1e-300),
    *(case("normal", t) for t in (np.float16, BF16, np.float32, np.float64)),
    *(case("randint", t, 3, 101) for t in (np.int8, np.uint16, np.int32, np.uint64)),
    case("randint", np.int64, -(2**40), 2**41 + 1),
    case("randint", np.int32, -(2**31), 2**31),
    case("randint", np.int64, -(2**63), 2**63),
    case("randint", np.uint64, 5, 2**64),
    *(case("bernoulli", p) for p in (0.0, 0.3, 1.0)),
    *(named(name, t) for name in CONTINUOUS for t in (np.float32, np.float64)),
    named("cauchy", np.float16),
    named("gumbel", BF16),
    *(case("complex_normal", t) for t in (np.complex64, np.complex128)),
    *(case("truncated_normal", t, -2.0, 1.0) for t in (np.float16, np.float32, np.float64)),
    case("truncated_normal", np.float64, 3.0, 40.0),
    *(streams("gamma", alpha) for alpha in (0.3, 1.0, 4.5)),
    streams("log_gamma", 0.001),
    *(streams("poisson", mean) for mean in (0.7, 9.5, 1e5)),
    *(streams("binomial", n, p) for n, p in ((9.0, 0.4), (90.0, 0.7))),
]
