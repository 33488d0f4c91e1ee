"""The table of lines that a plan adds to the one-device programs in examples/, in docs/train.rst.

    python docs/plan_lines.py            prints the table, and the lines of the longest plan for GPT-2
    python docs/plan_lines.py --write    puts both into docs/train.rst

Counted is what a program with this plan has and the program for one device has not: of plans.py the import, the ready
plans, and those entries that match a parameter of the model; of train.py the statements that make a mesh, run under the
plan, and print once instead of on every rank. What train.py does for its command line is not counted.
"""

from __future__ import annotations

import ast
import runpy
import sys
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from spmdx import tree

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "train.rst"
BEGIN, END = ".. plan lines, by plan_lines.py\n", ".. end of plan lines\n"
PLANS = {  # what the table says, and the words
    "DP": "dp",
    "ZeRO-1": "zero1",
    "ZeRO-3": "zero3",
    "TP": "megatron",
    "TP+SP": "megatron+sp",
    "DP+TP+SP+ZeRO-3": "megatron+sp+zero3",
}
LONGEST = "megatron+sp+zero3"
READY = {
    "dp": 'data_parallel("data")',
    "megatron": 'tensor_parallel("model", DIMS)',
    "sp": 'sequence_parallel("model")',
    **{f"zero{stage}": f'zero{stage}("data")' for stage in (1, 2, 3)},
}


class Example(NamedTuple):
    """One of the models, in a folder of examples/."""

    title: str
    folder: str
    options: dict[str, Any]  # of its Config

    def file(self, name: str) -> Path:
        return ROOT / "examples" / self.folder / name

    def paths(self) -> list[str]:
        """Of its parameters."""
        model = _run(self.file("model.py"))
        return tree.paths(model["parameters"](model["Config"](**self.options)))


@cache
def _run(path: Path) -> Any:
    return runpy.run_path(str(path))


EXAMPLES = (
    Example("GPT-2", "gpt", {"form": "gpt2"}),
    Example("Llama", "gpt", {"form": "llama"}),
    Example("ViT", "vit", {}),
    Example("DiT", "dit", {}),
)


def of_the_plan(example: Example, words: str) -> list[str]:
    """The lines of plans.py: a plan for this model and these words alone."""
    ready = [READY[word] for word in words.split("+")]
    names = ", ".join(sorted(text.partition("(")[0] for text in ready))
    lines = [f"from spmdx.plans import {names}"]
    if "megatron" in words:
        dims, paths = _run(example.file("plans.py"))["DIMS"], example.paths()
        needed = {p: dim for p, dim in dims.items() if any(fnmatchcase(path, p) for path in paths)}
        lines += ["DIMS = {", *(f'    "{pattern}": {dim},' for pattern, dim in needed.items()), "}"]
    return [*lines, f"chosen = {' | '.join(ready)}"]


def of_the_program(example: Example) -> list[str]:
    """The lines of train.py: statements in `main` that are there for the mesh and the plan, apart from options."""
    return [*_statements(functions(example.file("train.py"))["main"])]


def _statements(block: Any) -> list[str]:
    found = []
    for node in block.body:
        head, own = "", False
        if isinstance(node, ast.If):
            head, own = f"if {ast.unparse(node.test)}:", bool(names_in(node.test) & {"mesh", "chosen"})
        elif isinstance(node, ast.With):
            head = f"with {', '.join(map(ast.unparse, node.items))}:"
            own = any(names_in(item) & {"mesh", "chosen"} for item in node.items)
        elif isinstance(node, ast.Assign):
            head, own = ast.unparse(node), names_in(*node.targets) == {"mesh"}
        if own:
            found.append(head)
        if isinstance(node, (ast.If, ast.With)) and "estimate" not in head:
            found += _statements(node)
    return found


def names_in(*nodes: Any) -> set[str]:
    """The names, and the attributes, that a piece of a program speaks of."""
    every = [n for node in nodes for n in ast.walk(node)]
    return {n.id for n in every if isinstance(n, ast.Name)} | {n.attr for n in every if isinstance(n, ast.Attribute)}


def functions(path: Path) -> dict[str, Any]:
    """The functions and classes of a file, by name."""
    return {n.name: n for n in ast.parse(path.read_text()).body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}


def added(example: Example, words: str) -> list[str]:
    """All lines that a plan adds."""
    return [*of_the_plan(example, words), *of_the_program(example)]


def named(path: Path) -> set[str]:
    """What a model names, for plans to speak of."""
    calls = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
    return {ast.literal_eval(n.args[1]) for n in calls if ast.unparse(n.func) == "sx.name"}


def table() -> str:
    """The table and a listing, in reStructuredText."""
    rows = [["model", *PLANS]]
    rows += [[e.title, *(str(len(added(e, words))) for words in PLANS.values())] for e in EXAMPLES]
    lines = [".. list-table::", "   :header-rows: 1", ""]
    for row in rows:
        lines += [f"   {'*' if i == 0 else ' '} - {cell}" for i, cell in enumerate(row)]
    lines += ["", f"All lines of the last column for {EXAMPLES[0].title}::", ""]
    return "\n".join([*lines, *(f"   {line}" for line in added(EXAMPLES[0], LONGEST)), ""])


def parts(page: str) -> tuple[str, str, str]:
    """What a page has before, between and after the marks."""
    before, _, rest = page.partition(BEGIN)
    between, _, after = rest.partition(END)
    return before, between, after


if __name__ == "__main__":
    if "--write" in sys.argv:
        before, _, after = parts(PAGE.read_text())
        PAGE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{after}")
    print(table())
