"""Windows over the last dimensions: views of a block, and their opposite, which adds overlaps."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from operator import mul
from typing import Any

import numpy as np

from spmdx.errors import ShapeError
from spmdx.op import op
from spmdx.rule import Form

Sizes = tuple[int, ...]


def count(n: int, size: int, stride: int, dilation: int) -> int:
    """How many windows there are along a dimension of length n."""
    return max(0, (n - (size - 1) * dilation - 1) // stride + 1)


def _form(shape: Sizes, sizes: Sizes, strides: Sizes, dilations: Sizes) -> Form:
    dims = range(len(sizes))
    if len(shape) < len(sizes):
        raise ShapeError(f"windows over {len(sizes)} dimensions of shape {shape}.", "x[None]")
    many = {f"n{i}": count(shape[i - len(sizes)], sizes[i], strides[i], dilations[i]) for i in dims}
    within = {f"w{i}": sizes[i] for i in dims}
    text = f"... {' '.join(f'[d{i}]' for i in dims)} -> ... {' '.join(many)} {' '.join(within)}"
    return Form(text, {**many, **within})


@op(_form, linear="each", monotone=1)
def _windows(xp: Any, x: Any, sizes: Sizes, strides: Sizes, dilations: Sizes) -> Any:
    """[..., n, within]: every window over the last dimensions, as a view."""
    last = len(sizes)
    many = [count(n, *rest) for n, *rest in zip(x.shape[x.ndim - last :], sizes, strides, dilations)]
    if 0 in many:
        return xp.empty((*x.shape[: x.ndim - last], *many, *sizes), x.dtype)
    if xp is not np:  # CuPy's sliding_window_view makes the host wait, to look at its sizes
        ends = x.strides[x.ndim - last :]
        apart = (*x.strides[: x.ndim - last], *map(mul, ends, strides), *map(mul, ends, dilations))
        return xp.lib.stride_tricks.as_strided(x, (*x.shape[: x.ndim - last], *many, *sizes), apart)
    spread = [(size - 1) * d + 1 for size, d in zip(sizes, dilations)]
    view = xp.lib.stride_tricks.sliding_window_view(x, spread, tuple(range(-last, 0)))
    steps: Any = (..., *(slice(None, None, s) for s in (*strides, *dilations)))
    return view[steps]


def _back_form(g: Sizes, sizes: Sizes, strides: Sizes, dilations: Sizes, lengths: Sizes) -> Form:
    dims = range(len(sizes))
    inside = " ".join([*(f"[n{i}]" for i in dims), *(f"[w{i}]" for i in dims)])
    return Form(f"... {inside} -> ... {' '.join(f'd{i}' for i in dims)}", {f"d{i}": lengths[i] for i in dims})


@op(_back_form, linear="each")
def _overlap(xp: Any, g: Any, sizes: Sizes, strides: Sizes, dilations: Sizes, lengths: Sizes) -> Any:
    """The opposite of _windows: what each element is given by the windows that hold it, added in a fixed order."""
    last = len(sizes)
    out = xp.zeros((*g.shape[: g.ndim - 2 * last], *lengths), g.dtype)
    for within, places in _each(sizes, strides, dilations, g.shape[g.ndim - 2 * last : g.ndim - last]):
        here, there = (..., *places), (..., *within)
        out[here] += g[there]
    return out


def _each(sizes: Sizes, strides: Sizes, dilations: Sizes, many: Sizes) -> Iterator[tuple[Sizes, tuple[slice, ...]]]:
    """Every place within a window, and the elements that stand there in all windows."""
    for within in product(*map(range, sizes)):
        starts = [w * d for w, d in zip(within, dilations)]
        yield within, tuple(slice(a, a + s * n, s) for a, s, n in zip(starts, strides, many))


_windows.vjp(
    lambda g, out, x, sizes, strides, dilations: _overlap(g, sizes, strides, dilations, x.shape[x.ndim - len(sizes) :])
)
_overlap.vjp(lambda g, out, x, sizes, strides, dilations, lengths: _windows(g, sizes, strides, dilations))
