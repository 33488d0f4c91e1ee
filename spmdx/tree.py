"""Pytrees: nested containers of arrays, flattened and rebuilt by optree as JAX does (None is a node without leaves)."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

import optree

from spmdx.errors import ShapeError

TreeDef = optree.PyTreeSpec
Static = TypeVar("Static")
IsLeaf = Callable[[Any], bool] | None  # what to take for a leaf although it is a container


def static(kind: type[Static]) -> type[Static]:
    """Make objects of a class nodes without leaves: part of a tree's structure, equal where they are equal."""
    namespace: Any = optree.registry.__GLOBAL_NAMESPACE
    register: Any = optree.register_pytree_node  # whose types know containers only
    register(kind, lambda x: ((), x), lambda x, _: x, namespace=namespace)
    return kind


def flatten(tree: Any, is_leaf: IsLeaf = None) -> tuple[list[Any], TreeDef]:
    """Leaves in a fixed order (dictionaries by sorted key), and the structure to rebuild from."""
    return optree.tree_flatten(tree, is_leaf)


def unflatten(treedef: TreeDef, leaves: list[Any]) -> Any:
    """The tree of ``treedef`` with these leaves."""
    return optree.tree_unflatten(treedef, leaves)


def map(function: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """``function`` of the corresponding leaves of trees with the same structure."""
    return optree.tree_map(function, tree, *rest)


def leaves(tree: Any) -> list[Any]:
    """The leaves alone."""
    return optree.tree_leaves(tree)


def parts(tree: Any) -> dict[Any, Any] | None:
    """What a container holds, by key or position, in the order of its leaves; None for a leaf."""
    nested, treedef = optree.tree_flatten(tree, lambda x: x is not tree)
    return None if treedef.is_leaf() else dict(zip(treedef.entries(), nested))


def paths(tree: Any, is_leaf: IsLeaf = None) -> list[str]:
    """The path of every leaf, keys and positions joined by dots: ``layers.3.attention.qkv``."""
    return list(paths_of(optree.tree_structure(tree, is_leaf)))


@lru_cache(maxsize=1024)
def paths_of(treedef: TreeDef) -> tuple[str, ...]:
    """The same of a structure."""
    return tuple([".".join([str(part) for part in path]) for path in treedef.paths()])


def match(tree: Any, treedef: TreeDef, what: str) -> list[Any]:
    """The leaves of ``tree``, which must have the structure ``treedef``."""
    found, structure = optree.tree_flatten(tree)
    if structure != treedef:
        raise ShapeError(
            f"{what} has the structure {structure}, where {treedef} is needed.",
            "a tree of the same containers and keys",
        )
    return found
