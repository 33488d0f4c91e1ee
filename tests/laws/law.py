"""What the law suites share: all examples, the placements that each is tried in, and what must hold of a result."""

from __future__ import annotations

import importlib
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
if str(HERE) not in sys.path:  # tests/ranks imports this as well
    sys.path.insert(0, str(HERE))

from case import Case  # noqa: E402
from placements import KINDS, OPS, assembled, blocks, finished, piece, same_bits, specs  # noqa: E402

import spmdx  # noqa: E402
from spmdx.array import Array  # noqa: E402
from spmdx.mesh import Mesh  # noqa: E402
from spmdx.op import Operation, registry  # noqa: E402
from spmdx.ops.place import to_numpy  # noqa: E402
from spmdx.runtime import memory  # noqa: E402
from spmdx.spec import Spec  # noqa: E402

LOOSE = {
    "float16": 4e-3,
    "bfloat16": 4e-2,
    "float32": 1e-5,
    "complex64": 1e-5,
}  # of shares that are summed in another order


def cases() -> list[Case]:
    """The examples of every cases_*.py."""
    operations()  # the examples may use any of the library
    found: list[Case] = []
    for path in sorted(HERE.glob("cases_*.py")):
        found += importlib.import_module(path.stem).CASES
    return found


def operations() -> dict[str, Operation]:
    """The library's own operations, all of its modules imported; tests register others."""
    package = Path(spmdx.__file__).parent
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        if parts[1] != "runtime" and not parts[-1].startswith("__"):
            importlib.import_module(".".join(parts))
    return {name: op for name, op in registry.items() if op.body.__module__.startswith("spmdx.")}


def placements(case: Case, mesh: Mesh, ops: Sequence[str] = OPS, kinds: Sequence[str] = KINDS) -> list[list[Spec]]:
    """For every input, every placement."""
    return [specs(mesh, np.shape(x), np.asarray(x).dtype, ops, kinds) for x in case.inputs]


def sample(each: list[list[Spec]], number: int, name: str) -> list[tuple[Spec, ...]]:
    """Combinations drawn at random, others for every example: its name is the seed."""
    draw = np.random.default_rng(zlib.crc32(name.encode()))
    return [tuple(options[draw.integers(len(options))] for options in each) for _ in range(number)]


def arrays(case: Case, chosen: Sequence[Spec]) -> list[Array]:
    """The inputs in these placements, on a simulated mesh or on this rank."""
    return Laid(case, chosen[0].mesh, ()).inputs(chosen)


def outputs(value: Any) -> list[Any]:
    """The results of an expression or of its oracle, as a list."""
    return [y for part in value for y in outputs(part)] if isinstance(value, (tuple, list)) else [value]


def expected(case: Case) -> list[Any]:
    """What NumPy says."""
    with np.errstate(all="ignore"):
        return [np.asarray(y) for y in outputs(case.oracle(*case.inputs))]


def compare(got: Any, want: Any, close: float, where: str = "") -> None:
    """Shape, dtype and values. close=0 is exact, signs of zeros included; else |a - b| / max(1, |b|) <= close."""
    assert got.shape == want.shape, f"shape {got.shape}, not {want.shape} {where}"
    assert got.dtype == want.dtype, f"dtype {got.dtype}, not {want.dtype} {where}"
    wide = np.complex128 if got.dtype.kind == "c" else got.dtype if got.dtype.kind in "biu" else np.float64
    a, b = got.astype(wide), want.astype(wide)
    if not close or got.dtype.kind in "biu":
        assert np.array_equal(a, b, equal_nan=a.dtype.kind in "fc"), f"exact {where}\n{got}\nnot\n{want}"
        if a.dtype.kind == "f":
            assert np.array_equal(np.signbit(a[a == 0]), np.signbit(b[a == 0])), f"zeros {where}\n{got}\nnot\n{want}"
        return
    with np.errstate(all="ignore"):
        error = np.abs(a - b) / np.maximum(1.0, np.abs(b))
    wrong = ~((error <= close) | (a == b) | (np.isnan(a) & np.isnan(b)))
    assert not wrong.any(), f"close to {close}: off by {np.max(error[wrong])} {where}\n{got}\nnot\n{want}"


def bound(case: Case, split: str, dtype: np.dtype[Any]) -> float:
    """How close a value must be: shares of a Partial sum round on their own, so there nothing inexact is exact."""
    if split == "scatter" or dtype.kind in "biu":
        return case.close
    return max(case.close, LOOSE.get(dtype.name, 1e-12))


class Laid:
    """An example on a mesh: its inputs in any placement, and the blocks of what must come out, each made once."""

    def __init__(self, case: Case, mesh: Mesh, want: Sequence[Any], split: str = "scatter") -> None:
        self.case, self.want, self.split = case, want, split
        self.simulated = mesh.device == "sim"
        self.here = mesh.coordinates() if self.simulated else [mesh.here()]
        self.made: dict[tuple[int, Spec], Array] = {}
        self.pieces: dict[tuple[int, Spec], list[Any]] = {}

    def inputs(self, chosen: Sequence[Spec]) -> list[Array]:
        """The inputs in these placements, on a simulated mesh or on this rank."""
        for i, spec in enumerate(chosen):
            if (i, spec) not in self.made:
                held = blocks(spec, self.case.inputs[i], self.split, self.here)
                own = held if self.simulated else memory.put(spec.mesh.device, held[0])
                self.made[i, spec] = Array(own, spec)
        return [self.made[i, spec] for i, spec in enumerate(chosen)]

    def check(self, k: int, y: Any, close: float) -> None:
        """Output number k is what was wanted, on every simulated rank, or on this one."""
        want = self.want[k]
        if not isinstance(y, Array):
            return compare(np.asarray(y), want, close)
        held = y._block if self.simulated else (memory.host(y._block),)
        assert (y.shape, y.dtype) == (want.shape, want.dtype), f"{y.spec}, not {want.dtype}{list(want.shape)}"
        assert y.dtype == held[0].dtype, f"the spec says {y.dtype}, the block {held[0].dtype}"
        if y.spec.partial and not self.simulated:
            return compare(to_numpy(y), want, close)
        pieces = self.pieces.get((k, y.spec))
        if pieces is None:
            pieces = self.pieces[k, y.spec] = [np.asarray(piece(y.spec, want, c)) for c in self.here]
        done = finished(y.spec, held)
        if all(map(same_bits, done, pieces)):
            return None
        if self.simulated:
            return compare(assembled(y.spec, held), want, close)
        return compare(done[0], pieces[0], close)
