"""Making meshes over the ranks there are, and choosing the default one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from spmdx import context
from spmdx.errors import MeshError
from spmdx.mesh import Mesh
from spmdx.runtime import memory


def make_mesh(
    axes: Mapping[str, int] | None = None,
    *names: Any,
    device: str = "cpu",
    ranks: Sequence[int] | None = None,
    comm: Any = None,
) -> Mesh:
    """A mesh with named axes, in major-to-minor order over the ranks.

    Args:
        axes: name to size; one size may be -1, for what is left. Default: one axis, ``"world"``, over all ranks.
        names: none; JAX's tuples of sizes and names are told to be one dict.
        device: "cpu" or "cuda"; "sim" holds the blocks of all ranks in this one process, to try a program out.
        ranks: the ranks to use, as numbered in the world; default: all of them.
        comm: an mpi4py communicator, whose ranks to use instead.

    Raises:
        MeshError: sizes that do not multiply to the number of ranks, reserved names, no such device.

    No communication, but for one all-gather over ``comm`` where that is given.
    """
    if names or not isinstance(axes, Mapping | None):
        raise _not_a_dict(axes, *names)
    if device == "cuda":
        memory.need_gpu()
    if comm is not None:
        if ranks is not None:
            raise MeshError("make_mesh takes ranks or a communicator, not both.", "one of ranks=... and comm=...")
        ranks = _world_ranks(comm)
    world = int(context.world().size)
    if device == "sim" and axes is not None and ranks is None:
        world = abs(math.prod(axes.values()))
    members = tuple(range(world) if ranks is None else ranks)
    sizes = _sizes({"world": len(members)} if axes is None else dict(axes), len(members))
    outside = [r for r in members if not 0 <= r < world]
    if outside:
        raise MeshError(f"the world has ranks 0 to {world - 1}; got {outside}.", f"ranks below {world}")
    return Mesh(tuple(sizes), tuple(sizes.values()), members, device)


def _not_a_dict(sizes: Any, names: Any = ("data", "model", "pipe"), *rest: Any) -> MeshError:
    shape = sizes if isinstance(sizes, (tuple, list)) else (sizes,)
    instead = {sizes: -1} if isinstance(sizes, str) else dict(zip((names,) if isinstance(names, str) else names, shape))
    return MeshError(f"make_mesh takes one dict of names and sizes; got {sizes!r}.", f"sx.make_mesh({instead})")


def _sizes(axes: dict[str, int], count: int) -> dict[str, int]:
    open_axes = [name for name, n in axes.items() if n == -1]
    if len(open_axes) > 1 or any(n < 1 and n != -1 for n in axes.values()):
        raise MeshError(f"a mesh of {axes}: sizes are 1 or more, and one may be -1.", 'sx.make_mesh({"data": -1})')
    known = math.prod(n for n in axes.values() if n != -1)
    if len(open_axes) == 1 and known > 0 and count % known == 0:
        axes[open_axes[0]] = count // known
    elif open_axes or known != count:
        need = f"{known} ranks" if not open_axes else f"a multiple of {known} ranks"
        raise MeshError(
            f"a mesh of {axes} needs {need}; there {'is 1 rank' if count == 1 else f'are {count} ranks'}.",
            f"mpiexec -n {known} python ..., or a size of -1 for what is there, or ranks=range({known}) to use a part",
        )
    return axes


def _world_ranks(comm: Any) -> list[int]:
    """The ranks of an mpi4py communicator, as the world numbers them: its members tell one another."""
    return [int(r) for r in comm.allgather(context.world().rank)]


@contextmanager
def use_mesh(mesh: Mesh) -> Iterator[Mesh]:
    """Make ``mesh`` the default mesh of the code inside."""
    given: Any = mesh
    if not isinstance(given, Mesh):
        raise MeshError(f"use_mesh takes a mesh; got {given!r}.", 'with sx.use_mesh(sx.make_mesh({"data": -1})):')
    with context.use(mesh=mesh):
        yield mesh
