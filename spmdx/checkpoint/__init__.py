"""Checkpoints: a pytree of arrays in one safetensors file, written and read by all ranks, each its own part.

The file holds global values, whatever the placements, so it is resumed on any mesh, and other programs can read it. It
is written beside the old one and put in its place when it is whole.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from spmdx import check, context, tree
from spmdx.array import Array
from spmdx.checkpoint import file as files
from spmdx.decide import default_mesh
from spmdx.errors import CheckpointError
from spmdx.mesh import Coordinate, Mesh
from spmdx.ops.place import held as held_block
from spmdx.ops.place import redistribute, wrap
from spmdx.random import Key
from spmdx.spec import Spec, place

SCALARS = (bool, int, float, str)


def save(path: Any, state: Any) -> None:
    """Write a pytree to one file, whole or not at all: a collective of all ranks.

    Args:
        path: of the file, on a file system that all ranks share; a file that is there is replaced.
        state: a pytree of Arrays, NumPy arrays, Python numbers, strings and random keys.

    Every rank writes the blocks that it holds; of copies the first rank's. Nothing is gathered and nothing sent, but
    for what finishes Partial values. A name in the file is a path of the tree, as ``0.blocks.3.up``.

    Raises:
        CheckpointError: a leaf that a file cannot hold, or a rank that could not write: then on every rank, and the old
            file is still there.
    """
    target = os.fspath(path)
    named = _named(state)
    if files.META in named:
        raise CheckpointError(f"a file keeps its own texts under {files.META!r}.", "another key for that leaf")
    arrays = {n: _finished(x) for n, x in named.items() if isinstance(x, (Array, np.ndarray, np.generic))}
    other = {n: _described(n, x) for n, x in named.items() if n not in arrays}
    for name, x in arrays.items():
        if x.dtype not in files.WORDS and x.dtype not in files.PARTS:
            raise CheckpointError(f"{name} is of {x.dtype}, which files do not know.", "x.astype(float)")
    plan = files.layout({n: (tuple(x.shape), x.dtype) for n, x in arrays.items()}, {"spmdx": json.dumps(other)})
    first, everyone, partial = context.rank() == 0, _everyone(), f"{target}.partial"

    def begin() -> None:
        if first:
            with open(partial, "wb") as file:
                file.write(plan.head)
                file.truncate(plan.size)

    def fill() -> None:
        fd = os.open(partial, os.O_WRONLY)
        try:
            for name, x in arrays.items():
                for block, pieces in _mine(x, first):
                    files.write(fd, plan.tensors[name], block, pieces)
            os.fsync(fd)
        finally:
            os.close(fd)

    def end() -> None:
        if first:
            os.replace(partial, target)
            folder = os.open(os.path.dirname(os.path.abspath(target)), os.O_RDONLY)
            try:
                os.fsync(folder)  # the new name as well
            finally:
                os.close(folder)

    try:
        for step in (begin, fill, end):
            check.together(everyone, f"saving {target}", step)
    except (OSError, check.RankFailed) as error:  # this rank's own, or that of the rank that could not
        raise CheckpointError(f"{target} cannot be written: {error}.", "a path where there is room") from error
    finally:
        if first and os.path.exists(partial):
            os.remove(partial)


def load(path: Any, like: Any = None, *, mesh: Mesh | None = None, plan: Any = None) -> Any:
    """Read a pytree from a file that :func:`save` wrote; each rank reads its own blocks, and nothing is sent.

    Args:
        path: of the file.
        like: the pytree to fill: Arrays or Specs say where arrays are to lie (``sx.eval_shape`` makes Specs of the
            function that makes a state, with no memory); anything else with a shape, as ``nn.Param``, is placed by
            ``plan``. Left out, the result is a dict of everything in the file by name, whole on every rank.
        mesh: for what names none; the default mesh.
        plan: a Plan, for descriptors.

    Bits are those that were saved.

    Raises:
        CheckpointError: no such file, a file that is cut short, other names, shapes or dtypes than ``like`` has.
    """
    source = os.fspath(path)
    held = _layout(source)
    other: dict[str, Any] = json.loads(held.texts.get("spmdx", "{}"))
    where = mesh or default_mesh()
    if like is None:
        whole = {n: _read(source, t, place(where, t.shape, t.dtype)) for n, t in held.tensors.items()}
        return {**whole, **{n: _undescribed(x) for n, x in other.items()}}
    named = _named(like)
    _same_names(source, named.keys(), held.tensors.keys() | other.keys())
    leaves = [
        _undescribed(other[n]) if n in other else _leaf(source, n, held.tensors[n], x, where, plan)
        for n, x in named.items()
    ]
    return tree.unflatten(tree.flatten(like, _is_leaf)[1], leaves)


def views(path: Any) -> dict[str, Any]:
    """The arrays of any safetensors file by name, as read-only NumPy arrays that lie in the file.

    Nothing is read before it is looked at: ``sx.asarray(views(path)[name].T, placement=...)`` reads no more than this
    rank's block. For files of other programs, with other names and layouts.

    Raises:
        CheckpointError: no such file, a file that is cut short, or no safetensors file.
    """
    source = os.fspath(path)
    return {name: files.view(source, tensor) for name, tensor in _layout(source).tensors.items()}


def _layout(source: str) -> files.Layout:
    if not os.path.isfile(source):
        raise CheckpointError(f"there is no file {source}.", "checkpoint.save(path, state) before it")
    return files.read_layout(source)


def _is_leaf(x: Any) -> bool:
    return isinstance(x, Key)


def _named(state: Any) -> dict[str, Any]:
    """Leaves by their paths; random keys are leaves here."""
    leaves, _ = tree.flatten(state, _is_leaf)
    names = [path or "value" for path in tree.paths(state, _is_leaf)]
    found = dict(zip(names, leaves))
    if len(found) < len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise CheckpointError(f"two leaves of the tree have the path {twice!r}.", "keys without dots in them")
    return found


def _finished(x: Any) -> Any:
    if not isinstance(x, Array):
        block = np.asarray(x)
        return block.astype(block.dtype.newbyteorder("="), copy=False)
    return redistribute(x, x.spec.replace(partial=()).placement) if x.spec.partial else x


def _described(name: str, x: Any) -> Any:
    """A leaf that is no array, in JSON."""
    if isinstance(x, Key):
        return {"key": list(x.words), "impl": x.impl}
    if isinstance(x, SCALARS):
        return {"float": x.hex()} if isinstance(x, float) else {"value": x}
    raise CheckpointError(
        f"{name} is a {type(x).__name__}: a checkpoint holds arrays, numbers, strings and keys.",
        "tree.map over the state without it",
    )


def _undescribed(found: Mapping[str, Any]) -> Any:
    if "key" in found:
        return Key(tuple(int(word) for word in found["key"]), str(found["impl"]))
    return float.fromhex(found["float"]) if "float" in found else found["value"]


def _everyone() -> Mesh:
    return Mesh(("world",), (context.world().size,))


def _mine(x: Any, first: bool) -> list[tuple[Any, files.Pieces]]:
    """The blocks that this process writes, and what they hold: of copies the first."""
    if not isinstance(x, Array):
        return [(x, tuple(((0, n),) for n in x.shape))] if first else []
    mesh, spec = x.mesh, x.spec
    if mesh.device == "sim":
        held = list(zip(mesh.coordinates(), x._block)) if first else []
    else:
        held = [(mesh.here(), held_block(x))] if mesh.contains_me() else []
    copies = [i for i, axis in enumerate(mesh.axis_names) if axis not in spec.sharded_axes]
    return [(block, _pieces(spec, at)) for at, block in held if not any(at[i] for i in copies)]


def _pieces(spec: Spec, coordinate: Coordinate) -> files.Pieces:
    return tuple(spec.pieces(d, coordinate) for d in range(spec.ndim))


def _read(path: str, tensor: files.Tensor, spec: Spec) -> Array:
    return wrap(spec, lambda coordinate: files.read(path, tensor, _pieces(spec, coordinate)))


def _leaf(path: str, name: str, tensor: files.Tensor, like: Any, mesh: Mesh, plan: Any) -> Any:
    """A tensor of the file as ``like`` says."""
    shape = getattr(like, "shape", None)
    if shape is None:
        raise CheckpointError(f"{path} has an array at {name}, where the tree has {like!r}.", "the tree that was saved")
    dtype = getattr(like, "dtype", None)
    if tuple(shape) != tensor.shape or (dtype is not None and np.dtype(dtype).newbyteorder("=") != tensor.dtype):
        raise CheckpointError(
            f"{path} has {tensor.dtype.name}{list(tensor.shape)} at {name}, where the tree has "
            f"{'' if dtype is None else np.dtype(dtype).name}{list(shape)}.",
            "load(path) to see what is there",
        )
    if isinstance(like, (np.ndarray, np.generic)):
        whole = files.read(path, tensor, tuple(((0, n),) for n in tensor.shape))
        return whole if isinstance(like, np.ndarray) else whole[()]
    if isinstance(like, (Array, Spec)):
        spec = like if isinstance(like, Spec) else like.spec
        return _read(path, tensor, spec.replace(partial=()))
    spec = place(mesh, tensor.shape, tensor.dtype)
    return _read(path, tensor, spec if plan is None else plan.spec(name, tensor.shape, tensor.dtype, mesh))


def _same_names(path: str, wanted: Any, found: Any) -> None:
    missing, extra = sorted(wanted - found), sorted(found - wanted)
    if missing or extra:
        parts = [f"lacks {', '.join(missing[:5])}"] * bool(missing) + [f"has also {', '.join(extra[:5])}"] * bool(extra)
        raise CheckpointError(f"{path} {' and '.join(parts)}.", "load(path) to see what is there")


__all__ = ["load", "save", "views"]
