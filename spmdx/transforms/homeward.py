"""Gradients go home, to where their values lie: as many together as fill a bucket, as soon as they are there."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import inf, prod
from typing import Any

from spmdx.array import Array
from spmdx.ops.create import zeros_like
from spmdx.ops.place import moved_arrays
from spmdx.ops.transfer import brought
from spmdx.plan import plan
from spmdx.spec import Spec


@lru_cache(maxsize=4096)
def home(spec: Spec) -> Spec:
    """Where the gradient of a value lies: as the value, Replicate where it is Partial."""
    return spec.replace(partial=()) if spec.partial else spec


class Homeward:
    """Gradients of leaves on their way to these places.

    Those that a walk hands over, because nothing is to be added to them any more, are sent once ``bucket`` bytes of
    them are waiting, while the walk goes on. The bytes are those of the largest block, which every rank knows.
    """

    def __init__(self, leaves: Sequence[Array], places: Sequence[Spec], bucket: float = inf) -> None:
        self.leaves, self.places, self.bucket = leaves, places, bucket
        self.out: list[Any] = [None] * len(leaves)
        self.waiting: list[int] = []
        self.bytes = 0
        self.halves: list[Any] = []  # all-reduces of which each rank's share of the sums is on its way

    def fills(self) -> bool:
        """Whether these gradients may be more than one bucket."""
        return self.bucket <= sum(prod(x.spec.shape) * x.spec.dtype.itemsize for x in self.leaves)

    def take(self, k: int, g: Array) -> None:
        """The gradient of a leaf, to which nothing is to be added."""
        self.out[k] = g
        if g.spec is not self.places[k]:
            self.waiting.append(k)
            self.bytes += g.spec.largest_block * g.spec.dtype.itemsize
            if self.bytes >= self.bucket:
                self._send(self.halves)

    def all(self, found: Sequence[Array | None]) -> list[Array]:
        """All gradients at home or on their way: those taken before, and what a walk has found besides."""
        for k in reversed(range(len(found))):  # about as a walk would hand them over
            g = found[k]
            if g is not None:
                self.take(k, g)
            elif self.out[k] is None:
                self.out[k] = zeros_like(self.leaves[k])
                self.waiting.append(k)
        self._send(None)
        return self.out

    def _send(self, halves: list[Any] | None) -> None:
        """What is waiting, together. Before it the shares of the bucket before are gathered: on every rank at this
        line of the program, for all begin a communicator's messages in one order."""
        for each in self.halves:
            each.gather()
        self.halves.clear()
        some = sorted(self.waiting)
        grads = brought([self.out[k] for k in some], [self.places[k].mesh for k in some])
        targets = [self.places[k].replace(dtype=g.dtype) for k, g in zip(some, grads)]
        plans = [plan(g.spec, t) for g, t in zip(grads, targets)]
        for k, g in zip(some, moved_arrays(grads, targets, plans, "grad", implied=False, wait=False, halves=halves)):
            self.out[k] = g
        self.waiting, self.bytes = [], 0


__all__ = ["Homeward", "home"]
