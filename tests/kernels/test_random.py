"""Exact: the public functions, on simulated meshes with every kind of placement on thread ranks; their errors."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import philox_oracle as oracle
import pytest

from spmdx import debug, random
from spmdx.errors import ArgumentError, DtypeError, ShapeError
from spmdx.mesh import Mesh
from spmdx.placement import P, Partial, Shard
from spmdx.testing import spmd

KEY = random.fold_in(random.key(-7), 3)
MESH = Mesh(("a", "b"), (2, 3), None, "sim")
SHAPE = (7, 12)
PLACEMENTS: list[Any] = [
    {},
    {"a": Shard(0)},
    {"b": Shard(1), "a": Shard(0)},
    {"a": Shard(1), "b": Shard(1)},
    P(None, ("b", "a")),
    {"b": Shard(0, sizes=(0, 6, 1))},
    {"b": Shard(1, interleave=2), "a": Shard(0, sizes=(5, 2))},
    {"a": Partial("sum"), "b": Shard(1)},
    {"a": Partial("max")},
]
FUNCTIONS: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "bits": (random.bits, [np.uint8, np.uint16, np.uint32, np.uint64]),
    "uniform": (random.uniform, [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]),
    "normal": (random.normal, [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]),
    "randint": (lambda *a, **k: random.randint(*a, -5, 90, **k), [np.int8, np.int16, np.int32, np.int64]),
    "bernoulli": (lambda *a, **k: random.bernoulli(*a, 0.4, **k), [np.bool_, np.int32]),
}
EACH = [(name, dtype) for name, (_, dtypes) in FUNCTIONS.items() for dtype in dtypes]


@pytest.mark.parametrize(("name", "dtype"), EACH)
def test_placements(name: str, dtype: Any) -> None:
    """One global value for every placement."""
    function = FUNCTIONS[name][0]
    want = function(KEY, SHAPE, dtype=dtype).numpy()
    assert want.shape == SHAPE
    assert want.dtype == dtype
    for placement in PLACEMENTS:
        got = function(KEY, SHAPE, dtype=dtype, mesh=MESH, placement=placement)
        with debug.trace() as moves:
            value = got.numpy()
        assert value.tobytes() == want.tobytes(), placement
        assert moves or got.spec.replicated


def test_draws_do_not_communicate() -> None:
    with debug.explicit(), debug.trace() as moves:
        for function, dtypes in FUNCTIONS.values():
            function(KEY, SHAPE, dtype=dtypes[0], mesh=MESH, placement={"a": Shard(0), "b": Shard(1)})
    assert not list(moves)


def test_thread_ranks() -> None:
    want = random.normal(KEY, (5, 9)).numpy().tobytes()

    def program() -> bytes:
        mesh = Mesh(("world",), (3,))
        return bytes(random.normal(KEY, (5, 9), mesh=mesh, placement={"world": Shard(0)}).numpy().tobytes())

    assert spmd(3)(program)() == [want] * 3


def test_elements_are_the_contracts() -> None:
    x = random.uniform(KEY, (4, 5), low=-1.0, high=3.0, dtype=np.float32).numpy().reshape(-1)
    assert all(x[i] == oracle.uniform(KEY.words, i, np.float32, -1.0, 3.0) for i in range(20))
    n = random.randint(KEY, 6, -(2**63), 2**63).numpy()
    assert all(n[i] == oracle.randint(KEY.words, i, np.int64, -(2**63), 2**63) for i in range(6))


def test_defaults() -> None:
    assert random.bits(KEY, ()).dtype == np.uint32
    assert random.uniform(KEY, ()).dtype == np.float64
    assert random.normal(KEY, ()).dtype == np.float64
    assert random.randint(KEY, (), 0, 9).dtype == np.int64
    assert random.bernoulli(KEY, ()).dtype == np.bool_
    assert random.normal(KEY, 3).shape == (3,)
    assert random.normal(KEY, ()).numpy().shape == ()


def test_keys() -> None:
    """Words as the contract writes them."""
    assert random.key(5).words == (5, 0, 0, 0)
    assert random.key(2**40 + 1).words == (1, 256, 0, 0)
    assert random.key(-1).words == (2**32 - 1, 2**32 - 1, 0, 0)
    key = random.Key((1, 2, 3, 4))
    n = 2**62 + 9
    assert random.fold_in(key, n).words == oracle.philox((n % 2**32, n >> 32, 3 ^ oracle.MASK, 4 ^ oracle.MASK), (1, 2))
    parent = oracle.philox((0, 2**31, 3 ^ oracle.MASK, 4 ^ oracle.MASK), (1, 2))
    parts = random.split(key, 5)
    assert [part.words for part in parts] == [random.fold_in(random.Key(parent), j).words for j in range(5)]
    assert random.split(key) == parts[:2]
    assert random.split(key, 0) == ()
    assert random.fold_in(key, np.int32(7)) == random.fold_in(key, 7)
    assert len({part.words for part in random.split(key, 1000)}) == 1000


def test_keys_are_values() -> None:
    again = pickle.loads(pickle.dumps(KEY))
    assert again == KEY
    assert hash(again) == hash(KEY)
    assert copy.deepcopy(KEY) == KEY
    assert random.key(0) != KEY
    with pytest.raises(AttributeError):
        KEY.words = (0, 0, 0, 0)


def test_streams_do_not_meet() -> None:
    """Values of a key, of its children and of a key with another seed are different bits."""
    keys = [KEY, *random.split(KEY, 3), random.fold_in(KEY, 0), random.key(0), random.key(1)]
    seen = [random.bits(k, 64, dtype=np.uint64).numpy() for k in keys]
    assert len(set(np.concatenate(seen).tolist())) == 64 * len(keys)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: random.normal(3, (2,)), DtypeError, r"sx\.random\.key\(3\)"),
        (lambda: random.key(1.5), DtypeError, "seed=0"),
        (lambda: random.key(2**64), ArgumentError, "64 bits"),
        (lambda: random.key(0, impl="mt19937"), ArgumentError, 'impl="philox4x32"'),
        (lambda: random.fold_in(KEY, -1), ArgumentError, "from 0 to"),
        (lambda: random.fold_in(KEY, 2**63), ArgumentError, "from 0 to"),
        (lambda: random.split(KEY, -1), ArgumentError, r"split\(key, 2\)"),
        (lambda: random.bits(KEY, 3, dtype=np.int32), DtypeError, r"dtype=np\.uint32"),
        (lambda: random.uniform(KEY, 3, dtype=np.int32), DtypeError, r"dtype=np\.float32"),
        (lambda: random.normal(KEY, 3, dtype=np.int64), DtypeError, r"dtype=np\.float32"),
        (lambda: random.normal(KEY, 3, dtype=object), DtypeError, "dtype"),
        (lambda: random.uniform(KEY, 3, low=1.0, high=1.0), ArgumentError, "low < high"),
        (lambda: random.uniform(KEY, 3, low=float("nan")), ArgumentError, "finite number"),
        (lambda: random.uniform(KEY, 3, high=1e300, dtype=np.float32), ArgumentError, "not finite in float32"),
        (lambda: random.uniform(KEY, 3, low=-3e38, high=3e38, dtype=np.float32), ArgumentError, "too wide"),
        (lambda: random.uniform(KEY, 3, low="a"), DtypeError, "low is a number"),
        (
            lambda: random.uniform(KEY, 3, low=1.0, high=1.0 + 1e-9, dtype=np.float32),
            ArgumentError,
            "low < high in float32",
        ),
        (lambda: random.randint(KEY, 3, 5, 5), ArgumentError, "low=5, high=6"),
        (lambda: random.randint(KEY, 3, 0, 300, dtype=np.uint8), ArgumentError, "0 to 255"),
        (lambda: random.randint(KEY, 3, 0.5, 3), DtypeError, "low is an integer"),
        (lambda: random.randint(KEY, 3, 0, 3, dtype=np.float32), DtypeError, r"dtype=np\.int64"),
        (lambda: random.bernoulli(KEY, 3, 1.5), ArgumentError, "between 0 and 1"),
        (lambda: random.bernoulli(KEY, 3, float("nan")), ArgumentError, "between 0 and 1"),
        (lambda: random.bits(KEY, (2**40, 2**40)), ShapeError, r"2\*\*63"),
        (lambda: random.bits(KEY, (-1,)), ShapeError, "negative"),
    ],
)
def test_errors(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
