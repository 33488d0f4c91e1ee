"""First values of parameters: functions ``(key, shape, dtype=, mesh=, placement=)``, as JAX's initializers.

The fans (numbers of inputs and outputs) are those of the global shape, and a value depends on its global index, so a
parameter starts the same however it is divided. Each rank makes its own block; nothing communicates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from spmdx.array import Array
from spmdx.errors import ArgumentError, AxisError, ShapeError
from spmdx.ops import create
from spmdx.ops.axes import one, sizes_of
from spmdx.ops.place import redistribute
from spmdx.ops.shape import moveaxis, reshape
from spmdx.random import distributions, draw, events
from spmdx.random.key import Key

Initializer = Callable[..., Array]
Axes = int | Sequence[int]
TWO = 0.87962566103423978  # the deviation of a standard normal confined to [-2, 2]


def zeros(key: Key | None, shape: Any, dtype: Any = float, **where: Any) -> Array:
    """All 0; the key is not used, and may be None."""
    return create.zeros(shape, dtype=dtype, **where)


def ones(key: Key | None, shape: Any, dtype: Any = float, **where: Any) -> Array:
    """All 1; the key is not used, and may be None."""
    return create.ones(shape, dtype=dtype, **where)


def constant(value: float) -> Initializer:
    """All ``value``."""

    def init(key: Key | None, shape: Any, dtype: Any = float, **where: Any) -> Array:
        return create.full(shape, value, dtype=dtype, **where)

    return init


def normal(stddev: float = 1e-2) -> Initializer:
    """Normal numbers with this deviation."""
    return lambda key, shape, dtype=float, **where: _scaled(draw.normal(key, shape, dtype=dtype, **where), stddev)


def truncated_normal(stddev: float = 1e-2, lower: float = -2.0, upper: float = 2.0) -> Initializer:
    """Normal numbers of deviation ``stddev`` confined to [lower, upper] deviations (theirs is then smaller)."""
    return lambda key, shape, dtype=float, **where: _scaled(
        distributions.truncated_normal(key, shape, lower, upper, dtype=dtype, **where), stddev
    )


def uniform(scale: float = 1e-2) -> Initializer:
    """Uniform numbers in [0, scale)."""
    return lambda key, shape, dtype=float, **where: _scaled(draw.uniform(key, shape, dtype=dtype, **where), scale)


def _scaled(x: Array, factor: float) -> Array:
    out: Array = x * factor
    return out


# Variance by the number of inputs and outputs


def fans(shape: Sequence[int], in_axis: Axes = -2, out_axis: Axes = -1, batch_axis: Axes = ()) -> tuple[float, float]:
    """The numbers of inputs and outputs of a layer with a weight of this global shape: the product of ``in_axis`` (of
    ``out_axis``) and of the receptive field, which is every dimension not named."""
    try:
        axes = [tuple(one(a, len(shape), "fans") for a in _several(given)) for given in (in_axis, out_axis, batch_axis)]
    except AxisError as error:
        raise ShapeError(
            f"a weight of shape {tuple(shape)} has no dimensions in_axis={in_axis} and out_axis={out_axis}.",
            "a shape of 2 dimensions or more, or in_axis=() and out_axis=0 for a vector",
        ) from error
    named = [d for group in axes for d in group]
    if len(set(named)) < len(named):
        raise ArgumentError(
            f"in_axis={in_axis}, out_axis={out_axis} and batch_axis={batch_axis} name a dimension twice.",
            "in_axis=-2, out_axis=-1",
        )
    field = math.prod(n for d, n in enumerate(shape) if d not in named)
    inputs, outputs = (field * math.prod(shape[d] for d in group) for group in axes[:2])
    return float(inputs), float(outputs)


def _several(axes: Axes) -> tuple[int, ...]:
    return (axes,) if isinstance(axes, int) else tuple(axes)


def variance_scaling(
    scale: float,
    mode: str,
    distribution: str,
    in_axis: Axes = -2,
    out_axis: Axes = -1,
    batch_axis: Axes = (),
) -> Initializer:
    """Numbers of mean 0 and variance ``scale / n``.

    Args:
        mode: what n is: "fan_in", "fan_out", "fan_avg" (their mean) or "fan_geo_avg" (their geometric mean).
        distribution: "uniform", "normal", or "truncated_normal" (at two deviations, then scaled up to the variance).
        in_axis: dimension, or dimensions, of the weight's inputs.
        out_axis: of its outputs.
        batch_axis: of independent layers in one array, such as experts: part of neither fan.
    """
    if mode not in ("fan_in", "fan_out", "fan_avg", "fan_geo_avg"):
        raise ArgumentError(
            f"variance_scaling has no mode {mode!r}.", '"fan_in", "fan_out", "fan_avg" or "fan_geo_avg"'
        )
    if distribution not in ("uniform", "normal", "truncated_normal"):
        raise ArgumentError(
            f"variance_scaling has no distribution {distribution!r}.", '"uniform", "normal" or "truncated_normal"'
        )

    def init(key: Key, shape: Any, dtype: Any = float, **where: Any) -> Array:
        inputs, outputs = fans(sizes_of(shape), in_axis, out_axis, batch_axis)
        mean, geometric = (inputs + outputs) / 2, math.sqrt(inputs * outputs)
        n = {"fan_in": inputs, "fan_out": outputs, "fan_avg": mean, "fan_geo_avg": geometric}[mode]
        deviation = math.sqrt(scale / max(n, 1.0))
        if distribution == "normal":
            return _scaled(draw.normal(key, shape, dtype=dtype, **where), deviation)
        if distribution == "truncated_normal":
            return _scaled(distributions.truncated_normal(key, shape, -2.0, 2.0, dtype=dtype, **where), deviation / TWO)
        bound = math.sqrt(3) * deviation
        return draw.uniform(key, shape, low=-bound, high=bound, dtype=dtype, **where)

    return init


def _named(scale: float, mode: str, distribution: str, text: str) -> Callable[..., Initializer]:
    def make(in_axis: Axes = -2, out_axis: Axes = -1, batch_axis: Axes = ()) -> Initializer:
        return variance_scaling(scale, mode, distribution, in_axis, out_axis, batch_axis)

    make.__doc__ = text
    return make


glorot_uniform = _named(1.0, "fan_avg", "uniform", "Uniform, variance 2 / (inputs + outputs): Glorot and Bengio, 2010.")
glorot_normal = _named(1.0, "fan_avg", "truncated_normal", "The same variance, truncated normal (as JAX's).")
he_uniform = _named(2.0, "fan_in", "uniform", "Uniform, variance 2 / inputs: He, Zhang, Ren and Sun, 2015.")
he_normal = _named(2.0, "fan_in", "truncated_normal", "The same variance, truncated normal (as JAX's).")
lecun_uniform = _named(1.0, "fan_in", "uniform", "Uniform, variance 1 / inputs: LeCun, Bottou, Orr and Müller, 1998.")
lecun_normal = _named(1.0, "fan_in", "truncated_normal", "The same variance, truncated normal (as JAX's).")
xavier_uniform, xavier_normal, kaiming_uniform, kaiming_normal = glorot_uniform, glorot_normal, he_uniform, he_normal


def orthogonal(scale: float = 1.0, column_axis: int = -1) -> Initializer:
    """A random matrix with orthonormal rows or columns (whichever are fewer), times ``scale``.

    The dimension ``column_axis`` gives the columns, all others together the rows. Every rank makes the whole matrix:
    its decomposition has no parts that are independent. Close, not exact, on different processors.

    Saxe, McClelland and Ganguli, "Exact solutions to the nonlinear dynamics of learning", 2014.
    """

    def init(key: Key, shape: Any, dtype: Any = float, **where: Any) -> Array:
        sizes = sizes_of(shape)
        if len(sizes) < 2:
            raise ShapeError(f"orthogonal makes matrices; got shape {sizes}.", "a shape of 2 dimensions or more")
        columns = one(column_axis, len(sizes), "orthogonal")
        n, m = sizes[columns], math.prod(sizes) // max(1, sizes[columns])
        placement = where.pop("placement", None)
        matrix = events.orthogonal(key, (), m, n, dtype=dtype, **where) * scale
        rest = sizes[:columns] + sizes[columns + 1 :]
        whole: Array = moveaxis(reshape(matrix, (*rest, n)), -1, columns)
        return whole if placement is None else redistribute(whole, placement)

    return init


__all__ = [
    "constant",
    "fans",
    "glorot_normal",
    "glorot_uniform",
    "he_normal",
    "he_uniform",
    "kaiming_normal",
    "kaiming_uniform",
    "lecun_normal",
    "lecun_uniform",
    "normal",
    "ones",
    "orthogonal",
    "truncated_normal",
    "uniform",
    "variance_scaling",
    "xavier_normal",
    "xavier_uniform",
    "zeros",
]
