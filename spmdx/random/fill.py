"""What every draw does: the spec of its result, its parameters checked and brought to where the blocks lie, the blocks
filled at their global indices. Nothing communicates but parameters that are divided differently from the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from spmdx import context, dtypes, tape
from spmdx.array import Array
from spmdx.decide import asked_mesh, common_mesh, constant
from spmdx.errors import ArgumentError, DtypeError, GradientError, ImpliedMoveError, ShapeError
from spmdx.mesh import Coordinate, Mesh
from spmdx.ops.arithmetic import add, multiply
from spmdx.ops.axes import sizes_of
from spmdx.ops.place import moved_arrays, spec_for, wrap
from spmdx.placement import Placement
from spmdx.plan import LOCAL, plan
from spmdx.random.key import PHILOX, THREEFRY, Key, checked
from spmdx.runtime import kernels, memory
from spmdx.runtime.kernels import FLOATS
from spmdx.spec import WHOLE, Spec, make, place

Where = tuple[Mesh | None, Placement | None, str | None]  # mesh, placement, device
Parameter = float | Array
SINGLE, DOUBLE = np.dtype(np.float32), np.dtype(np.float64)

# What a parameter may be: in words, as a test of numbers and of blocks, and a value that passes.
CONDITIONS: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "finite": ("a finite number", lambda v: abs(v) < math.inf, "0.0"),
    "number": ("a number", lambda v: v == v, "1.0"),
    "positive": ("finite and above 0", lambda v: (v > 0) & (v < math.inf), "1.0"),
    "non-negative": ("finite and not negative", lambda v: (v >= 0) & (v < math.inf), "1.0"),
    "probability": ("a probability, between 0 and 1", lambda v: (v >= 0) & (v <= 1), "0.5"),
    "chance": ("a probability above 0, at most 1", lambda v: (v > 0) & (v <= 1), "0.5"),
    "mean": ("from 0 to 2**60", lambda v: (v >= 0) & (v <= 2.0**60), "1.0"),
    "count": ("a whole number from 0 to 2**53", lambda v: (v >= 0) & (v <= 2.0**53) & (v == v // 1), "10"),
}
# What to write for a parameter whose value depends on another's.
BESIDE = {
    "low": "low=0.0, high=1.0",
    "high": "high=low + 1.0",
    "lower": "lower=-2.0, upper=2.0",
    "upper": "lower=-2.0, upper=2.0",
}


def words_of(key: Key) -> Any:
    """The words of a key of either generator."""
    return checked(key, PHILOX, THREEFRY).words


def floating(dtype: Any, name: str) -> np.dtype[Any]:
    """``dtype`` if it is a floating type."""
    kind = dtypes.checked(dtype)
    if kind not in FLOATS:
        raise DtypeError(f"{name} gives float16, bfloat16, float32 or float64, not {kind.name}.", "dtype=np.float32")
    return kind


def whole(dtype: Any, name: str) -> np.dtype[Any]:
    """``dtype`` if it is an integer type."""
    kind = dtypes.checked(dtype)
    if kind.kind not in "iu":
        raise DtypeError(f"{name} gives integers, not {kind.name}.", "dtype=np.int64")
    return kind


def working(kind: np.dtype[Any]) -> np.dtype[Any]:
    """What values of a floating type are computed in, before they are rounded to it."""
    return kind if kind.itemsize > 2 else SINGLE


# Parameters


def parameter(value: Any, name: str, condition: str, dtype: np.dtype[Any], mesh: Mesh | None = None) -> Parameter:
    """A parameter as a number that ``dtype`` has, or as an array of that dtype.

    Raises:
        DtypeError: no number.
        ArgumentError: a number that breaks the condition. Arrays are checked where their blocks are read.
    """
    if not isinstance(value, (Array, np.ndarray, list, tuple)):
        return _number(value, name, condition, dtype)
    if not isinstance(value, Array):
        block = dtypes.read(value)
        if block.ndim == 0:
            return _number(block[()], name, condition, dtype)
        value = constant(block, asked_mesh(mesh))
    if value.dtype.kind not in "iufV":
        raise DtypeError(f"{name} holds numbers, not {value.dtype.name}.", f"{name}.astype(float)")
    found: Array = value if value.dtype == dtype else value.astype(dtype)
    return found


def _number(value: Any, name: str, condition: str, dtype: np.dtype[Any]) -> float:
    text, test, example = CONDITIONS[condition]
    line = BESIDE.get(name) or f"{name}={example}"
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise DtypeError(f"{name} is a number; got {type(value).__name__} {value!r}.", line) from None
    except OverflowError:
        raise ArgumentError(f"{name} is beyond the numbers of {dtype.name}.", line) from None
    if dtype.itemsize < 8:
        with np.errstate(over="ignore"):
            number = float(dtype.type(number))
    if not test(number):
        if math.isinf(number) and math.isfinite(float(value)):
            raise ArgumentError(f"{name}={value} is not finite in {dtype.name}.", line)
        raise ArgumentError(f"{name} is {text}; got {name}={value}.", line)
    return number


def aligned(x: Parameter, spec: Spec, name: str, condition: str) -> Parameter:
    """A parameter on the mesh of ``spec``, each of its dimensions divided as the one that it broadcasts to."""
    if not isinstance(x, Array):
        return x
    mesh, own = spec.mesh, x.spec
    if own.mesh is not mesh:  # a constant: common_mesh has seen to that
        block = x._block[0] if isinstance(x._block, tuple) else x._block
        x = Array((block,) * mesh.size if mesh.device == "sim" else block, place(mesh, own.shape, own.dtype))
    extra = spec.ndim - x.ndim
    layouts = tuple(spec.layouts[extra + d] if n != 1 else WHOLE for d, n in enumerate(x.shape))
    target = make(mesh, x.shape, x.dtype, layouts)
    steps = plan(x.spec, target)
    if context.get().explicit and any(s.verb not in LOCAL for s in steps):
        raise ImpliedMoveError(
            f"{name} would move to where the random values lie, which `with explicit()` forbids.",
            f"{name}.redistribute({target.placement!r})",
        )
    [x] = moved_arrays([x], [target], [steps], "random")
    text, test, _ = CONDITIONS[condition]
    for block in x._block if isinstance(x._block, tuple) else (x._block,):
        if block is not None and not bool(test(block).all()):
            bad = block[~test(block)].reshape(-1)[0]
            raise ArgumentError(f"{name} is {text}; an element is {bad}.", f"sx.clip({name}, low, high) first")
    return x


def local(x: Parameter, spec: Spec, coordinate: Coordinate) -> Any:
    """The part of an aligned parameter that belongs to a block: as large as the block, or 0-d."""
    if not isinstance(x, Array):
        return memory.put(spec.mesh.device, np.asarray(x, DOUBLE))
    mesh = spec.mesh
    block = x._block
    if isinstance(block, tuple):
        block = block[mesh.ranks.index(mesh.rank_at(coordinate))]
    return block.reshape(()) if x.size == 1 else memory.of(block).broadcast_to(block, spec.block_shape(coordinate))


# Results


def target(shape: Any, dtype: np.dtype[Any], parameters: Sequence[Parameter], where: Where, name: str) -> Spec:
    """The spec that a draw is asked for. Without a placement it is divided as its first divided parameter is."""
    mesh, placement, device = where
    sizes = sizes_of(shape)
    arrays = [p for p in parameters if isinstance(p, Array)]
    if arrays and mesh is None:
        mesh = common_mesh(name, [a.spec for a in arrays])
    made = _spec if context.get().dry is None else _spec.__wrapped__  # a dry run's meshes are for that run alone
    spec = made(sizes, dtype, asked_mesh(mesh), _hashable(placement), device)
    for a in arrays:
        fits = a.ndim <= spec.ndim and all(n in (1, m) for n, m in zip(reversed(a.shape), reversed(spec.shape)))
        if not fits:
            raise ShapeError(
                f"{name}: a parameter of shape {a.shape} does not broadcast to {spec.shape}.",
                f"a shape that ends as {a.shape} does",
            )
        common_mesh(name, [spec, a.spec])
    divided = [a for a in arrays if placement is None and a.spec.sharded_axes]
    if not divided:
        return spec
    first = divided[0].spec
    return make(spec.mesh, spec.shape, dtype, spec.layouts[: spec.ndim - first.ndim] + first.layouts)


def _hashable(placement: Placement | None) -> Any:
    return tuple(placement.items()) if type(placement) is dict else placement


@lru_cache(maxsize=4096)
def _spec(shape: tuple[int, ...], dtype: np.dtype[Any], mesh: Mesh, placement: Any, device: str | None) -> Spec:
    spec = spec_for(shape, dtype, mesh, dict(placement) if type(placement) is tuple else placement, device)
    if math.prod(spec.shape) >= 2**63:
        raise ShapeError(f"random arrays have fewer than 2**63 elements; got shape {spec.shape}.", "smaller sizes")
    if spec.ndim >= 64:
        raise ShapeError(f"random arrays have fewer than 64 dimensions; got {spec.ndim}.", "a reshape afterwards")
    return spec


def drawn(spec: Spec, fill: Callable[..., Any], parameters: Sequence[tuple[Parameter, str, str]] = ()) -> Array:
    """The array of blocks ``fill(kernels, global shape, intervals, *local parameters)``; parameters: value, name,
    condition."""
    on = kernels.on(spec.mesh.device)
    if not parameters:

        def block(c: Coordinate) -> Any:
            return fill(on, spec.shape, [spec.pieces(d, c) for d in range(spec.ndim)])

        if spec.mesh.size == 1 and spec.mesh.device == "cpu":  # the short way
            return Array(block(spec.mesh.here()) if spec.mesh.contains_me() else None, spec)
        return wrap(spec, block)
    for value, name, _ in parameters:
        if type(value) is tape.Watched and context.get().depth:
            raise GradientError(
                f"these random values have no gradient with respect to {name}.", f"sx.stop_gradient({name})"
            )
    ready = [aligned(value, spec, name, condition) for value, name, condition in parameters]

    def block_with(c: Coordinate) -> Any:
        pieces = [spec.pieces(d, c) for d in range(spec.ndim)]
        return fill(on, spec.shape, pieces, *(local(p, spec, c) for p in ready))

    return wrap(spec, block_with)


def stretched(
    name: str,
    fill: Callable[[np.dtype[Any]], Callable[..., Any]],
    shape: Any,
    loc: Any,
    scale: Any,
    dtype: Any,
    where: Where,
    condition: str = "non-negative",
) -> Array:
    """``loc + scale * x`` of standard values x, differentiable in both; ``fill(dtype)`` fills blocks of x."""
    kind = dtype if dtype.kind == "c" else floating(dtype, name)
    if type(loc) is type(scale) is float and loc == 0 and scale == 1:
        return drawn(target(shape, kind, (), where, name), fill(kind))
    inner = kind if kind.kind == "c" else working(kind)
    real = inner if kind.kind != "c" else np.dtype(f"f{kind.itemsize // 2}")
    shift, factor = (
        parameter(loc, "loc", "finite", real, where[0]),
        parameter(scale, "scale", condition, real, where[0]),
    )
    spec = target(shape, inner, (shift, factor), where, name)
    base = spec.replace(partial=())
    x = multiply(drawn(base, fill(inner)), aligned(factor, base, "scale", condition))
    if isinstance(shift, Array) or shift:
        x = add(x, aligned(shift, base, "loc", "finite"))
    out = x if kind == inner else x.astype(kind)
    last = spec.replace(dtype=kind)
    return out if out.spec is last else moved_arrays([out], [last], [plan(out.spec, last)], "random")[0]
