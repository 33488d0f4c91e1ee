"""Convolutions, pools and patches of [..., channels, height, width]. Batch and channels may be divided; spatial
dimensions are whole."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from spmdx.array import Array
from spmdx.errors import ArgumentError, ShapeError
from spmdx.ops import reduce
from spmdx.ops.contract import einsum
from spmdx.ops.join import pad
from spmdx.ops.place import arrays
from spmdx.ops.shape import permute_dims
from spmdx.ops.windows import _windows

Size = int | tuple[int, ...]


def conv1d(
    x: Array,
    weight: Array,
    bias: Any = None,
    *,
    stride: Size = 1,
    padding: Any = 0,
    dilation: Size = 1,
    groups: int = 1,
) -> Array:
    """Convolution over the last dimension: x [..., in, length], weight [out, in / groups, size], bias [out].

    Args:
        bias: added to every window's sum, or None.
        stride: from window to window.
        padding: zeros on both sides; a pair (before, after); or "same": as many windows as positions / stride.
        dilation: the distance of the elements of a window.
        groups: the channels are cut in so many groups, each convolved on its own.

    Divided input channels give a Partial sum, divided output channels a divided output.
    """
    return _conv(x, weight, bias, 1, stride, padding, dilation, groups)


def conv2d(
    x: Array,
    weight: Array,
    bias: Any = None,
    *,
    stride: Size = 1,
    padding: Any = 0,
    dilation: Size = 1,
    groups: int = 1,
) -> Array:
    """Convolution over the last two dimensions: x [..., in, height, width], weight [out, in / groups, rows, columns].

    Otherwise as :func:`conv1d`; sizes are one number or two, ``padding`` also one pair for each dimension.
    """
    return _conv(x, weight, bias, 2, stride, padding, dilation, groups)


def max_pool(x: Array, size: Size, *, stride: Any = None, padding: Any = 0) -> Array:
    """The greatest of every window over the last dimensions; as many dimensions as ``size`` has numbers.

    Args:
        size: of a window, along each of these dimensions.
        stride: from window to window; as ``size`` if left out.
        padding: as :func:`conv1d`'s, with what is never the greatest.
    """
    windows, dims = _pool(x, size, stride, padding, -math.inf)
    found: Array = reduce.max(windows, dims)
    return found


def avg_pool(x: Array, size: Size, *, stride: Any = None, padding: Any = 0) -> Array:
    """The mean of every window, the zeros of ``padding`` counted. Otherwise as :func:`max_pool`."""
    windows, dims = _pool(x, size, stride, padding, 0)
    count = math.prod(windows.shape[d] for d in dims)
    found: Array = reduce.sum(windows, dims) / max(count, 1)
    return found


def patchify(x: Array, size: Size) -> Array:
    """[..., channels, height, width] as [..., patches, channels * rows * columns]: row by row, without overlap.

    Args:
        size: the rows and columns of a patch: one number or two.
    """
    rows, columns = _each(size, 2, "size")
    [x] = arrays(x)
    if x.ndim < 3:
        raise ShapeError(f"patches of shape {x.shape}.", "[..., channels, height, width]")
    *batch, channels, height, width = x.shape
    if height % rows or width % columns:
        raise ShapeError(
            f"an image of {height} by {width} has no whole patches of {rows} by {columns}.", "a size that divides it"
        )
    n = len(batch)
    x = x.reshape((*batch, channels, height // rows, rows, width // columns, columns))
    x = permute_dims(x, (*range(n), n + 1, n + 3, n, n + 2, n + 4))
    patches = (height // rows) * (width // columns)
    found: Array = x.reshape((*batch, patches, channels * rows * columns))
    return found


def unpatchify(x: Array, size: Size, shape: tuple[int, int, int]) -> Array:
    """The opposite of :func:`patchify` with this ``size``: images of ``shape`` (channels, height, width)."""
    rows, columns = _each(size, 2, "size")
    if len(shape) != 3:
        raise ShapeError(f"images of shape {tuple(shape)}.", "shape=(channels, height, width)")
    channels, height, width = shape
    [x] = arrays(x)
    if x.ndim < 2 or x.shape[-2:] != (height // rows * (width // columns), channels * rows * columns):
        raise ShapeError(
            f"patches of shape {x.shape} make no images of {tuple(shape)} by patches of {rows} by {columns}.",
            "what patchify gave, with the same size",
        )
    batch, n = x.shape[:-2], x.ndim - 2
    x = x.reshape((*batch, height // rows, width // columns, channels, rows, columns))
    found: Array = permute_dims(x, (*range(n), n + 2, n, n + 3, n + 1, n + 4)).reshape((*batch, *shape))
    return found


def _each(given: Any, dims: int, what: str) -> tuple[int, ...]:
    sizes = tuple(given) if isinstance(given, (tuple, list)) else (given,) * dims
    if len(sizes) != dims or not all(isinstance(n, (int, np.integer)) and n > 0 for n in sizes):
        raise ArgumentError(f"{what}={given!r} for {dims} dimensions.", f"{what}=2, or a number of 1 or more for each")
    return tuple(int(n) for n in sizes)


def _pads(given: Any, lengths: tuple[int, ...], spans: list[int], strides: tuple[int, ...]) -> list[tuple[int, int]]:
    """What is added before and after each dimension."""
    if given == "same":
        needed = [max(0, (-(-n // s) - 1) * s + span - n) for n, s, span in zip(lengths, strides, spans)]
        return [(n // 2, n - n // 2) for n in needed]
    pairs = list(given) if isinstance(given, (tuple, list)) else [given] * len(lengths)
    if len(lengths) == 1 and len(pairs) == 2 and isinstance(pairs[0], (int, np.integer)):
        pairs = [pairs]
    pairs = [tuple(p) if isinstance(p, (tuple, list)) else (p, p) for p in pairs]
    whole = all(len(p) == 2 and all(isinstance(n, (int, np.integer)) and n >= 0 for n in p) for p in pairs)
    if len(pairs) != len(lengths) or not whole:
        raise ArgumentError(
            f"padding={given!r} for {len(lengths)} dimensions.", 'padding=1, "same", or a pair for each'
        )
    return pairs


def _view(x: Array, sizes: Any, strides: Any, dilations: Any, padding: Any, fill: float) -> Array:
    """All windows over the last dimensions, which are padded first."""
    dims = len(sizes)
    spans = [(n - 1) * d + 1 for n, d in zip(sizes, dilations)]
    pads = _pads(padding, x.shape[-dims:], spans, strides)
    if any(a or b for a, b in pads):
        x = pad(x, [(0, 0)] * (x.ndim - dims) + pads, constant_values=fill)
    found: Array = _windows(x, sizes, strides, dilations)
    return found


def _conv(
    x: Array, weight: Array, bias: Any, dims: int, stride: Any, padding: Any, dilation: Any, groups: int
) -> Array:
    x, weight, *biases = arrays(x, weight, *[] if bias is None else [bias])
    if x.ndim < dims + 1 or weight.ndim != dims + 2 or x.shape[-dims - 1] != weight.shape[1] * groups:
        raise ShapeError(
            f"conv{dims}d of x {x.shape} and weight {weight.shape} in {groups} groups.",
            f"x[..., in, {'length' if dims == 1 else 'height, width'}] and weight[out, in / groups, sizes]",
        )
    if groups < 1 or weight.shape[0] % groups:
        raise ShapeError(f"{weight.shape[0]} output channels do not divide into {groups} groups.", "groups=1")
    sizes = tuple(weight.shape[2:])
    view = _view(x, sizes, _each(stride, dims, "stride"), _each(dilation, dims, "dilation"), padding, 0)
    many, within = ("p", "i") if dims == 1 else ("pq", "ij")
    if groups == 1:
        out = einsum(f"...c{many}{within},oc{within}->...o{many}", view, weight)
    else:
        lead = view.shape[: view.ndim - 2 * dims - 1]
        view = view.reshape((*lead, groups, weight.shape[1], *view.shape[-2 * dims :]))
        parts = weight.reshape((groups, weight.shape[0] // groups, *weight.shape[1:]))
        out = einsum(f"...gc{many}{within},goc{within}->...go{many}", view, parts)
        out = out.reshape((*lead, weight.shape[0], *out.shape[-dims:]))
    for each in biases:
        out = out + each.reshape((-1, *[1] * dims))
    return out


def _pool(x: Array, size: Any, stride: Any, padding: Any, fill: float) -> tuple[Array, tuple[int, ...]]:
    [x] = arrays(x)
    sizes = tuple(size) if isinstance(size, (tuple, list)) else (size,) * 2
    if len(sizes) > x.ndim:
        raise ShapeError(f"windows of {len(sizes)} dimensions over shape {x.shape}.", "size=(2,) for one dimension")
    strides = sizes if stride is None else _each(stride, len(sizes), "stride")
    if fill and x.dtype.kind in "iub":
        fill = 0 if x.dtype.kind == "b" else int(np.iinfo(x.dtype).min)
    windows = _view(x, _each(sizes, len(sizes), "size"), strides, (1,) * len(sizes), padding, fill)
    return windows, tuple(range(windows.ndim - len(sizes), windows.ndim))


__all__ = ["avg_pool", "conv1d", "conv2d", "max_pool", "patchify", "unpatchify"]
