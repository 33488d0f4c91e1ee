"""What a plan adds to the programs of the examples: at most 15 lines, and no `if` on ranks in model or loop."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny import DIT, VIT, load

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
import plan_lines

ROOT = plan_lines.ROOT
BAR = 15
NAMES = {"batch", "outer", "block", "residual", "normed"}  # as the page says
PLACES = {"mesh", "rank", "coordinate", "placement", "spec", "block", "plan", "chosen", "running", "show", "hide"}
MODULES = {"gpt": load("gpt", "plans"), "vit": VIT, "dit": DIT}
MODELS = [ROOT / "examples" / name for name in ("gpt/model.py", "vit/model.py", "dit/model.py", "dit/diffusion.py")]
PROGRAMS = [ROOT / "examples" / name / "train.py" for name in ("gpt", "vit", "dit")]


@pytest.mark.parametrize("example", plan_lines.EXAMPLES, ids=lambda e: e.title)
def test_the_bar(example: Any) -> None:
    added = plan_lines.added(example, plan_lines.LONGEST)
    assert len(added) <= BAR
    assert max(map(len, added)) <= 120
    kinds = [line.split()[0] for line in plan_lines.of_the_program(example)]
    assert kinds == ["mesh", "with", "if"]


@pytest.mark.parametrize("words", plan_lines.PLANS.values())
@pytest.mark.parametrize("example", plan_lines.EXAMPLES, ids=lambda e: e.title)
def test_the_lines_are_the_plan(example: Any, words: str) -> None:
    """Run by themselves, the lines that are counted make the plan that the program runs under."""
    made: dict[str, Any] = {}
    exec("\n".join(plan_lines.of_the_plan(example, words)), made)
    plan = MODULES[example.folder].plans.plan(words)
    for path in example.paths():
        assert made["chosen"].find("params", path) == plan.find("params", path)
    for kind in set(plan.rules) - {"params"}:
        assert made["chosen"].rules[kind] == plan.rules[kind]


def conditions(tree: Any) -> list[Any]:
    """All that a program decides by."""
    found = [node.test for node in ast.walk(tree) if isinstance(node, (ast.If, ast.IfExp, ast.While, ast.Assert))]
    found += [test for node in ast.walk(tree) if isinstance(node, ast.comprehension) for test in node.ifs]
    found += [node.subject for node in ast.walk(tree) if isinstance(node, ast.Match)]
    return [*found, *(node for node in ast.walk(tree) if isinstance(node, ast.BoolOp))]


def by_rank(tree: Any) -> list[str]:
    """The conditions that speak of ranks and places."""
    return [ast.unparse(node) for node in conditions(tree) if plan_lines.names_in(node) & PLACES]


def test_conditions_on_ranks_are_found() -> None:
    program = "a = b if mesh.rank == 0 else c\nx = [i for i in y if i < rank]\nwhile x.mesh.size:\n    pass\nif a: b"
    assert len(by_rank(ast.parse(program))) == 3


@pytest.mark.parametrize("path", MODELS, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_models_speak_of_no_places(path: Path) -> None:
    tree = ast.parse(path.read_text())
    said = plan_lines.names_in(tree)
    assert plan_lines.named(path) <= NAMES
    assert not by_rank(tree)
    assert not said & {"Shard", "Replicate", "Partial", "P", "redistribute", "from_block", "make_mesh", "rank", "plans"}


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda p: p.parent.name)
def test_loops_do_not_ask_for_the_rank(path: Path) -> None:
    """`main` alone does, to print once."""
    functions = plan_lines.functions(path)
    assert by_rank(functions["main"]) == ["mesh.rank == 0"] * len(by_rank(functions["main"]))
    assert "train" in functions
    for name, function in functions.items():
        assert name == "main" or not plan_lines.names_in(function) & {"mesh", "rank"}


@pytest.mark.parametrize("example", plan_lines.EXAMPLES, ids=lambda e: e.title)
def test_names(example: Any) -> None:
    assert plan_lines.named(example.file("model.py")) == NAMES


def test_the_page_has_the_table() -> None:
    """If not: python docs/plan_lines.py --write"""
    assert plan_lines.parts(plan_lines.PAGE.read_text())[1].strip() == plan_lines.table().strip()
