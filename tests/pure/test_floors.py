"""The shape of the package: imports go down the floors, files stay short, each idea keeps its place."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "spmdx"
LONGEST_FILE = 400
LONGEST_FLOORS_0_TO_3 = 5240  # lines of code, without docstrings, comments and blank lines


class Place(NamedTuple):
    """Where a file stands, and which files of its own floor it may import (patterns)."""

    floor: int
    beside: tuple[str, ...] = ()
    below: tuple[int, ...] | None = None  # the floors below that it may import; None is all of them
    besides: tuple[str, ...] = ()  # files it may import on the floors that `below` leaves out


TRANSPORTS = ("abstract", "simulate", "threads")
# What each of them may lean on.
TRANSPORT = (
    "runtime/comm.py",
    "runtime/memory.py",
    "runtime/pending.py",
    "runtime/message.py",
    "runtime/reduction.py",
    "runtime/kernels.py",
    "runtime/pool.py",
)

# The table of floors in docs/architecture.rst. The first pattern that fits a file counts.
TABLE: dict[str, Place] = {
    # 0 words: what things are called
    "errors.py": Place(0),
    "context.py": Place(0, ("errors.py",)),
    "dtypes.py": Place(0, ("errors.py",)),
    "mesh.py": Place(0, ("errors.py", "context.py")),
    "placement.py": Place(0, ("errors.py",)),
    "spec.py": Place(0, ("errors.py", "context.py", "mesh.py", "placement.py")),
    "tree.py": Place(0, ("errors.py",)),
    # 1 reasoning: pure functions of specs
    "rule.py": Place(1),
    "plan.py": Place(1),
    "geometry.py": Place(1, ("plan.py",)),
    "propagate.py": Place(1, ("rule.py", "plan.py")),
    # 2 machines: one transport a file, and none knows another; only world.py chooses. The exception
    # is shared.py, MPI with shared memory on a node: mpi.py with a faster path.
    "runtime/__init__.py": Place(2, ("runtime/*",), below=(0,)),
    "runtime/memory.py": Place(2, ("runtime/pool.py", "runtime/gpu.py"), below=(0,)),
    # The GPU: the device, the compiler's work, what is launched, and messages by way of the host.
    "runtime/gpu.py": Place(2, ("runtime/launch.py", "runtime/products.py"), below=(0,)),
    "runtime/products.py": Place(2, below=(0,)),
    "runtime/nvrtc.py": Place(2, below=(0,)),
    "runtime/boxes.py": Place(2, below=(0,)),
    "runtime/draws.py": Place(2, ("runtime/kernels.py",), below=(0,)),
    "runtime/launch.py": Place(2, ("runtime/nvrtc.py", "runtime/draws.py", "runtime/boxes.py"), below=(0,)),
    "runtime/staged.py": Place(2, (*TRANSPORT, "runtime/gpu.py"), below=(0,)),
    "runtime/pages.py": Place(2, below=(0,)),
    "runtime/kernels.py": Place(
        2, ("runtime/memory.py", "runtime/pages.py", "runtime/pool.py", "runtime/gpu.py"), below=(0,)
    ),
    "runtime/blas.py": Place(2, ("runtime/kernels.py", "runtime/pool.py"), below=(0,)),
    "runtime/pool.py": Place(2, below=(0,)),
    "runtime/reduction.py": Place(2, ("runtime/memory.py", "runtime/kernels.py", "runtime/pool.py"), below=(0,)),
    "runtime/message.py": Place(2, ("runtime/pool.py", "runtime/memory.py", "runtime/boxes.py"), below=(0,)),
    "runtime/pending.py": Place(
        2, ("runtime/message.py", "runtime/kernels.py", "runtime/reduction.py", "runtime/pool.py"), below=(0,)
    ),
    "runtime/nccl.py": Place(2, (*TRANSPORT, "runtime/gpu.py"), below=(0,)),
    "runtime/comm.py": Place(
        2, ("runtime/message.py", "runtime/pending.py", "runtime/reduction.py", "runtime/pool.py"), below=(0,)
    ),
    "runtime/failing.py": Place(2, ("runtime/kernels.py",), below=(0,)),
    "runtime/waiting.py": Place(2, ("runtime/kernels.py",), below=(0,)),
    "runtime/ending.py": Place(2, ("runtime/kernels.py", "runtime/pool.py", "runtime/waiting.py"), below=(0,)),
    "runtime/heap.py": Place(2, (*TRANSPORT, "runtime/mpi.py"), below=(0,)),
    "runtime/arena.py": Place(2, (*TRANSPORT, "runtime/mpi.py"), below=(0,)),
    "runtime/mpi.py": Place(2, (*TRANSPORT, "runtime/ending.py", "runtime/waiting.py"), below=(0,)),
    "runtime/shared.py": Place(
        2, (*TRANSPORT, "runtime/mpi.py", "runtime/heap.py", "runtime/arena.py", "runtime/waiting.py"), below=(0,)
    ),
    **{f"runtime/{name}.py": Place(2, TRANSPORT, below=(0,)) for name in TRANSPORTS},
    "runtime/world.py": Place(2, ("runtime/*",), below=(0,)),
    # 3 value: blocks, and what happens to them
    "array.py": Place(3),
    "tape.py": Place(3, ("array.py",)),
    "move.py": Place(3, ("array.py", "check.py")),
    "later.py": Place(3, ("array.py", "op.py")),
    "meshes.py": Place(3),
    "check.py": Place(3),
    "decide.py": Place(3, ("array.py", "check.py")),
    "op.py": Place(3, ("array.py", "tape.py", "move.py", "decide.py", "check.py")),
    # 4 vocabulary: operations; they know no transport
    "ops/*": Place(
        4, ("ops/*",), below=(0, 1, 3), besides=("runtime/memory.py", "runtime/kernels.py", "runtime/blas.py")
    ),
    "random/*": Place(4, ("random/*", "ops/*"), below=(0, 1, 3), besides=("runtime/kernels.py", "runtime/memory.py")),
    "linalg.py": Place(4, ("ops/*",), below=(0, 1, 3)),
    "fft.py": Place(4, ("ops/*",), below=(0, 1, 3)),
    "autodiff.py": Place(
        4,
        ("ops/*", "transforms/batched.py", "transforms/bundle.py", "transforms/homeward.py"),
        below=(0, 1, 3),
        besides=("runtime/kernels.py",),
    ),
    "transforms/*": Place(4, ("transforms/*", "autodiff.py", "ops/*"), below=(0, 1, 3)),
    # 5 craft: compositions of operations; of the lower floors they know only the plan's words
    "plans/*": Place(5, ("plans/*",), below=(0, 3, 4), besides=("plan.py",)),
    "nn/*": Place(5, ("nn/*",), below=(0, 3, 4)),
    "optim/*": Place(5, ("optim/*",), below=(0, 3, 4)),
    "checkpoint/*": Place(5, ("checkpoint/*",), below=(0, 3, 4), besides=("plan.py",)),
    "debug/*": Place(5, ("debug/*",), below=(0, 3, 4), besides=("plan.py",)),
    "cuda.py": Place(5, below=(0, 3, 4), besides=("runtime/gpu.py", "runtime/pending.py")),
    "testing.py": Place(5, below=(0, 3, 4), besides=("runtime/world.py", "runtime/threads.py")),
    # 6 door: the public names, and the report
    "__init__.py": Place(6),
    "__main__.py": Place(6),
}

# Packages that only these files may import; mpi4py and cupy may be missing, so they must not spread.
KEEPERS: dict[str, tuple[str, ...]] = {
    "mpi4py": ("runtime/ending.py", "__main__.py"),
    "cupy": ("runtime/gpu.py", "__main__.py"),
    "spmdx._kernels": ("runtime/kernels.py", "runtime/pages.py", "__main__.py"),
    "spmdx._nccl": ("runtime/nccl.py",),
    "optree": ("tree.py",),
}

# Tables of registered operations may be as long as the vocabulary is.
MAY_BE_LONG = ("ops/*",)


@dataclass(frozen=True)
class Import:
    line: int
    module: str  # dotted, absolute; for `from a import b` it is a.b where that is a file of ours, else a
    only_types: bool  # inside `if TYPE_CHECKING:`


def files() -> list[str]:
    return sorted(p.relative_to(PACKAGE).as_posix() for p in PACKAGE.rglob("*.py"))


def place(file: str) -> Place | None:
    return next((found for pattern, found in TABLE.items() if fnmatch(file, pattern)), None)


def file_of(module: str) -> str | None:
    """The file that holds a module of ours, relative to the package; None for anything else."""
    if module.split(".")[0] != "spmdx":
        return None
    path = PACKAGE.joinpath(*module.split(".")[1:])
    for candidate in (path / "__init__.py", path.with_suffix(".py") if path != PACKAGE else path):
        if candidate.is_file():
            return candidate.relative_to(PACKAGE).as_posix()
    return None


def imports(source: str, file: str) -> Iterator[Import]:
    """Every import of a file, also those inside functions."""
    tree = ast.parse(source)
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test).split(".")[-1] == "TYPE_CHECKING"
        for statement in node.body
        for inner in ast.walk(statement)
    }
    folder = ("spmdx", *file.split("/")[:-1])
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = list(folder[: len(folder) - node.level + 1]) if node.level else []
            base = ".".join(start + ([node.module] if node.module else []))
            modules = []
            for alias in node.names:
                full = f"{base}.{alias.name}"
                modules.append(full if file_of(full) or full in KEEPERS else base)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "import_module":
            modules = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        else:
            continue
        for module in modules:
            yield Import(node.lineno, module, id(node) in typing_only)


def complaint(file: str, found: Import) -> str | None:
    """What is wrong with one import of a file, or None."""
    for package, keepers in KEEPERS.items():
        kept = found.module == package or found.module.startswith(package + ".")
        if kept and file not in keepers and not found.only_types:
            return f"only {' and '.join(keepers)} may import {package}"
    here, target = place(file), file_of(found.module)
    there = place(target) if target else None
    if here is None or target is None or there is None or target == file:
        return None  # not ours, or an unknown file, which another test reports
    if there.floor > here.floor:
        return f"{target} is on floor {there.floor}, above floor {here.floor}"
    if there.floor == here.floor:
        beside = found.only_types or any(fnmatch(target, pattern) for pattern in here.beside)
        return None if beside else f"{target} is on the same floor, and the table does not name it as one to lean on"
    if here.below is not None and there.floor not in here.below:
        named = any(fnmatch(target, pattern) for pattern in here.besides)
        return None if named else f"the table keeps {file} from knowing floor {there.floor}, where {target} is"
    return None


@pytest.mark.parametrize("file", files())
def test_file_has_a_floor(file: str) -> None:
    assert place(file), f'spmdx/{file} has no floor: add it to TABLE in {__file__}, as "{file}": Place(floor)'


@pytest.mark.parametrize("file", files())
def test_imports_go_down(file: str) -> None:
    source = (PACKAGE / file).read_text()
    wrong = [
        f"spmdx/{file}:{found.line} imports {found.module}: {text}"
        for found in imports(source, file)
        if (text := complaint(file, found))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("file", files())
def test_file_is_short(file: str) -> None:
    length = len((PACKAGE / file).read_text().splitlines())
    exempt = any(fnmatch(file, pattern) for pattern in MAY_BE_LONG)
    assert exempt or length <= LONGEST_FILE, f"spmdx/{file} has {length} lines: look for the idea hidden in it"


def code_lines(source: str) -> int:
    """Lines with code on them: no docstrings, comments or blank lines."""
    words: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        if isinstance(node, documented) and ast.get_docstring(node) is not None:
            words.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines = enumerate(source.splitlines(), 1)
    return sum(1 for i, line in lines if line.strip() and not line.strip().startswith("#") and i not in words)


def test_code_lines_are_counted() -> None:
    assert code_lines('"""Doc."""\n\n# why\nx = 1\n\n\ndef f():\n    """Doc\n    on."""\n    return x\n') == 3


def test_the_lower_floors_are_small() -> None:
    lengths = {
        file: code_lines((PACKAGE / file).read_text())
        for file in files()
        if (found := place(file)) and found.floor <= 3
    }
    table = "\n".join(f"{n:5} {file}" for file, n in sorted(lengths.items(), key=lambda item: -item[1]))
    total = sum(lengths.values())
    assert total <= LONGEST_FLOORS_0_TO_3, f"floors 0 to 3 have {total} lines of code together:\n{table}"


@pytest.mark.parametrize("file", files())
def test_no_assert(file: str) -> None:
    tree = ast.parse((PACKAGE / file).read_text())
    lines = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    assert not lines, f"spmdx/{file} asserts on lines {lines}: raise an error that ends with the line to write"


@pytest.mark.parametrize(
    ("file", "source", "word"),
    [
        ("placement.py", "from spmdx.mesh import Mesh", "same floor"),
        ("placement.py", "import spmdx.context", "same floor"),
        ("errors.py", "def f():\n    from spmdx import mesh", "same floor"),
        ("errors.py", "from . import __main__", "above"),
        ("mesh.py", "from spmdx import context", None),
        ("mesh.py", "from .errors import MeshError", None),
        ("context.py", "if TYPE_CHECKING:\n    from spmdx.mesh import Mesh", None),
        ("ops/shape.py", "from mpi4py import MPI", "only runtime/ending.py"),
        ("tree.py", "import optree", None),
        ("array.py", "from spmdx import _kernels", "only runtime/kernels.py"),
        ("array.py", "from ..outside import x", None),
    ],
)
def test_this_test_sees(file: str, source: str, word: str | None) -> None:
    told = [complaint(file, found) for found in imports(source, file)]
    assert len(told) == 1
    assert (told[0] is None) if word is None else (told[0] is not None and word in told[0]), told
