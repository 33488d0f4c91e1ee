"""Matrices applied to features, and rows looked up by number."""

from __future__ import annotations

from typing import Any

import numpy as np

from spmdx.array import Array
from spmdx.ops.contract import einsum, matmul
from spmdx.ops.index import take


def linear(x: Any, weight: Any, bias: Any = None) -> Array:
    """x @ weight + bias: x is [..., in], weight [in, out], bias [out].

    Column-parallel (weight divided along ``out``) the output is divided likewise; row-parallel (along ``in``) it is a
    Partial sum, to which the bias is added once.
    """
    out: Array = matmul(x, weight) if np.ndim(x) < 3 else einsum("...k,kn->...n", x, weight)  # all rows at once
    return out if bias is None else out + bias


def embedding(table: Array, numbers: Any) -> Array:
    """The rows of ``table`` [vocabulary, features] at integers of any shape.

    Vocabulary-parallel (the table divided along its rows) every rank looks up what it has: a Partial sum, and no
    gather. The gradient adds up in place the rows that repeat.
    """
    out: Array = take(table, numbers, axis=0)
    return out


__all__ = ["embedding", "linear"]
