"""Parameters: described in any pytree, then made where they are to lie.

A parameter's key is folded from its path, and a random value depends on its key and index alone: the same parameters
under every plan, on any number of ranks, whatever else the model holds. No rank makes more than its own blocks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from spmdx import context, tree
from spmdx.array import Array
from spmdx.decide import default_mesh
from spmdx.dtypes import checked
from spmdx.errors import ArgumentError, DtypeError
from spmdx.mesh import Mesh
from spmdx.ops.axes import sizes_of
from spmdx.ops.create import full
from spmdx.random import Key, fold_in

BITS = {"philox4x32": 63, "threefry2x32": 32}  # of the numbers that fold_in takes


@dataclass(frozen=True)
class Param:
    """What a parameter will be.

    Args:
        shape: its global shape.
        init: a number for all elements, or a function ``(key, shape, dtype=, mesh=, placement=)`` that returns an
            Array, such as ``sx.random.normal`` or one of ``nn.initializers``.
        dtype: its own dtype; None takes the one that ``nn.init`` is given.
    """

    shape: tuple[int, ...]
    init: float | Callable[..., Array] = 0.0
    dtype: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", sizes_of(self.shape))
        if not callable(self.init) and not isinstance(self.init, (int, float, np.number)):
            raise ArgumentError(f"init={self.init!r} makes no parameter.", "init=0.0, or init=sx.random.normal")


def path_key(key: Key, path: str) -> Key:
    """The key of a path such as ``"layers.3.attention.qkv"``: the same in every process, Python and year."""
    digest = hashlib.blake2b(path.encode(), digest_size=8).digest()
    return fold_in(key, int.from_bytes(digest, "little") % 2 ** BITS[key.impl])


def init(params: Any, key: Key, plan: Any = None, mesh: Mesh | None = None, dtype: Any = None) -> Any:
    """The pytree with every :class:`Param` made: sharded as the plan says, never whole first.

    Args:
        params: any pytree; leaves that are no Param stay as they are.
        key: every parameter draws from ``fold_in(key, hash of its path)``.
        plan: anything with ``placement(path, shape)`` that returns a placement or None, as a :class:`spmdx.Plan`;
            the running plan, or none, if left out.
        mesh: the default mesh if left out.
        dtype: of parameters that name none; float64 if left out.

    Communicates nothing, unless an init of the model's does, as one that reads a file.
    """
    mesh = mesh or default_mesh()
    if not isinstance(mesh, Mesh) or (plan is not None and not hasattr(plan, "placement")):
        raise ArgumentError(
            f"nn.init takes a plan and a mesh; got plan={plan!r} and mesh={mesh!r}.",
            "nn.init(params, key, plan, sx.make_mesh({...}))",
        )
    plan = context.get().plan if plan is None else plan
    leaves, treedef = tree.flatten(params)
    paths = tree.paths(params)
    if len(set(paths)) < len(paths):  # they would have one key, and the same values
        twice = next(p for p in paths if paths.count(p) > 1)
        raise ArgumentError(f"two leaves of the tree have the path {twice!r}.", "keys without dots in them")
    with context.use(mesh=mesh):
        made = [
            _made(leaf, path, key, plan, mesh, dtype) if isinstance(leaf, Param) else leaf
            for leaf, path in zip(leaves, paths)
        ]
    return tree.unflatten(treedef, made)


def _made(param: Param, path: str, key: Key, plan: Any, mesh: Mesh, dtype: Any) -> Array:
    kind = checked(next((d for d in (param.dtype, dtype) if d is not None), float))
    placement = None if plan is None else plan.placement(path, param.shape)
    if not callable(param.init):
        return full(param.shape, param.init, dtype=kind, mesh=mesh, placement=placement)
    given: Any = key
    if not isinstance(given, Key):
        seed = given if isinstance(given, int) else 0
        raise DtypeError(
            f"parameters are drawn with a key; got {type(given).__name__} {given!r}.",
            f"nn.init(params, sx.random.key({seed}))",
        )
    made: Any = param.init(path_key(key, path), param.shape, dtype=kind, mesh=mesh, placement=placement)
    if not isinstance(made, Array):
        raise DtypeError(
            f"the init of {path!r} made a {type(made).__name__}, not an Array.",
            "init=sx.random.normal, or init=0.0 for a number in all elements",
        )
    if tuple(made.shape) != param.shape:
        raise ArgumentError(
            f"the init of {path!r} made shape {tuple(made.shape)}, not {param.shape}.", "an init that keeps the shape"
        )
    return made


def count(params: Any) -> int:
    """How many numbers a pytree of parameters (made, or to be made) holds."""
    return sum(int(np.prod(leaf.shape, dtype=np.int64)) for leaf in tree.leaves(params) if hasattr(leaf, "shape"))


__all__ = ["Param", "count", "init", "path_key"]
