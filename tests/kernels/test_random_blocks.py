"""Exact: every distribution and dtype, over whole and cut blocks, against the oracle; and known answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import philox_oracle as oracle
import pytest
from draws import CASES, WORDS, Case

from spmdx.runtime import kernels

DATA = Path(__file__).parent.parent / "data"
CASE = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
FAR = 2**44  # elements of a global array of which a block holds a few

BLOCKS: dict[str, tuple[tuple[int, ...], Any]] = {
    "0-d": ((), ()),
    "empty": ((4, 5), ([(0, 4)], [])),
    "whole": ((3, 7, 5), ([(0, 3)], [(0, 7)], [(0, 5)])),
    "inner": ((6, 5), ([(0, 6)], [(2, 3)])),
    "middle": ((3, 5, 3), ([(1, 3)], [(2, 4)], [(0, 3)])),
    "interleaved": ((2, 12, 3), ([(0, 2)], [(1, 3), (5, 7), (9, 11)], [(0, 3)])),
    "interleaved outside": ((9, 4), ([(1, 2), (4, 5), (7, 8)], [(1, 3)])),
    "interleaved twice": ((6, 1, 8), ([(0, 1), (3, 4)], [(0, 1)], [(3, 4), (7, 8)])),
    "odd offset": ((1000,), ([(501, 560)],)),
    "beyond 2**32": ((FAR,), ([(2**32 + 13, 2**32 + 60)],)),
    "carry, 32-bit": ((FAR,), ([(2**34 - 21, 2**34 + 30)],)),  # block number 2**32 lies inside
    "carry, 64-bit": ((FAR,), ([(2**33 - 21, 2**33 + 30)],)),
    "far rows": ((2**20, 2**21, 3), ([(2**19 + 1, 2**19 + 4)], [(77, 80)], [(1, 3)])),
}


def equal(got: Any, want: list[Any]) -> None:
    expected = np.array(want, got.dtype).reshape(got.shape)
    assert got.tobytes() == expected.tobytes(), (got, expected)


@CASE
@pytest.mark.parametrize("name", BLOCKS)
def test_block(case: Case, name: str) -> None:
    shape, intervals = BLOCKS[name]
    equal(case.kernel(shape, intervals), [case.oracle(i) for i in oracle.indices(shape, intervals)])


@CASE
def test_long_run(case: Case) -> None:
    """Tiles, heads and tails: a long run is what its pieces are, and the oracle agrees in places."""
    first, count = 3, 2000
    got = case.kernel((5000,), [[(first, first + count)]])
    pieces = [case.kernel((5000,), [[(first + a, first + a + 80)]]) for a in range(0, count, 80)]
    assert got.tobytes() == np.concatenate(pieces).tobytes()
    for i in (0, 1, 2, 255, 256, 257, 1023, 1998, 1999):
        equal(got[i : i + 1], [case.oracle(first + i)])


@CASE
def test_rows(case: Case) -> None:
    """Many short rows, and rows longer than a tile: what the same elements of the whole array are."""
    for shape, cut in ([(200, 30), (7, 18)], [(8, 1200), (3, 1190)]):
        whole = case.kernel(shape, [[(0, n)] for n in shape])
        part = case.kernel(shape, [[(0, shape[0])], [cut]])
        assert part.tobytes() == np.ascontiguousarray(whole[:, cut[0] : cut[1]]).tobytes()


@CASE
def test_builds_and_threads_agree(case: Case) -> None:
    """Equal bits for every instruction set that runs here, and for any number of threads."""
    shape, pieces = (4, 300_001), [[(0, 1), (2, 4)], [(1, 300_000)]]
    kernels.set_threads(1)
    want = case.kernel(shape, pieces).tobytes()
    for count in (2, 3, 7):
        kernels.set_threads(count)
        assert case.kernel(shape, pieces).tobytes() == want
    small = [[(1, 3)], [(5, 4000)]]
    want = case.kernel(shape, small).tobytes()
    for name in kernels.instruction_sets():
        kernels.set_instruction_set(name)
        assert case.kernel(shape, small).tobytes() == want, name


def known() -> list[list[int]]:
    lines = (DATA / "philox4x32_10.txt").read_text().splitlines()
    return [[int(word, 16) for word in line.split()] for line in lines if not line.startswith("#")]


@pytest.mark.parametrize("numbers", known())
def test_known_answers(numbers: list[int]) -> None:
    counter, key, want = tuple(numbers[:4]), tuple(numbers[4:6]), tuple(numbers[6:])
    assert oracle.philox(counter, key) == want
    assert kernels.philox(counter, key) == want
    low, high, s0, s1 = counter
    first = 4 * (low | high << 32)  # the element whose block has this counter
    if first < 2**62:
        for name in kernels.instruction_sets():
            kernels.set_instruction_set(name)
            words = (*key, s0, s1)
            got = kernels.bits(words, (2**63 - 1,), [[(first, first + 4)]], np.dtype(np.uint32))
            assert tuple(got.tolist()) == want


def test_known_normals() -> None:
    """Our own bits, as they were first released: a compiler or processor that changes them is found here."""
    for line in (DATA / "normals.txt").read_text().splitlines():
        if line.startswith("#"):
            continue
        name, *values = line.split()
        got = kernels.normal(WORDS, (2**40,), [[(2**35 + 1, 2**35 + 1 + len(values))]], np.dtype(name))
        assert [value.hex() for value in got.astype(np.float64).tolist()] == values


def test_kernel_refuses() -> None:
    """The module checks what would write outside the block."""
    out = np.empty(4, np.float32)
    good: dict[str, Any] = {"kind": "normal", "type": "f32", "key": WORDS, "shape": (4,), "intervals": [[(0, 4)]]}
    fill = kernels._kernels.fill
    fill(out, **good)
    for change, message in (
        ({"type": "f64"}, "8 bytes"),
        ({"intervals": [[(0, 3)]]}, "3 elements"),
        ({"intervals": [[(1, 5)]]}, "outside its dimension"),
        ({"intervals": [[(0, 4)], [(0, 1)]]}, "one list of intervals"),
        ({"kind": "zipf"}, "zipf"),
        ({"kind": "bernoulli"}, "no bernoulli of type f32"),
    ):
        with pytest.raises(ValueError, match=message):
            fill(out, **{**good, **change})
    out.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        fill(out, **good)
