"""Checkpoints: a pytree of arrays in one safetensors file, written and read by all ranks, each its own part.

The file holds global values, whatever the placements, so it is resumed on any mesh, and other programs can read it. It
is written beside the old one and put in its place when it is whole. Ranks agree on what they save and on the file that
they read, and an error of one is raised on all.
"""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

import numpy as np

from spmdx import check, context, dtypes, tree
from spmdx.array import Array
from spmdx.checkpoint import file as files
from spmdx.checkpoint import leaves, parts, ranks, target
from spmdx.decide import default_mesh
from spmdx.errors import ArgumentError, CheckpointError, MeshError
from spmdx.mesh import Coordinate, Mesh
from spmdx.ops.place import held as held_block
from spmdx.ops.place import redistribute, spec_for
from spmdx.random import Key
from spmdx.spec import Spec, place

TRIES = 10  # at opening one file on all ranks, while another program replaces it


def save(path: Any, state: Any) -> None:
    """Write a pytree to one file, whole or not at all: a collective of all ranks.

    Args:
        path: of the file, on a file system that all ranks share. A file that is there is replaced and its mode kept;
            where a symbolic link lies, the file that it leads to.
        state: a pytree of Arrays, NumPy arrays, Python numbers, strings and random keys, the same on every rank.

    Every rank writes the blocks that it holds; of copies, and of NumPy arrays, the first rank's. Nothing is gathered
    and nothing sent, but for what finishes Partial values, and a few numbers by which ranks see that they agree. A name
    in the file is a path of the tree, as ``0.blocks.3.up``.

    Raises:
        CheckpointError: a leaf that a file cannot hold, or a rank that could not write: then on every rank, and the old
            file is still there.
        RanksDisagree: a number, a text, a placement or a set of leaves that is not the same on every rank.
        MeshError: an array of ranks that are not there.
    """
    failed, first = f"{path} cannot be written", context.rank() == 0

    def look() -> tuple[dict[str, Any], dict[str, Any], dict[str, str]]:
        file, named = target.path_of(path), _named(state)
        if context.get().dry:
            raise ArgumentError("a dry run (eval_shape, estimate) has no values to save.", "checkpoint.save outside it")
        if first:
            target.check(file)
        if files.META in named:
            raise CheckpointError(f"a file keeps its own texts under {files.META!r}.", "another key for that leaf")
        arrays = {n: _checked(n, x) for n, x in named.items() if isinstance(x, (Array, np.ndarray, np.generic))}
        other = {n: leaves.described(n, x) for n, x in named.items() if n not in arrays}
        told = {n: leaves.told(x) for n, x in {**named, **arrays}.items()}
        return arrays, other, {"the path": file, **told}

    arrays, other, told = ranks.together(failed, look)
    token = int(ranks.same(told, int.from_bytes(os.urandom(7), "little"))[0, 0])
    for name in sorted(arrays):
        arrays[name] = _finished(name, arrays[name])
    texts = {"spmdx": json.dumps(other), "save": f"{token:016x}"}
    plan = files.layout({n: (tuple(x.shape), x.dtype) for n, x in arrays.items()}, texts)
    new = target.Target(target.path_of(path), token)

    def fill() -> None:
        fd = os.open(new.partial, os.O_WRONLY)
        try:
            for name, x in arrays.items():
                for block, pieces in _mine(x, first):
                    files.write(fd, plan.tensors[name], block, pieces)
            os.fsync(fd)
        finally:
            os.close(fd)

    try:
        ranks.together(failed, lambda: new.begin(plan.head, plan.size) if first else None)
        ranks.together(failed, fill)
        ranks.together(failed, lambda: new.end() if first else None)
    finally:
        new.drop()


def load(path: Any, like: Any = None, *, mesh: Mesh | None = None, plan: Any = None) -> Any:
    """Read a pytree from a file that :func:`save` wrote: a collective of all ranks.

    Args:
        path: of the file.
        like: the pytree to fill: Arrays or Specs say where arrays are to lie (``sx.eval_shape`` makes Specs of the
            function that makes a state, with no memory); anything else with a shape, as ``nn.Param``, is placed by
            ``plan``; numbers, strings and keys are to be of the kinds that it has. Left out, the result is a dict of
            everything in the file by name, whole on every rank.
        mesh: for what names none; the default mesh.
        plan: a Plan, for descriptors.

    Ranks see by a few numbers that they read one file. Each reads its own blocks; or where these are strips of the
    file's rows, or whole on many ranks, a part that lies together, and ranks send each other what they are to hold: all
    together they read the file about once. Bits are those that were saved.

    Raises:
        CheckpointError: no such file, one that is cut short or damaged, other names, shapes, dtypes or kinds than
            ``like`` has; on every rank, if it is so on one.
    """
    failed = f"{path} cannot be read"
    source, held, data = _opened_by_all(path, failed)
    names: list[str] = []  # of what is found, where there is no tree to fill

    def look() -> list[Any]:
        if not isinstance(mesh, Mesh | None):
            raise ArgumentError(f"mesh={mesh!r} is no mesh.", 'mesh=sx.make_mesh({"data": -1})')
        if plan is not None and not callable(getattr(plan, "spec", None)):
            raise ArgumentError(f"plan={plan!r} is no plan.", 'plan=sx.Plan({"w": {"data": sx.Shard(0)}})')
        where = mesh or default_mesh()
        other = leaves.read(source, held.texts.get("spmdx", "{}"), held.tensors)
        if like is None:
            whole = [_Wanted(t, place(where, t.shape, t.dtype)) for t in held.tensors.values()]
            names.extend([*held.tensors, *other])
            return [*whole, *other.values()]
        named = _named(like)
        _same_names(source, named.keys(), held.tensors.keys() | other.keys())
        return [
            leaves.fitting(source, n, other[n], x)
            if n in other
            else _leaf(source, data, n, held.tensors[n], x, where, plan)
            for n, x in named.items()
        ]

    found = ranks.together(failed, look)
    wanted = {i: x for i, x in enumerate(found) if isinstance(x, _Wanted)}
    views = {i: files.view(data, x.tensor) for i, x in wanted.items()}
    sources = {i: parts.source(x.spec, views[i]) for i, x in wanted.items()}
    told = [f"{i} {sources[i]} {x.spec} {x.spec.mesh}" for i, x in wanted.items() if sources[i] is not x.spec]
    numbers = ranks.gathered(ranks.digest("\n".join(told).encode()))
    if (numbers != numbers[0]).any():  # ranks that ask for different things send each other none
        sources = {i: x.spec for i, x in wanted.items()}

    def fill() -> None:
        for i, x in wanted.items():
            found[i] = parts.read(views[i], sources[i], x.spec)

    ranks.together(failed, fill)
    for i in wanted:
        found[i] = parts.sent(found[i])
    return dict(zip(names, found)) if like is None else tree.unflatten(tree.flatten(like, _is_leaf)[1], found)


def views(path: Any) -> dict[str, Any]:
    """The arrays of any safetensors file by name, as read-only NumPy arrays that lie in the file.

    Nothing is read before it is looked at: :func:`read` makes arrays of them, of which each rank reads its part. For
    files of other programs, with other names and layouts. No communication.

    Raises:
        CheckpointError: no such file, a file that is cut short, or no safetensors file.
    """
    try:
        held, data = files.opened(target.path_of(path))
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read: {error.strerror}.", "the path of a file that is yours"
        ) from error
    return {name: files.view(data, tensor) for name, tensor in held.tensors.items()}


def read(view: Any, dtype: Any = None, *, mesh: Mesh | None = None, placement: Any = None) -> Array:
    """The array of an array in a file, as :func:`views` gives them: a collective of all ranks of the mesh.

    Args:
        view: the same on every rank; also a slice, a transpose or another shape of one of the views, as
            ``views(path)["up"].T``.
        dtype: that of the file if left out.
        mesh: the default mesh if left out.
        placement: a dict or P; Replicate on every axis if left out.

    Each rank reads about as much as the array divided among all of them, of rows that lie together in the file, and
    ranks send each other what they are to hold, in the narrower of the two dtypes. Nothing is sent where a rank's own
    block is as cheap to read, as a block of the file's rows, or a small array.
    """
    given: Any = view
    if not isinstance(given, np.ndarray):
        raise ArgumentError(f"read takes an array in a file; got {type(given).__name__}.", "read(views(path)[name])")
    kind, wanted = dtypes.checked(view.dtype), dtypes.checked(view.dtype if dtype is None else dtype)
    spec = spec_for(view.shape, kind, mesh, placement)
    part = parts.read(view, parts.source(spec, view), spec)
    return parts.sent(part.astype(wanted) if wanted.itemsize < kind.itemsize else part).astype(wanted)


def _opened_by_all(path: Any, failed: str) -> tuple[str, files.Layout, Any]:
    """The path as a text, and one file that lay there, open on every rank."""

    def look() -> tuple[str, files.Layout, Any]:
        source = target.path_of(path)
        return source, *files.opened(source)

    for _ in range(TRIES):
        source, held, data = ranks.together(failed, look)
        numbers = ranks.gathered(ranks.digest(held.head), data.size)
        if (numbers == numbers[0]).all():
            return source, held, data
    raise CheckpointError(
        f"{path} is not one file: ranks have opened several, {TRIES} times.",
        "a path in a folder that all ranks share, to which no other program saves meanwhile",
    )


def _is_leaf(x: Any) -> bool:
    return isinstance(x, Key)


def _named(state: Any) -> dict[str, Any]:
    """Leaves by their paths; random keys are leaves here."""
    try:
        names = [path or "value" for path in tree.paths(state, _is_leaf)]
    except RecursionError:
        raise CheckpointError("the tree is too deep, or holds itself.", "a tree of less depth") from None
    found = dict(zip(names, tree.flatten(state, _is_leaf)[0]))
    if len(found) < len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise CheckpointError(f"two leaves of the tree have the path {twice!r}.", "keys without dots in them")
    return found


def _checked(name: str, x: Any) -> Any:
    """An Array of ranks that are there, or a NumPy array in this machine's byte order, of a dtype that files know."""
    if not isinstance(x, Array):
        x = dtypes.read(x)
        x = x.astype(x.dtype.newbyteorder("="), copy=False)
    else:
        _of_this_world(x.mesh, name)
    if x.dtype not in files.WORDS and x.dtype not in files.PARTS:
        raise CheckpointError(f"{name} is of {x.dtype}, which files do not know.", "x.astype(float)")
    return x


def _of_this_world(mesh: Mesh, name: str) -> None:
    size = context.world().size
    if mesh.device != "sim" and max(mesh.ranks) >= size:
        raise MeshError(
            f"{name} lies on {mesh!r}, which names rank {max(mesh.ranks)}, and the world has {size} rank(s).",
            "the same inside the function that sx.testing.spmd runs" if size == 1 else "an array of these ranks",
        )


def _finished(name: str, x: Any) -> Any:
    """The array with no axis Partial; ranks that check compare what NumPy's hold."""
    if isinstance(x, Array):
        return redistribute(x, x.spec.replace(partial=()).placement) if x.spec.partial else x
    check.same(ranks.everyone(), f"saving {name}", x)
    return x


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


class _Wanted(NamedTuple):
    """A tensor of a file, and how it is to lie."""

    tensor: files.Tensor
    spec: Spec


def _leaf(path: str, data: Any, name: str, tensor: files.Tensor, like: Any, mesh: Mesh, plan: Any) -> Any:
    """How a tensor of the file is to lie, as ``like`` says; of NumPy's arrays itself."""
    shape, dtype = getattr(like, "shape", None), getattr(like, "dtype", None)
    if shape is None:
        raise CheckpointError(
            f"{path} has an array at {name}, where the tree has {leaves.shown(like)}.", "the tree that was saved"
        )
    kind = None if dtype is None else dtypes.checked(dtype)
    if tuple(shape) != tensor.shape or kind not in (None, tensor.dtype):
        raise CheckpointError(
            f"{path} has {tensor.dtype.name}{list(tensor.shape)} at {name}, where the tree has "
            f"{'' if kind is None else kind.name}{list(shape)}.",
            "load(path) to see what is there",
        )
    if isinstance(like, (np.ndarray, np.generic)):
        whole = np.array(files.view(data, tensor))
        return whole if isinstance(like, np.ndarray) else whole[()]
    if isinstance(like, (Array, Spec)):
        spec = (like if isinstance(like, Spec) else like.spec).replace(partial=())
    elif plan is None:
        spec = place(mesh, tensor.shape, tensor.dtype)
    else:
        spec = plan.spec(name, tensor.shape, tensor.dtype, mesh)
    _of_this_world(spec.mesh, name)
    return _Wanted(tensor, spec)


def _same_names(path: str, wanted: Any, found: Any) -> None:
    missing, extra = sorted(wanted - found), sorted(found - wanted)
    if missing or extra:
        parts = [f"lacks {', '.join(missing[:5])}"] * bool(missing) + [f"has also {', '.join(extra[:5])}"] * bool(extra)
        raise CheckpointError(f"{path} {' and '.join(parts)}.", "load(path) to see what is there")


__all__ = ["load", "read", "save", "views"]
