"""Elementwise operations: each with its rule and gradient in one line of the tables at the end."""

from __future__ import annotations

from typing import Any

import numpy as np

from spmdx.op import op
from spmdx.ops.fit import fit


def _ufunc(name: str) -> Any:
    """The quick way for ufuncs: NumPy's own function, called with the blocks and nothing else."""
    return lambda xp, *dtypes, **static: getattr(xp, name)


@op("..., ... -> ...", linear="together", fast=_ufunc("add"))
def add(xp: Any, x: Any, y: Any) -> Any:
    """x + y."""
    return xp.add(x, y)


@op("..., ... -> ...", linear="each", fast=_ufunc("multiply"))
def multiply(xp: Any, x: Any, y: Any) -> Any:
    """x * y."""
    return xp.multiply(x, y)


@op("... -> ...", fast=_ufunc("exp"))
def exp(xp: Any, x: Any) -> Any:
    """e to the power x."""
    return xp.exp(x)


add.vjp(lambda g, out, x, y: fit(g, x), lambda g, out, x, y: fit(g, y))
multiply.vjp(lambda g, out, x, y: fit(g * y, x), lambda g, out, x, y: fit(g * x, y))
exp.vjp(lambda g, out, x: g * out)
