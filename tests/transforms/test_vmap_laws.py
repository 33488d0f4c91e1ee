"""The law of vmap for every operation: vmap(f) of a batch is f of each example, stacked; and so are gradients."""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any

import law
import numpy as np
from law import LOOSE, outputs
from placements import simulated
from worlds import of_each_operation

import spmdx as sx
from spmdx.array import Array

MESH = simulated(2)
CASES = law.cases()
BOUND = 1e-12  # on |a - b| / max(1, |b|): products of a batch are added in another order


def batch(x: Any) -> Any:
    """Two examples: a value, and the same the other way round."""
    x = np.asarray(x)
    return np.stack([x, np.flip(x)])


def stacked(case: Any, which: tuple[int, ...]) -> Any:
    """The example with a batch in place of some of its inputs."""
    return replace(case, inputs=tuple(batch(x) if i in which else x for i, x in enumerate(case.inputs)))


def choices(case: Any) -> list[tuple[int, ...]]:
    """Which inputs are batches: all; and one alone, another for every example."""
    n = len(case.inputs)
    return list(dict.fromkeys([tuple(range(n)), (zlib.crc32(case.name.encode()) % n,)])) if n else []


def same(got: Any, want: Any, close: float, where: str) -> None:
    assert (got.shape, got.dtype) == (want.shape, want.dtype), where
    bound = max(close, LOOSE.get(got.dtype.name, BOUND))
    law.compare(got, want, bound, where)


def each(call: Any, given: list[Any], which: tuple[int, ...]) -> list[Any]:
    """f of each example, stacked."""
    found = [
        [np.asarray(y) for y in outputs(call(*(x[k] if i in which else x for i, x in enumerate(given))))]
        for k in range(2)
    ]
    return [np.stack(pair) for pair in zip(*found)]


@of_each_operation(CASES)
def test_values(case: Any) -> None:
    for which in choices(case):
        several = stacked(case, which)
        axes = tuple(0 if i in which else None for i in range(len(case.inputs)))
        options = law.placements(several, MESH, ("sum",), ("default",))
        for chosen in law.sample(options, 2 if len(which) > 1 else 1, f"{case.name} {which}"):
            given = law.arrays(several, chosen)
            where = f"{case.name}, batches {which}, of {chosen}"
            with np.errstate(all="ignore"):
                found = sx.vmap(case.call, axes)(*given)
                want = each(case.call, given, which)
            for y, v in zip(outputs(found), want):
                same(y.numpy(), v, case.close, where)


@of_each_operation([c for c in CASES if c.grad])
def test_gradients(case: Any) -> None:
    """vmap of the gradient, and the gradient of vmap, are the examples' gradients."""
    several = stacked(case, tuple(range(len(case.inputs))))
    [chosen] = law.sample(law.placements(several, MESH, ("sum",), ("default",)), 1, case.name)
    given = law.arrays(several, chosen)

    def loss(*some: Any, of: list[Any]) -> Any:
        full = list(of)
        for i, x in zip(case.grad, some):
            full[i] = x
        made = [y for y in outputs(case.call(*full)) if y.dtype.kind in "fcV"]
        return sum(sx.real(sx.sum(y * y)) for y in made)

    def gradient(*full: Any) -> Any:
        return sx.grad(lambda *some: loss(*some, of=list(full)), argnums=tuple(range(len(case.grad))))(
            *(full[i] for i in case.grad)
        )

    with np.errstate(all="ignore"):
        want = each(gradient, given, tuple(range(len(given))))
        inside = sx.vmap(gradient)(*given)
        outside = sx.grad(
            lambda *some: sx.vmap(lambda *full: loss(*(full[i] for i in case.grad), of=list(full)))(
                *(some[case.grad.index(i)] if i in case.grad else x for i, x in enumerate(given))
            ).sum(),
            argnums=tuple(range(len(case.grad))),
        )(*(given[i] for i in case.grad))
    for found in (inside, outside):
        for g, v in zip(found, want):
            assert isinstance(g, Array)
            same(g.numpy(), v, max(case.close, 1e-10), f"{case.name} of {chosen}")
