"""Words for parameters: by patterns of their paths, or by what paths and shapes tell."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from spmdx import tree
from spmdx.array import Array
from spmdx.errors import ArgumentError, AxisError, ShapeError
from spmdx.ops.axes import several
from spmdx.optim.base import flat

Patterns = Mapping[Any, Any]  # str, as fnmatch's, or a compiled regular expression, to whatever is said of a path
NOTHING = object()


def by_path(patterns: Patterns, otherwise: Any = NOTHING) -> Callable[[Any], Any]:
    """A function of params that returns a pytree of labels, as :func:`partition`, a ``mask`` and :func:`muon` take.

    Args:
        patterns: of paths such as ``"blocks.*.bias"`` (``*`` also crosses dots), or compiled regular expressions, to
            labels; the last that fits counts.
        otherwise: the label of paths that no pattern fits; an error if left out.
    """
    read = _reader(patterns)

    def labels(params: Any) -> Any:
        treedef = tree.flatten(params)[1]
        found = [read(path, otherwise) for path in tree.paths_of(treedef)]
        if NOTHING in found:
            path = tree.paths_of(treedef)[found.index(NOTHING)]
            raise ArgumentError(f"no pattern fits {path!r}.", "optim.by_path(patterns, otherwise)")
        return tree.unflatten(treedef, found)

    return labels


def _reader(patterns: Patterns) -> Callable[[str, Any], Any]:
    if not isinstance(patterns, Mapping) or not all(isinstance(p, (str, re.Pattern)) for p in patterns):
        raise ArgumentError(f"labels by path are a dict of patterns; got {patterns!r}.", '{"*.bias": "adamw"}')
    rules = list(patterns.items())[::-1]

    def fits(pattern: Any, path: str) -> bool:
        return fnmatchcase(path, pattern) if isinstance(pattern, str) else bool(pattern.search(path))

    @lru_cache(maxsize=4096)
    def read(path: str, otherwise: Any) -> Any:
        return next((label for pattern, label in rules if fits(pattern, path)), otherwise)

    return read


# Which parameters are matrices


@dataclass(frozen=True)
class Matrix:
    """How a parameter is a matrix: its inputs are the rows and its outputs the columns, as in ``x @ w``.

    Args:
        in_axis: the dimension, or dimensions, of the inputs.
        out_axis: of the outputs. Dimensions that neither names count matrices in a stack, such as layers or experts.
    """

    in_axis: int | tuple[int, ...] = -2
    out_axis: int | tuple[int, ...] = -1

    def dims(self, path: str, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """The dimensions of the stack, of the rows and of the columns."""
        try:
            rows, columns = (several(a, len(shape), "Matrix") for a in (self.in_axis, self.out_axis))
        except AxisError:
            rows = columns = ()
        if not rows or not columns or set(rows) & set(columns):
            raise ShapeError(
                f"the parameter {path or 'itself'} of shape {shape} is no matrix with inputs {self.in_axis} and "
                f"outputs {self.out_axis}.",
                'optim.muon(rate, matrices={"PATTERN": False}), which leaves it to AdamW',
            )
        return tuple(d for d in range(len(shape)) if d not in rows + columns), tuple(rows), tuple(columns)


# What the end of a path says is no matrix, and what any part of one says holds a table of vectors
VECTORS = {"bias", "scale", "gain", "norm"}
TABLES = {
    "tokens",
    "positions",
    "classes",
    "embedding",
    "embeddings",
    "embed",
    "unembed",
    "head",
    "lm_head",
    "wte",
    "wpe",
}


@lru_cache(maxsize=4096)
def matrix_by_name(path: str, shape: tuple[int, ...]) -> Matrix | None:
    """The matrix that a parameter is most likely, None if it is none: biases, scales and tables of embeddings by their
    paths. Three or more dimensions are parted where inputs and outputs are most nearly as many."""
    parts = path.split(".")
    words = {parts[-1], parts[-1].rpartition("_")[2]}
    if len(shape) < 2 or words & (VECTORS | TABLES) or TABLES.intersection(parts):
        return None

    def unlike(cut: int) -> float:
        rows, columns = math.prod(shape[:cut]), math.prod(shape[cut:])
        return max(rows, columns) / max(min(rows, columns), 1)

    cut = min(range(1, len(shape)), key=unlike)
    return Matrix(tuple(range(cut)), tuple(range(cut, len(shape))))


def matrices_of(matrices: Any, params: Any, default: Callable[[str, tuple[int, ...]], Matrix | None]) -> list[Any]:
    """For every parameter the Matrix that it is, or None.

    Args:
        matrices: a dict of patterns, a pytree, a function of params that returns one, or None, which is the default.
    """
    leaves, treedef = flat(params)
    paths = tree.paths_of(treedef)
    if callable(matrices):
        matrices = matrices(params)
    if matrices is None:
        said = [NOTHING] * len(leaves)
    elif isinstance(matrices, Mapping) and all(_is_word(v) for v in matrices.values()):
        said = [_reader(matrices)(path, NOTHING) for path in paths]
    else:
        known = dict(zip(tree.paths(matrices), tree.leaves(matrices)))
        said = [known.get(path, f"nothing at {path!r}") for path in paths]
    return [_read(word, path, p, default) for word, path, p in zip(said, paths, leaves)]


def _is_word(x: Any) -> bool:
    return x is None or isinstance(x, (bool, Matrix))


def _read(word: Any, path: str, p: Array, default: Callable[[str, tuple[int, ...]], Matrix | None]) -> Matrix | None:
    if word is NOTHING:
        return default(path, p.shape)
    if not _is_word(word):
        raise ArgumentError(
            f"whether {path or 'this parameter'} is a matrix is said by True, False or a Matrix; got {word!r}.",
            "optim.Matrix(in_axis=0, out_axis=(1, 2))",
        )
    return (Matrix() if word is True else word) or None


__all__ = ["Matrix", "by_path"]
