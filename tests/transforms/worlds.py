"""Where the tests of transforms run: one rank, the simulator, and ranks as threads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import spmdx as sx
from spmdx.testing import spmd

WORLDS = {
    "alone": ("cpu", (1,)),
    "simulated 2": ("sim", (2,)),
    "simulated 2x2": ("sim", (2, 2)),
    "2 ranks": ("cpu", (2,)),
    "3 ranks": ("cpu", (3,)),
    "2x2 ranks": ("cpu", (2, 2)),
}


def in_each_world(test: Callable[..., None]) -> Any:
    """A test of a mesh with the axis "a", or "a" and "b", run in every world."""

    @pytest.mark.parametrize("world", WORLDS)
    def run(world: str) -> None:
        device, sizes = WORLDS[world]
        axes = dict(zip("ab", sizes))
        if device == "sim":
            test(sx.make_mesh(axes, device="sim"))
        else:
            spmd(int(np.prod(sizes)))(lambda: test(sx.make_mesh(axes)))()

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def placements(mesh: sx.Mesh, ndim: int, partial: bool = True) -> Iterator[dict[str, Any]]:
    """Some placements: whole, divided along each dimension, Partial; the second axis goes its own way."""
    words = [sx.Replicate(), *(sx.Shard(d) for d in range(ndim)), *([sx.Partial()] if partial else [])]
    for i, word in enumerate(words):
        yield {"a": word} if len(mesh.axis_names) == 1 else {"a": word, "b": words[(i + 1) % len(words)]}


def of_each_operation(cases: list[Any]) -> Any:
    """The examples of the law suite as parameters: two of each operation, and the others marked slow."""
    seen: Counter[str] = Counter()
    found = []
    for case in cases:
        seen[case.op] += 1
        found.append(pytest.param(case, id=case.name, marks=[pytest.mark.slow] * (seen[case.op] > 2)))
    return pytest.mark.parametrize("case", found)


def draw(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng([seed, *shape]).normal(size=shape)


def put(x: Any, mesh: sx.Mesh, placement: Any = None) -> Any:
    return sx.asarray(x, mesh=mesh, placement=placement)


def close(got: Any, want: Any, bound: float = 1e-12) -> None:
    """|a - b| / max(1, |b|) <= bound, and the same shape."""
    found, want = (x.numpy() if isinstance(x, sx.Array) else np.asarray(x) for x in (got, want))
    assert found.shape == want.shape
    assert np.max(np.abs(found - want) / np.maximum(1, np.abs(want)), initial=0) <= bound, (found, want)


def exact(got: Any, want: Any) -> None:
    """Shape, dtype and every bit."""
    found, want = (x.numpy() if isinstance(x, sx.Array) else np.asarray(x) for x in (got, want))
    assert (found.shape, found.dtype) == (want.shape, want.dtype)
    assert found.tobytes() == want.tobytes(), (found, want)
