"""Arithmetic: sums, products, rounding, parts of complex numbers, casts and selection, each with its gradient.

Gradients of complex functions follow JAX: the cotangent is multiplied by the derivative, not by its conjugate.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from spmdx.array import Array
from spmdx.dtypes import NUMERIC, REAL, DType, bfloat16, checked, kind, promoted
from spmdx.errors import ArgumentError, DtypeError
from spmdx.op import constant, default_mesh, op
from spmdx.ops.axes import whole
from spmdx.ops.compare import equal, greater, less
from spmdx.ops.fit import fit
from spmdx.ops.pointwise import FLOATS, REAL_OR_BOOL, pointwise
from spmdx.runtime import kernels, memory
from spmdx.tape import recording

# Sums and products


_SILENT = frozenset({"warn", "ignore"})
THREADED = 2**18  # elements of a result that several threads are worth waking for


def _large(name: str, run: Any, x: Any, y: Any) -> Any:
    """A large sum or product into memory that is used again, and on all threads: of blocks that lie alike, of rows and
    the same vector for each, or of a block and a number."""
    number = type(y) in (int, float)
    if type(x) is not np.ndarray or x.dtype.char not in "fd" or not x.flags.c_contiguous:
        return run(x, y)
    if not number and not (type(y) is np.ndarray and y.dtype == x.dtype and y.flags.c_contiguous):
        return run(x, y)
    rows = not number and 0 < y.ndim < x.ndim and x.shape[x.ndim - y.ndim :] == y.shape
    if not (number or rows or x.shape == y.shape):
        return run(x, y)
    out = memory.empty(x.shape, x.dtype)
    silent = _SILENT.issuperset(np.geterr().values())  # else np.errstate asks for what no thread can give
    if number or x.size < THREADED or kernels.threads() < 2 or not silent or (rows and name != "sum"):
        return run(x, y, out)
    if not rows:
        return kernels.reduce_ordered([x, y], name, out)
    kernels.HOST.build.add_to_rows(out.reshape(-1, y.size), x.reshape(-1, y.size), y.reshape(-1))
    return out


@pointwise(linear="together", large=partial(_large, "sum"))
def add(xp: Any, x: Any, y: Any) -> Any:
    """x + y."""
    return xp.add(x, y)


@pointwise(NUMERIC, linear="together")
def subtract(xp: Any, x: Any, y: Any) -> Any:
    """x - y."""
    return xp.subtract(x, y)


@pointwise(linear="each", large=partial(_large, "prod"))
def multiply(xp: Any, x: Any, y: Any) -> Any:
    """x * y."""
    return xp.multiply(x, y)


@pointwise(linear=((0,),))
def divide(xp: Any, x: Any, y: Any) -> Any:
    """x / y; of integers a float."""
    return xp.divide(x, y)


@pointwise(REAL_OR_BOOL)
def floor_divide(xp: Any, x: Any, y: Any) -> Any:
    """The greatest integer not above x / y."""
    return xp.floor_divide(x, y)


@pointwise(REAL_OR_BOOL)
def remainder(xp: Any, x: Any, y: Any) -> Any:
    """x - y * floor(x / y): it has the sign of y."""
    return xp.remainder(x, y)


@pointwise(NUMERIC, linear="together", monotone=-1)
def negative(xp: Any, x: Any) -> Any:
    """-x."""
    return xp.negative(x)


@pointwise(NUMERIC, linear="together", monotone=1)
def positive(xp: Any, x: Any) -> Any:
    """+x."""
    return xp.positive(x)


@pointwise()
def square(xp: Any, x: Any) -> Any:
    """x * x."""
    return xp.square(x)


@pointwise()
def reciprocal(xp: Any, x: Any) -> Any:
    """1 / x."""
    return xp.reciprocal(x)


add.vjp(lambda g, out, x, y: fit(g, x), lambda g, out, x, y: fit(g, y))
subtract.vjp(lambda g, out, x, y: fit(g, x), lambda g, out, x, y: fit(-g, y))
multiply.vjp(lambda g, out, x, y: fit(g * y, x), lambda g, out, x, y: fit(g * x, y))
divide.vjp(lambda g, out, x, y: fit(g / y, x), lambda g, out, x, y: fit(-g * (out / y), y))
floor_divide.vjp(lambda g, out, x, y: None, lambda g, out, x, y: None)
remainder.vjp(lambda g, out, x, y: fit(g, x), lambda g, out, x, y: fit(-g * floor_divide(x, y), y))
negative.vjp(lambda g, out, x: -g)
positive.vjp(lambda g, out, x: g)
square.vjp(lambda g, out, x: g * (2 * x))
reciprocal.vjp(lambda g, out, x: -g * (out * out))

# Rounding


@pointwise(REAL_OR_BOOL, monotone=1)
def floor(xp: Any, x: Any) -> Any:
    """The greatest integer not above x, in x's dtype."""
    return xp.floor(x)


@pointwise(REAL_OR_BOOL, monotone=1)
def ceil(xp: Any, x: Any) -> Any:
    """The least integer not below x, in x's dtype."""
    return xp.ceil(x)


@pointwise(REAL_OR_BOOL, monotone=1)
def trunc(xp: Any, x: Any) -> Any:
    """The integer nearest to x towards zero, in x's dtype."""
    return xp.trunc(x)


def _decimals(shape: tuple[int, ...], decimals: Any = 0) -> dict[str, Any]:
    return {"decimals": whole(decimals, "round: decimals", "sx.round(x, 2)")}


@pointwise(NUMERIC, prepare=_decimals)
def round(xp: Any, x: Any, decimals: int = 0) -> Any:
    """The nearest number with so many decimals; of two equally near, the even one."""
    return xp.rint(x) if decimals == 0 and xp.asarray(x).dtype.kind in "fc" else xp.round(x, decimals)


floor.vjp(lambda g, out, x: None)
ceil.vjp(lambda g, out, x: None)
trunc.vjp(lambda g, out, x: None)
round.vjp(lambda g, out, x, decimals: None)

# Signs and parts


@pointwise()
def abs(xp: Any, x: Any) -> Any:
    """Absolute value. Its gradient at 0 is 0."""
    return xp.abs(x)


@pointwise(NUMERIC, monotone=1)
def sign(xp: Any, x: Any) -> Any:
    """-1, 0 or 1; x / abs(x) of complex numbers."""
    return xp.sign(x)


@pointwise(REAL_OR_BOOL)
def copysign(xp: Any, x: Any, y: Any) -> Any:
    """The magnitude of x with the sign of y."""
    return xp.copysign(x, y)


@pointwise(REAL_OR_BOOL, native=True)
def nextafter(xp: Any, x: Any, y: Any) -> Any:
    """The next number of the dtype after x towards y."""
    return xp.nextafter(x, y)


@pointwise(linear="together")
def conj(xp: Any, x: Any) -> Any:
    """Complex conjugate."""
    return xp.conj(x)


@pointwise(linear="together")
def real(xp: Any, x: Any) -> Any:
    """Real part."""
    return xp.real(x)


@pointwise(linear="together")
def imag(xp: Any, x: Any) -> Any:
    """Imaginary part."""
    return xp.imag(x)


def _sign_gradient(g: Array, out: Array, x: Array) -> Any:
    """Turning x changes its sign, stretching it does not: the part of g along the sign is taken off."""
    if x.dtype.kind != "c":
        return None
    across = g - real(g * out) * conj(out)
    return where(equal(x, 0), 0, across) / where(equal(x, 0), 1, abs(x))


abs.vjp(lambda g, out, x: g * conj(sign(x)))
sign.vjp(_sign_gradient)
copysign.vjp(lambda g, out, x, y: fit(g * (sign(x) * copysign(1.0, y)), x), lambda g, out, x, y: None)
nextafter.vjp(lambda g, out, x, y: fit(g, x), lambda g, out, x, y: None)
conj.vjp(lambda g, out, x: conj(g))
real.vjp(lambda g, out, x: fit(g, x))
imag.vjp(lambda g, out, x: fit(g * -1j, x))

# Casts


@op("... -> ...", arrays=1, linear="together")
def cast(xp: Any, x: Any, dtype: DType) -> Any:
    """The same values in another dtype. A Partial sum passes a cast to a wider float; any other finishes it."""
    return xp.asarray(x, dtype)


def astype(x: Any, dtype: Any, *, copy: bool = True, device: str | None = None) -> Array:
    """The array in another dtype; values that it cannot hold change as in NumPy.

    Args:
        copy: an array that has the dtype is returned as it is either way, for arrays never change.
        device: the array's own.

    Raises:
        DtypeError: a dtype that arrays cannot have, or complex values cast to real ones.
    """
    target = checked(dtype)
    if not isinstance(x, Array):
        return astype(constant(x, default_mesh()), target, device=device)
    if device not in (None, x.device):
        raise DtypeError(f"astype does not move arrays from {x.device!r} to {device!r}.", "x.to(mesh, placement)")
    if x.dtype == target:
        return x
    if x.dtype.kind == "c" and target.kind not in "cb":
        raise DtypeError(f"a cast of {x.dtype} to {target} loses the imaginary part.", f"real(x).astype({target})")
    made: Array = cast(x, target)
    return made


cast.vjp(lambda g, out, x, dtype: fit(g, x))

# Selection


def _fast_where(xp: Any, condition: Any, x: Any, y: Any) -> Any:
    if kind(condition) != "b":
        shown = condition.__name__ if isinstance(condition, type) else condition.name
        raise DtypeError(f"where takes a bool condition; got {shown}.", "where(condition != 0, x, y)")
    if bfloat16 not in (x, y):
        return xp.where
    common = promoted(x, y)
    return lambda condition, x, y: xp.where(condition, xp.asarray(x, common), xp.asarray(y, common))


class _LeftOut:
    """A value that was not given: whoever reads it says so."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise ArgumentError("where takes a condition and two values.", "where(condition, x, y), or nonzero(condition)")

    def __repr__(self) -> str:
        return "<left out>"


_LEFT_OUT = _LeftOut()


@op("..., ..., ... -> ...", linear=((1, 2),), fast=_fast_where)
def where(xp: Any, condition: Any, x: Any = _LEFT_OUT, y: Any = _LEFT_OUT) -> Any:
    """x where the condition holds, else y."""
    return xp.where(condition, x, y)


@pointwise(REAL_OR_BOOL, monotone=1)
def maximum(xp: Any, x: Any, y: Any) -> Any:
    """The larger of x and y; NaN where either is. Equal operands share the gradient."""
    return xp.maximum(x, y)


@pointwise(REAL_OR_BOOL, monotone=1)
def minimum(xp: Any, x: Any, y: Any) -> Any:
    """The smaller of x and y; NaN where either is. Equal operands share the gradient."""
    return xp.minimum(x, y)


@pointwise(REAL, monotone=1)
def relu(xp: Any, x: Any) -> Any:
    """x where it is positive, else 0. Its gradient at 0 is 0."""
    return xp.maximum(x, 0)


def clip(x: Array, min: Any = None, max: Any = None) -> Array:
    """x, but at least ``min`` and at most ``max`` (numbers or arrays that broadcast; None: no limit)."""
    low = x if min is None else maximum(x, min)
    high: Array = low if max is None else minimum(low, max)
    return high


@pointwise(FLOATS, ufunc=None, linear=((0,),))
def _passed(xp: Any, g: Any, x: Any, bound: Any, ties: Any, sign: Any) -> Any:
    """The gradient of the greater (sign 1) or lesser (-1) of x and a number: g where that is x, ``ties`` g where both
    are."""
    if xp is np and g.dtype == x.dtype and g.shape == x.shape and g.dtype.char in "fd":
        out = memory.empty(x.shape, x.dtype)
        if g.ndim < 2 or g.strides[0] != 0:  # a row that is repeated is read where it lies
            g = np.ascontiguousarray(g)
        kernels.activate(out, "passed", [g, np.ascontiguousarray(x)], [sign * bound, ties, sign])
        return out
    zero = xp.zeros((), g.dtype)
    won = x > bound if sign > 0 else x < bound
    return xp.where(won, g, xp.where(x == bound, g * ties, zero) if ties else zero)


def _chosen(sign: int, g: Array, x: Any, y: Any) -> Any:
    if not isinstance(x, Array):
        return None
    if not isinstance(y, Array) and not recording() and g.dtype.kind in FLOATS:
        return fit(_passed(g, x, y, 0.5, sign), x)
    won = greater(x, y) if sign > 0 else less(x, y)
    return fit(where(equal(x, y), g * 0.5, where(won, g, 0)), x)


where.vjp(
    lambda g, out, condition, x, y: None,
    lambda g, out, condition, x, y: fit(where(condition, g, 0), x),
    lambda g, out, condition, x, y: fit(where(condition, 0, g), y),
)
maximum.vjp(lambda g, out, x, y: _chosen(1, g, x, y), lambda g, out, x, y: _chosen(1, g, y, x))
minimum.vjp(lambda g, out, x, y: _chosen(-1, g, x, y), lambda g, out, x, y: _chosen(-1, g, y, x))
relu.vjp(lambda g, out, x: where(greater(x, 0), g, 0) if recording() else _passed(g, x, 0, 0, 1))
