"""How a plan's words change a spec: some mesh axes get a new placement, the others stay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from spmdx.errors import PlacementError
from spmdx.mesh import Mesh
from spmdx.placement import Replicate, Shard
from spmdx.spec import WHOLE, Layout, Spec, place


@dataclass(frozen=True)
class Spread:
    """Divide whichever dimension divides most evenly, inside the divisions that other mesh axes make. What is too
    small to be divided stays whole."""

    def __repr__(self) -> str:
        return "Spread()"


Word = Replicate | Shard | Spread
Axes = Mapping[str, Word]


def checked(axes: object, where: str) -> dict[str, Word]:
    """The words of one entry of a plan: a mapping of mesh axis to Replicate, Shard or Spread."""
    words = axes.items() if isinstance(axes, Mapping) else [(None, None)]
    if not all(isinstance(axis, str) and isinstance(word, (Replicate, Shard, Spread)) for axis, word in words):
        raise PlacementError(
            f"a plan gives {where} a dict of mesh axis to Shard, Replicate or Spread; got {axes!r}.",
            f'{{{where!r}: {{"model": sx.Shard(0)}}}}',
        )
    return {str(axis): word for axis, word in words if isinstance(word, (Replicate, Shard, Spread))}


def without(layout: Layout, axes: set[str], mesh: Mesh) -> Layout:
    """A division with some of its axes taken away; unequal sizes do not outlive that."""
    if axes.isdisjoint(layout.axes):
        return layout
    kept = tuple(a for a in layout.axes if a not in axes)
    return Layout(kept, None, layout.interleave) if kept else WHOLE


def changed(spec: Spec, axes: Axes, of: object = "") -> Spec:
    """The spec with new placements on the axes named; on all others it stays as it is.

    Raises:
        PlacementError: words that do not fit, with the path or the name that they are ``of``.
    """
    try:
        return _changed(spec, tuple(axes.items()))
    except PlacementError as error:
        raise PlacementError(f"{of!r} does not lie as the plan says: {error}") from None


@lru_cache(maxsize=4096)
def _changed(spec: Spec, words: tuple[tuple[str, Word], ...]) -> Spec:
    axes = dict(words)
    moved = set(axes)
    layouts = [without(layout, moved, spec.mesh) for layout in spec.layouts]
    partial = tuple(a for a in spec.partial if a not in moved)
    fixed = {a: p for a, p in axes.items() if isinstance(p, Shard)}
    asked = place(spec.mesh, spec.shape, spec.dtype, fixed)
    for dim, layout in enumerate(asked.layouts):
        if layout.axes and layouts[dim].axes:  # both divide it: in mesh order, by default sizes
            both = sorted((*layouts[dim].axes, *layout.axes), key=spec.mesh.axis_names.index)
            layouts[dim] = Layout(tuple(both), None, layout.interleave)
        elif layout.axes:
            layouts[dim] = layout
    made = spec.replace(layouts=tuple(layouts), partial=partial)
    for name in spec.mesh.axis_names:
        if isinstance(axes.get(name), Spread):
            made = spread(made, name)
    return made


def spread(spec: Spec, axis: str) -> Spec:
    """The spec divided along one more axis, where its blocks become smallest; then where no other axis divides."""
    best, rank = spec, (spec.largest_block, False, -1)
    for dim, layout in enumerate(spec.layouts):
        if layout.sizes is None and layout.interleave == 1:
            layouts = (*spec.layouts[:dim], Layout((*layout.axes, axis)), *spec.layouts[dim + 1 :])
            found = spec.replace(layouts=layouts)
            its = (found.largest_block, bool(layout.axes), dim)
            if its < rank:
                best, rank = found, its
    return best


def means(spec: Spec, dim: int, axes: Axes) -> Spec:
    """A spec as a plan's words change it, without one dimension: what they spread is spread over what is left."""
    laid = changed(spec, {a: word for a, word in axes.items() if not isinstance(word, Spread)})
    keep = [d for d in range(spec.ndim) if d != dim % spec.ndim]
    rest = laid.replace(
        shape=tuple(laid.shape[d] for d in keep), layouts=tuple(laid.layouts[d] for d in keep), partial=()
    )
    return changed(rest, {a: word for a, word in axes.items() if isinstance(word, Spread)})


def homeward(g: Spec, source: Spec, axes: Axes) -> Spec:
    """Where the gradient of a placed value goes: along the axes that the plan names, to where the value came from. The
    gradient of a value that was whole or Partial is finished; of one that was whole it may stay divided."""
    return _homeward(g, source, tuple(axes))


@lru_cache(maxsize=4096)
def _homeward(g: Spec, source: Spec, axes: tuple[str, ...]) -> Spec:
    dims = [d for d, layout in enumerate(source.layouts) if not set(axes).isdisjoint(layout.axes)]
    taken = {a for d in dims for a in source.layouts[d].axes} | (set(axes) & set(source.partial))
    layouts = [without(layout, taken, g.mesh) for layout in g.layouts]
    for d in dims:
        layouts[d] = source.layouts[d]
    partial = tuple(a for a in g.partial if a not in taken and a not in axes)
    return g.replace(layouts=tuple(layouts), partial=partial)
