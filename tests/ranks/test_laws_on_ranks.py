"""The laws of operations on ranks that communicate: every operation, with every placement of every input once.

The simulator (tests/laws/test_laws.py) tries combinations; here it is the transports that are tried.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "laws"))

import law
from case import Case
from law import arrays, compare, each_once, expected, outputs, placements

from spmdx.array import Array
from spmdx.mesh import Mesh
from spmdx.ops.place import to_numpy

SIZES = {1: [(1,)], 2: [(2,)], 3: [(3,)], 4: [(2, 2)], 7: [(7,)], 8: [(2, 4)]}
MOST = 12  # combinations on two axes, which have many more placements; the slow half takes all of them

CASES: dict[str, list[Case]] = {}
for _case in law.cases():
    CASES.setdefault(_case.op, []).append(_case)


def check(case: Case, ranks: int, most: int | None) -> None:
    want = expected(case)
    for sizes in SIZES[ranks]:
        mesh = Mesh(("a", "b")[: len(sizes)], sizes)
        for chosen in list(each_once(placements(case, mesh, ("sum", "max"))))[:most]:
            where = f"{case.name} of {', '.join(map(repr, chosen))}"
            with np.errstate(all="ignore"):
                results = outputs(case.call(*arrays(case, chosen)))
            assert len(results) == len(want), where
            for y, v in zip(results, want):
                got: Any = to_numpy(y) if isinstance(y, Array) else np.asarray(y)
                compare(got, v, case.close, where)


@pytest.mark.parametrize("name", CASES)
def test_operations(name: str, ranks: int) -> None:
    """The operation's example with the most dimensions."""
    check(max(CASES[name], key=lambda c: [max((np.ndim(x) for x in c.inputs), default=0), len(c.inputs)]), ranks, MOST)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_example(name: str, ranks: int) -> None:
    for case in CASES[name]:
        check(case, ranks, None)
