"""Exact: an element with a stream of its own is what it is alone, whatever the parameters of the others beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spmdx.runtime import kernels

KEYS = {"philox": (1, 2, 3, 4), "threefry": (5, 6)}
N = 700
MEANS = np.concatenate([[0.0, 9.999999, 10.0, 1e15], np.geomspace(1e-3, 1e6, N - 4)])
COUNTS = np.concatenate([[0.0, 1.0, 2.0**53, 5.0], np.floor(np.geomspace(1, 1e7, N - 4))])
CHANCES = np.concatenate([[0.3, 1.0, 1e-12, 0.0], np.linspace(0, 1, N - 4)])
PARAMETERS: dict[str, tuple[Any, ...]] = {
    "gamma": (np.concatenate([[0.0, np.inf], np.geomspace(1e-3, 1e4, N - 2)]),),
    "log_gamma": (np.concatenate([[0.0, np.inf], np.geomspace(1e-5, 1e2, N - 2)]),),
    "poisson": (MEANS,),
    "binomial": (COUNTS, CHANCES),
}


@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.parametrize("key", KEYS)
def test_beside_others(name: str, key: str) -> None:
    """In every order of the parameters, from every build, with any number of threads."""
    words, given, first = KEYS[key], PARAMETERS[name], 2**33 + 5
    order = np.random.default_rng(0).permutation(N)
    shuffled = [p[order] for p in given]
    alone = [
        kernels.streams(name, words, (2**40,), [[(first + i, first + i + 1)]], *(p[i] for p in shuffled))[0]
        for i in range(N)
    ]
    assert np.isfinite(alone).sum() >= N - 2
    block = [[(first, first + N)]]
    for build in kernels.instruction_sets():
        kernels.set_instruction_set(build)
        together = kernels.streams(name, words, (2**40,), block, *shuffled)
        assert together.tobytes() == np.array(alone).tobytes(), build
        rows = kernels.streams(name, words, (2**28, 4096), [[(2**21, 2**21 + 40)], [(1, 4)]], *(p[0] for p in given))
        for r in (0, 1, 39):
            row = [[(2**21 + r, 2**21 + r + 1)], [(1, 4)]]
            part = kernels.streams(name, words, (2**28, 4096), row, *(p[0] for p in given))
            assert rows[r].tobytes() == part[0].tobytes()
    many = [np.resize(p, 30_000) for p in shuffled]
    kernels.set_threads(1)
    want = kernels.streams(name, words, (30_000,), [[(0, 30_000)]], *many)
    kernels.set_threads(3)
    assert kernels.streams(name, words, (30_000,), [[(0, 30_000)]], *many).tobytes() == want.tobytes()
