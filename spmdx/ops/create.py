"""Creation: every rank makes its own block from its bounds; nothing is communicated."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from spmdx import dtypes
from spmdx.array import Array
from spmdx.decide import SCALARS, Bounds, asked_mesh
from spmdx.errors import ArgumentError, DtypeError, MeshError, ShapeError, SpmdxError
from spmdx.mesh import Coordinate, Mesh
from spmdx.op import op
from spmdx.ops.axes import names, one, whole
from spmdx.ops.place import asarray, spec_for, wrap
from spmdx.ops.shape import broadcast_to, reshape
from spmdx.placement import Placement
from spmdx.rule import Form
from spmdx.runtime import memory
from spmdx.spec import Spec


def full(
    shape: Any,
    fill_value: Any,
    dtype: Any = None,
    *,
    mesh: Mesh | None = None,
    placement: Placement | None = None,
    device: str | None = None,
) -> Array:
    """An array of one value. dtype: that of the value, as NumPy reads it."""
    kind = dtypes.checked(dtypes.read(fill_value).dtype if dtype is None else dtype)
    return _filled(spec_for(shape, kind, mesh, placement, device), fill_value)


def _filled(spec: Spec, value: Any) -> Array:
    xp = memory.space(spec.mesh.device)
    if type(value) not in SCALARS or type(value) is int:  # an int may be beyond the dtype
        value = value if hasattr(value, "__cuda_array_interface__") else dtypes.read(value, spec.dtype)[()]
    if getattr(value, "ndim", 0):  # it broadcasts to the whole, not to a block
        if value.ndim > spec.ndim or any(m not in (1, n) for m, n in zip(value.shape[::-1], spec.shape[::-1])):
            raise ShapeError(f"values of shape {value.shape} do not fill an array of shape {spec.shape}.", "one number")
        return asarray(xp.broadcast_to(value, spec.shape), mesh=spec.mesh, placement=spec.placement)
    return wrap(spec, lambda c: xp.full(spec.block_shape(c), value, spec.dtype))


def zeros(
    shape: Any,
    dtype: Any = float,
    *,
    mesh: Mesh | None = None,
    placement: Placement | None = None,
    device: str | None = None,
) -> Array:
    """An array of zeros; float64 unless told."""
    return full(shape, 0, dtype=float if dtype is None else dtype, mesh=mesh, placement=placement, device=device)


def ones(
    shape: Any,
    dtype: Any = float,
    *,
    mesh: Mesh | None = None,
    placement: Placement | None = None,
    device: str | None = None,
) -> Array:
    """An array of ones; float64 unless told."""
    return full(shape, 1, dtype=float if dtype is None else dtype, mesh=mesh, placement=placement, device=device)


def empty(
    shape: Any,
    dtype: Any = float,
    *,
    mesh: Mesh | None = None,
    placement: Placement | None = None,
    device: str | None = None,
) -> Array:
    """An array to be replaced. It holds zeros: what happens to lie in memory would differ from rank to rank."""
    return zeros(shape, dtype=dtype, mesh=mesh, placement=placement, device=device)


def _same_device(x: Array, device: str | None) -> None:
    if device not in (None, x.device):
        raise MeshError(f"the array lies on {x.device!r}, not on {device!r}.", "x.to(mesh, placement)")


def like(x: Array, dtype: Any, placement: Placement | None, shape: Any = None, device: str | None = None) -> Spec:
    """The spec of a new array like ``x``: its placement, Replicate where it is Partial."""
    x = x if isinstance(x, Array) else asarray(x)
    _same_device(x, device)
    base = x.spec.replace(partial=())
    kind = base.dtype if dtype is None else dtypes.checked(dtype)
    if placement is None and (shape is None or tuple(shape) == x.shape):
        return base.replace(dtype=kind)
    return spec_for(x.shape if shape is None else shape, kind, x.mesh, placement)


def zeros_like(x: Array, dtype: Any = None, *, placement: Placement | None = None, device: str | None = None) -> Array:
    """Zeros with the shape, dtype and placement of ``x`` (Replicate where it is Partial)."""
    return _filled(like(x, dtype, placement, device=device), 0)


def ones_like(x: Array, dtype: Any = None, *, placement: Placement | None = None, device: str | None = None) -> Array:
    """Ones with the shape, dtype and placement of ``x`` (Replicate where it is Partial)."""
    return _filled(like(x, dtype, placement, device=device), 1)


def empty_like(x: Array, dtype: Any = None, *, placement: Placement | None = None, device: str | None = None) -> Array:
    """An array to be replaced, like ``x``. It holds zeros."""
    return zeros_like(x, dtype=dtype, placement=placement, device=device)


def full_like(
    x: Array,
    fill_value: Any,
    dtype: Any = None,
    *,
    placement: Placement | None = None,
    device: str | None = None,
) -> Array:
    """One value with the shape, dtype and placement of ``x`` (Replicate where it is Partial)."""
    return _filled(like(x, dtype, placement, device=device), fill_value)


def from_dlpack(
    x: Any,
    /,
    *,
    device: str | None = None,
    copy: bool | None = None,
    mesh: Mesh | None = None,
    placement: Placement | None = None,
) -> Array:
    """The array of another library's array, which has the same value on every rank; each rank keeps its part.

    Args:
        copy: False shares its memory: nothing may write to it from then on. Otherwise it is copied.
    """
    if isinstance(x, Array):
        _same_device(x, device)
        return asarray(x, mesh=mesh, placement=placement)
    there = asked_mesh(mesh).device if device is None else device
    return asarray(memory.space(there).from_dlpack(x), mesh=mesh, placement=placement, device=device, copy=copy)


# Ranges


def _indices(spec: Spec, dim: int, coordinate: Coordinate) -> Any:
    """The global indices of one dimension that a block holds."""
    return Bounds.indices(spec.pieces(dim, coordinate))


def arange(
    start: Any,
    /,
    stop: Any = None,
    step: Any = 1,
    *,
    dtype: Any = None,
    mesh: Mesh | None = None,
    placement: Placement | None = None,
    device: str | None = None,
) -> Array:
    """Numbers from start (0 if only one is given) up to, not including, stop. NumPy's bits on every placement."""
    if stop is None:
        start, stop = 0, start
    if step == 0:
        raise ArgumentError("arange: the step cannot be 0.", "arange(start, stop, 1)")
    try:
        length = max(0, math.ceil((stop - start) / step))
    except (TypeError, ValueError, OverflowError) as error:
        if isinstance(error, SpmdxError):
            raise
        raise ArgumentError(f"arange({start!r}, {stop!r}, {step!r}): {error}.", "arange(0, 10, 1)") from None
    probe = np.arange(start, start, step).dtype
    kind = dtypes.checked(np.result_type(probe, np.asarray(stop)) if dtype is None else dtype)
    spec = spec_for((length,), kind, mesh, placement, device)
    if kind.kind == "b" and length > 2:
        raise DtypeError(f"arange: bool has no {length} numbers.", "dtype=int")
    if kind.kind == "b":
        return wrap(spec, lambda c: np.arange(start, stop, step).astype(bool)[_indices(spec, 0, c)])

    # The first two are cast, the others stand on the difference of these two: as NumPy fills an arange.
    inner = np.dtype(np.float32) if kind.kind in "fV" and kind.itemsize == 2 else kind
    with np.errstate(all="ignore"):
        first, second = (np.asarray(value).astype(kind).astype(inner) for value in (start, start + step))

    def block(c: Coordinate) -> Any:
        with np.errstate(all="ignore"):
            at = _indices(spec, 0, c)
            out = (first + at.astype(inner) * (second - first)).astype(kind)
            out[at == 0], out[at == 1] = first, second
        return out

    return wrap(spec, block)


def _end(value: Any) -> Any:
    """An end of linspace: a number. Of an Array's no gradient passes."""
    if type(value) in SCALARS:
        return value
    found = dtypes.read(value)
    if found.ndim:
        raise ShapeError(f"linspace lies between two numbers; got one end of shape {found.shape}.", "linspace(0, 1, 5)")
    return found.astype(dtypes.checked(found.dtype))[()]


def linspace(
    start: Any,
    stop: Any,
    /,
    num: int = 50,
    endpoint: bool = True,
    *,
    dtype: Any = None,
    mesh: Mesh | None = None,
    placement: Placement | None = None,
    device: str | None = None,
) -> Array:
    """``num`` numbers, evenly spaced, from start to stop (without stop if not ``endpoint``). NumPy's bits on every
    placement."""
    n = whole(num, "linspace: num", "num=50")
    if n < 0:
        raise ArgumentError(f"linspace: num is 0 or more; got {n}.", "num=0")
    start, stop = _end(start), _end(stop)
    inner = np.result_type(start, stop, 0.0)
    kind = dtypes.checked(inner if dtype is None else dtype)
    spec = spec_for((n,), kind, mesh, placement, device)
    gaps = n - 1 if endpoint else n
    a, b = (dtypes.read(v, inner)[()] for v in (start, stop))
    with np.errstate(all="ignore"):
        delta = b - a
        step = delta / gaps if gaps > 0 else delta

    def block(c: Coordinate) -> Any:
        at = _indices(spec, 0, c)
        with np.errstate(all="ignore"):
            y = at.astype(inner)
            out = (y / gaps * delta if gaps > 0 and step == 0 else y * step) + a
        if endpoint and n > 1:
            out[at == n - 1] = b
        return (np.floor(out) if kind.kind in "iu" else out).astype(kind)

    return wrap(spec, block)


# Matrices


def eye(
    n_rows: int,
    n_cols: int | None = None,
    /,
    k: int = 0,
    dtype: Any = float,
    *,
    mesh: Mesh | None = None,
    placement: Placement | None = None,
    device: str | None = None,
) -> Array:
    """Ones on the k-th diagonal, zeros elsewhere."""
    spec = _matrix(n_rows, n_cols, dtype, mesh, placement, device)
    return wrap(spec, lambda c: (_indices(spec, 0, c)[:, None] + k == _indices(spec, 1, c)).astype(spec.dtype))


def identity(n: int, dtype: Any = float, *, mesh: Mesh | None = None, placement: Placement | None = None) -> Array:
    """The identity matrix."""
    return eye(n, dtype=dtype, mesh=mesh, placement=placement)


def tri(
    n_rows: int,
    n_cols: int | None = None,
    /,
    k: int = 0,
    dtype: Any = float,
    *,
    mesh: Mesh | None = None,
    placement: Placement | None = None,
    device: str | None = None,
) -> Array:
    """Ones on and below the k-th diagonal, zeros above."""
    spec = _matrix(n_rows, n_cols, dtype, mesh, placement, device)
    return wrap(spec, lambda c: (_indices(spec, 0, c)[:, None] + k >= _indices(spec, 1, c)).astype(spec.dtype))


def _matrix(rows: int, cols: int | None, dtype: Any, mesh: Any, placement: Any, device: Any) -> Spec:
    kind = dtypes.checked(float if dtype is None else dtype)
    return spec_for((rows, rows if cols is None else cols), kind, mesh, placement, device)


def _matrices(shape: tuple[int, ...], k: int = 0) -> dict[str, Any]:
    if len(shape) < 2:
        raise ShapeError(f"a triangle needs at least 2 dimensions; got shape {shape}.", "x[None]")
    return {"k": whole(k, "the number of a diagonal", "k=0")}


def _below(xp: Any, bounds: Any, k: int) -> Any:
    rows, columns = (bounds.indices(pieces, xp) for pieces in bounds.output[-2:])
    return rows[:, None] + k >= columns


@op("... i j -> ... i j", linear="each", bounds=True, prepare=_matrices)
def tril(xp: Any, bounds: Any, x: Any, k: int = 0) -> Any:
    """The last two dimensions' lower triangle: zeros above the k-th diagonal."""
    return xp.where(_below(xp, bounds, k), x, xp.zeros((), x.dtype))


@op("... i j -> ... i j", linear="each", bounds=True, prepare=_matrices)
def triu(xp: Any, bounds: Any, x: Any, k: int = 0) -> Any:
    """The last two dimensions' upper triangle: zeros below the k-th diagonal."""
    return xp.where(_below(xp, bounds, k - 1), xp.zeros((), x.dtype), x)


tril.vjp(lambda g, out, x, k: tril(g, k=k))
triu.vjp(lambda g, out, x, k: triu(g, k=k))


def meshgrid(*arrays: Any, indexing: str = "xy") -> list[Any]:
    """Coordinate arrays of a grid, from 1-D (or 0-d) arrays. Views: a sharded input stays sharded."""
    if indexing not in ("xy", "ij"):
        raise ArgumentError(f"meshgrid: indexing is xy or ij; got {indexing!r}.", 'indexing="ij"')
    if any(x.ndim > 1 for x in arrays):
        raise ShapeError("meshgrid takes 1-D arrays.", "x.ravel()")
    places = list(range(len(arrays)))
    if indexing == "xy" and len(arrays) > 1:
        places[:2] = 1, 0
    shape = [1] * len(arrays)
    for place, x in zip(places, arrays):
        shape[place] = x.size
    return [
        broadcast_to(reshape(x, tuple(-1 if d == place else 1 for d in range(len(shape)))), tuple(shape))
        for place, x in zip(places, arrays)
    ]


def _classes(shape: tuple[int, ...], num_classes: int, dtype: Any = float, axis: int = -1) -> dict[str, Any]:
    n = whole(num_classes, "one_hot: num_classes", "num_classes=10")
    if n < 0:
        raise ArgumentError(f"one_hot: num_classes is 0 or more; got {n}.", "num_classes=int(labels.max()) + 1")
    return {"num_classes": n, "dtype": dtypes.checked(dtype), "axis": one(axis, len(shape) + 1, "one_hot")}


def _hot(shape: tuple[int, ...], num_classes: int, dtype: Any, axis: int) -> Form:
    d = names(len(shape))
    return Form(f"{' '.join(d)} -> {' '.join((*d[:axis], 'k', *d[axis:]))}", {"k": num_classes})


@op(_hot, prepare=_classes)
def one_hot(xp: Any, x: Any, num_classes: int, *, dtype: Any = float, axis: int = -1) -> Any:
    """1 where the new dimension's index is the element, else 0, as JAX's; an integer out of range gives zeros."""
    if x.dtype.kind not in "iu":
        raise DtypeError(f"one_hot takes integers; got dtype {x.dtype}.", "one_hot(labels.astype(int), n)")
    classes = xp.arange(num_classes).reshape((-1,) + (1,) * (x.ndim - axis))
    return (xp.expand_dims(x, axis) == classes).astype(dtype)


__all__ = [
    "arange",
    "empty",
    "empty_like",
    "eye",
    "from_dlpack",
    "full",
    "full_like",
    "identity",
    "linspace",
    "meshgrid",
    "one_hot",
    "ones",
    "ones_like",
    "tri",
    "tril",
    "triu",
    "zeros",
    "zeros_like",
]
