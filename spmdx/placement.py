"""Placements: where the pieces of an array lie along one mesh axis. Frozen values that never communicate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spmdx.errors import PlacementError

OPS = ("sum", "prod", "min", "max")


@dataclass(frozen=True)
class Replicate:
    """Every rank along the axis holds the same values."""

    def __repr__(self) -> str:
        return "Replicate()"


@dataclass(frozen=True)
class Shard:
    """The ranks along the axis hold consecutive pieces of one dimension.

    Args:
        dim: the dimension that is divided; negative counts from the last.
        sizes: the length of every piece, for a ragged division; None divides as ``numpy.array_split`` does. Where
            several axes divide the dimension, every one of them lists all pieces, outermost first.
        interleave: divide each of this many equal groups of the dimension on its own (a fused QKV has 3).
    """

    dim: int
    sizes: tuple[int, ...] | None = None
    interleave: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.dim, int) or isinstance(self.dim, bool):
            raise PlacementError(f"Shard needs the number of a dimension; got {self.dim!r}.", "Shard(0)")
        if self.sizes is not None:
            object.__setattr__(self, "sizes", tuple(int(n) for n in self.sizes))
            if any(n < 0 for n in self.sizes or ()):
                raise PlacementError(f"Shard sizes must not be negative; got {self.sizes}.", "sizes of 0 or more")
        if not isinstance(self.interleave, int) or self.interleave < 1:
            raise PlacementError(
                f"interleave is a count of groups, 1 or more; got {self.interleave!r}.", "interleave=3"
            )
        if self.sizes is not None and self.interleave != 1:
            raise PlacementError("a Shard is ragged or interleaved, not both.", f"Shard({self.dim}, sizes=...) alone")

    def __repr__(self) -> str:
        sizes = "" if self.sizes is None else f", sizes={self.sizes}"
        return f"Shard({self.dim}{sizes}{'' if self.interleave == 1 else f', interleave={self.interleave}'})"


@dataclass(frozen=True)
class Partial:
    """The value is the reduction of the ranks' blocks along the axis: ``op`` is sum, prod, min or max."""

    op: str = "sum"

    def __post_init__(self) -> None:
        if self.op not in OPS:
            raise PlacementError(
                f"Partial takes one of {', '.join(OPS)}; got {self.op!r}. A mean is a sum divided by the global count.",
                'Partial("sum")',
            )

    def __repr__(self) -> str:
        return f'Partial("{self.op}")'


class P(tuple[str | tuple[str, ...] | None, ...]):
    """JAX's way to write a placement: for each dimension, the mesh axes that divide it, outermost first as written.

    ``P("data", None, ("model", "expert"))``; ``P(partial="model")`` adds axes along which the value is a reduction.
    """

    partial: tuple[str, ...]
    op: str

    def __new__(cls, *dims: str | tuple[str, ...] | None, partial: str | tuple[str, ...] = (), op: str = "sum") -> P:
        made = super().__new__(cls, dims)
        made.partial = (partial,) if isinstance(partial, str) else tuple(partial)
        made.op = Partial(op).op
        return made

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, P)
            and tuple(self) == tuple(other)
            and (self.partial, self.op) == (other.partial, other.op)
        )

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((tuple(self), self.partial, self.op))

    def __getnewargs_ex__(self) -> tuple[tuple[object, ...], dict[str, object]]:
        return tuple(self), {"partial": self.partial, "op": self.op}

    def __repr__(self) -> str:
        tail = [f"partial={self.partial!r}"] if self.partial else []
        tail += [f"op={self.op!r}"] if self.partial and self.op != "sum" else []
        return f"P({', '.join([repr(d) for d in self] + tail)})"


AxisPlacement = Replicate | Shard | Partial
Placement = Mapping[str, AxisPlacement] | P
