"""The parts of the documentation that are made from the library: the table of operations, and the reference."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import spmdx
from spmdx.mesh import Mesh
from spmdx.op import Operation, registry
from spmdx.ops.place import asarray
from spmdx.placement import Shard
from spmdx.rule import Form, parse
from spmdx.transforms import batching as batched

LAWS = Path(__file__).parents[1] / "tests" / "laws"
LONGEST = 60  # characters of an example's arguments
WAYS = ("whole", "divided", "gradient")  # how examples are run until one comes to the operation
TRIED = 12  # examples looked at for one to show


def modules() -> list[ModuleType]:
    """All modules that may register operations."""
    found = []
    for folder in ("ops", "random", "nn", "optim"):
        for path in sorted((Path(spmdx.__file__).parent / folder).glob("*.py")):
            name = "" if path.stem == "__init__" else f".{path.stem}"
            found.append(importlib.import_module(f"spmdx.{folder}{name}"))
    return found


def own() -> dict[str, Operation]:
    """The library's operations, without those that tests and pages register."""
    modules()
    return {name: op for name, op in registry.items() if op.body.__module__.startswith("spmdx.")}


def first_line(text: str | None) -> str:
    """The first paragraph of a docstring, on one line, in reStructuredText."""
    paragraph = inspect.cleandoc(text or "").split("\n\n")[0]
    return " ".join(paragraph.split()).replace("*", r"\*") if "`" not in paragraph else " ".join(paragraph.split())


# Examples, for rules that depend on shapes and arguments


def examples() -> dict[str, list[Any]]:
    """The examples of the law suite for every operation; none where the tests are not there."""
    found: dict[str, list[Any]] = {}
    if LAWS.is_dir():
        sys.path.insert(0, str(LAWS))
        for path in sorted(LAWS.glob("cases_*.py")):
            for case in importlib.import_module(path.stem).CASES:
                found.setdefault(case.op, []).append(case)
    return found


def worked(op: Operation, cases: list[Any]) -> tuple[str, list[tuple[int, ...]], str] | None:
    """The rule of one call of an operation, with its shapes and arguments: of an example with a matrix, if there is
    one, and a result that is not 0-d. Some operations are called only where operands are divided, or in gradients."""
    found = None
    some = sorted(cases, key=lambda case: all(x.ndim != 2 or not x.size for x in case.inputs))[:TRIED]
    for way, case in product(WAYS, some):
        entry = entry_of(op, case, way)
        if entry is None:
            continue
        shapes = [spec.shape for spec in entry.decision.wanted]
        form = op.rule(*shapes, **entry.static)
        text = " ".join((form.text if isinstance(form, Form) else form).split()).replace(" ,", ",")
        arguments = ", ".join(f"{k}={v!r}" for k, v in entry.static.items() if v is not None)
        if found is None or not text.endswith("->"):
            found = text, shapes, arguments if len(arguments) <= LONGEST else ""
        if not text.endswith("->"):
            break
    return found


def entry_of(op: Operation, case: Any, way: str) -> Any:
    """What an operation decided when an example was run; None if the example did not come to it."""
    mesh = Mesh(("a",), (2,), None, "sim")
    before = dict(op.entries)
    op.entries.clear()
    op.memo.clear()
    where = [{"a": Shard(0)} if way == "divided" and x.ndim else {} for x in case.inputs]
    given = [asarray(x, mesh=mesh, placement=p) for x, p in zip(case.inputs, where)]
    with np.errstate(all="ignore"):
        if way == "gradient" and case.grad:
            spmdx.grad(lambda *some: spmdx.sum(case.call(*some)), case.grad)(*given)
        else:
            case.call(*given)
    entry = next(iter(op.entries.values()), None)
    op.entries.update(before)
    return entry


# The table of operations


def operands(op: Operation) -> list[str]:
    """The names of an operation's operands."""
    names = list(inspect.signature(op.body).parameters)[2 if op.bounds else 1 :]
    return names[: 1 if op.arrays is None else op.arrays]


def partial_behaviour(op: Operation, reduced: bool) -> str:
    """What an operation does with Partial operands, and when its result is Partial."""
    names, said = operands(op), []
    groups = []
    for group in op.traits.linear:
        if op.arrays is None:
            groups.append("of all" if not group else f"of operand{'s' * (len(group) > 1)} {', '.join(map(str, group))}")
        else:
            groups.append(" and ".join(names[i] for i in group) + " together" * (len(group) > 1))
    if groups:
        which = "" if groups == names else f" ({'; '.join(groups)})"  # an only operand needs no name
        said.append(f"linear: sums pass{which}")
    if op.traits.monotone:
        said.append(f"monotone: min and max pass{', exchanged' if op.traits.monotone < 0 else ''}")
    if reduced:
        said.append(f'reduces: leaves ``Partial("{op.traits.reduce}")``')
        if op.traits.reduce != "sum" and op.arrays == 1:
            said.append(f'``Partial("{op.traits.reduce}")`` passes')
    return "; ".join(said) or "finished first"


def rule_of(op: Operation, cases: list[Any]) -> tuple[str, bool, list[str]]:
    """How the rule of an operation is shown; whether it reduces something; and which factors must be whole."""
    if isinstance(op.rule, str):
        text, shown = op.rule, f"``{op.rule}``"
    else:
        example = worked(op, cases)
        if example is None:
            return first_line(op.rule.__doc__) or "by shapes and arguments", False, []
        text, shapes, arguments = example
        shown = f"``{text}`` for {', '.join(f'``{shape}``' for shape in shapes)}"
        shown += f", ``{arguments}``" if arguments else ""
    rule = parse(text)
    read = {f for dims in rule.inputs for dim in dims for f in dim.factors}
    left = {f for dim in rule.output for f in dim.factors}
    return shown, bool(read - left - rule.whole), sorted(rule.whole & read)


def row(op: Operation, cases: list[Any]) -> list[str]:
    """One line of the table."""
    rule, reduced, whole = rule_of(op, cases)
    notes = [op.note] if op.note else []
    if whole and not op.note:
        factors = " and ".join(f"``{f}``" for f in whole)
        notes.append(f"{factors} is made whole first: moved to another dimension, or gathered in 1-D")
    cells = [f"``{op.name}``", first_line(op.body.__doc__), rule, partial_behaviour(op, reduced)]
    return [*cells, "yes" if op.differentiable else "no", "; ".join(notes)]


def list_table(rows: list[list[str]], widths: str) -> Iterator[str]:
    """A table in reStructuredText; the first row is its head."""
    yield from (".. list-table::", "   :header-rows: 1", f"   :widths: {widths}", "")
    for cells in rows:
        for i, cell in enumerate(cells):
            yield f"   {'* -' if i == 0 else '  -'} {cell}".rstrip()
    yield ""


def operations() -> str:
    """The tables of operations, a section for each file that registers some."""
    cases, by_module = examples(), dict[str, list[Operation]]()
    for op in own().values():
        by_module.setdefault(op.body.__module__, []).append(op)
    lines: list[str] = []
    for name in sorted(by_module):
        title = name.removeprefix("spmdx.").replace(".", "/") + ".py"
        lines += [title, "-" * len(title), "", first_line(sys.modules[name].__doc__), ""]
        head = ["Operation", "What", "Rule", "Partial", "Gradient", "Notes"]
        rows = [row(op, cases.get(op.name, [])) for op in sorted(by_module[name], key=lambda op: op.name)]
        lines += list_table([head, *rows], "10 24 22 18 6 20")
    made = [row for module in modules() for row in composed(module)]
    lines += ["Made of these", "-------------", "", "Functions without a rule of their own: calls of operations.", ""]
    return "\n".join([*lines, *list_table([["Function", "What"], *made], "20 80")])


def batching() -> str:
    """How every operation runs inside vmap, with the rule that is derived for it, of one example."""
    cases, rows = examples(), [["Operation", "Way", "Derived rule"]]
    for name, op in sorted(own().items()):
        calls = ((case, way) for way in WAYS for case in cases.get(name, [])[:TRIED])
        entry = next((found for case, way in calls if (found := entry_of(op, case, way)) is not None), None)
        if entry is not None:
            shapes = [spec.shape for spec in entry.decision.wanted]
            way, rule = batched.derived(op, shapes, entry.static)
            rows.append([f"``{name}``", way, f"``{rule}``"])
    return "\n".join(list_table(rows, "20 20 60"))


def composed(module: ModuleType) -> list[list[str]]:
    """The public functions of a module that are no operations, defined there."""
    found = []
    for name in getattr(module, "__all__", []):
        value = getattr(module, name)
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not hasattr(value, "op"):
            found.append([f"``{name}``", first_line(value.__doc__)])
    return found


# The reference


def public() -> dict[str, Any]:
    """The names that ``import spmdx`` gives, without modules."""
    names = getattr(spmdx, "__all__", None) or [n for n in vars(spmdx) if not n.startswith("_")]
    return {name: getattr(spmdx, name) for name in names if not inspect.ismodule(getattr(spmdx, name))}


def module_of(value: Any) -> str:
    """The module that a public value comes from."""
    return str(getattr(value, "__module__", ""))


GROUPS = (  # heading, and which files' names stand under it
    ("Meshes and placements", ("mesh", "meshes", "placement", "spec")),
    ("Arrays", ("array", "ops.place", "ops.pieces", "ops.transfer", "ops.create", "ops.creation")),
    ("Differentiation", ("autodiff", "transforms.derivatives", "transforms.custom", "transforms.accumulate")),
    ("Batches, memory and shapes", ("transforms.vmap", "transforms.remat", "transforms.shapes")),
    ("Own operations", ("op", "rule", "decide")),
    ("Seeing communication", ("debug", "move")),
    ("Checkpoints", ()),
    ("Errors", ("errors",)),
)


MORE = {  # of modules that keep their names
    "Seeing communication": (
        "function:: spmdx.debug.trace",
        "class:: spmdx.debug.Trace",
        "function:: spmdx.debug.explain",
        "function:: spmdx.debug.kept_bytes",
    ),
    "Checkpoints": tuple(f"function:: spmdx.checkpoint.{name}" for name in ("save", "load", "read", "views")),
    "Errors": ("module:: spmdx.errors",),
}


def heading(text: str) -> list[str]:
    """A section title."""
    return [text, "-" * len(text), ""]


def reference() -> str:
    """An entry for every public name, under the heading of its file."""
    left, lines = public(), list[str]()
    for title, files in GROUPS:
        names = [name for name, value in left.items() if module_of(value).removeprefix("spmdx.") in files]
        if names:
            lines += heading(title)
            lines += [line for name in names for line in entry(name, left.pop(name))]
        lines += [line for name in MORE.get(title, ()) for line in (f".. auto{name}", "")]
    others: dict[str, list[str]] = {}
    for name, value in left.items():
        others.setdefault(module_of(value), []).append(name)
    for module in sorted(m for m in others if m.startswith("spmdx.")):
        lines += heading(first_line(sys.modules[module].__doc__).split(". ")[0].split(": ")[0].rstrip("."))
        lines += [line for name in sorted(others[module]) for line in entry(name, left[name])]
    constants = sorted(name for module, names in others.items() if not module.startswith("spmdx.") for name in names)
    if constants:
        lines += heading("Constants and data types")
        lines += [", ".join(f"``{name}``" for name in constants), ""]
    return "\n".join(lines)


def entry(name: str, value: Any) -> list[str]:
    """The autodoc directive of a name; one that is another's name says so."""
    if inspect.isclass(value):
        kind = "autoexception" if issubclass(value, BaseException) else "autoclass"
        return [f".. {kind}:: spmdx.{name}", *([] if kind == "autoclass" else ["   :no-members:"]), ""]
    real = getattr(value, "__name__", name).strip("_")
    if real != name and public().get(real) is value:
        return [f".. function:: spmdx.{name}", "", f"   :func:`spmdx.{real}` under another name.", ""]
    return [f".. autofunction:: spmdx.{name}", ""]
