"""Reductions."""

from __future__ import annotations

from typing import Any

from spmdx.op import op


def _over(shape: tuple[int, ...], axis: Any, keepdims: bool, **_: Any) -> str:
    names = [f"d{i}" for i in range(len(shape))]
    out = ["1" if i in axis else n for i, n in enumerate(names) if keepdims or i not in axis]
    return f"{' '.join(names)} -> {' '.join(out)}"


def _axes(shape: tuple[int, ...], axis: Any = None, keepdims: bool = False, **more: Any) -> dict[str, Any]:
    dims = range(len(shape)) if axis is None else (axis,) if isinstance(axis, int) else axis
    return {"axis": tuple(d % len(shape) for d in dims), "keepdims": keepdims, **more}


def _fast_sum(xp: Any, dtype: Any, axis: Any, keepdims: bool) -> Any:
    if keepdims:
        return None
    reduce, axes = xp.add.reduce, axis
    return lambda x: reduce(x, axes)


@op(_over, linear="together", prepare=_axes, fast=_fast_sum)
def sum(xp: Any, x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Sum over dimensions."""
    return xp.sum(x, axis=axis, keepdims=keepdims)
