"""Dropout, the addition to a residual stream and its norm in one pass.

Exact, for every instruction set and any number of threads: what the kernels for each of them give one after another.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spmdx.runtime import kernels

SETS, BUILD = kernels.instruction_sets(), kernels.HOST.build
RANDOM = np.random.default_rng(6)
KEYS = {"Philox": (1, 2, 3, 4), "Threefry": (5, 6)}
# Global shapes, and the intervals of a block of them.
BLOCKS = [
    ((3, 5, 16), [[(0, 3)], [(0, 5)], [(0, 16)]]),
    ((7, 90, 40), [[(1, 3), (5, 7)], [(11, 60)], [(0, 40)]]),
    ((3, 9001), [[(1, 3)], [(0, 9001)]]),
    ((4, 50, 3), [[(0, 4)], [(10, 50)], [(0, 3)]]),
    ((2, 1), [[(1, 2)], [(0, 1)]]),
]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("generator", [None, *KEYS])
@pytest.mark.parametrize(("shape", "pieces"), BLOCKS)
def test_one_pass(shape: Any, pieces: Any, generator: str | None, dtype: Any) -> None:
    own, n = tuple(sum(b - a for a, b in each) for each in pieces), shape[-1]
    x, residual, g, g_stream = (RANDOM.normal(1, 2, own).astype(dtype) for _ in range(4))
    scale, bias, added = (RANDOM.normal(0, 1, n).astype(dtype) for _ in range(3))
    numbers = kernels.kept_numbers(0.7, dtype is np.float64)
    dropped = None if generator is None else (KEYS[generator], shape, pieces, *numbers)

    def dropout(of: Any) -> Any:
        return of if generator is None else kernels.dropout(KEYS[generator], shape, pieces, of, 0.7)

    for centered, some in ((True, True), (False, True), (True, False)):
        s, b, a, gs = (v if some else None for v in (scale, bias, added, g_stream))
        stream = residual + dropout(x if a is None else x + a)
        normed, back, to_scale, to_bias = (
            np.empty(own, dtype),
            np.empty(own, dtype),
            np.empty(n, dtype),
            np.empty(n, dtype),
        )
        BUILD.norm(normed, stream, s, b, 1e-3, centered)
        BUILD.norm_back(back, to_scale, to_bias, stream, s, g, 1e-3, centered)
        back = back if gs is None else back + gs
        to_x, to_added = dropout(back), np.empty(n, dtype)
        BUILD.sum_rows(to_added, to_x)
        want = [stream, normed, back, to_x, to_scale, to_bias, to_added]
        for name in SETS:
            kernels.set_instruction_set(name)
            for threads in (1, 3):
                kernels.set_threads(threads)
                found = [np.empty_like(w) for w in want]
                BUILD.add_norm(*found[:2], x, a, residual, s, b, 1e-3, centered, dropped)
                found[3] = found[2] if dropped is None else found[3]
                apart = None if dropped is None else found[3]
                BUILD.add_norm_back(found[2], apart, found[4:], found[0], s, gs, g, 1e-3, centered, dropped)
                assert [f.tobytes() for f in found] == [w.tobytes() for w in want]


def test_sums_that_are_not_wanted() -> None:
    x, g = RANDOM.normal(0, 1, (100, 20)), RANDOM.normal(0, 1, (100, 20))
    outs = []
    for wanted in ((), (0,), (1, 2)):
        sums = [np.empty(20) if i in wanted else None for i in range(3)]
        outs.append(np.empty_like(x))
        BUILD.add_norm_back(outs[-1], None, sums, x, None, None, g, 1e-3, True, None)
        if wanted == (1, 2):
            assert sums[1].tobytes() != sums[2].tobytes()  # type: ignore[union-attr]  # of g, and of what is given
    assert len({out.tobytes() for out in outs}) == 1


def test_no_rows() -> None:
    none, sums = np.zeros((0, 20)), [np.ones(20) for _ in range(3)]
    BUILD.add_norm(none, none, none, None, none, None, None, 1e-3, True, None)
    BUILD.add_norm_back(none, None, sums, none, None, None, none, 1e-3, True, None)
    assert not np.any(sums)


def test_what_is_refused() -> None:
    x, v = np.zeros((2, 3)), np.zeros(2)
    words, whole = (1, 2, 3, 4), [[(0, 2)], [(0, 3)]]
    none: list[Any] = [None] * 3
    for call, message in (
        (lambda: BUILD.add_norm(x, x, x, None, None, None, None, 0.1, True, None), "missing"),
        (lambda: BUILD.add_norm(x, x, x, v, x, None, None, 0.1, True, None), "another length"),
        (lambda: BUILD.add_norm(x, v, x, None, x, None, None, 0.1, True, None), "another size"),
        (lambda: BUILD.add_norm(x, x, x, None, x.astype(int), None, None, 0.1, True, None), "differ in dtype"),
        (lambda: BUILD.add_norm(x, x, x, None, x, None, None, 0.1, True, (words, (2, 2), whole, 1, 1)), "outside"),
        (lambda: BUILD.add_norm(x, x, x, None, x, None, None, 0.1, True, (words, (2,), whole[:1], 1, 1)), "mask's"),
        (lambda: BUILD.add_norm(x, x, x, None, x, None, None, 0.1, True, (v, (2, 3), whole, 1, 1)), None),
        (lambda: BUILD.add_norm_back(x, None, none, x, None, None, None, 0.1, True, None), "missing"),
        (lambda: BUILD.add_norm_back(x, x, none, x, None, None, x, 0.1, True, None), "missing"),
        (lambda: BUILD.add_norm_back(x, None, [v, None, None], x, None, None, x, 0.1, True, None), "another length"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            call()
