"""Propagation takes the cheapest placement that the rule allows: held against a slow enumeration that shares no code
with it but the plan's prices. All exact."""

from __future__ import annotations

import math
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "laws"))

from placements import specs as every_spec

from spmdx.mesh import Mesh
from spmdx.placement import Partial, Replicate, Shard
from spmdx.plan import cost, plan
from spmdx.propagate import Decision, Traits, propagate
from spmdx.rule import bind
from spmdx.spec import Spec, make, place

SQUARE = Mesh(("a", "b"), (2, 2))
WIDE = Mesh(("a", "b"), (2, 3))
EACH = Traits(((0,), (1,)))
TOGETHER = Traits(((),))


def decide(rule: str, traits: Traits, *operands: Spec) -> tuple[Decision, Spec]:
    bound = bind(rule, [s.shape for s in operands], "test")
    found = propagate(bound, operands, traits, operands[0].mesh)
    return found, make(operands[0].mesh, bound.shape, operands[0].dtype, found.layouts, found.partial, found.op)


# The slow enumeration: rules of plain factors only


def sides(rule: str) -> tuple[list[list[str]], list[str]]:
    left, right = rule.split("->")
    return [part.split() for part in left.split(",")], right.split()


def allowed(rule: str, traits: Traits, groups: list[tuple[int, ...]], operands: Any) -> Any:
    """All (operand placements, output placement, newly Partial axes) that the rule allows."""
    inputs, output = sides(rule)
    factors = list(dict.fromkeys(f for names in inputs for f in names))
    reduce, monotone, linear = traits.reduce, traits.monotone, bool(traits.linear)
    mesh = operands[0].mesh
    active = [a for a in mesh.axis_names if any(s.placement[a] != Replicate() for s in operands)]
    for uses in product(["nothing", *factors, *groups], repeat=len(active)):
        wanted: list[dict[str, Any]] = [{} for _ in operands]
        out: dict[str, Any] = {}
        new, ops = [], set()
        for axis, use in zip(active, uses):
            if use == "nothing":
                continue
            if isinstance(use, str):
                for i, names in enumerate(inputs):
                    if use in names:
                        wanted[i][axis] = Shard(names.index(use))
                if use in output:
                    out[axis] = Shard(output.index(use))
                else:
                    out[axis] = Partial(reduce)
                    new.append(axis)
                    ops.add(reduce)
            else:
                [op] = {operands[i].op for i in use if axis in operands[i].partial} or {None}
                if op is None:  # nothing is Partial here: no operand is made so
                    break
                ordered = op in ("min", "max") and monotone
                if not ((op == "sum" and linear) or ordered or (op == reduce and len(operands) == 1)):
                    break
                for i in use:
                    wanted[i][axis] = Partial(op)
                out[axis] = Partial(op)
                ops.add(op)
        else:
            if len(ops) <= 1:
                yield wanted, out, new


def cheapest(rule: str, traits: Traits, groups: Any, operands: Any) -> tuple[int, int, int]:
    mesh, dtype = operands[0].mesh, operands[0].dtype
    _, output = sides(rule)
    inputs, _ = sides(rule)
    size = {f: n for names, s in zip(inputs, operands) for f, n in zip(names, s.shape)}
    shape = tuple(size[f] for f in output)
    best = None
    for wanted, out, new in allowed(rule, traits, groups, operands):
        moved = sum(cost(plan(s, place(mesh, s.shape, dtype, w))) for s, w in zip(operands, wanted))
        result = place(mesh, shape, dtype, out)
        largest = max(math.prod(result.block_shape(c)) for c in mesh.coordinates())
        p = math.prod(mesh.shape[a] for a in new)
        moved += 2 * largest * dtype.itemsize * (p - 1) // p
        moved += growth(
            mesh, dtype, operands, wanted, largest, [a for a, o in out.items() if a not in new and partial(o)]
        )
        rank = (moved, largest, sum(isinstance(o, Partial) for o in out.values()))
        best = rank if best is None else min(best, rank)
    assert best is not None
    return best


def partial(placement: Any) -> bool:
    return isinstance(placement, Partial)


def growth(mesh: Mesh, dtype: Any, operands: Any, wanted: Any, largest: int, passing: list[str]) -> int:
    """What finishing the output costs more than finishing the operands that pass Partial."""
    paid = 0
    for s, w in zip(operands, wanted):
        axes = [a for a in passing if partial(w.get(a)) and a in s.partial]
        p = math.prod(mesh.shape[a] for a in axes)
        block = max(math.prod(place(mesh, s.shape, dtype, w).block_shape(c)) for c in mesh.coordinates())
        paid += 2 * block * dtype.itemsize * (p - 1) // p
    p = math.prod(mesh.shape[a] for a in passing)
    return max(0, 2 * largest * dtype.itemsize * (p - 1) // p - paid)


EXAMPLES = {
    "matmul": ("m k, k n -> m n", EACH, [(0,), (1,)], [(4, 6), (6, 8)]),
    "tall": ("m k, k n -> m n", EACH, [(0,), (1,)], [(2, 18), (18, 1)]),
    "add": ("i j, i j -> i j", TOGETHER, [(0, 1)], [(4, 6), (4, 6)]),
    "outer": ("i, j -> i j", EACH, [(0,), (1,)], [(12,), (6,)]),
    "sum": ("i j -> j", TOGETHER, [(0,)], [(6, 5)]),
    "max": ("i j -> i", Traits((), "max"), [(0,)], [(6, 5)]),
    "prod": ("i j -> i", Traits((), "prod"), [(0,)], [(6, 5)]),
    "exp": ("i j -> i j", Traits(), [], [(3, 6)]),
    "transpose": ("i j -> j i", Traits(((),), "sum", 1), [(0,)], [(3, 6)]),
}


@pytest.mark.parametrize("mesh", [Mesh(("a",), (2,)), Mesh(("a",), (3,)), SQUARE, WIDE], ids=repr)
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_cheapest_of_all_that_is_allowed(name: str, mesh: Mesh) -> None:
    rule, traits, groups, shapes = EXAMPLES[name]
    ops = ("sum", "max") if len(shapes) == 1 else ("sum",)
    each = [[s for s in every_spec(mesh, shape, "float64", ops, ("default",)) if plain(s)] for shape in shapes]
    combinations = list(product(*each))
    draw = np.random.default_rng(0).permutation(len(combinations))[:150]
    for operands in (combinations[i] for i in draw):
        found, out = decide(rule, traits, *operands)
        largest = max(math.prod(out.block_shape(c)) for c in mesh.coordinates())
        got = (found.bytes, largest, len(found.partial))
        assert got == cheapest(rule, traits, groups, operands), f"{name} of {operands} -> {out}"
        assert found.plans == tuple(plan(s, w) for s, w in zip(operands, found.wanted))


def plain(spec: Spec) -> bool:
    """A placement that a dict can say, nesting in mesh order."""
    return isinstance(spec.placement, dict)


# By hand


def on(mesh: Mesh, shape: tuple[int, ...], **placement: Any) -> Spec:
    return place(mesh, shape, "float64", placement)


def test_column_then_row_parallel_needs_no_move_at_all() -> None:
    """x @ W1 (columns) @ W2 (rows): nothing moves, and one Partial is left, to be finished once."""
    x = on(SQUARE, (8, 16), a=Shard(0))
    first, hidden = decide("m k, k n -> m n", EACH, x, on(SQUARE, (16, 32), b=Shard(1)))
    second, out = decide("m k, k n -> m n", EACH, hidden, on(SQUARE, (32, 16), b=Shard(0)))
    assert cost((*first.plans[0], *first.plans[1], *second.plans[0], *second.plans[1])) == 0
    assert hidden.placement == {"a": Shard(0), "b": Shard(1)}
    assert out.placement == {"a": Shard(0), "b": Partial("sum")}


def test_a_product_of_a_row_and_a_column_shard_gathers_the_smaller() -> None:
    x = on(SQUARE, (64, 16), a=Shard(0))
    w = on(SQUARE, (16, 4), a=Shard(1))
    found, out = decide("m k, k n -> m n", EACH, x, w)
    assert found.plans[0] == ()
    assert [s.verb for s in found.plans[1]] == ["all_gather"]
    assert out.placement["a"] == Shard(0)


def test_partial_passes_linear_operations_only() -> None:
    x = on(SQUARE, (4, 4), a=Partial("sum"))
    assert decide("i j -> i j", TOGETHER, x)[1].placement["a"] == Partial("sum")
    assert decide("i j -> i j", Traits(), x)[1].placement["a"] != Partial("sum")
    y = on(SQUARE, (4, 4), a=Partial("max"))
    assert decide("i j -> i j", Traits((), "sum", 1), y)[1].placement["a"] == Partial("max")
    assert decide("i j -> i j", Traits((), "sum", -1), y)[1].placement["a"] == Partial("min")
    assert decide("i j -> i j", TOGETHER, y)[1].op is None


def test_two_partial_factors_of_a_product_are_not_both_left() -> None:
    x, w = on(SQUARE, (4, 4), a=Partial("sum")), on(SQUARE, (4, 4), a=Partial("sum"))
    found, _ = decide("i j, i j -> i j", EACH, x, w)
    assert sum("a" in spec.partial for spec in found.wanted) <= 1


def test_ops_are_not_mixed() -> None:
    """A sum over a shard would put a Partial sum beside the Partial max: the older is finished."""
    x = on(SQUARE, (4, 4), a=Partial("max"), b=Shard(0))
    found, out = decide("i j -> j", TOGETHER, x)
    assert out.op in (None, "sum")
    assert "a" not in found.wanted[0].partial


def test_partial_passes_a_reduction_of_its_own_op_only() -> None:
    x = on(SQUARE, (64, 4), a=Partial("max"), b=Shard(0))
    assert decide("i j -> j", Traits((), "max"), x)[1].placement == {"a": Partial("max"), "b": Partial("max")}
    y = on(SQUARE, (4, 4), a=Partial("min"), b=Shard(0))
    assert "a" not in decide("i j -> j", Traits((), "max"), y)[0].wanted[0].partial


def test_an_axis_that_no_operand_uses_stays_unused() -> None:
    _, out = decide("m k, k n -> m n", EACH, on(SQUARE, (4, 4), a=Shard(0)), on(SQUARE, (4, 4)))
    assert out.placement["b"] == Replicate()


def test_ragged_and_interleaved_operands_keep_their_division() -> None:
    ragged = on(SQUARE, (6, 4), a=Shard(0, sizes=(1, 5)))
    found, out = decide("i j, i j -> i j", TOGETHER, ragged, on(SQUARE, (6, 4)))
    assert found.bytes == 0
    assert out.placement["a"] == Shard(0, sizes=(1, 5))
    fused = on(SQUARE, (4, 6), a=Shard(1, interleave=3))
    assert decide("i j -> i j", Traits(), fused)[1].placement["a"] == Shard(1, interleave=3)


def test_ties_are_the_same_in_every_run() -> None:
    """Equal prices on both axes: decided by the mesh's order, not by a dict's or a set's."""
    x, w = on(SQUARE, (4, 4), a=Shard(0), b=Shard(1)), on(SQUARE, (4, 4), a=Shard(1), b=Shard(0))
    bound = bind("i j, i j -> i j", [(4, 4), (4, 4)], "add")
    first = propagate(bound, (x, w), TOGETHER, SQUARE)
    for _ in range(3):
        assert propagate(bound, (x, w), TOGETHER, SQUARE) == first


def test_a_small_sum_is_finished_before_it_is_broadcast() -> None:
    mesh = Mesh(("a",), (4,))
    x = place(mesh, (64, 32), np.float64, {"a": Shard(0)})
    mean = place(mesh, (1, 32), np.float64, {"a": Partial("sum")})
    found, out = decide("..., ... -> ...", TOGETHER, x, mean)
    assert out.placement == {"a": Shard(0)}
    assert [[s.verb for s in steps] for steps in found.plans] == [[], ["all_reduce"]]
