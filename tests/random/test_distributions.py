"""Exact: every distribution and dtype on simulated meshes in every placement against the array of one rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from every_draw import CLOSE, DRAWS, EVENTS, FLOATS, Draw
from placements import simulated, specs

import spmdx as sx
from spmdx import context, debug, random
from spmdx.errors import ArgumentError, DtypeError, GradientError, ImpliedMoveError, ShapeError
from spmdx.mesh import Mesh
from spmdx.placement import Partial, Shard

KEY = random.fold_in(random.key(-7), 3)
SHAPES = [(), (0,), (7,), (3, 5), (4, 0), (2, 3, 5)]
MESHES = [(2,), (3,), (4,), (2, 2), (2, 2, 2)]
EACH = [pytest.param(d, t, id=f"{d} {np.dtype(t)}") for d in (*DRAWS, *EVENTS) for t in d.dtypes]


def placements(shape: tuple[int, ...], dtype: Any, most: int) -> Iterator[tuple[Any, Any]]:
    """Meshes and placements, at most so many of each mesh, evenly out of all that there are."""
    for sizes in MESHES:
        mesh = simulated(*sizes)
        every = specs(mesh, shape, dtype)
        step = max(1, len(every) // most)
        start = (len(shape) + sizes[0]) % step
        for spec in every[start::step][:most]:
            yield mesh, spec.placement


def check(draw: Draw, dtype: Any, shape: tuple[int, ...], most: int) -> None:
    want = draw(KEY, shape, dtype=dtype).numpy()
    assert want.shape == shape + draw.event
    assert want.dtype == dtype
    for mesh, placement in placements(want.shape, dtype, most):
        got = draw(KEY, shape, dtype=dtype, mesh=mesh, placement=placement)
        assert got.numpy().tobytes() == want.tobytes(), (mesh, placement)


@pytest.mark.parametrize(("draw", "dtype"), EACH)
def test_placements(draw: Draw, dtype: Any) -> None:
    for shape in SHAPES:
        check(draw, dtype, shape, 1)


@pytest.mark.slow
@pytest.mark.parametrize(("draw", "dtype"), EACH)
def test_many_placements(draw: Draw, dtype: Any) -> None:
    for shape in SHAPES:
        check(draw, dtype, shape, 60)


@pytest.mark.parametrize("draw", CLOSE, ids=str)
def test_close_events(draw: Draw) -> None:
    """Close: through matrix products and LAPACK, within a few units of the last place."""
    for dtype in draw.dtypes:
        want = draw(KEY, (3, 4), dtype=dtype).numpy()
        for mesh, placement in placements(want.shape, dtype, 4):
            got = draw(KEY, (3, 4), dtype=dtype, mesh=mesh, placement=placement).numpy()
            assert np.abs(got - want).max() < 50 * np.finfo(dtype).eps


def test_events_do_not_communicate() -> None:
    """A divided event dimension: each rank keeps its part of what it computed."""
    mesh = simulated(2, 2)
    with debug.explicit(), debug.trace() as moves:
        for draw in (*EVENTS, *CLOSE):
            draw(KEY, (4,), mesh=mesh, placement={"a": Shard(0), "b": Shard(-1)})
    assert not list(moves)


def cut(draw: Draw, n: int, start: int, stop: int) -> Any:
    """Elements of a virtual array of n elements: what the middle one of three ranks makes, and nobody else."""
    mesh = Mesh(("a",), (3,))
    with context.use(rank=1):
        placement = {"a": Shard(0, sizes=(start, stop - start, n - stop))}
        return draw(KEY, n, dtype=draw.dtypes[-1], mesh=mesh, placement=placement).block


LAST = [pytest.param(d, id=str(d)) for d in DRAWS]


@pytest.mark.parametrize("draw", LAST)
def test_ten_million_in_seven(draw: Draw) -> None:
    """10**7 elements over seven ranks: both sides of every edge between blocks are what one block has there."""
    n, ways = 10**7, 7
    sizes = [n // ways + (c < n % ways) for c in range(ways)]
    for c in range(1, ways):
        at = sum(sizes[:c])
        both = np.concatenate([cut(draw, n, at - 70, at), cut(draw, n, at, at + 60)])
        assert both.tobytes() == cut(draw, n, at - 70, at + 60).tobytes()


@pytest.mark.parametrize("name", ["uniform", "normal", "gamma"])
def test_all_of_ten_million_in_seven(name: str) -> None:
    """Every element of the array, for three of them."""
    draw = Draw(name, (1.5,) if name == "gamma" else ())
    n = 10**6 if name == "gamma" else 10**7
    whole = draw(KEY, n, dtype=np.float32).numpy()
    blocks = draw(KEY, n, dtype=np.float32, mesh=simulated(7), placement={"a": Shard(0)}).block
    assert [len(b) for b in blocks] == [n // 7 + (c < n % 7) for c in range(7)]
    assert np.concatenate(blocks).tobytes() == whole.tobytes()


@pytest.mark.parametrize("draw", LAST)
def test_far_end(draw: Draw) -> None:
    """The last elements of an array of 2**40 (and some), whatever block they are cut in."""
    n = 2**40 + 13
    far = cut(draw, n, n - 301, n)
    for k in (1, 2, 5, 64, 131):
        assert cut(draw, n, n - k, n).tobytes() == far[-k:].tobytes()
    assert far.tobytes() != draw(KEY, 301, dtype=draw.dtypes[-1]).numpy().tobytes()


# Parameters that are arrays

MESH = simulated(2, 3)
ROW, COLUMN = np.linspace(0.2, 3, 12), np.linspace(0.3, 2, 7)[:, None]
WITH_ARRAYS: dict[str, tuple[Any, ...]] = {
    "uniform": (-ROW, COLUMN),
    "normal": (ROW, COLUMN),
    "randint": (np.arange(12, dtype=np.int8), np.arange(20, 27, dtype=np.int8)[:, None]),
    "bernoulli": (ROW / 3,),
    "exponential": (ROW,),
    "laplace": (ROW, COLUMN),
    "logistic": (COLUMN, ROW),
    "cauchy": (COLUMN, ROW),
    "gumbel": (0.0, COLUMN),
    "rayleigh": (COLUMN,),
    "truncated_normal": (-ROW, COLUMN),
    "lognormal": (ROW, COLUMN),
    "weibull": (COLUMN, ROW),
    "pareto": (ROW,),
    "gamma": (COLUMN, ROW),
    "beta": (COLUMN, ROW),
    "chisquare": (ROW,),
    "t": (ROW,),
    "poisson": (ROW * 9,),
    "binomial": (np.arange(40, 47)[:, None], ROW / 3),
    "geometric": (ROW / 3,),
}
INTEGERS = ("randint", "poisson", "binomial", "geometric")
PLACED: list[Any] = [
    None,
    {},
    {"a": Shard(0)},
    {"a": Shard(1), "b": Shard(1)},
    {"b": Shard(0, sizes=(0, 6, 1)), "a": Shard(1, interleave=3)},
    {"a": Partial("sum"), "b": Shard(1)},
    {"a": Partial("max")},
]


@pytest.mark.parametrize("name", WITH_ARRAYS)
def test_parameters_of_any_placement(name: str) -> None:
    """The value does not depend on where the result or the parameters lie; divided parameters give their division."""
    function, host = getattr(random, name), WITH_ARRAYS[name]
    kinds = [np.int64, np.int8] if name in INTEGERS else [bool] if name == "bernoulli" else FLOATS
    for dtype in kinds:
        want = function(KEY, (7, 12), *host, dtype=dtype).numpy()
        for where in ({"b": Shard(-1)}, {"a": Shard(-1, sizes=(5, 7))}, {"b": Partial("sum")}):
            row = [
                sx.asarray(v, mesh=MESH, placement=where) if np.ndim(v) == 1 else sx.asarray(v, mesh=MESH) for v in host
            ]
            for placement in PLACED:
                got = function(KEY, (7, 12), *row, dtype=dtype, placement=placement)
                assert got.numpy().tobytes() == want.tobytes(), (where, placement)
                for axis, p in (placement or {}).items():
                    assert got.placement[axis] == p
            if any(np.ndim(v) == 1 for v in host) and "b" in where and where["b"] == Shard(-1):
                assert function(KEY, (7, 12), *row, dtype=dtype).placement["b"] == Shard(1)


@pytest.mark.parametrize("name", WITH_ARRAYS)
def test_numbers_and_arrays_agree(name: str) -> None:
    numbers = [np.ravel(v)[2].item() if np.ndim(v) else v for v in WITH_ARRAYS[name]]
    full = [np.full((5, 6), v) for v in numbers]
    for dtype in [np.int64] if name in INTEGERS else [bool] if name == "bernoulli" else FLOATS:
        one = getattr(random, name)(KEY, (5, 6), *numbers, dtype=dtype).numpy()
        assert one.tobytes() == getattr(random, name)(KEY, (5, 6), *full, dtype=dtype).numpy().tobytes()


def test_parameters_move_as_they_are() -> None:
    """Not broadcast first: a row that is gathered sends its own elements."""
    row = sx.asarray(np.ones(6), mesh=MESH, placement={"b": Shard(0)})
    with debug.trace() as moves:
        random.normal(KEY, (500, 6), 0.0, row, placement={"b": Shard(0)})
    assert sum(m.bytes for m in moves) <= 6 * 8
    with debug.explicit(), pytest.raises(ImpliedMoveError, match=r"scale\.redistribute"):
        random.normal(KEY, (500, 6), 0.0, row, placement={"b": Shard(0)})


def test_gradients() -> None:
    """loc and scale have gradients; parameters of shape say that they have none."""
    z = random.normal(KEY, (4, 3)).numpy()
    scale = sx.asarray(np.array([1.0, 2.0, 3.0]))
    got = sx.grad(lambda s: (random.normal(KEY, (4, 3), 1.0, s) ** 2).sum())(scale)
    assert np.allclose(got.numpy(), (2 * (1 + z * scale.numpy()) * z).sum(0), rtol=1e-12)
    for function in (random.gamma, random.poisson, random.chisquare):
        with pytest.raises(GradientError, match="stop_gradient"):
            sx.grad(lambda a, f=function: f(KEY, (3,), a).sum())(scale)
    got = sx.grad(lambda a: (a * random.gamma(KEY, (3,), sx.stop_gradient(a))).sum())(scale)
    assert got.numpy().tobytes() == random.gamma(KEY, (3,), scale).numpy().tobytes()


def test_threefry_keys_draw_everything() -> None:
    """Our formulas on its words: the same for every placement, and other values than Philox's."""
    key = random.key(5, "threefry2x32")
    for draw in (*DRAWS, *EVENTS):
        dtype = draw.dtypes[-1]
        want = draw(key, (3, 5), dtype=dtype).numpy()
        got = draw(key, (3, 5), dtype=dtype, mesh=MESH, placement={"a": Shard(0), "b": Shard(1)}).numpy()
        assert got.tobytes() == want.tobytes(), draw
        assert want.tobytes() != draw(random.key(5), (3, 5), dtype=dtype).numpy().tobytes(), draw


NEGATIVE = sx.asarray(np.array([1.0, -0.5, 2.0]))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: random.normal(KEY, 3, 0.0, -1.0), ArgumentError, "not negative; got scale=-1.0"),
        (lambda: random.normal(KEY, 3, 0.0, NEGATIVE), ArgumentError, "an element is -0.5"),
        (lambda: random.normal(KEY, 3, np.nan), ArgumentError, "loc is a finite number"),
        (lambda: random.laplace(KEY, 3, 0.0, 1e300, dtype=np.float32), ArgumentError, "not finite in float32"),
        (lambda: random.laplace(KEY, 3, "a"), DtypeError, "loc is a number"),
        (lambda: random.laplace(KEY, 3, dtype=np.int32), DtypeError, "laplace gives float16"),
        (lambda: random.laplace(KEY, 3, dtype=np.complex64), DtypeError, "laplace gives float16"),
        (lambda: random.normal(KEY, 3, np.ones(2)), ShapeError, r"shape \(2,\) does not broadcast to \(3,\)"),
        (lambda: random.normal(KEY, 3, np.ones((1, 3))), ShapeError, "does not broadcast"),
        (lambda: random.uniform(KEY, 3, np.zeros(3), np.zeros(3)), ArgumentError, "low < high in every element"),
        (lambda: random.randint(KEY, 3, np.zeros(3, int), 0), ArgumentError, "low < high in every element"),
        (lambda: random.randint(KEY, 3, np.zeros(3), 5), DtypeError, "low is an integer"),
        (lambda: random.truncated_normal(KEY, 3, 2.0, 2.0), ArgumentError, "lower < upper"),
        (lambda: random.gamma(KEY, 3, -1.0), ArgumentError, "alpha is finite and not negative"),
        (lambda: random.beta(KEY, 3, 0.0, 1.0), ArgumentError, "a is finite and above 0"),
        (lambda: random.weibull(KEY, 3, np.inf), ArgumentError, "a is finite and above 0"),
        (lambda: random.bernoulli(KEY, 3, np.array([0.5, 0.5, 1.5])), ArgumentError, "an element is 1.5"),
        (lambda: random.geometric(KEY, 3, 0.0), ArgumentError, "a probability above 0"),
        (lambda: random.poisson(KEY, 3, 1e30), ArgumentError, r"from 0 to 2\*\*60"),
        (lambda: random.poisson(KEY, 3, dtype=float), DtypeError, "poisson gives integers"),
        (lambda: random.binomial(KEY, 3, 2.5), ArgumentError, "n is a whole number"),
        (lambda: random.rademacher(KEY, 3, dtype=np.uint8), DtypeError, "does not hold"),
        (lambda: random.dirichlet(KEY, 3, 1.0), ShapeError, "a vector"),
        (lambda: random.dirichlet(KEY, 3, [1.0, 0.0]), ArgumentError, "alpha is finite and above 0"),
        (lambda: random.multivariate_normal(KEY, 3, [0.0, 0.0], np.eye(3)), ShapeError, "does not broadcast"),
        (lambda: random.multivariate_normal(KEY, 3, 0.0, [[1.0, 2.0], [2.0, 1.0]]), ArgumentError, "positive definite"),
        (lambda: random.multivariate_normal(KEY, 3, 0.0, [[1.0, 2.0], [0.0, 1.0]]), ArgumentError, "symmetric"),
        (lambda: random.multivariate_normal(KEY, 3, 0.0, np.ones(3)), ShapeError, "n by n"),
        (lambda: random.randint(KEY, 1, 0, np.zeros(1, np.uint8), dtype=np.uint8), ArgumentError, "low < high"),
        (lambda: random.randint(KEY, 1, 0, sx.zeros(1, np.uint8), dtype=np.uint8), ArgumentError, "low < high"),
        (lambda: random.uniform(KEY, 3, 0.0, np.inf), ArgumentError, r"Write high=low \+ 1\.0"),
        (lambda: random.uniform(KEY, 3, -np.inf, -5.0), ArgumentError, r"Write low=0\.0, high=1\.0"),
        (lambda: random.truncated_normal(KEY, 3, 2.0, np.nan), ArgumentError, r"Write lower=-2\.0, upper=2\.0"),
        (lambda: random.normal(KEY, 3, 10**400), ArgumentError, "loc is beyond the numbers of float64"),
        (lambda: random.normal(KEY, 2, [[1.0], [2.0, 3.0]]), ShapeError, "different lengths"),
        (lambda: random.ball(KEY, 3, 2.5), DtypeError, "d is a whole number"),
        (lambda: random.ball(KEY, 3, 2, 0.0), ArgumentError, "p is finite and above 0"),
        (lambda: random.gamma(KEY, (2**40, 2**40), 1.0), ShapeError, r"2\*\*63"),
    ],
)
def test_errors(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
