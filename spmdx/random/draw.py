"""Random arrays of one draw an element: each rank fills its own block at its global indices.

A value depends on the key, its flat C-order global index and the dtype alone, so it is the same on every mesh.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from spmdx import dtypes
from spmdx.array import Array
from spmdx.decide import asked_mesh, constant
from spmdx.errors import ArgumentError, DtypeError
from spmdx.mesh import Mesh
from spmdx.placement import Placement
from spmdx.random.fill import SINGLE, drawn, floating, parameter, stretched, target, whole, words_of, working
from spmdx.random.key import THREEFRY, Key, fold_in
from spmdx.runtime.kernels import Intervals


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
    kind = dtypes.checked(dtype)
    if kind.kind != "u":
        raise DtypeError(f"bits gives unsigned integers, not {kind.name}.", "dtype=np.uint32")
    words = words_of(key)
    spec = target(shape, kind, (), (mesh, placement, device), "bits")
    return drawn(spec, lambda on, n, i: on.bits(words, n, i, kind))


def uniform(
    key: Key,
    shape: Any,
    low: Any = 0.0,
    high: Any = 1.0,
    *,
    dtype: Any = np.float64,
    mesh: Mesh | None = None,
    placement: Placement | None = None,
    device: str | None = None,
) -> Array:
    """Floats spread evenly over [low, high): 24 random bits each, 53 in float64. float16 and bfloat16 are float32's
    values, truncated.

    Args:
        low, high: numbers, or arrays that broadcast to the shape.
    """
    kind, words = floating(dtype, "uniform"), words_of(key)
    if type(low) is type(high) is float and low == 0 and high == 1:
        plain = target(shape, kind, (), (mesh, placement, device), "uniform")
        return drawn(plain, lambda on, n, i: on.uniform(words, n, i, kind))
    bottom, top = parameter(low, "low", "finite", kind, mesh), parameter(high, "high", "finite", kind, mesh)
    spec = target(shape, kind, (bottom, top), (mesh, placement, device), "uniform")
    if isinstance(bottom, Array) or isinstance(top, Array):

        def fill(on: Any, n: tuple[int, ...], i: Intervals, a: Any, b: Any) -> Any:
            a, b = on.xp.asarray(a, kind), on.xp.asarray(b, kind)
            if not (a < b).all():
                raise ArgumentError("uniform needs low < high in every element.", "high=low + 1.0")
            return on.between(on.uniform(words, n, i, working(kind)), a, b, kind)

        return drawn(spec, fill, [(bottom, "low", "finite"), (top, "high", "finite")])
    if not bottom < top:
        raise ArgumentError(f"uniform needs low < high in {kind.name}; got [{low}, {high}).", "low=0.0, high=1.0")
    wide = working(kind).type
    with np.errstate(over="ignore"):
        span = wide(top) - wide(bottom)
    if not np.isfinite(span):
        raise ArgumentError(
            f"high - low is {span} in {wide.__name__}: [{low}, {high}) is too wide.",
            f"half the bounds, and 2 * uniform(key, shape, low={bottom / 2!r}, high={top / 2!r})",
        )
    return drawn(spec, lambda on, n, i: on.uniform(words, n, i, kind, bottom, top))


def normal(
    key: Key,
    shape: Any,
    loc: Any = 0.0,
    scale: Any = 1.0,
    *,
    dtype: Any = np.float64,
    mesh: Mesh | None = None,
    placement: Placement | None = None,
    device: str | None = None,
) -> Array:
    """Normals by Box and Muller; of standard ones the tail ends at 6.76 in float32 and at 8.65 in float64.

    Args:
        loc, scale: mean and standard deviation: numbers, or arrays that broadcast to the shape.
        dtype: complex64 and complex128 give complex normals with E|x|**2 = scale**2. float16 and bfloat16 are computed
            in float32 and rounded.
    """
    words, kind = words_of(key), dtypes.checked(dtype)
    kernel = "complex_normal" if kind.kind == "c" else "normal"
    return stretched(
        "normal",
        lambda t: lambda on, n, i: getattr(on, kernel)(words, n, i, t),
        shape,
        loc,
        scale,
        kind,
        (mesh, placement, device),
    )


def exponential(
    key: Key,
    shape: Any,
    scale: Any = 1.0,
    *,
    dtype: Any = np.float64,
    mesh: Mesh | None = None,
    placement: Placement | None = None,
    device: str | None = None,
) -> Array:
    """Exponentials with a mean: density exp(-x / scale) / scale."""
    return _standard("exponential", key, shape, 0.0, scale, dtype, (mesh, placement, device))


def rayleigh(
    key: Key,
    shape: Any,
    scale: Any = 1.0,
    *,
    dtype: Any = np.float64,
    mesh: Mesh | None = None,
    placement: Placement | None = None,
    device: str | None = None,
) -> Array:
    """The length of a vector of two normals of standard deviation ``scale``."""
    return _standard("rayleigh", key, shape, 0.0, scale, dtype, (mesh, placement, device))


def laplace(
    key: Key,
    shape: Any,
    loc: Any = 0.0,
    scale: Any = 1.0,
    *,
    dtype: Any = np.float64,
    mesh: Mesh | None = None,
    placement: Placement | None = None,
    device: str | None = None,
) -> Array:
    """Double exponentials: density exp(-abs(x - loc) / scale) / (2 scale)."""
    return _standard("laplace", key, shape, loc, scale, dtype, (mesh, placement, device))


def logistic(
    key: Key,
    shape: Any,
    loc: Any = 0.0,
    scale: Any = 1.0,
    *,
    dtype: Any = np.float64,
    mesh: Mesh | None = None,
    placement: Placement | None = None,
    device: str | None = None,
) -> Array:
    """Logistic values: distribution function sigmoid((x - loc) / scale)."""
    return _standard("logistic", key, shape, loc, scale, dtype, (mesh, placement, device))


def cauchy(
    key: Key,
    shape: Any,
    loc: Any = 0.0,
    scale: Any = 1.0,
    *,
    dtype: Any = np.float64,
    mesh: Mesh | None = None,
    placement: Placement | None = None,
    device: str | None = None,
) -> Array:
    """Cauchy values: loc + scale * tan(angle)."""
    return _standard("cauchy", key, shape, loc, scale, dtype, (mesh, placement, device))


def gumbel(
    key: Key,
    shape: Any,
    loc: Any = 0.0,
    scale: Any = 1.0,
    *,
    dtype: Any = np.float64,
    mesh: Mesh | None = None,
    placement: Placement | None = None,
    device: str | None = None,
) -> Array:
    """Gumbel values, of maxima: distribution function exp(-exp(-(x - loc) / scale))."""
    return _standard("gumbel", key, shape, loc, scale, dtype, (mesh, placement, device))


def _standard(name: str, key: Key, shape: Any, loc: Any, scale: Any, dtype: Any, where: Any) -> Array:
    words = words_of(key)

    def fill(kind: np.dtype[Any]) -> Any:
        return lambda on, n, i: on.continuous(name, words, n, i, kind)

    return stretched(name, fill, shape, loc, scale, floating(dtype, name), where)


def randint(
    key: Key,
    shape: Any,
    low: Any,
    high: Any,
    *,
    dtype: Any = np.int64,
    mesh: Mesh | None = None,
    placement: Placement | None = None,
    device: str | None = None,
) -> Array:
    """Integers spread evenly over low, low + 1, ..., high - 1, each with a bias below (high - low) / 2**64.

    Args:
        low, high: integers, any that ``dtype`` holds (high: or one above); or integer arrays that broadcast to the
            shape.
    """
    return integers(key, shape, low, high, False, dtype=dtype, mesh=mesh, placement=placement, device=device)


def integers(
    key: Key,
    shape: Any,
    low: Any,
    high: Any,
    endpoint: bool,
    *,
    dtype: Any = np.int64,
    mesh: Mesh | None = None,
    placement: Placement | None = None,
    device: str | None = None,
) -> Array:
    """:func:`randint`, up to ``high`` itself with ``endpoint``."""
    kind, words, less = whole(dtype, "randint"), words_of(key), 0 if endpoint else 1
    bottom, last = _bound(low, "low", kind, 0, mesh), _bound(high, "high", kind, less, mesh)
    spec = target(shape, kind, (bottom, last), (mesh, placement, device), "randint")
    if not isinstance(bottom, Array) and not isinstance(last, Array):
        top = last + 1
        if not bottom < top:
            raise ArgumentError(f"randint needs low < high; got [{bottom}, {top}).", f"low={bottom}, high={bottom + 1}")
        return drawn(spec, lambda on, n, i: on.randint(words, n, i, kind, bottom, top))
    bottom, last = (v if isinstance(v, Array) else constant(np.asarray(v, kind), spec.mesh) for v in (bottom, last))
    wide, word = np.dtype(f"{kind.kind}8"), np.dtype(np.uint64)
    wrapped = np.iinfo(kind).max if less and isinstance(high, Array) else None  # the least integer, less 1

    def fill(on: Any, n: tuple[int, ...], i: Intervals, a: Any, b: Any) -> Any:
        if not (a <= b).all() or (wrapped is not None and (b == wrapped).any()):
            raise ArgumentError("randint needs low < high in every element.", "high=low + 1")
        if key.impl == THREEFRY:
            return _jax_integers(on, key, n, i, a, b)
        start, end = a.astype(wide).view(word), b.astype(wide).view(word)
        picked = on.apply("multiply_high", on.bits(words, n, i, word), end - start + word.type(1))
        return (start + picked).view(wide).astype(kind, copy=False)

    return drawn(spec, fill, [(bottom, "low", "number"), (last, "high", "number")])


def bernoulli(
    key: Key,
    shape: Any,
    p: Any = 0.5,
    *,
    dtype: Any = np.bool_,
    mesh: Mesh | None = None,
    placement: Placement | None = None,
    device: str | None = None,
) -> Array:
    """True with probability ``p``, a number or an array that broadcasts to the shape: where the float32 uniform of the
    same key lies below float32(p).
    """
    kind, words = dtypes.checked(dtype), words_of(key)
    chance = parameter(p, "p", "probability", SINGLE, mesh)
    spec = target(shape, kind, (chance,), (mesh, placement, device), "bernoulli")
    if isinstance(chance, Array):

        def fill(on: Any, n: tuple[int, ...], i: Intervals, each: Any) -> Any:
            return (on.continuous("unit", words, n, i, SINGLE) < each).astype(kind, copy=False)

        return drawn(spec, fill, [(chance, "p", "probability")])
    return drawn(spec, lambda on, n, i: on.bernoulli(words, n, i, chance).astype(kind, copy=False))


def _jax_integers(on: Any, key: Key, shape: tuple[int, ...], intervals: Intervals, low: Any, last: Any) -> Any:
    """JAX's integers from ``low`` to ``last``, as in cuda/jax.h: remainders of numbers of twice the bits."""
    width = max(32, 8 * low.itemsize)
    kind, word = np.dtype(f"{low.dtype.kind}{width // 8}"), np.dtype(f"u{width // 8}")
    start = low.astype(kind).view(word)
    span = last.astype(kind).view(word) - start + word.type(1)  # 0: all numbers
    some = on.xp.where(span == 0, word.type(1), span)
    above, below = (on.bits(words, shape, intervals, word) for words in (fold_in(key, 0).words, fold_in(key, 1).words))
    times = word.type(1 << width // 2) % some
    drawn = (above % some * (times * times % some) + below % some) % some
    return (start + on.xp.where(span == 0, below, drawn)).view(kind).astype(low.dtype, copy=False)


def _bound(value: Any, name: str, kind: np.dtype[Any], less: int, mesh: Mesh | None) -> Any:
    """A bound of integers, less 0 or 1 (the greatest integer is drawn, not the one after it)."""
    if isinstance(value, Array):
        if value.dtype.kind not in "iu" or not np.can_cast(value.dtype, kind):
            raise _misfit(name, f"{value.dtype.name} array", kind, f"{name}.astype({kind.name})")
        value = value if value.dtype == kind else value.astype(kind)
        return value - less if less else value
    block = dtypes.read(value)
    if block.dtype.kind not in "iu" and not (type(value) is int and block.dtype.kind == "O"):
        raise DtypeError(f"{name} is an integer; got {type(value).__name__} {value!r}.", f"{name}=10")
    limits = np.iinfo(kind)
    if block.size and not limits.min <= int(block.min()) <= int(block.max()) <= limits.max + less:
        raise _misfit(name, f"{name}={value}", kind, "a wider dtype")
    if block.ndim == 0:
        return int(block) - less
    if less and block.size and int(block.min()) == limits.min:
        raise ArgumentError("randint needs low < high in every element.", "high=low + 1")
    return constant(block.astype(kind) - kind.type(less), asked_mesh(mesh))


def _misfit(name: str, what: str, kind: np.dtype[Any], hint: str) -> ArgumentError:
    limits = np.iinfo(kind)
    return ArgumentError(f"{name}: {what} does not fit in {kind.name}, which holds {limits.min} to {limits.max}.", hint)
