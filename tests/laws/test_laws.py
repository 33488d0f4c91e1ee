"""The laws of every registered operation, in the simulator: value, shape and dtype are NumPy's wherever the pieces lie;
gradients are the derivatives, at home where their values are; and what is sent is what was planned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import law
import numpy as np
import pytest
from case import Case
from law import arrays, combinations, compare, expected, outputs, placements, sample
from placements import KINDS, assembled, simulated

from spmdx import autodiff, context
from spmdx import move as moving
from spmdx.array import Array
from spmdx.mesh import Mesh
from spmdx.op import Operation, registry
from spmdx.ops.place import asarray
from spmdx.plan import cost

MESHES = {
    (2,): ("sum", "prod", "min", "max"),
    (3,): ("sum", "max"),
    (2, 2): ("sum", "max"),
}  # and Partial ops tried there
SPLIT = {(2,): "scatter", (3,): "mixed", (2, 2): "scatter"}
# Combinations tried for one example, every placement of every input among them. On two axes there are many more
# placements: there the plain divisions are complete, and of the rest a sample is drawn, another for every example.
LIMIT = {(2,): 48, (3,): 32, (2, 2): 20}
MORE = {(2,): 0, (3,): 0, (2, 2): 6}
GRADIENTS = {(2,): 8, (3,): 3, (2, 2): 4}
# Central differences: dtype of the result -> (step, how close they come). Half precision has none.
STEPS = {"float64": (1e-6, 1e-6), "complex128": (1e-6, 1e-6), "float32": (1e-2, 1e-3), "complex64": (1e-2, 1e-3)}

CASES = law.cases()
DIFFERENTIABLE = [c for c in CASES if c.grad]
each_mesh = pytest.mark.parametrize("sizes", list(MESHES), ids=lambda s: "x".join(map(str, s)))
each_case = pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
each_differentiable = pytest.mark.parametrize("case", DIFFERENTIABLE, ids=lambda c: c.name)


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


# Values


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, list[Any], list[Any]]]:
    """Record the trace, what the transport was really asked for, and what the plans of the operations called say."""
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


def check_value(case: Case, chosen: Sequence[Any], split: str, want: Sequence[Any], patch: pytest.MonkeyPatch) -> None:
    where = f"{case.name} of {', '.join(map(repr, chosen))}"
    given = arrays(case, chosen, split)
    with watched(patch) as (trace, made, planned), np.errstate(all="ignore"):
        try:
            results = outputs(case.call(*given))
        except Exception as error:
            raise AssertionError(f"{type(error).__name__} from {where}") from error
    assert [(r.verb, r.axes, r.bytes) for r in trace] == made, f"silent communication: {where}"
    sent = sum(r.bytes for r in trace if r.operation in registry)
    assert sent == sum(n for _, n in planned), f"trace {trace} and plans {planned} differ: {where}"
    assert len(results) == len(want), where
    for y, v in zip(results, want):
        if isinstance(y, Array):
            assert y.dtype == y._block[0].dtype, f"the spec says {y.dtype}, the block {y._block[0].dtype}: {where}"
            compare(assembled(y.spec, y._block), v, law.bound(case, split, v.dtype), f"{where} -> {y.spec}")
        else:
            compare(np.asarray(y), v, law.bound(case, split, v.dtype), where)


@each_mesh
@each_case
def test_values(case: Case, sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    want, mesh, ops = expected(case), simulated(*sizes), MESHES[sizes]
    complete = placements(case, mesh, ops, ("default",) if MORE[sizes] else KINDS)
    tried = combinations(complete, LIMIT[sizes])
    tried += sample(placements(case, mesh, ops), MORE[sizes], case.name)
    for chosen in tried:
        check_value(case, chosen, SPLIT[sizes], want, monkeypatch)


@pytest.mark.slow
@each_mesh
@each_case
def test_values_of_every_combination(case: Case, sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole product; beyond two inputs, or where that is over 20,000, a sample of 2,000."""
    want = expected(case)
    each = placements(case, simulated(*sizes), MESHES[sizes])
    limit = 2000 if len(each) > 2 or np.prod([len(options) for options in each]) > 20000 else None
    for chosen in combinations(each, limit):
        check_value(case, chosen, "scatter", want, monkeypatch)


# Gradients


def weights(want: Sequence[Any]) -> list[Any]:
    """A fixed cotangent for every output; None for one that has no gradient."""
    out: list[Any] = []
    for i, y in enumerate(want):
        draw = np.random.default_rng([3, i, *y.shape]).uniform(0.5, 1.5, y.shape)
        out.append(draw.astype(y.dtype) if y.dtype.kind in "fcV" else None)
    return out


def gradients(case: Case, given: Sequence[Array], cotangents: Sequence[Any]) -> list[Array]:
    """The gradients of the weighted sum of the outputs with respect to the inputs numbered in case.grad."""

    def chosen(*some: Array) -> tuple[Any, ...]:
        full: list[Any] = list(given)
        for i, x in zip(case.grad, some):
            full[i] = x
        results = outputs(case.call(*full))
        return tuple(y for y, w in zip(results, cotangents) if w is not None)

    with np.errstate(all="ignore"):
        _, pull_back = autodiff.vjp(chosen, *(given[i] for i in case.grad))
        mesh = given[case.grad[0]].mesh
        return list(pull_back(tuple(asarray(w, mesh=mesh) for w in cotangents if w is not None)))


def on_one_rank(case: Case, cotangents: Sequence[Any]) -> list[Any]:
    alone = Mesh(("p",), (1,), (0,), "sim")
    given = [asarray(x, mesh=alone) for x in case.inputs]
    return [g._block[0] for g in gradients(case, given, cotangents)]


def differences(case: Case, i: int, cotangents: Sequence[Any], step: float) -> Any:
    """Central differences of the oracle; for a complex input as JAX has it, d/dx - i d/dy."""

    def loss(x: Any) -> float:
        inputs = [x if k == i else v for k, v in enumerate(case.inputs)]
        with np.errstate(all="ignore"):
            results = outputs(case.oracle(*inputs))
        return sum(float(np.sum(w * y).real) for w, y in zip(cotangents, results) if w is not None)

    x = case.inputs[i]
    out = np.zeros(x.shape, x.dtype)
    for at in np.ndindex(x.shape):
        for direction in (1.0, 1j) if x.dtype.kind == "c" else (1.0,):
            up, down = x.copy(), x.copy()
            up[at] += direction * step
            down[at] -= direction * step
            slope = (loss(up) - loss(down)) / (2 * step)
            out[at] += slope * (-1j if direction == 1j else 1)
    return out


@each_differentiable
def test_gradients_are_derivatives(case: Case) -> None:
    """On one rank. Close to 1e-6 of the central differences of float64 and complex128 inputs; to 1e-3 where the result
    is rounded to single precision."""
    want = expected(case)
    cotangents = weights(want)
    inexact = [y.dtype.name for y in want if y.dtype.kind in "fcV"]
    step, close = max(STEPS[name] for name in inexact) if set(inexact) <= STEPS.keys() else (0.0, 0.0)
    found = on_one_rank(case, cotangents)
    for i, g in zip(case.grad, found):
        x = case.inputs[i]
        assert (g.shape, g.dtype) == (x.shape, x.dtype), f"the gradient of input {i} is {g.dtype}{list(g.shape)}"
        if step and x.dtype in (np.float64, np.complex128):
            compare(g, differences(case, i, cotangents, step), close, f"gradient of input {i} of {case.name}")


@each_mesh
@each_differentiable
def test_gradients_wherever_the_pieces_lie(case: Case, sizes: tuple[int, ...]) -> None:
    """As on one rank (close to 1e-12, or the dtype's own), and placed as the value, Replicate where that is Partial."""
    cotangents = weights(expected(case))
    want = on_one_rank(case, cotangents)
    mesh = simulated(*sizes)
    for chosen in sample(placements(case, mesh, ("sum", "max")), GRADIENTS[sizes], case.name):
        where = f"gradient of {case.name} of {', '.join(map(repr, chosen))}"
        given = arrays(case, chosen)
        try:
            found = gradients(case, given, cotangents)
        except Exception as error:
            raise AssertionError(f"{type(error).__name__} from the {where}") from error
        for i, g, v in zip(case.grad, found, want):
            home = chosen[i].replace(partial=())
            assert g.spec is home, f"lies at {g.spec}, not at {home}: input {i}, {where}"
            close = max(10 * case.close, law.LOOSE.get(v.dtype.name, 1e-12))
            compare(assembled(g.spec, g._block), v, close, f"input {i}, {where}")
