"""Random arrays: each rank fills its own block at its global indices. Nothing communicates, whatever the placement.

A value depends on the key, its flat C-order global index and the dtype alone, so it is the same on every mesh.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from spmdx.array import Array
from spmdx.errors import ArgumentError, DtypeError, ShapeError
from spmdx.mesh import Coordinate, Mesh
from spmdx.ops.place import checked_dtype, spec_for, wrap
from spmdx.placement import Placement
from spmdx.random import threefry
from spmdx.random.key import PHILOX, THREEFRY, Key, checked
from spmdx.runtime import kernels
from spmdx.runtime.kernels import FLOATS, Intervals
from spmdx.spec import Spec

Fill = Callable[[tuple[int, ...], Intervals], Any]  # (global shape, intervals) -> block


def bits(
    key: Key,
    shape: Any,
    *,
    dtype: Any = np.uint32,
    mesh: Mesh | None = None,
    placement: Placement | None = None,
    device: str | None = None,
) -> Array:
    """Random bits as unsigned integers of 8, 16, 32 or 64 bits."""
    kind = checked_dtype(dtype)
    if kind.kind != "u":
        raise DtypeError(f"bits gives unsigned integers, not {kind.name}.", "dtype=np.uint32")
    source, words = _source(key)
    return _drawn(_spec(shape, kind, mesh, placement, device), lambda n, i: source.bits(words, n, i, kind))


def uniform(
    key: Key,
    shape: Any,
    *,
    low: float = 0.0,
    high: float = 1.0,
    dtype: Any = np.float64,
    mesh: Mesh | None = None,
    placement: Placement | None = None,
    device: str | None = None,
) -> Array:
    """Floats spread evenly over [low, high): 24 random bits each, 53 in float64.

    float16 and bfloat16 are float32's values, truncated.
    """
    kind, (source, words) = _float(dtype, "uniform"), _source(key)
    bottom, top = _number(low, "low", kind), _number(high, "high", kind)
    if not bottom < top:
        raise ArgumentError(f"uniform needs low < high in {kind.name}; got [{low}, {high}).", "low=0.0, high=1.0")
    wide = np.float64 if kind.itemsize == 8 else np.float32
    with np.errstate(over="ignore"):
        span = wide(top) - wide(bottom)
    if not np.isfinite(span):
        raise ArgumentError(
            f"high - low is {span} in {wide.__name__}: [{low}, {high}) is too wide.",
            f"half the bounds, and 2 * uniform(key, shape, low={bottom / 2!r}, high={top / 2!r})",
        )
    return _drawn(
        _spec(shape, kind, mesh, placement, device), lambda n, i: source.uniform(words, n, i, kind, bottom, top)
    )


def normal(
    key: Key,
    shape: Any,
    *,
    dtype: Any = np.float64,
    mesh: Mesh | None = None,
    placement: Placement | None = None,
    device: str | None = None,
) -> Array:
    """Standard normal floats, by Box and Muller; the tail ends at 6.76 in float32 and at 8.65 in float64.

    float16 and bfloat16 are float32's values, rounded. For another mean or deviation: ``mean + deviation * normal``.
    """
    kind, words = _float(dtype, "normal"), checked(key).words
    return _drawn(_spec(shape, kind, mesh, placement, device), lambda n, i: kernels.normal(words, n, i, kind))


def randint(
    key: Key,
    shape: Any,
    low: int,
    high: int,
    *,
    dtype: Any = np.int64,
    mesh: Mesh | None = None,
    placement: Placement | None = None,
    device: str | None = None,
) -> Array:
    """Integers spread evenly over low, low + 1, ..., high - 1, each with a bias below (high - low) / 2**64."""
    kind, (source, words) = checked_dtype(dtype), _source(key)
    if kind.kind not in "iu":
        raise DtypeError(f"randint gives integers, not {kind.name}.", "dtype=np.int64")
    bottom, top = _whole(low, "low"), _whole(high, "high")
    limits = np.iinfo(kind)
    if not bottom < top:
        raise ArgumentError(f"randint needs low < high; got [{bottom}, {top}).", f"low={bottom}, high={bottom + 1}")
    if bottom < limits.min or top - 1 > limits.max:
        raise ArgumentError(
            f"[{bottom}, {top}) does not fit in {kind.name}, which holds {limits.min} to {limits.max}.",
            "a wider dtype, or narrower bounds",
        )
    return _drawn(
        _spec(shape, kind, mesh, placement, device), lambda n, i: source.randint(words, n, i, kind, bottom, top)
    )


def bernoulli(
    key: Key,
    shape: Any,
    p: float = 0.5,
    *,
    dtype: Any = np.bool_,
    mesh: Mesh | None = None,
    placement: Placement | None = None,
    device: str | None = None,
) -> Array:
    """True with probability ``p``: where the float32 uniform of the same key lies below float32(p)."""
    kind, (source, words) = checked_dtype(dtype), _source(key)
    chance = _number(p, "p", np.dtype(np.float32))
    if not 0 <= chance <= 1:
        raise ArgumentError(f"a probability lies between 0 and 1; got p={p}.", "p=0.5")

    def fill(shape: tuple[int, ...], intervals: Intervals) -> Any:
        return source.bernoulli(words, shape, intervals, chance).astype(kind, copy=False)

    return _drawn(_spec(shape, kind, mesh, placement, device), fill)


def _source(key: Key) -> tuple[Any, Any]:
    """What fills blocks from the words of a key of either generator, and the words."""
    found = checked(key, PHILOX, THREEFRY)
    return (kernels if found.impl == PHILOX else threefry), found.words


def _drawn(spec: Spec, fill: Fill) -> Array:
    def block(coordinate: Coordinate) -> Any:
        return fill(spec.shape, [spec.pieces(d, coordinate) for d in range(spec.ndim)])

    return wrap(spec, block)


def _spec(shape: Any, dtype: np.dtype[Any], mesh: Mesh | None, placement: Placement | None, device: str | None) -> Spec:
    spec = spec_for(shape, dtype, mesh, placement, device)
    if math.prod(spec.shape) >= 2**63:
        raise ShapeError(f"random arrays have fewer than 2**63 elements; got shape {spec.shape}.", "smaller sizes")
    if spec.ndim >= 64:
        raise ShapeError(f"random arrays have fewer than 64 dimensions; got {spec.ndim}.", "a reshape afterwards")
    return spec


def _float(dtype: Any, name: str) -> np.dtype[Any]:
    kind = checked_dtype(dtype)
    if kind not in FLOATS:
        raise DtypeError(f"{name} gives float16, bfloat16, float32 or float64, not {kind.name}.", "dtype=np.float32")
    return kind


def _number(value: Any, what: str, dtype: np.dtype[Any]) -> float:
    """A bound as the dtype has it."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise DtypeError(f"{what} is a number; got {type(value).__name__} {value!r}.", f"{what}=0.5") from None
    with np.errstate(over="ignore"):
        rounded = float(dtype.type(number))
    if not math.isfinite(rounded):
        raise ArgumentError(f"{what}={value} is not finite in {dtype.name}.", f"{what}=1.0")
    return rounded


def _whole(value: Any, what: str) -> int:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise DtypeError(f"{what} is an integer; got {type(value).__name__} {value!r}.", f"{what}=10")
    return int(value)
