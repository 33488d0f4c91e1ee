"""Discrete distributions. Numbers are drawn in float64 and saturate at the ends of the integer type.

Parameters are numbers, or arrays of any placement that broadcast to the shape; the bits are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spmdx import dtypes
from spmdx.array import Array
from spmdx.errors import DtypeError
from spmdx.mesh import Mesh
from spmdx.placement import Placement
from spmdx.random.fill import DOUBLE, Where, drawn, parameter, target, whole, words_of
from spmdx.random.key import Key
from spmdx.runtime.kernels import Intervals

__all__ = ["binomial", "geometric", "poisson", "rademacher"]


def rademacher(
    key: Key,
    shape: Any,
    *,
    dtype: Any = np.int64,
    mesh: Mesh | None = None,
    placement: Placement | None = None,
    device: str | None = None,
) -> Array:
    """-1 or 1, with even chances: 1 where the element's uniform is below 1/2."""
    kind, words = dtypes.checked(dtype), words_of(key)
    if kind.kind not in "ifcV":
        raise DtypeError(f"rademacher gives -1 and 1, which {kind.name} does not hold.", "dtype=np.int64")

    def fill(on: Any, n: tuple[int, ...], i: Intervals) -> Any:
        return on.xp.where(on.bernoulli(words, n, i, 0.5), on.xp.ones((), kind), -on.xp.ones((), kind))

    return drawn(target(shape, kind, (), (mesh, placement, device), "rademacher"), fill)


def poisson(
    key: Key,
    shape: Any,
    lam: Any = 1.0,
    *,
    dtype: Any = np.int64,
    mesh: Mesh | None = None,
    placement: Placement | None = None,
    device: str | None = None,
) -> Array:
    """Poisson numbers of mean ``lam``, from a stream for each element: by inversion below 10, else Hoermann (1993)."""
    kind, words = whole(dtype, "poisson"), words_of(key)

    def fill(on: Any, n: tuple[int, ...], i: Intervals, lam: Any) -> Any:
        return _saturated(on, on.streams("poisson", words, n, i, lam), kind)

    return _counted("poisson", fill, shape, kind, [(lam, "lam", "mean")], (mesh, placement, device))


def binomial(
    key: Key,
    shape: Any,
    n: Any,
    p: Any = 0.5,
    *,
    dtype: Any = np.int64,
    mesh: Mesh | None = None,
    placement: Placement | None = None,
    device: str | None = None,
) -> Array:
    """How many of ``n`` trials succeed, each with probability ``p``, from a stream for each element: by inversion
    below a mean of 10, else by Hoermann (1993).
    """
    kind, words = whole(dtype, "binomial"), words_of(key)

    def fill(on: Any, size: tuple[int, ...], i: Intervals, n: Any, p: Any) -> Any:
        return _saturated(on, on.streams("binomial", words, size, i, n, p), kind)

    given = [(n, "n", "count"), (p, "p", "probability")]
    return _counted("binomial", fill, shape, kind, given, (mesh, placement, device))


def geometric(
    key: Key,
    shape: Any,
    p: Any,
    *,
    dtype: Any = np.int64,
    mesh: Mesh | None = None,
    placement: Placement | None = None,
    device: str | None = None,
) -> Array:
    """The number of the first success among trials with probability ``p``: 1 or more."""
    kind, words = whole(dtype, "geometric"), words_of(key)

    def fill(on: Any, n: tuple[int, ...], i: Intervals, p: Any) -> Any:
        sure = p == 1
        rate = -on.apply("log1p", -on.xp.where(sure, 0.5, p))
        wait = on.xp.ceil(on.continuous("exponential", words, n, i, DOUBLE) / rate)
        return _saturated(on, on.xp.where(sure, 1.0, on.xp.maximum(wait, 1.0)), kind)

    return _counted("geometric", fill, shape, kind, [(p, "p", "chance")], (mesh, placement, device))


def _counted(
    name: str, fill: Any, shape: Any, kind: np.dtype[Any], given: Sequence[tuple[Any, str, str]], where: Where
) -> Array:
    ready = [(parameter(value, word, condition, DOUBLE, where[0]), word, condition) for value, word, condition in given]
    return drawn(target(shape, kind, [value for value, _, _ in ready], where, name), fill, ready)


def _saturated(on: Any, numbers: Any, kind: np.dtype[Any]) -> Any:
    """Whole float64 numbers from 0 up as integers; those above the greatest are the greatest."""
    greatest = np.iinfo(kind).max
    over = numbers >= float(greatest)
    if on.xp is not np:
        return on.xp.where(over, on.xp.asarray(greatest, kind), on.xp.where(over, 0.0, numbers).astype(kind))
    if over.any():
        numbers = np.where(over, 0.0, numbers)
    out: Any = on.take(numbers.size, kind).reshape(numbers.shape)
    np.copyto(out, numbers, casting="unsafe")
    out[over] = greatest
    return out
