"""What a step would move and hold under a plan, on any number of ranks, found without running it.

The step runs on a mesh that this rank is no part of, so that arrays are specs without blocks: every move is decided
and counted, and nothing is computed (but the first call of an operation on empty blocks, which tells its dtype).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from spmdx import context, tree
from spmdx.array import Array
from spmdx.errors import ArgumentError
from spmdx.mesh import Mesh
from spmdx.plans.plan import Plan
from spmdx.spec import Spec, place
from spmdx.transforms.shapes import Dry


class Estimate(NamedTuple):
    """What a step comes to. Bytes are those of the rank that has most."""

    moved: dict[tuple[str, ...], int]  # bytes sent, by the mesh axes that a collective goes over
    collectives: dict[str, int]  # how many, by verb
    params: int  # bytes of parameters held between steps
    records: list[Any]

    @property
    def bytes(self) -> int:
        """Bytes sent in all."""
        return sum(self.moved.values())

    def __str__(self) -> str:
        lines = [f"{', '.join(axes) or '-':<24}{sent:>18,} bytes sent" for axes, sent in self.moved.items()]
        made = ", ".join(f"{n} {verb}" for verb, n in self.collectives.items())
        return "\n".join([*lines, f"{'parameters':<24}{self.params:>18,} bytes held", made or "no collective"])


def estimate(
    plan: Plan, step: Callable[..., Any], params: Any, *args: Any, mesh: Mapping[str, int], dtype: Any = np.float32
) -> Estimate:
    """Bytes per rank of ``step(params, *args)`` on a mesh of these sizes.

    Args:
        step: what is counted, as ``sx.value_and_grad(loss)`` or a whole training step.
        params: a pytree of anything with a shape: descriptors, or arrays. They are placed by the plan.
        args: values, or descriptors of values, that are the same on every rank before the plan places them.
        mesh: axis name to size.
        dtype: of the parameters that name none.
    """
    run = run_dry(plan, step, params, args, mesh, dtype)
    moved: Counter[tuple[str, ...]] = Counter()
    for record in run.records:
        moved[record.axes] += record.bytes
    held = sum(s.largest_block * s.dtype.itemsize for s in run.specs)
    return Estimate(dict(moved), dict(Counter(r.verb for r in run.records)), held, run.records)


class DryRun(NamedTuple):
    """What a step that was run dry has come by."""

    records: list[Any]  # of collectives
    specs: list[Spec]  # of the parameters
    used: Counter[tuple[str, str]]  # names


def run_dry(
    plan: Plan, step: Any, params: Any, args: tuple[Any, ...], mesh: Mapping[str, int], dtype: Any = np.float32
) -> DryRun:
    """``step(params, *args)`` on arrays without blocks, with the parameters placed as the plan says."""
    if not callable(step):
        raise ArgumentError(f"a step is a function of the parameters; got {step!r}.", "sx.value_and_grad(loss)")
    given: Any = mesh
    sizes = given.shape if isinstance(given, Mesh) else given
    if not isinstance(sizes, Mapping):
        raise ArgumentError(f"the sizes of a mesh are told by its axes; got {given!r}.", 'mesh={"data": 16}')
    away = Mesh(tuple(sizes), tuple(sizes.values()))
    records: list[Any] = []
    with plan.on(away) as running, context.use(trace=records, dry=Dry()):
        leaves, treedef = tree.flatten(params)
        specs = [plan.spec(path, x.shape, _dtype(x, dtype), away) for path, x in zip(tree.paths(params), leaves)]
        rest = [tree.map(lambda x: _everywhere(x, away, dtype), arg) for arg in args]
        step(tree.unflatten(treedef, [Array(None, s) for s in specs]), *rest)
    return DryRun(records, specs, running.used)


def _dtype(x: Any, default: Any) -> Any:
    own = getattr(x, "dtype", None)
    return np.dtype(default if own is None else own)


def _everywhere(x: Any, mesh: Mesh, dtype: Any) -> Any:
    """A value, or the descriptor of one, as a replicated array without a block."""
    return Array(None, place(mesh, x.shape, _dtype(x, dtype))) if hasattr(x, "shape") else x
