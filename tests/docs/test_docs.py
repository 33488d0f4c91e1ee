"""The documentation: its code runs and shows what comes, its tables are complete, and Sphinx has nothing to say."""

from __future__ import annotations

import doctest
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pages
import pytest

from spmdx import nn, optim, plans
from spmdx.runtime.world import launched

pytestmark = pytest.mark.skipif(launched() is not None, reason="the pages start their own ranks")
MPIEXEC = Path(sys.executable).with_name("mpiexec")
# Commands of clusters, registries and other environments, which are not run
ELSEWHERE = re.compile(r"#|module load |(other/bin/)?pip install |srun |python -m venv other|SPMDX_OPENMPI=other ")
EVERYWHERE = {"x", "mesh", "placement", "device", "dtype", "key", "shape", "axis"}  # mean the same in all functions
NAMES = [str(page.relative_to(pages.DOCS)) for page in pages.pages()]
COMMANDS = [(name, *command) for name in NAMES for command in pages.commands((pages.DOCS / name).read_text())]

sys.path[:0] = [str(pages.DOCS), str(pages.ROOT / "tests" / "pure")]
import scaling  # noqa: E402
import tables  # noqa: E402
import test_floors  # noqa: E402


@pytest.mark.parametrize("name", [n for n in NAMES if pages.with_outputs((pages.DOCS / n).read_text())])
def test_python_blocks(name: str) -> None:
    pages.check_page(pages.DOCS / name)


@pytest.mark.parametrize(
    ("name", "command", "want", "line"), COMMANDS, ids=[f"{name}:{line}" for name, _, _, line in COMMANDS]
)
def test_console_blocks(name: str, command: str, want: str, line: int, tmp_path: Path) -> None:
    """Lines after $ print what the page shows."""
    if "mpiexec" in command and not MPIEXEC.exists():
        pytest.skip("no mpiexec beside this Python: the extra [mpi] is not installed")
    pages.write_files((pages.DOCS / name).read_text(), tmp_path)
    got = pages.shell(command, tmp_path)
    if want.endswith("\n...\n"):
        got += ".\n"  # something for the last line of ... to stand for, where nothing more was printed
    assert doctest.OutputChecker().check_output(want, got, pages.SHOWS), f"{name}, line {line}: {got}"


def test_other_commands_are_not_for_here() -> None:
    """Everything that could run here is in a block that does."""
    for name in NAMES:
        for block in pages.blocks((pages.DOCS / name).read_text()):
            assert block.language in ("python", "text", "console", "bash"), f"{name}: {block}"
            if block.language == "bash":
                wrong = [line for line in block.text.splitlines() if not ELSEWHERE.match(line)]
                assert not wrong, f"{name}: {wrong}"


@pytest.mark.parametrize("ranks", [1, 4])
def test_readme(ranks: int) -> None:
    codes = [b.text for b in pages.fenced((pages.ROOT / "README.md").read_text()) if b.language == "python"]
    assert codes
    shown = pages.run(codes, ranks, "readme.py")
    assert not [text for text in shown if "Error" in text], shown


def test_readme_links_to_files() -> None:
    found = re.findall(r"\]\(([^)#:]+)\)", (pages.ROOT / "README.md").read_text())
    assert found
    assert not [path for path in found if not (pages.ROOT / path).exists()]


def test_the_table_of_operations_is_complete() -> None:
    text = tables.operations()
    missing = [name for name in tables.own() if f"* - ``{name}``\n" not in text]
    assert "by shapes and arguments" not in text, "an operation whose rule no example shows"
    assert not missing
    assert not [name for name, op in tables.own().items() if not inspect.getdoc(op.body)]


def test_the_reference_is_complete() -> None:
    text = tables.reference()
    for name, value in tables.public().items():
        assert f":: spmdx.{name}\n" in text or f"``{name}``" in text, name
        if callable(value) and str(getattr(value, "__module__", "")).startswith("spmdx"):
            assert inspect.getdoc(value), f"{name} has no docstring"


def test_the_table_of_scaling_has_every_ready_plan() -> None:
    """On all numbers of ranks; the numbers are those of the closed forms, here with the model's own sizes."""
    head, *rows = scaling.cells()
    assert head[1:] == ["8 ranks", "64 ranks", "512 ranks", "4,096 ranks"]
    found = {cells[0].strip("`"): cells[1:] for cells in rows}
    assert set(plans.WORDS) == {word for words in found for word in words.split("+")}
    n = 4e-9 * scaling.parameters()  # gigabytes
    for stage in ("dp", "zero1", "zero2"):
        assert found[stage] == [f"{2 * n * (p - 1) / p:.2f} along data; {n:.3g}" for p in scaling.RANKS]
    a = 4e-9 * scaling.SIZES["length"] * scaling.SIZES["width"]
    loss = 12e-9 * scaling.SIZES["length"]
    for p, cell in zip(scaling.RANKS, found["megatron"]):
        sent = 2 * (a * (4 * scaling.SIZES["layers"] + 2) + loss) * (p - 1) / p
        assert cell.startswith(f"{sent:.2f} along model; ")
    assert all("along data, " in cell and "along model; " in cell for cell in found["megatron+sp+zero3"])


def test_what_lists_its_arguments_lists_them_all() -> None:
    """Functions of networks and optimizers: an argument is in the signature's first lines or under Args."""
    for module in (nn, optim):
        for name in module.__all__:
            function = getattr(module, name)
            text = inspect.getdoc(function) or ""
            if not inspect.isfunction(function) or "Args:" not in text:
                continue
            left = [p for p in inspect.signature(function).parameters if not re.search(rf"\b{p}\b", text)]
            assert not set(left) - EVERYWHERE, f"{name}: {left}"


def floors_told() -> dict[str, int]:
    """The files and folders in the architecture's table of floors, each with its floor."""
    text = (pages.DOCS / "architecture.rst").read_text()
    found, floor = {}, -1
    for head, name in re.findall(r"^   \* - ?(.*)\n     - ``([\w/.]+)``$", text, re.MULTILINE):
        floor = int(head.split()[0]) if head else floor
        found[name] = floor
    return found


@pytest.mark.parametrize("file", test_floors.files())
def test_the_architecture_has_every_file_on_its_floor(file: str) -> None:
    told, place = floors_told(), test_floors.place(file)
    name = file if file in told else file.partition("/")[0] + "/"
    if file.endswith("/__init__.py") and name not in told:
        return  # of a folder whose files are named
    assert name in told, f"architecture.rst leaves out {file}"
    assert place is not None
    assert told[name] == place.floor, f"{file} is on floor {place.floor}"


def test_sphinx_has_no_complaint(tmp_path: Path) -> None:
    pytest.importorskip("sphinx", reason="the extra [docs] is not installed")
    pytest.importorskip("myst_parser", reason="the extra [docs] is not installed")
    command = [sys.executable, "-m", "sphinx", "-qW", "--keep-going", "-b", "dummy", str(pages.DOCS), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


def test_make_passes_options_on_to_pytest() -> None:
    done = subprocess.run(
        ["make", "-n", "test", "PYTEST=-k exp"], cwd=pages.ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert re.search(r'-m pytest -m "not slow" .* -k exp\n', done.stdout)


def test_the_demo_leaves_nothing_that_git_would_list() -> None:
    text = (pages.ROOT / "examples" / "digits.py").read_text()
    assert 'Path(__file__).with_name("digits-loss.png")' in text
    assert "/examples/*.png" in (pages.ROOT / ".gitignore").read_text().splitlines()
    assert "disable=None if show else True" in text  # no bar where nobody watches
