"""Python's operators, and the methods and properties of arrays, attached to Array. Each is a function of another
file: nothing is computed here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import numpy as np

from spmdx.array import Array
from spmdx.decide import SCALARS
from spmdx.errors import ArgumentError, DtypeError, GradientError, ImmutableError, MeshError, PlacementError, ShapeError
from spmdx.op import Operation, call
from spmdx.ops import (
    contract,
    elementwise,
    extremes,
    join,
    mask,
    missing,
    moments,
    numpy_names,
    place,
    products,
    reduce,
    scan,
)
from spmdx.ops import index as _index_file  # noqa: F401  # attaches x[...] and its methods
from spmdx.ops import shape as _shape_file  # noqa: F401  # attaches T, mT, reshape and its methods

e: Any = elementwise  # registered operations have no static signature
c: Any = contract


KNOWN = (Array, *SCALARS, np.ndarray, np.generic, list, tuple, str, bytes)


def _foreign(x: Any) -> bool:
    """True for an operand that is no array and no number: Python may ask its type for the operation."""
    if isinstance(x, KNOWN):
        return False
    return getattr(type(x), "__array_ufunc__", 0) is None or np.asarray(x).dtype == object


def _asked(operation: Operation, operands: tuple[Any, ...], static: tuple[Any, ...], names: tuple[str, ...]) -> Any:
    return NotImplemented if any(map(_foreign, operands)) else call(operation, operands, static, names)


def _operator(function: Any) -> Any:
    """An operation as Python's operator: NotImplemented where an operand is foreign. It is the same code with the same
    memo, and another long way: a call that was seen before costs nothing more."""
    scope = {**function.__globals__, "way": function.op.short_way(_asked)}
    return FunctionType(function.__code__, scope, function.__name__, function.__defaults__)


def _reflected(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, other: function(other, self)


power = _operator(e.pow)


def _pow(x: Any, y: Any) -> Any:
    """x ** y: a square is a product, as NumPy's operator does it."""
    return e.square(x) if type(y) is int and y == 2 and x.dtype.kind in "fc" else power(x, y)


def _bool(x: Array) -> bool:
    if x.size != 1:
        raise ShapeError(f"an array of shape {x.shape} is neither true nor false as a whole.", "sx.all(x) or sx.any(x)")
    return bool(place.item(x))


def _getattr(x: Array, name: str) -> Any:
    if name == "_block":  # only plans let blocks go
        raise GradientError(
            f"{x.spec!r} is a parameter that a plan gathered for one call of a named function, and let go after it; it "
            "is used outside of the call, or by the gradient of what left the call otherwise than as its result.",
            "what is wanted outside into the function's result, a pytree; or use the parameter that it was given",
        )
    raise missing.no_such_attribute(name)


def _iter(x: Array) -> Iterator[Array]:
    return (x[i] for i in range(len(x)))


def _index(x: Array) -> int:
    if x.dtype.kind not in "iu" or x.ndim:
        raise TypeError(f"only a 0-d integer array is an index; this one is {x.spec!r}")
    return int(place.item(x))


def _contains(x: Array, value: Any) -> bool:
    """value in x: whether any element equals it."""
    found = x == value
    return isinstance(found, Array) and bool(place.item(reduce.any(found)))


def _format(x: Array, form: str) -> str:
    """f"{x}" is str(x), which never communicates; f"{loss:.3f}" is of the global value, as float(loss)."""
    if not form:
        return str(x)
    if x.ndim:
        raise DtypeError(
            f"{form!r} writes one number, and this array has shape {x.shape}.",
            f"np.array2string(x.numpy(), precision=3), or x[{', '.join('0' * x.ndim)}] for one of them",
        )
    try:
        format(np.zeros((), x.dtype).item(), form)  # what no number is written by fails before anything is sent
    except ValueError as error:
        raise ArgumentError(f"{error}.", 'f"{x:.3f}"') from None
    return format(place.item(x), form)


def _setitem(x: Array, key: Any, value: Any, /) -> None:
    raise ImmutableError("x[...] = value would change x, and arrays never change.", "x = x.at[...].set(value)")


def _number(kind: Callable[[Any], Any]) -> Callable[[Array], Any]:
    return lambda x: kind(place.item(x))


def _array(x: Array, dtype: Any = None, copy: bool | None = None) -> Any:
    """What NumPy calls for np.asarray(x): the global value."""
    if copy is False and not x.spec.replicated:
        raise PlacementError("the global value of a divided array cannot be had without a copy.", "x.block")
    if copy is False:
        return np.asarray(x.block, dtype=dtype, copy=False)
    return np.asarray(place.to_numpy(x), dtype=dtype)


def _array_ufunc(x: Array, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
    """ndarray + x is x's operation. NumPy cannot tell it from np.add(ndarray, x); its other functions are refused."""
    if method == "__call__" and not kwargs and ufunc in _NUMPY_OPERATORS:
        return _NUMPY_OPERATORS[ufunc](*inputs)
    name = ufunc.__name__
    if kwargs.get("out") is not None:
        raise DtypeError(f"np.{name} would write an Array's value into a NumPy array.", f"y = sx.{name}(x, ...)")
    called = f"np.{name}" if method == "__call__" else f"np.{name}.{method}"
    instead = {"at": "x.at[index].add(values)", "outer": f"sx.{name}(x[:, None], y)", "__call__": f"sx.{name}(x)"}
    if method in ("reduce", "accumulate"):
        instead[method] = "sx.sum(x)" if method == "reduce" else "sx.cumsum(x)"
    if not hasattr(sys.modules["spmdx"], name):
        instead["__call__"] = missing.line_for(name)
    raise DtypeError(
        f"{called} takes no Array: NumPy sees one rank's memory, and would gather the rest.", instead.get(method, "")
    )


def _array_function(x: Array, function: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """NumPy's functions of arrays are spmdx's own of the same name: none gathers an array behind the user's back."""
    if function in (np.shape, np.ndim, np.size):
        return getattr(args[0], function.__name__)
    name, module = function.__name__, function.__module__.replace("numpy", "np")
    ours = getattr(sys.modules["spmdx"], name, None)
    if ours is None:
        raise DtypeError(
            f"{module}.{name} takes no Array: it would gather every operand.", missing.line_for(name, module)
        )
    if module == "np.linalg" and name in ("diagonal", "trace"):
        kwargs = {"axis1": -2, "axis2": -1, **kwargs}  # of the last two dimensions
    return ours(*args, **{k: v for k, v in kwargs.items() if v is not None or k != "out"})


def _namespace(x: Array, /, *, api_version: str | None = None) -> Any:
    """The module that has the functions of the Array API."""
    if api_version not in (None, "2021.12", "2022.12", "2023.12", "2024.12"):
        raise ArgumentError(f"there is no Array API {api_version!r} here.", 'api_version="2024.12"')
    return sys.modules["spmdx"]


def _dlpack(
    x: Array,
    /,
    *,
    stream: Any = None,
    max_version: tuple[int, int] | None = None,
    dl_device: Any = None,
    copy: bool | None = None,
) -> Any:
    """The block of a replicated array for another library, without a copy where that honours read-only memory."""
    if not x.spec.replicated:
        raise PlacementError(
            f"only a replicated array is exported whole; this one is {x.spec!r}.",
            "x.redistribute({}) to replicate it first, or x.block for this rank's piece",
        )
    block = x.block[0] if isinstance(x.block, tuple) else x.block
    if isinstance(block, np.ndarray) and (max_version is None or max_version[0] < 1):
        block = np.array(block)  # the old protocol cannot say read-only
    return block.__dlpack__(stream=stream, max_version=max_version, dl_device=dl_device, copy=copy)


def _dlpack_device(x: Array, /) -> Any:
    return (x.block[0] if isinstance(x.block, tuple) else x.block).__dlpack_device__()


def _to_device(x: Array, device: str, /, *, stream: Any = None) -> Array:
    if device != x.device:
        raise MeshError(f"the array lies on {x.device!r}; a device is chosen by a mesh.", "x.to(mesh, placement)")
    return x


# Attached

_BINARY = {
    "add": e.add,
    "sub": e.subtract,
    "mul": e.multiply,
    "truediv": e.divide,
    "floordiv": e.floor_divide,
    "mod": e.remainder,
    "matmul": c.matmul,
    "and": e.bitwise_and,
    "or": e.bitwise_or,
    "xor": e.bitwise_xor,
    "lshift": e.bitwise_left_shift,
    "rshift": e.bitwise_right_shift,
}
_COMPARE = {
    "eq": e.equal,
    "ne": e.not_equal,
    "lt": e.less,
    "le": e.less_equal,
    "gt": e.greater,
    "ge": e.greater_equal,
}
# What NumPy calls where an ndarray stands left of an operator: the functions of these names.
_NUMPY_OPERATORS = {getattr(np, f.__name__): f for f in (*_BINARY.values(), *_COMPARE.values(), e.pow)}
_NUMPY_OPERATORS[np.divmod] = lambda x, y: (e.floor_divide(x, y), e.remainder(x, y))
_COMMUTE = ("add", "mul", "and", "or", "xor")  # reflected, they are themselves
_SPECIAL = {
    "pow": _pow,
    "rpow": _reflected(power),
    "neg": e.negative,
    "pos": e.positive,
    "abs": e.abs,
    "invert": e.bitwise_invert,
    "iter": _iter,
    "bool": _bool,
    "getattr": _getattr,
    "int": _number(int),
    "float": _number(float),
    "complex": _number(complex),
    "index": _index,
    "contains": _contains,
    "format": _format,
    "divmod": lambda x, y: (x // y, x % y),
    "rdivmod": lambda x, y: (y // x, y % x),
    "setitem": _setitem,
    "array": _array,
    "array_ufunc": _array_ufunc,
    "array_function": _array_function,
    "array_namespace": _namespace,
    "dlpack": _dlpack,
    "dlpack_device": _dlpack_device,
}
_NAMED = {
    "astype": e.astype,
    "clip": e.clip,
    "conj": e.conj,
    "conjugate": e.conj,
    "item": place.item,
    "numpy": place.to_numpy,
    "redistribute": place.redistribute,
    "round": e.round,
    "to_device": _to_device,
    "tolist": lambda x: place.to_numpy(x).tolist(),
}
_PROPERTIES = {
    "real": e.real,
    "imag": e.imag,
    "nbytes": lambda x: x.size * x.dtype.itemsize,
    "itemsize": lambda x: x.dtype.itemsize,
}
_FILES: dict[Any, tuple[str, ...]] = {  # methods that are functions of other files
    reduce: ("sum", "prod", "min", "max", "any", "all"),
    moments: ("mean", "var", "std"),
    extremes: ("argmin", "argmax"),
    scan: ("cumsum", "cumprod", "sort", "argsort", "searchsorted"),
    products: ("dot",),
    join: ("repeat",),
    mask: ("nonzero",),
    numpy_names: ("copy", "diagonal", "trace"),
}

for _name, _function in (_BINARY | _COMPARE).items():
    _asking = _operator(_function)
    setattr(Array, f"__{_name}__", _asking)
    if _name in _BINARY:
        setattr(Array, f"__r{_name}__", _asking if _name in _COMMUTE else _reflected(_asking))
for _name, _function in _SPECIAL.items():
    setattr(Array, f"__{_name}__", _function)
for _name, _function in _NAMED.items():
    setattr(Array, _name, _function)
for _name, _function in _PROPERTIES.items():
    setattr(Array, _name, property(_function))
for _file, _names in _FILES.items():
    for _name in _names:
        setattr(Array, _name, getattr(_file, _name))
