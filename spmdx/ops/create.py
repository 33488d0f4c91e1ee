"""Creation: every rank makes its own block; nothing is communicated."""

from __future__ import annotations

from typing import Any

import numpy as np

from spmdx.array import Array
from spmdx.mesh import Mesh
from spmdx.ops.place import checked_dtype, spec_for, wrap
from spmdx.placement import Placement
from spmdx.spec import Spec


def full(
    shape: Any,
    fill_value: Any,
    *,
    dtype: Any = None,
    mesh: Mesh | None = None,
    placement: Placement | None = None,
    device: str | None = None,
) -> Array:
    """An array of one value. dtype: that of the value, as NumPy reads it."""
    kind = checked_dtype(np.asarray(fill_value).dtype if dtype is None else dtype)
    return _filled(spec_for(shape, kind, mesh, placement, device), fill_value)


def _filled(spec: Spec, value: Any) -> Array:
    return wrap(spec, lambda c: np.full(spec.block_shape(c), value, spec.dtype))


def like(x: Array, dtype: Any, placement: Placement | None, shape: Any = None) -> Spec:
    """The spec of a new array like ``x``: its placement, Replicate where it is Partial."""
    base = x.spec.replace(partial=())
    kind = base.dtype if dtype is None else checked_dtype(dtype)
    if placement is None:
        return base.replace(dtype=kind)
    return spec_for(x.shape if shape is None else shape, kind, x.mesh, placement)


def zeros_like(x: Array, *, dtype: Any = None, placement: Placement | None = None) -> Array:
    """Zeros with the shape, dtype and placement of ``x`` (Replicate where it is Partial)."""
    return _filled(like(x, dtype, placement), 0)


def ones_like(x: Array, *, dtype: Any = None, placement: Placement | None = None) -> Array:
    """Ones with the shape, dtype and placement of ``x`` (Replicate where it is Partial)."""
    return _filled(like(x, dtype, placement), 1)


def full_like(x: Array, fill_value: Any, *, dtype: Any = None, placement: Placement | None = None) -> Array:
    """One value with the shape, dtype and placement of ``x`` (Replicate where it is Partial)."""
    return _filled(like(x, dtype, placement), fill_value)
