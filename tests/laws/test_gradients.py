"""The gradients of every registered operation, in the simulator: on one rank they are the derivatives, and wherever the
pieces lie they are what they are on one rank, at home where their values are.

Which combinations of placements are tried: on {2} and {3} the whole product, for one input and for two; for more all
pairs. On {2, 2} every plain placement of every input once (divided as numpy.array_split does, or Partial). The slow
half: whole products up to 25,000 combinations, beyond these all pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import law
import numpy as np
import pytest
from case import Case
from covering import Chosen, each_once, tried
from law import Laid, compare, expected, outputs, placements
from placements import simulated

from spmdx import autodiff
from spmdx.array import Array
from spmdx.mesh import Mesh
from spmdx.ops.place import asarray
from spmdx.placement import Shard
from spmdx.runtime import kernels

MESHES = ((2,), (3,), (2, 2))
OPS = ("sum", "max")  # what inputs are Partial in
WHOLE, WHOLE_SLOW = 250, 25000  # the largest product that is tried whole
# Central differences: dtype of the result -> (step, how close they come). Half precision has none.
STEPS = {"float64": (1e-6, 1e-6), "complex128": (1e-6, 1e-6), "float32": (1e-2, 1e-3), "complex64": (1e-2, 1e-3)}

each_mesh = pytest.mark.parametrize("sizes", MESHES, ids=lambda s: "x".join(map(str, s)))
each_case = pytest.mark.parametrize("case", [c for c in law.cases() if c.grad], ids=lambda c: c.name)


def weights(want: Sequence[Any]) -> list[Any]:
    """A fixed cotangent for every output; None for one that has no gradient."""
    out: list[Any] = []
    for i, y in enumerate(want):
        draw = np.random.default_rng([3, i, *y.shape]).uniform(0.5, 1.5, y.shape)
        out.append(draw.astype(y.dtype) if y.dtype.kind in "fcV" else None)
    return out


def gradients(case: Case, given: Sequence[Array], cotangents: Sequence[Any]) -> list[Array]:
    """The gradients of the sum of the outputs, weighted, with respect to the inputs numbered in case.grad."""

    def chosen(*some: Array) -> tuple[Any, ...]:
        full: list[Any] = list(given)
        for i, x in zip(case.grad, some):
            full[i] = x
        results = outputs(case.call(*full))
        return tuple(y for y, w in zip(results, cotangents) if w is not None)

    with np.errstate(all="ignore"):
        _, pull_back = autodiff.vjp(chosen, *(given[i] for i in case.grad))
        return list(pull_back(tuple(w for w in cotangents if w is not None)))


def everywhere(cotangents: Sequence[Any], mesh: Mesh) -> list[Any]:
    """The cotangents as arrays on a mesh."""
    return [w if w is None else asarray(w, mesh=mesh) for w in cotangents]


def on_one_rank(case: Case, cotangents: Sequence[Any]) -> list[Any]:
    alone = Mesh(("p",), (1,), (0,), "sim")
    given = [asarray(x, mesh=alone) for x in case.inputs]
    return [g._block[0] for g in gradients(case, given, everywhere(cotangents, alone))]


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


@each_case
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


@each_case
@pytest.mark.parametrize("ranks", [1, 2])
def test_rules_made_again_are_the_rules(case: Case, ranks: int) -> None:
    """Exact. What is remembered of a rule's calls holds for other values of the same specs."""
    mesh = simulated(ranks)
    there = everywhere(weights(expected(case)), mesh)

    def found(turn: Callable[[Any], Any]) -> list[Any]:
        given = [
            asarray(turn(x), mesh=mesh, placement={mesh.axis_names[0]: Shard(0)} if x.ndim else {}) for x in case.inputs
        ]
        return [g._block for g in gradients(case, given, there)]

    for _ in range(3):
        found(lambda x: x)
    again = found(np.flip)
    kernels.forget_rules()
    for blocks, want in zip(again, found(np.flip)):
        assert [b.tobytes() for b in blocks] == [b.tobytes() for b in want]


def check_gradients(case: Case, sizes: tuple[int, ...], combinations: Iterable[Chosen]) -> None:
    """As on one rank (close to 1e-12, or the dtype's own), and placed as the value, Replicate where that is Partial."""
    mesh = simulated(*sizes)
    cotangents = weights(expected(case))
    laid = Laid(case, mesh, on_one_rank(case, cotangents))
    close = [max(10 * case.close, law.LOOSE.get(v.dtype.name, 1e-12)) for v in laid.want]
    there = everywhere(cotangents, mesh)
    for chosen in combinations:
        try:
            for k, (i, g) in enumerate(zip(case.grad, gradients(case, laid.inputs(chosen), there))):
                home = chosen[i].replace(partial=())
                assert g.spec is home, f"input {i}: lies at {g.spec}, not at {home}"
                laid.check(k, g, close[k])
        except Exception as error:
            which = ", ".join(map(repr, chosen))
            raise AssertionError(f"{type(error).__name__}: gradient of {case.name} of {which}: {error}") from error


@each_mesh
@each_case
def test_gradients_wherever_the_pieces_lie(case: Case, sizes: tuple[int, ...]) -> None:
    mesh = simulated(*sizes)
    if len(sizes) == 1:
        check_gradients(case, sizes, tried(placements(case, mesh, OPS), WHOLE))
    else:
        check_gradients(case, sizes, each_once(placements(case, mesh, OPS, ("default",))))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@each_mesh
@each_case
def test_gradients_of_every_combination(case: Case, sizes: tuple[int, ...]) -> None:
    check_gradients(case, sizes, tried(placements(case, simulated(*sizes), OPS), WHOLE_SLOW))
