"""The laws of operations on ranks that communicate: threads here, and MPI where these files run under mpiexec.

The simulator (tests/laws) tries combinations; here it is the transports that are tried. An example of every operation,
with every placement of every input at least once and a sample of its pairs drawn by lot; on one axis and on {2, 2}. The
slow half (`make test-all`) takes every example and the whole product of its placements; where that is more than 25,000
combinations, all pairs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "laws"))

import law
from case import Case
from covering import Chosen, each_once, tried
from law import Laid, expected, outputs, placements, sample

from spmdx.mesh import Mesh

SIZES = {1: (1,), 2: (2,), 3: (3,), 4: (2, 2), 7: (7,), 8: (2, 4)}
OPS = ("sum", "max")  # what inputs are Partial in
PAIRS = 12  # drawn for an example of more than one input
FEW = 12  # of these on 7 and 8 ranks
WHOLE_SLOW = 25000

CASES: dict[str, list[Case]] = {}
for _case in law.cases():
    CASES.setdefault(_case.op, []).append(_case)


def mesh_of(ranks: int) -> Mesh:
    return Mesh(("a", "b")[: len(SIZES[ranks])], SIZES[ranks])


def check(case: Case, mesh: Mesh, combinations: Iterable[Chosen]) -> None:
    laid = Laid(case, mesh, expected(case))
    with np.errstate(all="ignore"):
        for chosen in combinations:
            try:
                results = outputs(case.call(*laid.inputs(chosen)))
                assert len(results) == len(laid.want)
                for k, y in enumerate(results):
                    laid.check(k, y, case.close)
            except Exception as error:
                which = ", ".join(map(repr, chosen))
                raise AssertionError(f"{type(error).__name__}: {case.name} of {which}: {error}") from error


def shown(cases: list[Case]) -> Case:
    """The example with the most dimensions, up to two: more have many more placements, and the same transports."""
    return max(cases, key=lambda c: [-abs(2 - max(map(np.ndim, c.inputs), default=0)), len(c.inputs)])


@pytest.mark.parametrize("name", CASES)
def test_operations(name: str, ranks: int) -> None:
    case, mesh = shown(CASES[name]), mesh_of(ranks)
    each = placements(case, mesh, OPS)
    chosen = list(dict.fromkeys([*each_once(each), *sample(each, PAIRS if len(each) > 1 else 0, case.name)]))
    check(case, mesh, chosen if ranks <= 4 else chosen[:FEW])


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", CASES)
def test_every_combination(name: str, ranks: int) -> None:
    for case in CASES[name]:
        mesh = mesh_of(ranks)
        check(case, mesh, tried(placements(case, mesh, OPS), WHOLE_SLOW))
