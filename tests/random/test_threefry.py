"""Exact: threefry2x32 against Random123's published answers, and against JAX's numbers, recorded and live."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import threefry_oracle as oracle
from placements import assembled, simulated, specs

import spmdx as sx
from spmdx import random
from spmdx.runtime import kernels

DATA = Path(__file__).parent.parent / "data"
JAX = json.loads((DATA / "jax_random.json").read_text())
KEY = random.key(JAX["seed"], "threefry2x32")


def kind(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def words(values: Any) -> list[str]:
    flat = np.atleast_1d(values).reshape(-1)
    return [f"{v:x}" for v in flat.view(f"u{flat.itemsize}").tolist()]


def drawn(function: str, asked: str) -> Any:
    """The draw that a line of the data names."""
    dtype, *numbers = asked.partition(" (")[0].split()
    shape = ast.literal_eval("(" + asked.partition(" (")[2])
    draw = getattr(random, function)
    return draw(KEY, shape, *map(int, numbers), dtype=kind(dtype)).numpy()


def known() -> list[list[int]]:
    lines = (DATA / "threefry2x32_20.txt").read_text().splitlines()
    return [[int(word, 16) for word in line.split()] for line in lines if not line.startswith("#")]


@pytest.mark.parametrize("numbers", known())
def test_known_answers(numbers: list[int]) -> None:
    (high, low), key, want = numbers[:2], (numbers[2], numbers[3]), numbers[4:]
    assert list(kernels.threefry(high << 32 | low, key)) == want
    assert [int(word[0]) for word in oracle.words(key, high << 32 | low)] == want


def test_keys_are_those_of_jax() -> None:
    for seed, want in JAX["key"].items():
        key = random.key(int(seed), "threefry2x32")
        assert words(random.key_data(key)) == want
        assert words(random.key_data(random.split(key, 5))) == JAX["split"][seed]
    for asked, want in JAX["fold_in"].items():
        seed, number = map(int, asked.split())
        assert words(random.key_data(random.fold_in(random.key(seed, "threefry2x32"), number))) == want


@pytest.mark.parametrize(
    ("function", "asked"), [(f, asked) for f in ("bits", "uniform", "randint") for asked in JAX[f]]
)
def test_numbers_are_those_of_jax(function: str, asked: str) -> None:
    assert words(drawn(function, asked)) == JAX[function][asked]


def test_live() -> None:
    """Longer arrays, where JAX is installed: the extra `jax`."""
    jax = pytest.importorskip("jax", reason="JAX is not installed: pip install 'spmdx[jax]'")
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    try:
        theirs, shape = jax.random.key(JAX["seed"], impl="threefry2x32"), (37, 1001)
        for name in ("uint8", "uint16", "uint32", "uint64"):
            want = np.asarray(jax.random.bits(theirs, shape, name))
            assert random.bits(KEY, shape, dtype=name).numpy().tobytes() == want.tobytes()
        for name in ("float16", "bfloat16", "float32", "float64"):
            want = np.asarray(jax.random.uniform(theirs, shape, name))
            assert random.uniform(KEY, shape, dtype=kind(name)).numpy().tobytes() == want.tobytes()
        for name in ("int8", "uint16", "int32", "int64"):
            want = np.asarray(jax.random.randint(theirs, shape, 3, 77, name))
            assert random.randint(KEY, shape, 3, 77, dtype=name).numpy().tobytes() == want.tobytes()
    finally:
        jax.config.update("jax_enable_x64", before)


@pytest.mark.parametrize("sizes", [(2,), (3,), (2, 2)])
@pytest.mark.parametrize("shape", [(), (0,), (7,), (6, 5)])
def test_wherever_the_pieces_lie(shape: tuple[int, ...], sizes: tuple[int, ...]) -> None:
    mesh = simulated(*sizes)
    draws: list[Any] = [
        lambda **where: random.bits(KEY, shape, dtype=np.uint16, **where),
        lambda **where: random.uniform(KEY, shape, dtype=np.float64, **where),
        lambda **where: random.randint(KEY, shape, -4, 9, **where),
        lambda **where: random.bernoulli(KEY, shape, 0.3, **where),
    ]
    for draw in draws:
        want = draw().numpy()
        for spec in specs(mesh, shape, ops=("sum",)):
            got = draw(mesh=mesh, placement=spec.placement)
            assert assembled(got.spec, got._block).tobytes() == want.tobytes(), spec


BLOCKS: dict[str, tuple[tuple[int, ...], Any]] = {
    "long": ((70_000,), ([(3, 61_234)],)),
    "rows": ((40, 1501), ([(1, 39)], [(7, 1500)])),
    "short rows": ((4000, 3), ([(5, 3999)], [(1, 3)])),
    "interleaved": ((9, 24, 5), ([(1, 2), (4, 9)], [(1, 3), (9, 11), (17, 19)], [(0, 5)])),
    "carry": ((2**40,), ([(2**32 - 300, 2**32 + 300)],)),
    "far end": ((2**40,), ([(2**40 - 70, 2**40)],)),
}
RANGES = {
    "int8": [(-100, 100), (-128, 128), (3, 4)],
    "uint16": [(0, 1000), (0, 2**16)],
    "int32": [(-7, 9), (0, 2**16), (0, 3 * 2**29 + 1), (-(2**31), 2**31), (-(2**31), 2**31 - 1)],
    "uint32": [(5, 2**32), (0, 2)],
    "int64": [(0, 100), (-(2**62), 2**62 + 12345), (0, 2**40), (-(2**63), 2**63), (0, 3), (9, 10)],
    "uint64": [(1, 2**64), (0, 2**63 + 1)],
}


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("build", kernels.instruction_sets())
def test_blocks(name: str, build: str) -> None:
    """Every dtype and block, from every instruction set, against the second implementation; and with more threads."""
    shape, pieces = BLOCKS[name]
    steps = [int(np.prod(shape[d + 1 :], dtype=np.int64)) for d in range(len(shape))]
    index = np.zeros((), np.uint64)
    for p, step in zip(pieces, steps):
        index = np.add.outer(index, np.concatenate([np.arange(a, b, dtype=np.uint64) for a, b in p]) * np.uint64(step))
    before, threads = kernels.instruction_set(), kernels.threads()
    try:
        kernels.set_instruction_set(build)
        for count in (1, 3):
            kernels.set_threads(count)
            for width in (8, 16, 32, 64):
                got = kernels.bits(KEY.words, shape, pieces, np.dtype(f"u{width // 8}"))
                assert got.tobytes() == oracle.bits(KEY.words, index, width).tobytes(), width
            for dtype in oracle.MANTISSA:
                got = kernels.uniform(KEY.words, shape, pieces, dtype)
                assert got.tobytes() == oracle.uniform(KEY.words, index, dtype).tobytes(), dtype
            for kind_, ranges in RANGES.items():
                for low, high in ranges:
                    got = kernels.randint(KEY.words, shape, pieces, np.dtype(kind_), low, high)
                    want = oracle.randint(KEY.words, index, np.dtype(kind_), low, high)
                    assert got.tobytes() == want.tobytes(), (kind_, low, high)
    finally:
        kernels.set_instruction_set(before)
        kernels.set_threads(threads)


def test_every_divisor() -> None:
    """Remainders without a division: small spans, powers of two and their neighbours, in 32 and 64 bits."""
    index = np.arange(64)
    for kind_, width in (("uint32", 32), ("uint64", 64)):
        spans = {*range(1, 70), *(2**e + d for e in range(2, width) for d in (-1, 0, 1)), 2**width - 1}
        for span in sorted(spans):
            got = kernels.randint(KEY.words, (64,), [[(0, 64)]], np.dtype(kind_), 0, span)
            assert np.array_equal(got, oracle.randint(KEY.words, index, np.dtype(kind_), 0, span)), span


def test_bounds_that_are_arrays() -> None:
    """The same integers, and the same bernoulli, as from numbers."""
    for name, ranges in RANGES.items():
        for low, high in ranges:
            if high > np.iinfo(name).max:
                continue
            want = random.randint(KEY, (90,), low, high, dtype=name).numpy()
            ends = (np.full(90, v, kind(name)) for v in (low, high))
            assert random.randint(KEY, (90,), *ends, dtype=name).numpy().tobytes() == want.tobytes(), (name, low, high)
    for p in (0.3, 2.0**-24):
        want = random.bernoulli(KEY, (999,), p).numpy()
        assert np.array_equal(random.bernoulli(KEY, (999,), np.full(999, p)).numpy(), want)


def test_bounds() -> None:
    """Close: u * (high - low) + low, in the dtype; never high itself."""
    for name in ("float16", "bfloat16", "float32", "float64"):
        u = random.uniform(KEY, (500,), dtype=kind(name)).numpy().astype(np.float64)
        got = random.uniform(KEY, (500,), low=-3.0, high=5.0, dtype=kind(name)).numpy().astype(np.float64)
        assert np.abs(got - (u * 8 - 3)).max() <= 8 * float(ml_dtypes.finfo(kind(name)).eps)
        assert (got < 5).all() and (got >= -3).all()


def test_bernoulli() -> None:
    """Our formula on its words; close to the binomial's mean by 5 deviations."""
    x = random.bits(KEY, (9999,)).numpy()
    got = random.bernoulli(KEY, (9999,), 0.3).numpy()
    assert np.array_equal(got, (x >> np.uint32(8)).astype(np.float32) * np.float32(2**-24) < np.float32(0.3))
    assert abs(got.mean() - 0.3) < 5 * (0.21 / 9999) ** 0.5


def test_errors() -> None:
    with pytest.raises(sx.errors.ArgumentError, match=r"2\*\*32 - 1 \(threefry2x32\)[\s\S]*fold_in\(key, 5\)"):
        random.fold_in(KEY, 2**32 + 5)
    with pytest.raises(sx.errors.ArgumentError, match=r"philox4x32 and threefry2x32 keys[\s\S]*key\(seed, impl="):
        random.normal(random.Key((1, 2), "rbg"), (3,))
    with pytest.raises(sx.errors.ArgumentError, match=r"no generator 'rbg'"):
        random.key(0, "rbg")
