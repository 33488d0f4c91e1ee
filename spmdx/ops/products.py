"""Contractions by their other names: tensordot, vecdot, inner, outer and dot are einsums."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np

from spmdx.array import Array
from spmdx.errors import ArgumentError, ShapeError
from spmdx.op import constants
from spmdx.ops import elementwise as e
from spmdx.ops.axes import one, several
from spmdx.ops.contract import einsum, letter
from spmdx.ops.shape import moveaxis, ravel


def tensordot(x1: Any, x2: Any, axes: Any = 2) -> Array:
    """The sum of products over pairs of dimensions: the last ``axes`` of x1 with the first of x2, or those listed."""
    n1, n2 = np.ndim(x1), np.ndim(x2)
    if isinstance(axes, int):
        if not 0 <= axes <= builtins.min(n1, n2):
            raise ArgumentError(f"tensordot over {axes} dimensions of operands with {n1} and {n2}.", "axes=1")
        first, second = tuple(range(n1 - axes, n1)), tuple(range(axes))
    else:
        first, second = several(axes[0], n1, "tensordot"), several(axes[1], n2, "tensordot")
    if len(first) != len(second):
        raise ArgumentError(
            f"tensordot pairs {len(first)} dimensions with {len(second)}.", "axes=([...], [...]), equally long"
        )
    for a, b in zip(first, second):
        if np.shape(x1)[a] != np.shape(x2)[b]:
            raise ShapeError(
                f"tensordot: shapes {np.shape(x1)} and {np.shape(x2)} differ along the pair ({a}, {b}).",
                "axes=([...], [...]), pairs of equal length",
            )
    left = [letter(d) for d in range(n1)]
    right = [left[first[second.index(d)]] if d in second else letter(n1 + d) for d in range(n2)]
    out = [c for c in left if c not in right] + [c for c in right if c not in left]
    return einsum(f"{''.join(left)},{''.join(right)}->{''.join(out)}", x1, x2)


def vecdot(x1: Any, x2: Any, axis: int = -1) -> Array:
    """The sum of conj(x1) * x2 over one dimension; the others broadcast."""
    a, b = one(axis, np.ndim(x1), "vecdot"), one(axis, np.ndim(x2), "vecdot")
    if np.shape(x1)[a] != np.shape(x2)[b]:
        raise ShapeError(
            f"vecdot: shapes {np.shape(x1)} and {np.shape(x2)} differ along axis {axis}.", "axis=, of equal lengths"
        )
    x1, x2 = constants((x1, x2), "vecdot")
    x1 = e.conj(x1) if x1.dtype.kind == "c" else x1
    return einsum("...a,...a->...", moveaxis(x1, a, -1), moveaxis(x2, b, -1))


def outer(x1: Any, x2: Any) -> Array:
    """Every element of x1 times every element of x2; operands with more dimensions are flattened first."""
    return einsum("a,b->ab", *(x if np.ndim(x) == 1 else ravel(x) for x in constants((x1, x2), "outer")))


def inner(x1: Any, x2: Any) -> Array:
    """The sum of products over the last dimension of both."""
    return e.multiply(x1, x2) if 0 in (np.ndim(x1), np.ndim(x2)) else tensordot(x1, x2, ((-1,), (-1,)))


def dot(x1: Any, x2: Any) -> Array:
    """The sum of products over the last dimension of x1 and the last but one (the only one of a vector) of x2."""
    if 0 in (np.ndim(x1), np.ndim(x2)):
        return e.multiply(x1, x2)  # type: ignore[no-any-return]  # as above
    return tensordot(x1, x2, ((-1,), (-2 if np.ndim(x2) > 1 else -1,)))


__all__ = ["dot", "inner", "outer", "tensordot", "vecdot"]
