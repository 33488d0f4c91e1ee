"""Distributions of vectors and matrices: the last dimensions are one event, computed whole by each rank that holds a
part of it, in one order. dirichlet and ball are exact; multivariate_normal and orthogonal go through matrix products
and LAPACK, and are close.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from spmdx.array import Array
from spmdx.errors import ArgumentError, ShapeError
from spmdx.mesh import Mesh
from spmdx.ops.axes import sizes_of, whole
from spmdx.ops.place import moved_arrays
from spmdx.placement import Placement
from spmdx.plan import plan
from spmdx.random.fill import DOUBLE, Where, drawn, floating, parameter, target, words_of
from spmdx.random.key import Key, split
from spmdx.runtime.kernels import Intervals
from spmdx.spec import WHOLE

__all__ = ["ball", "dirichlet", "multivariate_normal", "orthogonal"]
Shape = tuple[int, ...]


def dirichlet(
    key: Key,
    shape: Any,
    alpha: Any,
    *,
    dtype: Any = np.float64,
    mesh: Mesh | None = None,
    placement: Placement | None = None,
    device: str | None = None,
) -> Array:
    """Points of the simplex, of shape ``(*shape, k)``: gamma values of k shapes ``alpha``, divided by their sum.

    Args:
        alpha: k or more numbers, or an array whose last dimension is k and which broadcasts to ``(*shape, k)``.
    """
    kind, words = floating(dtype, "dirichlet"), words_of(key)
    concentration = parameter(alpha, "alpha", "positive", DOUBLE, mesh)
    if not isinstance(concentration, Array):
        raise ShapeError("dirichlet takes a vector of at least one alpha.", "alpha=[1.0, 1.0, 1.0]")

    def fill(on: Any, n: Shape, i: Intervals, a: Any) -> Any:
        logs = on.streams("log_gamma", words, n, i, a)
        if not logs.size:
            return logs.astype(kind)
        parts = on.exp(logs - logs.max(axis=-1, keepdims=True))
        total = parts[..., :1].copy()
        for j in range(1, parts.shape[-1]):  # in the order of the index, on every processor
            total[..., 0] += parts[..., j]
        return _narrowed(parts / total, kind)

    full = (*sizes_of(shape), concentration.shape[-1])
    given = [(concentration, "alpha", "positive")]
    return _whole_events(full, 1, kind, fill, given, (mesh, placement, device), "dirichlet")


def multivariate_normal(
    key: Key,
    shape: Any,
    mean: Any,
    cov: Any,
    *,
    dtype: Any = np.float64,
    mesh: Mesh | None = None,
    placement: Placement | None = None,
    device: str | None = None,
) -> Array:
    """Normal vectors of shape ``(*shape, n)`` with a mean of n numbers and an n by n covariance, by Cholesky.

    Args:
        mean: n numbers, or an array that broadcasts to ``(*shape, n)``.
        cov: a symmetric, positive definite matrix, the same for all; on every rank whole.
    """
    kind, words = floating(dtype, "multivariate_normal"), words_of(key)
    matrix = np.asarray(cov.numpy() if isinstance(cov, Array) else cov, DOUBLE)
    n = matrix.shape[-1] if matrix.ndim == 2 else -1
    if matrix.shape != (n, n):
        raise ShapeError(f"a covariance is an n by n matrix; got shape {matrix.shape}.", "cov=np.eye(3)")
    size = np.sqrt(np.abs(np.diagonal(matrix)))  # what the elements of a covariance are at most, and round by
    if not (np.abs(matrix - matrix.T) <= 1e-8 * np.outer(size, size)).all():
        raise ArgumentError("a covariance is symmetric.", "cov=(cov + cov.T) / 2")
    try:
        factor = np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        raise ArgumentError("the covariance is not positive definite.", f"cov + 1e-9 * np.eye({n})") from None

    def fill(on: Any, size: Shape, i: Intervals, center: Any) -> Any:
        x = on.normal(words, size, i, DOUBLE)
        return _narrowed(x @ on.xp.asarray(factor.T) + center, kind)

    given = [(parameter(mean, "mean", "finite", DOUBLE, mesh), "mean", "finite")]
    return _whole_events((*sizes_of(shape), n), 1, kind, fill, given, (mesh, placement, device), "multivariate_normal")


def orthogonal(
    key: Key,
    shape: Any,
    n: int,
    m: int | None = None,
    *,
    dtype: Any = np.float64,
    mesh: Mesh | None = None,
    placement: Placement | None = None,
    device: str | None = None,
) -> Array:
    """Random n by m matrices (m = n unless given) of shape ``(*shape, n, m)``, uniform over those with orthonormal
    columns (rows, where n < m): the Q of a normal matrix's QR, with the signs of R's diagonal (Mezzadri, 2007).
    """
    kind, words = floating(dtype, "orthogonal"), words_of(key)
    columns = n if m is None else m
    tall, wide = max(n, columns), min(n, columns)

    def fill(on: Any, size: Shape, i: Intervals) -> Any:
        batch = size[:-2]
        x = on.normal(words, (*batch, tall, wide), [*i[:-2], [(0, tall)], [(0, wide)]], DOUBLE)
        if not x.size:
            return on.xp.empty([sum(b - a for a, b in pieces) for pieces in i], kind)
        q, r = on.xp.linalg.qr(x)
        d = on.xp.diagonal(r, axis1=-2, axis2=-1)
        q = q * on.xp.where(d < 0, -1.0, 1.0)[..., None, :]
        return _narrowed(on.xp.ascontiguousarray(q if n >= columns else on.xp.swapaxes(q, -1, -2)), kind)

    return _whole_events((*sizes_of(shape), n, columns), 2, kind, fill, [], (mesh, placement, device), "orthogonal")


def ball(
    key: Key,
    shape: Any,
    d: int,
    p: float = 2.0,
    *,
    dtype: Any = np.float64,
    mesh: Mesh | None = None,
    placement: Placement | None = None,
    device: str | None = None,
) -> Array:
    """Points of shape ``(*shape, d)``, uniform in the unit ball of the p-norm (Barthe and others, 2005).

    Gamma values to the power 1 / p with random signs, divided by (sum of the gammas + an exponential)**(1 / p).
    """
    kind, (first, second, third) = floating(dtype, "ball"), split(key, 3)
    power = parameter(p, "p", "positive", DOUBLE)
    if isinstance(power, Array):
        raise ArgumentError("ball takes one p for all points.", "p=2.0")

    def fill(on: Any, n: Shape, i: Intervals) -> Any:
        logs = on.streams("log_gamma", first.words, n, i, 1.0 / power)
        g = on.exp(logs)
        total = on.continuous("exponential", second.words, n[:-1], i[:-1], DOUBLE)
        for j in range(g.shape[-1]):
            total += g[..., j]
        size = on.exp((logs - on.log(total)[..., None]) / power)
        return _narrowed(on.xp.where(on.bernoulli(third.words, n, i, 0.5), size, -size), kind)

    return _whole_events(
        (*sizes_of(shape), whole(d, "ball: d", "d=3")), 1, kind, fill, [], (mesh, placement, device), "ball"
    )


def _whole_events(shape: Shape, events: int, kind: Any, fill: Any, given: Any, where: Where, name: str) -> Array:
    """Drawn with the last ``events`` dimensions whole; where the placement asked for divides them, each rank keeps its
    part of what it computed: nothing moves."""
    asked = target(shape, kind, [value for value, _, _ in given], where, name)
    layouts = asked.layouts[: asked.ndim - events] + (WHOLE,) * events
    x = drawn(asked.replace(layouts=layouts, partial=()), fill, given)
    steps = plan(x.spec, asked)
    return moved_arrays([x], [asked], [steps], name)[0]


def _narrowed(block: Any, kind: Any) -> Any:
    block = block.astype(np.float32) if kind.itemsize == 2 else block
    return block.astype(kind, copy=False)
