"""The simulator's transport: one thread holds the blocks of every rank, so exchanging them is picking from a list."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from spmdx.mesh import Coordinate, Mesh
from spmdx.runtime.pool import take
from spmdx.runtime.reduction import reduce_ordered


def groups(mesh: Mesh, axes: tuple[str, ...]) -> list[list[Coordinate]]:
    """The members of every group over ``axes``."""
    found = {tuple(mesh.members(axes, c)): None for c in mesh.coordinates()}
    return [list(members) for members in found]


class Group:
    """A group of simulated ranks; `turn` is the group as one of them sees it once all have packed."""

    def __init__(self, size: int) -> None:
        self.size = size

    def buffer(self, count: int, dtype: Any) -> Any:
        """Memory to pack a message into."""
        return np.empty(count, dtype)

    def turn(self, rank: int, sends: Sequence[Any], counts: Sequence[Sequence[int]]) -> Turn:
        """The group as member ``rank`` sees it, given what all have packed."""
        return Turn(rank, sends, counts)


class Turn:
    """One member's side of a simulated collective: the verbs of `runtime.comm.Group`."""

    take = staticmethod(take)

    def __init__(self, rank: int, sends: Sequence[Any], counts: Sequence[Sequence[int]]) -> None:
        self.rank, self.sends, self.counts = rank, sends, counts

    def _mine(self) -> list[Any]:
        offsets = [[0, *accumulate(c)] for c in self.counts]
        return [s[o[self.rank] : o[self.rank + 1]] for s, o in zip(self.sends, offsets)]

    def all_gather(self, send: Any, counts: Sequence[int], out: Any = None) -> list[Any]:
        """Every member's message."""
        return self._deliver(list(self.sends), out)

    def all_to_all(self, send: Any, send_counts: Any, receive_counts: Any, out: Any = None) -> list[Any]:
        """What every member packed for this one."""
        return self._deliver(self._mine(), out)

    def reduce_scatter(self, send: Any, counts: Any, op: str) -> Any:
        """The reduction, in member order, of what every member packed for this one."""
        return reduce_ordered(self._mine(), op)

    def all_reduce(self, send: Any, op: str) -> Any:
        """The reduction, in member order, of every member's message."""
        return reduce_ordered(list(self.sends), op)

    @staticmethod
    def _deliver(parts: list[Any], out: Any) -> list[Any]:
        if out is not None:
            np.concatenate(parts, out=out)
        return parts
