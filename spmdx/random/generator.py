"""The stateful face of random values: NumPy's Generator, by its names and arguments.

Call number c of ``default_rng(seed)`` draws with ``fold_in(key(seed), c)``. The state is the key and the call number,
the same on every rank as long as every rank makes the same calls; the values are those of the functions of
:mod:`spmdx.random`, so they are the same on every mesh.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from spmdx import context
from spmdx.array import Array
from spmdx.errors import ArgumentError, DtypeError
from spmdx.ops.place import asarray
from spmdx.ops.shape import common_shape, ravel, reshape
from spmdx.random import discrete, distributions, draw, events, order
from spmdx.random.key import PHILOX, Key, checked, fold_in, key, split

__all__ = ["Generator", "default_rng"]


def default_rng(seed: int | Key | Generator, impl: str = PHILOX) -> Generator:
    """A generator with NumPy's methods that draws the same values on every rank, mesh and placement.

    Args:
        seed: an integer of 64 bits, a key, or a generator, which is returned as it is. There is no default: a seed
            from the operating system would differ from rank to rank.
        impl: the generator of the key, for an integer.
    """
    if isinstance(seed, Generator):
        return seed
    if seed is None:
        raise ArgumentError("default_rng needs a seed: ranks have to draw the same values.", "default_rng(0)")
    return Generator(seed if isinstance(seed, Key) else key(seed, impl))


class Generator:
    """Draws by NumPy's names. Every method takes, besides NumPy's arguments, ``mesh``, ``placement`` and ``device``:
    where the result lies. ``size=None`` gives the shape that the parameters broadcast to: a 0-d array for numbers.

    Args:
        key: what call number c draws from, folded with c.
        calls: the number of the next call.
    """

    __slots__ = ("_calls", "_key")

    def __init__(self, key: Key, calls: int = 0) -> None:
        self.state = key, calls

    @property
    def state(self) -> tuple[Key, int]:
        """The key and the number of the next call. Setting it goes back (or ahead) to that call."""
        return self._key, self._calls

    @state.setter
    def state(self, state: tuple[Key, int]) -> None:
        try:
            first, calls = state
        except (TypeError, ValueError):
            raise DtypeError(f"a state is a key and a call number; got {state!r}.", "rng.state = key, 0") from None
        found = checked(first, once=False)
        if not isinstance(calls, (int, np.integer)) or calls < 0:
            raise ArgumentError(f"a call number is an integer, 0 or more; got {calls!r}.", "rng.state = key, 0")
        self._key, self._calls = found, int(calls)

    def __repr__(self) -> str:
        return f"Generator({self._key!r}, calls={self._calls})"

    def __getattr__(self, name: str) -> NoReturn:
        methods = ", ".join(n for n in dir(type(self)) if not n.startswith("_"))
        raise AttributeError(f"a Generator has no {name!r}; it has {methods}.", name=name, obj=self)

    def _call(self, function: Callable[..., Any], *args: Any, **more: Any) -> Any:
        """One call: a call that raises is none."""
        if (draws := context.get().draws) is not None:
            draws.setdefault(self, self.state)
        out = function(fold_in(self._key, self._calls), *args, **more)
        self._calls += 1
        return out

    def _draw(self, function: Callable[..., Array], size: Any, *parameters: Any, **where: Any) -> Array:
        shape = common_shape(*map(np.shape, parameters)) if size is None else size
        out: Array = self._call(function, shape, *parameters, **where)
        return out

    def spawn(self, n_children: int) -> list[Generator]:
        """Independent generators, from a split of the key of one call."""
        return [Generator(k) for k in self._call(split, n_children)]

    # Numbers

    def random(self, size: Any = None, **where: Any) -> Array:
        """Floats in [0, 1)."""
        return self._draw(draw.uniform, size, **where)

    def uniform(self, low: Any = 0.0, high: Any = 1.0, size: Any = None, **where: Any) -> Array:
        """Floats in [low, high)."""
        return self._draw(draw.uniform, size, low, high, **where)

    def integers(
        self, low: Any, high: Any = None, size: Any = None, dtype: Any = np.int64, endpoint: bool = False, **where: Any
    ) -> Array:
        """Integers from low to high - 1 (to high with ``endpoint``); from 0 to low - 1 if only low is given."""
        low, high = (0, low) if high is None else (low, high)
        return self._draw(draw.integers, size, low, high, endpoint, dtype=dtype, **where)

    def bytes(self, length: int) -> bytes:
        """Random bytes, the same on every rank."""
        found: bytes = self._draw(draw.bits, length, dtype=np.uint8).numpy().tobytes()
        return found

    # Order

    def choice(
        self,
        a: Any,
        size: Any = None,
        replace: bool = True,
        p: Any = None,
        axis: int = 0,
        shuffle: bool = True,
        **where: Any,
    ) -> Array:
        """Elements of an array, or numbers below ``a``, drawn with or without replacement; always in random order."""
        out: Array = self._call(order.choice, a, () if size is None else size, replace, p, axis, **where)
        return out

    def permutation(self, x: Any, axis: int = 0, **where: Any) -> Array:
        """The numbers below x, or the slices of the array x along a dimension, in random order."""
        out: Array = self._call(order.permutation, x, axis, **where)
        return out

    def permuted(self, x: Any, axis: int | None = None, **where: Any) -> Array:
        """The array x with every line along a dimension in a random order of its own; all elements, if axis is None."""
        x = x if isinstance(x, Array) else asarray(x, mesh=where.get("mesh"))
        if axis is None:
            return reshape(self.permutation(ravel(x), **where), x.shape)  # type: ignore[no-any-return]  # an operation
        out: Array = self._call(order.permutation, x, axis, True, **where)
        return out

    def shuffle(self, x: Any, axis: int = 0) -> NoReturn:
        """An error: arrays are immutable, so none is shuffled in place."""
        raise ArgumentError(
            "shuffle changes an array in place, and arrays are immutable.", f"x = rng.permutation(x, axis={axis})"
        )

    # Distributions

    def standard_normal(self, size: Any = None, **where: Any) -> Array:
        """Normals of mean 0 and standard deviation 1."""
        return self._draw(draw.normal, size, **where)

    def normal(self, loc: Any = 0.0, scale: Any = 1.0, size: Any = None, **where: Any) -> Array:
        """Normals of mean ``loc`` and standard deviation ``scale``."""
        return self._draw(draw.normal, size, loc, scale, **where)

    def lognormal(self, mean: Any = 0.0, sigma: Any = 1.0, size: Any = None, **where: Any) -> Array:
        """exp of normals."""
        return self._draw(distributions.lognormal, size, mean, sigma, **where)

    def standard_exponential(self, size: Any = None, **where: Any) -> Array:
        """Exponentials of mean 1."""
        return self._draw(draw.exponential, size, **where)

    def exponential(self, scale: Any = 1.0, size: Any = None, **where: Any) -> Array:
        """Exponentials of mean ``scale``."""
        return self._draw(draw.exponential, size, scale, **where)

    def standard_gamma(self, shape: Any, size: Any = None, **where: Any) -> Array:
        """Gamma values with a shape parameter."""
        return self._draw(distributions.gamma, size, shape, **where)

    def gamma(self, shape: Any, scale: Any = 1.0, size: Any = None, **where: Any) -> Array:
        """Gamma values with a shape parameter and a scale."""
        return self._draw(distributions.gamma, size, shape, scale, **where)

    def beta(self, a: Any, b: Any, size: Any = None, **where: Any) -> Array:
        """Beta values."""
        return self._draw(distributions.beta, size, a, b, **where)

    def chisquare(self, df: Any, size: Any = None, **where: Any) -> Array:
        """Sums of ``df`` squared normals."""
        return self._draw(distributions.chisquare, size, df, **where)

    def standard_t(self, df: Any, size: Any = None, **where: Any) -> Array:
        """Student's t with ``df`` degrees of freedom."""
        return self._draw(distributions.t, size, df, **where)

    def standard_cauchy(self, size: Any = None, **where: Any) -> Array:
        """Cauchy values."""
        return self._draw(draw.cauchy, size, **where)

    def gumbel(self, loc: Any = 0.0, scale: Any = 1.0, size: Any = None, **where: Any) -> Array:
        """Gumbel values, of maxima."""
        return self._draw(draw.gumbel, size, loc, scale, **where)

    def laplace(self, loc: Any = 0.0, scale: Any = 1.0, size: Any = None, **where: Any) -> Array:
        """Double exponentials."""
        return self._draw(draw.laplace, size, loc, scale, **where)

    def logistic(self, loc: Any = 0.0, scale: Any = 1.0, size: Any = None, **where: Any) -> Array:
        """Logistic values."""
        return self._draw(draw.logistic, size, loc, scale, **where)

    def rayleigh(self, scale: Any = 1.0, size: Any = None, **where: Any) -> Array:
        """Lengths of vectors of two normals."""
        return self._draw(draw.rayleigh, size, scale, **where)

    def weibull(self, a: Any, size: Any = None, **where: Any) -> Array:
        """Weibull values of exponent ``a``."""
        return self._draw(distributions.weibull, size, a, **where)

    def pareto(self, a: Any, size: Any = None, **where: Any) -> Array:
        """Pareto values less 1, from 0 up, as NumPy's."""
        out: Array = self._draw(distributions.pareto, size, a, **where) - 1
        return out

    def dirichlet(self, alpha: Any, size: Any = None, **where: Any) -> Array:
        """Points of the simplex: one more dimension, as long as ``alpha``, than ``size``."""
        return self._draw(events.dirichlet, () if size is None else size, alpha, **where)

    def multivariate_normal(self, mean: Any, cov: Any, size: Any = None, **where: Any) -> Array:
        """Normal vectors: one more dimension, as long as ``mean``, than ``size``."""
        return self._draw(events.multivariate_normal, () if size is None else size, mean, cov, **where)

    def poisson(self, lam: Any = 1.0, size: Any = None, **where: Any) -> Array:
        """Poisson numbers of mean ``lam``."""
        return self._draw(discrete.poisson, size, lam, **where)

    def binomial(self, n: Any, p: Any, size: Any = None, **where: Any) -> Array:
        """How many of ``n`` trials succeed."""
        return self._draw(discrete.binomial, size, n, p, **where)

    def geometric(self, p: Any, size: Any = None, **where: Any) -> Array:
        """The number of the first success."""
        return self._draw(discrete.geometric, size, p, **where)
