"""Leaves that are no arrays: numbers, texts and random keys, as a checkpoint has them in JSON."""

from __future__ import annotations

import json
from collections.abc import Container
from typing import Any

import numpy as np

from spmdx.array import Array
from spmdx.checkpoint.file import LONGEST, short
from spmdx.errors import CheckpointError
from spmdx.random.key import IMPLS, MASK, Key

SCALARS = (bool, int, float, str)
LONGEST_NUMBER = 8192  # bits: Python reads no more than some thousand digits


def described(name: str, x: Any) -> Any:
    """A leaf in JSON."""
    if isinstance(x, Key):
        return {"key": [int(word) for word in x.words], "impl": x.impl}
    if isinstance(x, float):
        return {"float": x.hex()}
    if isinstance(x, SCALARS):
        if isinstance(x, int) and x.bit_length() > LONGEST_NUMBER:
            raise CheckpointError(
                f"{name} is a number of {x.bit_length()} bits.", f"a number below 2**{LONGEST_NUMBER}"
            )
        return {"value": x}
    raise CheckpointError(
        f"{name} is a {type(x).__name__}: a checkpoint holds arrays, numbers, strings and keys.",
        "tree.map over the state without it",
    )


def read(path: str, text: str, taken: Container[str]) -> dict[str, Any]:
    """The leaves that a file's text describes, by names that are not taken.

    Raises:
        CheckpointError: a text that ``save`` has not written.
    """
    try:
        found = json.loads(text)
        if not isinstance(found, dict) or any(name in taken for name in found):
            raise ValueError(short(found))
        return {name: _undescribed(x) for name, x in found.items()}
    except (ValueError, OverflowError, RecursionError) as error:
        raise CheckpointError(
            f"{path} was not saved by spmdx, or is damaged: its text has {str(error)[:LONGEST]}.",
            "checkpoint.views(path) for its arrays",
        ) from None


def _undescribed(found: Any) -> Any:
    match found:
        case {"key": [*words], "impl": str(impl)} if len(words) == IMPLS.get(impl):
            if all(type(word) is int and 0 <= word <= MASK for word in words):
                return Key(tuple(words), impl)
        case {"float": str(digits)}:
            return float.fromhex(digits)
        case {"value": bool() | int() | str() as value}:
            return value
    raise ValueError(short(found))


def fitting(path: str, name: str, found: Any, like: Any) -> Any:
    """A leaf of the file, if the tree to fill has one of its kind there."""
    if _kind(found) != _kind(like):
        raise CheckpointError(
            f"{path} has {short(found)} at {name}, where the tree has {shown(like)}.",
            "load(path) to see what is there",
        )
    return found


def _kind(x: Any) -> Any:
    if isinstance(x, Key):
        return x.impl
    return type(x) if isinstance(x, np.generic) else next((k for k in SCALARS if isinstance(x, k)), type(x))


def shown(x: Any) -> str:
    """A leaf in a message."""
    return repr(x.spec) if isinstance(x, Array) else short(x)


def told(x: Any) -> str:
    """What ranks compare of a leaf: where an array lies, the value of everything that is small."""
    if isinstance(x, Array):
        return f"{x.spec!r} {x.mesh!r}"
    if isinstance(x, np.ndarray):
        return f"NumPy's {x.dtype}{list(x.shape)}" if x.ndim else repr(x[()])
    return repr(x)


__all__ = ["described", "fitting", "read", "shown", "told"]
