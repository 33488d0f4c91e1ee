"""Exact: threefry2x32 against Random123's published answers, and against JAX's numbers, recorded and live."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from placements import assembled, simulated, specs

import spmdx as sx
from spmdx import random
from spmdx.random import threefry

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
    counter, key, want = numbers[:2], numbers[2:4], numbers[4:]
    a, b = threefry.hash_counters((key[0], key[1]), *(np.array([c], np.uint32) for c in counter))
    assert [int(a[0]), int(b[0])] == want
    assert list(threefry.hash_counter((key[0], key[1]), counter[0], counter[1])) == want


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


def test_tiles() -> None:
    """Rows longer and shorter than a tile, and blocks far out: what the same elements of the whole array are."""
    words_, kind_ = KEY.words, np.dtype(np.uint64)
    for shape, cut in ([(3, 40_001), (7, 40_000)], [(40_000, 3), (1, 3)], [(5, 300, 100), (3, 99)]):
        whole = threefry.bits(words_, shape, [[(0, n)] for n in shape], kind_)
        part = threefry.bits(words_, shape, [*([(0, n)] for n in shape[:-1]), [cut]], kind_)
        assert np.array_equal(part, whole[..., cut[0] : cut[1]])
    far = 2**33 + 5
    got = threefry.bits(words_, (2**40,), [[(far, far + 3)]], kind_)
    a, b = threefry.hash_counters(words_, np.full(3, 2, np.uint32), np.arange(5, 8, dtype=np.uint32))
    assert np.array_equal(got, a.astype(np.uint64) << np.uint64(32) | b)


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
