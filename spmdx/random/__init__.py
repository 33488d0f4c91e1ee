"""Random values that are the same for every mesh, placement, number of ranks and of threads, to the last bit."""

import typing as _typing

from spmdx.random.discrete import binomial, geometric, poisson, rademacher
from spmdx.random.distributions import beta, chisquare, gamma, lognormal, pareto, t, truncated_normal, weibull
from spmdx.random.draw import (
    bernoulli,
    bits,
    cauchy,
    exponential,
    gumbel,
    laplace,
    logistic,
    normal,
    randint,
    rayleigh,
    uniform,
)
from spmdx.random.events import ball, dirichlet, multivariate_normal, orthogonal
from spmdx.random.generator import Generator, default_rng
from spmdx.random.key import Key, clone, consume, fold_in, key, key_data, split, wrap_key_data
from spmdx.random.order import categorical, choice, permutation, shuffle

__all__ = [
    "Generator",
    "Key",
    "ball",
    "bernoulli",
    "beta",
    "binomial",
    "bits",
    "categorical",
    "cauchy",
    "chisquare",
    "choice",
    "clone",
    "consume",
    "default_rng",
    "dirichlet",
    "exponential",
    "fold_in",
    "gamma",
    "geometric",
    "gumbel",
    "key",
    "key_data",
    "laplace",
    "logistic",
    "lognormal",
    "multivariate_normal",
    "normal",
    "orthogonal",
    "pareto",
    "permutation",
    "poisson",
    "rademacher",
    "randint",
    "rayleigh",
    "shuffle",
    "split",
    "t",
    "truncated_normal",
    "uniform",
    "weibull",
    "wrap_key_data",
]


if not _typing.TYPE_CHECKING:

    def __getattr__(attribute):
        from spmdx.ops.missing import no_such_draw  # read only when somebody asks

        raise no_such_draw(attribute)
