"""The values of every registered operation, in the simulator: value, shape and dtype are NumPy's wherever the pieces
lie, and what is sent is what was planned. (Gradients: test_gradients.py. Ranks that communicate: tests/ranks.)

Which combinations of the inputs' placements are tried, for each example of an operation:

- on {2} and {3} the whole product: every placement of every input with every other. Where that is more than 1,500
  combinations (three inputs and more) all pairs: every placement of one input with every placement of any other;
- on {2, 2} every placement of every input at least once, which for one input is the whole product; and for two inputs
  the whole product of plain placements (divided as numpy.array_split does, or Partial sums). Where the product of all
  has 400 combinations or fewer it is whole too;
- the slow half (`make test-all`): on {2, 2} too the whole product for one input and for two, and for more where it is
  25,000 combinations or fewer; beyond that all pairs of all placements. (Six inputs have 10^11 combinations there.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import law
import numpy as np
import pytest
from case import Case
from covering import Chosen, each_once, tried
from law import Laid, bound, expected, outputs, placements
from placements import simulated

from spmdx import context
from spmdx import move as moving
from spmdx.mesh import Mesh
from spmdx.op import Operation, registry
from spmdx.plan import cost

MESHES = {
    (2,): ("sum", "prod", "min", "max"),
    (3,): ("sum", "max"),
    (2, 2): ("sum", "max"),
}  # and Partial ops tried there
SPLIT = {(2,): "scatter", (3,): "mixed", (2, 2): "scatter"}
WHOLE = {(2,): 1500, (3,): 1500, (2, 2): 400}  # the largest product that is tried whole
WHOLE_SLOW = 25000

CASES = law.cases()
DIFFERENTIABLE = [c for c in CASES if c.grad]
each_mesh = pytest.mark.parametrize("sizes", list(MESHES), ids=lambda s: "x".join(map(str, s)))
each_case = pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)


def test_every_operation_has_an_example() -> None:
    missing = sorted(law.operations().keys() - {c.op for c in CASES})
    assert not missing, f"no Case in tests/laws/cases_*.py for {', '.join(missing)}"


def test_every_example_is_of_an_operation() -> None:
    unknown = sorted({c.op for c in CASES} - law.operations().keys())
    assert not unknown, f"a Case, but no registered operation, for {', '.join(unknown)}"


def test_every_gradient_has_an_example() -> None:
    operations = law.operations()
    missing = sorted(
        n for n, op in operations.items() if op.differentiable and not any(c.op == n for c in DIFFERENTIABLE)
    )
    assert not missing, f"no Case with grad= for {', '.join(missing)}"


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[list[Any], list[Any], list[Any]]]:
    """The trace, what the transport was really asked for, and what the plans of the operations called say."""
    made: list[Any] = []
    planned: list[Any] = []
    simulate, entry = moving._simulated, Operation.entry

    def collective(mesh: Mesh, steps: Any, held: Any) -> Any:
        made.append((steps[0].verb, steps[0].axes, sum(s.bytes for s in steps)))
        return simulate(mesh, steps, held)

    def looked_up(self: Operation, *args: Any) -> Any:
        found = entry(self, *args)
        planned.append((self.name, sum(map(cost, found.plans or ()))))
        return found

    with monkeypatch.context() as patch, context.use(trace=[]) as state:
        patch.setattr(moving, "_simulated", collective)
        patch.setattr(Operation, "entry", looked_up)
        yield state.trace, made, planned


def check_values(case: Case, mesh: Mesh, split: str, combinations: Iterable[Chosen], patch: pytest.MonkeyPatch) -> None:
    laid = Laid(case, mesh, expected(case), split)
    close = [bound(case, split, v.dtype) for v in laid.want]
    with watched(patch) as records, np.errstate(all="ignore"):
        for chosen in combinations:
            try:
                check_value(laid, laid.inputs(chosen), close, *records)
            except Exception as error:
                which = ", ".join(map(repr, chosen))
                raise AssertionError(f"{type(error).__name__}: {case.name} of {which}: {error}") from error


def check_value(
    laid: Laid, given: Sequence[Any], close: Sequence[float], trace: list[Any], made: list[Any], planned: list[Any]
) -> None:
    for record in (trace, made, planned):
        record.clear()
    results = outputs(laid.case.call(*given))
    assert [(r.verb, r.axes, r.bytes) for r in trace] == made, f"silent communication: trace {trace}, made {made}"
    sent = sum(r.bytes for r in trace if r.operation in registry)
    assert sent == sum(n for _, n in planned), f"trace {trace} and plans {planned} differ"
    assert len(results) == len(close)
    for k, y in enumerate(results):
        laid.check(k, y, close[k])


@each_mesh
@each_case
def test_values(case: Case, sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = simulated(*sizes)
    each = placements(case, mesh, MESHES[sizes])
    if len(sizes) > 1 and len(each) > 2:
        chosen = list(each_once(each))
    else:
        plain = placements(case, mesh, ("sum",), ("default",)) if len(sizes) > 1 else None
        chosen = tried(each, WHOLE[sizes], plain)
    check_values(case, mesh, SPLIT[sizes], chosen, monkeypatch)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@each_mesh
@each_case
def test_values_of_every_combination(case: Case, sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = simulated(*sizes)
    check_values(case, mesh, "scatter", tried(placements(case, mesh, MESHES[sizes]), WHOLE_SLOW), monkeypatch)
