"""Propagation: a bound rule and the operands' specs -> what each operand must become, and where the output lies.

Among all placements that the rule allows it takes the cheapest: bytes moved now, plus bytes to finish any new
Partial axis, plus what a Partial that passes grows by; ties by smallest output block, then fewest Partial axes, then
mesh order. A mesh axis that no operand uses stays unused. Under a plan operands stay: if there is a way in which none
has to move, it is taken at whatever cost, for the plan has said where they are to be.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import numpy as np

from spmdx.mesh import Mesh
from spmdx.plan import Step, cost, plan
from spmdx.rule import Bound, Dim
from spmdx.spec import WHOLE, Layout, Spec, default_sizes, make


class Traits(NamedTuple):
    """What an operation declares besides its rule.

    ``linear``: groups of operands in which it is jointly linear (no numbers: all operands); Partial sums pass if the
    whole group is Partial.
    ``reduce``: what a factor that is only on the left is reduced by; a Partial of that op passes.
    ``monotone``: +1 or -1 if Partial min and max pass, as they are or swapped.
    ``finish``: nothing Partial passes.
    ``stay``: no operand moves, if the rule allows it.
    """

    linear: tuple[tuple[int, ...], ...] = ()
    reduce: str = "sum"
    monotone: int = 0
    finish: bool = False
    stay: bool = False


class Decision(NamedTuple):
    """The outcome: how each operand gets where it must be, and the output's layouts and Partial axes."""

    plans: tuple[tuple[Step, ...], ...]
    wanted: tuple[Spec, ...]
    layouts: tuple[Layout, ...]
    partial: tuple[str, ...]
    op: str | None
    bytes: int


Through = tuple[int, ...]  # the operands that stay Partial along an axis
Choice = str | Through | None  # for one mesh axis: unused, a factor to shard, or Partial operands passing
_SWAP = {"min": "max", "max": "min"}
_DOUBLE = np.dtype(np.float64)
_itemsize = attrgetter("itemsize")


def propagate(bound: Bound, specs: Sequence[Spec], traits: Traits, mesh: Mesh) -> Decision:
    """The cheapest decision; pure, and the same on every rank."""
    active = [a for a in mesh.axis_names if any(a in s.sharded_axes or a in s.partial for s in specs)]
    ways = _Ways(bound, specs, traits, mesh)
    natural = _natural(bound, specs, traits, active)
    if natural is not None:
        for decision, _ in ways.of(dict(zip(active, natural))):
            if decision.bytes == 0 or (traits.stay and not any(map(cost, decision.plans))):
                return decision
    found = (
        (decision, (decision.bytes, output.largest_block, len(decision.partial)))
        for choices in product(*(_choices(bound, specs, traits, a) for a in active))
        for decision, output in ways.of(dict(zip(active, choices)))
    )  # never empty: every axis unused is always allowed
    return min(found, key=itemgetter(1))[0]


def _natural(bound: Bound, specs: Sequence[Spec], traits: Traits, active: list[str]) -> list[Choice] | None:
    """The choice in which no operand would have to move, if there is one that is plain to see."""
    out: list[Choice] = []
    for axis in active:
        found: Choice = None
        for i, (dims, spec) in enumerate(zip(bound.inputs, specs)):
            if axis in spec.partial:
                group = _passing(specs, traits, axis, i)
                if group is None or found not in (None, group):
                    return None
                found = group
            elif (dim := spec.dim_of(axis)) is not None:
                factor = dims[dim].factors[0] if dims[dim].factors else None
                if factor not in bound.shardable or found not in (None, factor):
                    return None
                found = factor
        out.append(found)
    return out


def _passing(specs: Sequence[Spec], traits: Traits, axis: str, i: int) -> Through | None:
    """The group of operands that can pass Partial along an axis together with operand ``i``."""
    op = specs[i].op
    if traits.finish:
        return None
    if op == "sum":
        return next((group or tuple(range(len(specs))) for group in traits.linear if i in group or not group), None)
    return (i,) if (traits.monotone and op in _SWAP) or (op == traits.reduce and len(specs) == 1) else None


def _choices(bound: Bound, specs: Sequence[Spec], traits: Traits, axis: str) -> list[Choice]:
    out: list[Choice] = [None, *bound.shardable]
    for i, spec in enumerate(specs):
        if axis in spec.partial:
            group = _passing(specs, traits, axis, i)
            if group is not None and group not in out:
                out.append(group)
    return out


class _Ways:
    """The ways to make one call: what each choice comes to, unless it moves more than one that was seen."""

    def __init__(self, bound: Bound, specs: Sequence[Spec], traits: Traits, mesh: Mesh) -> None:
        self.bound, self.specs, self.traits, self.mesh = bound, specs, traits, mesh
        self.leading = [{f for dim in dims for f in dim.factors[:1]} for dims in bound.inputs]
        self.operands: dict[Any, tuple[Spec, tuple[Step, ...], int]] = {}  # many choices want the same of an operand
        self.widest = max((s.dtype for s in specs if s.ndim or len(specs) == 1), key=_itemsize, default=_DOUBLE)
        self.least: float = math.inf  # bytes of the cheapest so far

    def of(self, choices: dict[str, Choice]) -> Iterator[tuple[Decision, Spec]]:
        """The decisions that follow from a choice for every axis, one for each way to lay out the chosen factors, and
        what the output would be."""
        bound, traits, mesh = self.bound, self.traits, self.mesh
        through = {a: c for a, c in choices.items() if isinstance(c, tuple)}
        factors: dict[str, tuple[str, ...]] = {}
        for axis, choice in choices.items():
            if isinstance(choice, str):
                factors[choice] = (*factors.get(choice, ()), axis)
        reduced = [a for f, axes in factors.items() if f in bound.reduced for a in axes]
        ops = {self.specs[i].op or "sum" for a, group in through.items() for i in group if a in self.specs[i].partial}
        passed = {_SWAP[op] if traits.monotone < 0 and op in _SWAP else op for op in ops}
        if len(passed | ({traits.reduce} if reduced else set())) > 1:
            return
        op = traits.reduce if reduced else next(iter(passed), None)
        axes = tuple(a for a in mesh.axis_names if a in through or a in reduced)
        for laid in product(*(_layouts(bound, self.specs, f, axes, mesh) for f, axes in factors.items())):
            layout, moved, given = dict(zip(factors, laid)), 0, []
            for i in range(len(self.specs)):
                given.append(self._operand(i, layout, through, next(iter(ops), None)))
                moved += given[-1][2]
                if moved > self.least:
                    break
            else:
                out = tuple(out_layout(dim, layout, bound, mesh) for dim in bound.output)
                guess = make(mesh, bound.shape, self.widest, out)
                wanted, plans, _ = zip(*given) if given else ((), (), ())
                moved += _to_finish(guess, reduced, mesh) + _growth(self.specs, wanted, guess, through)
                self.least = min(self.least, moved)
                yield Decision(plans, wanted, guess.layouts, axes, op if axes else None, moved), guess

    def _operand(
        self, i: int, layout: dict[str, Layout], through: dict[str, Through], op: str | None
    ) -> tuple[Spec, tuple[Step, ...], int]:
        """What an operand must become, how it gets there, and what that costs."""
        partial = tuple(a for a, group in through.items() if i in group)
        key = (i, partial, op if partial else None, *((f, own) for f, own in layout.items() if f in self.leading[i]))
        found = self.operands.get(key)
        if found is None:
            spec = self.specs[i]
            layouts = tuple(dim_layout(dim, layout, self.bound, self.mesh) for dim in self.bound.inputs[i])
            want = make(self.mesh, spec.shape, spec.dtype, layouts, partial, op)
            steps = plan(spec, want)
            found = self.operands[key] = want, steps, cost(steps)
        return found


def _to_finish(spec: Spec, axes: Iterable[str], mesh: Mesh) -> int:
    p = math.prod([mesh.shape[a] for a in axes])
    return 2 * spec.largest_block * spec.dtype.itemsize * (p - 1) // p if p > 1 else 0


def _growth(specs: Sequence[Spec], wanted: Sequence[Spec], out: Spec, through: dict[str, Through]) -> int:
    """What it costs more to finish the output than the Partial operands that pass, which had to be finished anyway: a
    small sum broadcast against a large array is better finished first."""
    if not through:
        return 0
    paid = 0
    for i, (spec, want) in enumerate(zip(specs, wanted)):
        paid += _to_finish(want, [a for a, group in through.items() if i in group and a in spec.partial], out.mesh)
    return max(0, _to_finish(out, through, out.mesh) - paid)


def _layouts(bound: Bound, specs: Sequence[Spec], factor: str, axes: tuple[str, ...], mesh: Mesh) -> list[Layout]:
    """Ways to divide a factor over these axes: as some operand already does, else the default."""
    found: dict[Layout, None] = {}
    for dims, spec in zip(bound.inputs, specs):
        for dim, layout in zip(dims, spec.layouts):
            if dim.factors[:1] == (factor,) and set(layout.axes) == set(axes):
                own = _factor_layout(dim, layout, bound, mesh)
                if own is not None and _can_be_said(factor, own, bound, mesh):
                    found[own] = None
    return list(found) or [Layout(axes)]


def _can_be_said(factor: str, own: Layout, bound: Bound, mesh: Mesh) -> bool:
    """True if a placement can say how every dimension that the factor leads is divided: ragged or interleaved."""
    if own.interleave == 1:
        return True
    for dim in (*bound.output, *(dim for dims in bound.inputs for dim in dims)):
        if dim.factors[:1] == (factor,):
            made = dim_layout(dim, {factor: own}, bound, mesh)
            length = math.prod(bound.sizes[f] for f in dim.factors) // made.interleave
            if made.sizes not in (None, default_sizes(length, tuple(mesh.shape[a] for a in made.axes))):
                return False
    return True


def _factor_layout(dim: Dim, layout: Layout, bound: Bound, mesh: Mesh) -> Layout | None:
    """How a dimension's leading factor is divided when the dimension is divided so; None if a cut falls inside."""
    inner = math.prod(bound.sizes[f] for f in dim.factors[1:])
    if dim.factors[0] in bound.resize and layout.interleave > 1:
        return None
    if inner == 1 or inner == 0:
        return layout if inner == 1 else Layout(layout.axes)
    if layout.interleave > 1:
        return None
    outer = bound.sizes[dim.factors[0]]
    ways = tuple(mesh.shape[a] for a in layout.axes)
    sizes = layout.sizes if layout.sizes is not None else default_sizes(outer * inner, ways)
    if any(n % inner for n in sizes):
        return None
    own = tuple(n // inner for n in sizes)
    return Layout(layout.axes, None if own == default_sizes(outer, ways) else own)


def dim_layout(dim: Dim, layout: dict[str, Layout], bound: Bound, mesh: Mesh) -> Layout:
    """How a dimension is divided when its leading factor is."""
    own = layout.get(dim.factors[0], WHOLE) if dim.factors else WHOLE
    inner = math.prod(bound.sizes[f] for f in dim.factors[1:])
    if inner == 1 or not own.axes:
        return own
    ways = tuple(mesh.shape[a] for a in own.axes)
    sizes = own.sizes if own.sizes is not None else default_sizes(bound.sizes[dim.factors[0]] // own.interleave, ways)
    return Layout(own.axes, tuple(n * inner for n in sizes), own.interleave)


def out_layout(dim: Dim, layout: dict[str, Layout], bound: Bound, mesh: Mesh) -> Layout:
    factor = dim.factors[0] if dim.factors else ""
    own = layout.get(factor, WHOLE)
    if factor not in bound.resize or not own.axes:
        return dim_layout(dim, layout, bound, mesh)
    ways = tuple(mesh.shape[a] for a in own.axes)
    sizes = own.sizes if own.sizes is not None else default_sizes(bound.sizes[factor], ways)
    return Layout(own.axes, bound.resize[factor][1](sizes))
