"""What the tests of networks share: simulated meshes, placements to try, central differences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

import spmdx as sx
from spmdx.mesh import Mesh

ALONE = Mesh(("a",), (1,), None, "sim")
TWO = Mesh(("a",), (2,), None, "sim")
FOUR = Mesh(("a", "b"), (2, 2), None, "sim")
CLOSE = 1e-12  # on |a - b| / max(1, |b|), in float64


def draw(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng([seed, *shape]).normal(size=shape)


def put(x: Any, mesh: Mesh = ALONE, **placement: Any) -> Any:
    return sx.asarray(x, mesh=mesh, placement=placement)


def close(got: Any, want: Any, bound: float = CLOSE) -> None:
    found = got.numpy() if isinstance(got, sx.Array) else np.asarray(got)
    assert found.shape == np.shape(want)
    assert np.max(np.abs(found - want) / np.maximum(1, np.abs(want)), initial=0) <= bound


def everywhere(x: Any, partial: bool = True) -> Iterator[Any]:
    """The array in every placement of one axis of two ranks, and in some of two axes of two."""
    options = [sx.Replicate(), *(sx.Shard(d) for d in range(np.ndim(x))), *([sx.Partial()] if partial else [])]
    for p in options:
        yield put(x, TWO, a=p)
    for i, (p, q) in enumerate(product(options, options)):
        if i % 3 == 1:
            yield put(x, FOUR, a=p, b=q)


def slope(function: Callable[..., Any], args: Sequence[Any], i: int, step: float = 1e-6) -> Any:
    """Central differences of a NumPy function with a scalar value, with respect to argument i."""
    out = np.zeros(args[i].shape)
    for at in np.ndindex(out.shape):
        ends = []
        for sign in (1, -1):
            moved = [np.array(x) for x in args]
            moved[i][at] += sign * step
            ends.append(function(*moved))
        out[at] = (ends[0] - ends[1]) / (2 * step)
    return out


def gradients(function: Callable[..., Any], *args: Any) -> list[Any]:
    """Of the sum of the function's values, each with its own fixed weight."""

    def loss(*args: Any) -> Any:
        y = function(*args)
        return (y * put(draw(*y.shape, seed=9), y.mesh)).sum()

    return list(sx.grad(loss, argnums=tuple(range(len(args))))(*args))


def weighted(function: Callable[..., Any]) -> Callable[..., float]:
    """The same loss of a NumPy function."""

    def loss(*args: Any) -> float:
        y = function(*args)
        return float((y * draw(*y.shape, seed=9)).sum())

    return loss


def verbs(trace: Any) -> list[str]:
    return [record.verb for record in trace]
