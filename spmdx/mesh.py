"""Meshes: ranks arranged in a grid with named axes. A value: it knows neither MPI nor devices."""

from __future__ import annotations

import math
from collections import deque
from functools import cached_property
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

from spmdx import context
from spmdx.errors import MeshError

RESERVED = frozenset({"mesh", "placement", "shape", "dtype", "device"})
DEVICES = ("cpu", "cuda", "sim")
Coordinate = tuple[int, ...]

_interned: WeakValueDictionary[tuple[Any, ...], Mesh] = WeakValueDictionary()
_lock = Lock()
_recent: deque[Mesh] = deque(maxlen=256)  # kept alive, so that a program's meshes are not made at every call


class Mesh:
    """Ranks in a row-major grid with named axes. Equal by value (names, sizes, ranks, device), and then identical.

    Make one with :func:`spmdx.make_mesh`, which knows the ranks there are.
    """

    axis_names: tuple[str, ...]
    sizes: tuple[int, ...]
    ranks: tuple[int, ...]
    device: str
    divided: bool  # True once a rank of this process was found to be outside

    def __new__(
        cls, axis_names: tuple[str, ...], sizes: tuple[int, ...], ranks: Any = None, device: str = "cpu"
    ) -> Mesh:
        names, sizes = tuple(axis_names), tuple(int(n) for n in sizes)
        members = tuple(range(math.prod(sizes))) if ranks is None else tuple(int(r) for r in ranks)
        key = (names, sizes, members, device)
        found = _interned.get(key)
        if found is None:
            _validate(names, sizes, members, device)
            found = super().__new__(cls)
            found.axis_names, found.sizes, found.ranks, found.device = names, sizes, members, device
            found.divided = False
            with _lock:  # thread ranks make equal meshes at once, and must get one object
                found = _interned.setdefault(key, found)
                _recent.append(found)
        return found

    @cached_property
    def shape(self) -> dict[str, int]:
        """Axis name to size, outermost axis first."""
        return dict(zip(self.axis_names, self.sizes))

    @cached_property
    def size(self) -> int:
        """Number of ranks in the mesh."""
        return math.prod(self.sizes)

    @cached_property
    def _position(self) -> dict[int, int]:
        return {rank: position for position, rank in enumerate(self.ranks)}

    @cached_property
    def host(self) -> Mesh:
        """The same ranks with blocks in host memory: what small messages of numbers go through."""
        return self if self.device != "cuda" else Mesh(self.axis_names, self.sizes, self.ranks)

    @property
    def rank(self) -> int:
        """This process's (or thread rank's) number in its world."""
        return context.rank()

    @property
    def coordinate(self) -> dict[str, int]:
        """This rank's place on every axis. An error on a rank outside the mesh."""
        return dict(zip(self.axis_names, self.here()))

    def here(self) -> Coordinate:
        """This rank's coordinate as a tuple in the order of the axes."""
        return self.coordinate_of(context.rank())

    def contains_me(self) -> bool:
        """True if this rank is in the mesh (a simulated mesh holds all of its ranks in one process)."""
        inside = self.device == "sim" or context.rank() in self._position
        if not inside and not self.divided:  # the first thread rank of this process that is outside
            with context.remembering:
                self.divided = True
                context.forget_calls()
        return inside

    def coordinate_of(self, rank: int) -> Coordinate:
        """The coordinate of a rank, as NumPy's ``unravel_index`` counts."""
        if rank not in self._position:
            raise MeshError(
                f"rank {rank} is not in {self!r}, so it has no coordinate there.",
                "`if mesh.contains_me():` around code for the mesh's own ranks",
            )
        return self.unravel(self._position[rank])

    def unravel(self, position: int) -> Coordinate:
        """Row-major position to coordinate."""
        out = []
        for n in reversed(self.sizes):
            position, c = divmod(position, n)
            out.append(c)
        return tuple(reversed(out))

    def rank_at(self, coordinate: Coordinate) -> int:
        """The rank at a coordinate."""
        position = 0
        for c, n in zip(coordinate, self.sizes):
            position = position * n + c
        return self.ranks[position]

    def coordinates(self) -> list[Coordinate]:
        """All coordinates, in row-major order."""
        return [self.unravel(i) for i in range(self.size)]

    def axis(self, name: str) -> int:
        """The number of a named axis."""
        if name not in self.shape:
            raise MeshError(
                f"the mesh has no axis {name!r}: its axes are {', '.join(map(repr, self.axis_names))}.",
                f"one of those names, or mesh= (or `with use_mesh(mesh):` around it) for a mesh that has {name!r}",
            )
        return self.axis_names.index(name)

    def members(self, axes: tuple[str, ...], coordinate: Coordinate) -> list[Coordinate]:
        """The coordinates of the group over ``axes`` through ``coordinate``, row-major over the axes in mesh order."""
        found = [coordinate]
        for i, name in enumerate(self.axis_names):
            if name in axes:
                found = [(*c[:i], k, *c[i + 1 :]) for c in found for k in range(self.sizes[i])]
        return found

    def __getitem__(self, names: str | tuple[str, ...]) -> Mesh:
        """The slice of the mesh through this rank, along the named axis or axes."""
        wanted = (names,) if isinstance(names, str) else tuple(names)
        for name in wanted:
            self.axis(name)
        kept = tuple(n for n in self.axis_names if n in wanted)
        ranks = [self.rank_at(c) for c in self.members(kept, self.here())]
        return Mesh(kept, tuple(self.shape[n] for n in kept), ranks, self.device)

    def __contains__(self, name: object) -> bool:
        return name in self.shape

    def __repr__(self) -> str:
        axes = ", ".join(f"{n}={s}" for n, s in self.shape.items())
        tail = "" if self.device == "cpu" else f", device={self.device!r}"
        some = "" if self.ranks == tuple(range(self.size)) else f", ranks={list(self.ranks)}"
        return f"Mesh({axes}{some}{tail})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Mesh, (self.axis_names, self.sizes, self.ranks, self.device)


def _validate(names: tuple[str, ...], sizes: tuple[int, ...], ranks: tuple[int, ...], device: str) -> None:
    for name in names:
        if not (isinstance(name, str) and name.isidentifier()) or name in RESERVED:
            raise MeshError(
                f"{name!r} cannot name a mesh axis: names are identifiers, and none of {', '.join(sorted(RESERVED))}.",
                'a name such as "data" or "model"',
            )
    if len(set(names)) != len(names) or len(names) != len(sizes):
        raise MeshError(f"distinct axes need one size each; got {names} and {sizes}.", 'make_mesh({"data": 2})')
    if any(n < 1 for n in sizes):
        raise MeshError(f"a mesh axis needs a size of at least 1; got {dict(zip(names, sizes))}.", "sizes of 1 or more")
    if len(ranks) != math.prod(sizes) or len(set(ranks)) != len(ranks):
        raise MeshError(
            f"a mesh of {dict(zip(names, sizes))} needs {math.prod(sizes)} distinct ranks; got {len(ranks)}: {ranks}.",
            "ranks=range(n), for the n ranks that the sizes multiply to",
        )
    if device not in DEVICES:
        raise MeshError(f"there is no device {device!r}.", 'device="cpu" or device="cuda"')
