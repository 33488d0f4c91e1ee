"""Every registered operation with blocks on the device: once on one rank, and in two placements on two thread ranks,
which send to one another. Close to NumPy (bounds below)."""

from __future__ import annotations

from typing import Any

import law
import numpy as np
import pytest
from case import Case
from law import Laid, expected, outputs, placements, sample

import spmdx as sx
from spmdx.array import Array
from spmdx.mesh import Mesh
from spmdx.runtime import gpu

CASES = law.cases()
each_case = pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
# On two ranks the first example of every operation, and all in the slow half.
FIRST = {c.op: c.name for c in reversed(CASES)}
firsts_case = pytest.mark.parametrize(
    "case",
    [c if FIRST[c.op] == c.name else pytest.param(c, marks=pytest.mark.slow) for c in CASES],
    ids=lambda c: c.name,
)
CLOSE = {"float16": 4e-3, "bfloat16": 4e-2, "float32": 2e-5, "complex64": 2e-5}  # else 1e-11
# Operations that CuPy itself cannot do for some dtypes, so that the host does them; scripts/gpu_check prints these too.
STATED: set[str] = set()


def close(case: Case, dtype: Any) -> float:
    return case.close if dtype.kind in "biu" else max(case.close, CLOSE.get(dtype.name, 1e-11))


def check(case: Case, mesh: Mesh, number: int) -> None:
    laid = Laid(case, mesh, expected(case))
    for chosen in sample(placements(case, mesh, ("sum", "max")), number, case.name):
        with np.errstate(all="ignore"):
            results = outputs(case.call(*laid.inputs(chosen)))
        for k, y in enumerate(results):
            assert not isinstance(y, Array) or not isinstance(y._block, np.ndarray), f"{case.name}: a block on the host"
            laid.check(k, y, close(case, laid.want[k].dtype))


@each_case
def test_on_one_rank(case: Case, device: Any) -> None:
    check(case, sx.make_mesh({"a": 1}, device="cuda"), 1)


@firsts_case
def test_on_two_ranks(case: Case, device: Any) -> None:
    sx.testing.spmd(2)(lambda: check(case, sx.make_mesh({"a": 2}, device="cuda"), 2))()


def test_what_the_host_does_is_stated(device: Any) -> None:
    assert set(gpu.noted) <= STATED, gpu.noted
