"""Quality, at fixed keys: every distribution against SciPy's, bits by a battery, neighbouring keys against each other.

A test of a true hypothesis gives a p-value spread evenly over [0, 1]. There are some hundred here and the keys are
fixed, so that a p below 1e-5 means that something is wrong. The battery for bits: frequency of each bit position,
serial correlation of bits up to lag 64, frequency of bytes and of pairs of bytes, gaps, runs up, rank of 32x32 binary
matrices, birthday spacings, collisions.
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from scipy import special, stats

from spmdx import random

N = 100_000
LEAST = 1e-5
CONTINUOUS: list[tuple[str, tuple[float, ...], Any]] = [
    ("uniform", (), stats.uniform()),
    ("uniform", (-1.0, 3.0), stats.uniform(-1, 4)),
    ("normal", (), stats.norm()),
    ("normal", (3.0, 0.5), stats.norm(3, 0.5)),
    ("exponential", (2.0,), stats.expon(scale=2)),
    ("laplace", (1.0, 2.0), stats.laplace(1, 2)),
    ("logistic", (1.0, 2.0), stats.logistic(1, 2)),
    ("cauchy", (1.0, 2.0), stats.cauchy(1, 2)),
    ("gumbel", (1.0, 2.0), stats.gumbel_r(1, 2)),
    ("rayleigh", (2.0,), stats.rayleigh(scale=2)),
    ("truncated_normal", (), stats.truncnorm(-2, 2)),
    ("truncated_normal", (3.0, 9.0), stats.truncnorm(3, 9)),
    ("truncated_normal", (-30.0, 0.5), stats.truncnorm(-30, 0.5)),
    ("lognormal", (0.5, 0.7), stats.lognorm(0.7, scale=math.exp(0.5))),
    ("weibull", (1.7, 3.0), stats.weibull_min(1.7, scale=3)),
    ("weibull", (0.4,), stats.weibull_min(0.4)),
    ("pareto", (2.5,), stats.pareto(2.5)),
    *(("gamma", (a,), stats.gamma(a)) for a in (0.1, 1.0, 3.3, 500.0)),
    *(("beta", (a, b), stats.beta(a, b)) for a, b in ((0.5, 0.5), (2.0, 5.0), (0.05, 3.0))),
    ("chisquare", (3.0,), stats.chi2(3)),
    ("t", (4.0,), stats.t(4)),
]
DISCRETE: list[tuple[str, tuple[float, ...], Any]] = [
    *(("poisson", (m,), stats.poisson(m)) for m in (0.3, 4.0, 9.99, 10.0, 12.5, 80.0, 900.0)),
    *(
        ("binomial", (n, p), stats.binom(n, p))
        for n, p in ((1, 0.3), (9, 0.9), (19, 0.5), (20, 0.51), (100, 0.1), (300, 0.8), (5000, 0.3))
    ),
    *(("geometric", (p,), stats.geom(p)) for p in (0.02, 0.5, 0.9)),
    ("randint", (-3, 18), stats.randint(-3, 18)),
]


def shown(value: Any) -> str:
    return str(value) if type(value) in (str, tuple) else ""


def chisquare(seen: Any, expected: Any) -> float:
    """The p-value of counts, those of rare kinds put together."""
    seen, expected = np.ravel(seen).astype(float), np.ravel(expected).astype(float)
    order = np.argsort(expected)
    seen, expected = seen[order], expected[order]
    rare = int(np.searchsorted(np.cumsum(expected), 10)) + 1 if expected[0] < 10 else 1
    s = np.concatenate([[seen[:rare].sum()], seen[rare:]])
    e = np.concatenate([[expected[:rare].sum()], expected[rare:]])
    return float(stats.chi2.sf(((s - e) ** 2 / e).sum(), max(1, len(s) - 1)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("name", "arguments", "true"), CONTINUOUS, ids=lambda v: str(v) if type(v) in (str, tuple) else ""
)
def test_continuous(name: str, arguments: tuple[float, ...], true: Any, dtype: Any) -> None:
    x = getattr(random, name)(random.key(11), N, *arguments, dtype=dtype).numpy().astype(np.float64)
    assert stats.kstest(x, true.cdf).pvalue > LEAST
    tail = true.isf(100 / N), true.ppf(100 / N)
    underflows = 0 < tail[1] < 1e-30  # in float32
    for count in ((x > tail[0]).sum(), *(() if underflows else [(x < tail[1]).sum()])):
        assert stats.binomtest(int(count), N, 100 / N).pvalue > LEAST


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", ["normal", "exponential", "laplace", "gumbel"])
def test_narrow_floats_are_float32_rounded(name: str, dtype: Any) -> None:
    wide = getattr(random, name)(random.key(11), 5000, dtype=np.float32).numpy()
    assert getattr(random, name)(random.key(11), 5000, dtype=dtype).numpy().tobytes() == wide.astype(dtype).tobytes()


@pytest.mark.parametrize(
    ("name", "arguments", "true"), DISCRETE, ids=lambda v: str(v) if type(v) in (str, tuple) else ""
)
def test_discrete(name: str, arguments: tuple[float, ...], true: Any) -> None:
    x = getattr(random, name)(random.key(12), N, *arguments).numpy()
    low, high = int(min(x.min(), true.ppf(1e-6))), int(max(x.max(), true.isf(1e-6)))
    kinds = np.arange(low, high + 1)
    assert chisquare(np.bincount(x - low, minlength=len(kinds)), true.pmf(kinds) * N) > LEAST


def test_chances() -> None:
    for p in (0.01, 0.3, 0.999):
        assert stats.binomtest(int(random.bernoulli(random.key(1), N, p).numpy().sum()), N, p).pvalue > LEAST
    assert stats.binomtest(int((random.rademacher(random.key(1), N).numpy() > 0).sum()), N).pvalue > LEAST


def test_large_counts() -> None:
    """Means whose probabilities no table holds: by the distribution function of a number spread over its step."""
    spread = np.random.default_rng(0).random(N)
    for x, true in (
        (random.poisson(random.key(3), N, 1e9).numpy(), stats.poisson(1e9)),
        (random.binomial(random.key(3), N, 10**9, 0.3).numpy(), stats.binom(10**9, 0.3)),
    ):
        u = true.cdf(x - 1) + spread * true.pmf(x)
        assert stats.kstest(u, "uniform").pvalue > LEAST


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_complex_normal(dtype: Any) -> None:
    z = random.normal(random.key(4), N, dtype=dtype).numpy()
    for x in (z.real * math.sqrt(2), z.imag * math.sqrt(2)):
        assert stats.kstest(x.astype(float), "norm").pvalue > LEAST
    assert abs(np.corrcoef(z.real, z.imag)[0, 1]) < 5 / math.sqrt(N)
    assert stats.kstest(np.angle(z).astype(float) / (2 * math.pi) + 0.5, "uniform").pvalue > LEAST


def test_events() -> None:
    alpha = np.array([0.3, 1.0, 2.5])
    x = random.dirichlet(random.key(5), 20_000, alpha).numpy()
    assert np.abs(x.sum(-1) - 1).max() < 1e-15 * 4
    for j in range(3):
        assert stats.kstest(x[:, j], stats.beta(alpha[j], alpha.sum() - alpha[j]).cdf).pvalue > LEAST
    mean, cov = np.array([1.0, -2.0]), np.array([[2.0, 0.8], [0.8, 1.0]])
    y = random.multivariate_normal(random.key(5), 20_000, mean, cov).numpy()
    whitened = np.linalg.solve(np.linalg.cholesky(cov), (y - mean).T)
    assert stats.kstest((whitened**2).sum(0), stats.chi2(2).cdf).pvalue > LEAST
    assert abs(np.corrcoef(whitened)[0, 1]) < 5 / math.sqrt(20_000)
    for p in (1.0, 2.0, 5.0):
        b = random.ball(random.key(5), 20_000, 3, p).numpy()
        radius = (np.abs(b) ** p).sum(-1) ** (1 / p)
        assert stats.kstest(radius**3, "uniform").pvalue > LEAST
    q = random.orthogonal(random.key(5), 5000, 3).numpy()
    assert np.abs(q.mT @ q - np.eye(3)).max() < 1e-14
    assert stats.kstest(q[:, 1, 2], "uniform", (-1, 2)).pvalue > LEAST  # a coordinate of a point of the sphere
    assert stats.binomtest(int((np.linalg.det(q) > 0).sum()), 5000).pvalue > LEAST


# Keys


def words(key: random.Key, n: int = 4096) -> Any:
    return random.bits(key, n, dtype=np.uint64).numpy()


@pytest.mark.parametrize("impl", ["philox4x32", "threefry2x32"])
def test_neighbouring_keys(impl: str) -> None:
    """Streams of neighbouring seeds, folds, splits, and of a key and its children: half of the bits differ.

    The folds are none that a split gives: with Threefry, split(key)[j] is fold_in(key, j), as in JAX.
    """
    root = random.key(9, impl)
    folds = [random.fold_in(root, i) for i in range(100, 140)]
    seeds = [random.key(s, impl) for s in (0, 1, 2, 3, 2**31, 2**32 - 1)]
    keys = [root, *seeds, *folds, *random.split(root, 40), *random.split(folds[0], 4), random.fold_in(folds[0], 99)]
    streams = np.stack([words(k, 512) for k in keys])
    bits = np.unpackbits(streams.view(np.uint8), axis=1).astype(np.float64) - 0.5
    total = bits.shape[1]
    together = bits @ bits.T * 4 / math.sqrt(total)  # normal for independent streams
    scores = together[np.triu_indices(len(keys), 1)]
    assert stats.kstest(scores, "norm").pvalue > LEAST
    assert np.abs(scores).max() < 5.5
    normals = np.stack([random.normal(k, 2000).numpy() for k in keys])
    corr = np.corrcoef(normals)[np.triu_indices(len(keys), 1)] * math.sqrt(2000)
    assert np.abs(corr).max() < 5.5


def test_first_values_of_many_keys() -> None:
    """One value of each of many keys is as good a sample as many values of one key."""
    for children in (random.split(random.key(1), 5000), [random.key(s) for s in range(5000)]):
        x = np.array([random.uniform(k, ()).numpy() for k in children])
        assert stats.kstest(x, "uniform").pvalue > LEAST
        assert abs(np.corrcoef(x[1:], x[:-1])[0, 1]) < 5 / math.sqrt(5000)


def test_streams_of_elements() -> None:
    """Neighbouring elements of what has a stream for each are independent."""
    x = special.ndtri(stats.gamma(0.7).cdf(random.gamma(random.key(6), N, 0.7).numpy()))
    for lag in (1, 2, 4, 64):
        assert abs(np.corrcoef(x[lag:], x[:-lag])[0, 1]) < 5 / math.sqrt(N)


# A battery for bits


@pytest.fixture(scope="module", params=["philox4x32", "threefry2x32"])
def stream(request: pytest.FixtureRequest) -> Any:
    return random.bits(random.key(2024, request.param), 2**19).numpy()


def test_bits_and_their_lags(stream: Any) -> None:
    n = len(stream)
    for bit in range(32):
        ones = int((stream >> np.uint32(bit) & np.uint32(1)).sum())
        assert stats.binomtest(ones, n).pvalue > LEAST
    for lag in range(1, 65):
        same = int(np.bitwise_count(~(stream[lag:] ^ stream[:-lag])).sum())
        assert abs(same - 16 * (n - lag)) < 5 * math.sqrt(8 * (n - lag))


def test_bytes(stream: Any) -> None:
    data = stream.view(np.uint8)
    assert chisquare(np.bincount(data, minlength=256), np.full(256, len(data) / 256)) > LEAST
    pairs = stream.view(np.uint16)
    assert chisquare(np.bincount(pairs, minlength=2**16), np.full(2**16, len(pairs) / 2**16)) > LEAST


def test_gaps_and_runs(stream: Any) -> None:
    u = stream / 2.0**32
    gaps = np.diff(np.flatnonzero(u < 0.125)) - 1
    most = 60
    expected = np.append(0.125 * 0.875 ** np.arange(most), 0.875**most) * len(gaps)
    assert chisquare(np.bincount(np.minimum(gaps, most), minlength=most + 1), expected) > LEAST
    runs: list[int] = []  # Knuth: the value after a run is thrown away, so that runs are independent
    i, n = 0, 100_000
    while i < n - 20:
        length = 1
        while u[i + length] > u[i + length - 1]:
            length += 1
        runs.append(min(length, 7))
        i += length + 1
    chance = np.array([1 / math.factorial(r) - 1 / math.factorial(r + 1) for r in range(1, 7)])
    expected = np.append(chance, 1 - chance.sum()) * len(runs)
    assert chisquare(np.bincount(runs, minlength=8)[1:], expected) > LEAST


def test_ranks_of_binary_matrices(stream: Any) -> None:
    rows = stream[: 32 * 4000].reshape(4000, 32).copy()
    rank = np.zeros(4000, int)
    for bit in range(32):  # elimination of all matrices at once
        has = rows >> np.uint32(bit) & np.uint32(1) == 1
        found = has.any(1)
        at = has.argmax(1)
        pivot = np.where(found, rows[np.arange(4000), at], 0).astype(np.uint32)
        rank += found
        rows ^= np.where(has, pivot[:, None], np.uint32(0))
    chance = [0.2887880951, 0.5775761902, 0.1283502644]  # of ranks 32, 31, 30 (Marsaglia and Tsay, 1985)
    seen = [(rank == 32).sum(), (rank == 31).sum(), (rank == 30).sum(), (rank < 30).sum()]
    assert chisquare(seen, np.array([*chance, 1 - sum(chance)]) * 4000) > LEAST


def test_birthdays_and_collisions(stream: Any) -> None:
    """Marsaglia's birthday spacings, 512 in a year of 2**24 days; and balls thrown into 2**26 urns."""
    days = np.sort(stream[: 512 * 1000].reshape(1000, 512) >> np.uint32(8), axis=1).astype(np.int64)
    spaces = np.sort(np.diff(days, axis=1), axis=1)
    equal = (np.diff(spaces, axis=1) == 0).sum(1)
    true = stats.poisson(512**3 / 2**26)
    kinds = np.arange(12)
    expected = np.append(true.pmf(kinds[:-1]), true.sf(10)) * 1000
    assert chisquare(np.bincount(np.minimum(equal, 11), minlength=12), expected) > LEAST
    balls = 2**17
    collisions = balls - len(np.unique(stream[:balls] >> np.uint32(6)))
    mean = balls - 2**26 * -math.expm1(balls * math.log1p(-(2.0**-26)))
    assert min(stats.poisson(mean).cdf(collisions), stats.poisson(mean).sf(collisions - 1)) > LEAST
