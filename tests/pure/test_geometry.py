"""Which part goes where: index arithmetic, held against sets of indices. All exact."""

from __future__ import annotations

import math
import sys
from itertools import product
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "laws"))

from placements import owned, specs

from spmdx.geometry import Part, cut, local_parts, region, route
from spmdx.mesh import Mesh
from spmdx.plan import LOCAL, plan
from spmdx.spec import Spec

MESH = Mesh(("a", "b"), (2, 3))


def elements(spec: Spec, coordinate: tuple[int, ...], part: Part) -> list[tuple[int, ...]]:
    """The global elements that a part of a block lists, in its order."""
    at = [owned(spec, d, coordinate) for d in range(spec.ndim)]
    return [e for box in part.boxes for e in product(*(own[s] for own, s in zip(at, box)))]


def test_boxes_of_a_cut() -> None:
    part = cut((((0, 2), (4, 6)), ((0, 3),)), (((1, 5),), ((1, 2),)))
    assert part.boxes == ((slice(1, 2), slice(1, 2)), (slice(2, 3), slice(1, 2)))
    assert part.shapes == ((1, 1), (1, 1))
    assert part.elements == 2
    assert cut((), ()).elements == 1
    assert cut(((),), (((0, 4),),)) == Part((), (), 0)


def test_every_element_arrives_once_and_both_sides_list_the_same() -> None:
    """For each pair of ranks, what one packs for the other is what the other unpacks, in the same order."""
    found = specs(MESH, (5, 6), "float64", ("sum",))
    for i, j in np.random.default_rng(0).integers(0, len(found), (150, 2)):
        for step in plan(found[i], found[j]):
            if step.verb in LOCAL:
                continue
            for c in MESH.coordinates():
                members, mine = MESH.members(step.axes, c), route(step, c)
                if step.verb == "all_to_all":
                    arrived = []
                    for k, m in enumerate(members):
                        packed = elements(step.source, m, route(step, m).send[members.index(c)])
                        assert packed == elements(step.target, c, mine.receive[k])
                        arrived += packed
                elif step.verb == "all_gather":
                    arrived = []
                    for k, m in enumerate(members):
                        [part] = route(step, m).send
                        assert elements(step.source, m, part) == elements(step.target, c, mine.receive[k])
                        arrived += elements(step.target, c, mine.receive[k])
                else:
                    [part] = mine.receive
                    arrived = elements(step.target, c, part)
                    for m in members:
                        sent = route(step, m).send
                        one = sent[members.index(c)] if step.verb == "reduce_scatter" else sent[0]
                        assert elements(step.source, m, one) == arrived
                assert len(arrived) == len(set(arrived)) == math.prod(step.target.block_shape(c))


def test_whole_and_direct_say_that_memory_already_lies_so() -> None:
    """Where they are true, packing copies the block as it is, and unpacking needs no copy."""
    found = specs(MESH, (4, 6), "float64", ("sum",))
    seen = {"whole": 0, "direct": 0}
    for i, j in np.random.default_rng(1).integers(0, len(found), (300, 2)):
        for step in plan(found[i], found[j]):
            if step.verb in LOCAL:
                continue
            for c in MESH.coordinates():
                r = route(step, c)
                for flag, parts, shape in [
                    ("whole", r.send, step.source.block_shape(c)),
                    ("direct", r.receive, step.target.block_shape(c)),
                ]:
                    where = np.arange(math.prod(shape)).reshape(shape)
                    listed = [int(n) for part in parts for box in part.boxes for n in where[box].reshape(-1)]
                    if getattr(r, flag):
                        seen[flag] += 1
                        assert listed == list(range(math.prod(shape)))
    assert min(seen.values()) > 20


def test_local_parts_list_the_same_elements_on_both_sides() -> None:
    found = specs(MESH, (5, 6), "float64", ("sum",))
    checked = 0
    for i, j in np.random.default_rng(2).integers(0, len(found), (400, 2)):
        for step in plan(found[i], found[j]):
            if step.verb in ("slice", "pad"):
                for c in MESH.coordinates():
                    before, after = local_parts(step, c)
                    assert elements(step.source, c, before) == elements(step.target, c, after)
                    assert before.shapes == after.shapes
                    kept = step.target if step.verb == "slice" else step.source
                    assert before.elements == math.prod(kept.block_shape(c))
                    checked += 1
    assert checked > 100


def test_a_region_is_the_pieces_of_every_dimension() -> None:
    for spec in specs(MESH, (5, 6), "float64", ("sum",)):
        for c in MESH.coordinates():
            indices = [[i for a, b in pieces for i in range(a, b)] for pieces in region(spec, c)]
            assert indices == [list(owned(spec, d, c)) for d in range(2)]
