"""A table of what a plan's patterns match: the misspelt ones match nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from spmdx import tree
from spmdx.plans.plan import KINDS, Plan


class Row(NamedTuple):
    """One pattern of a plan and the paths, or names, that it fits."""

    kind: str
    pattern: str
    axes: str
    paths: tuple[str, ...]


class Table(list[Row]):
    """The rows, and the parameters that no pattern fits. ``print(table)`` shows it."""

    unmatched: tuple[str, ...]  # parameters: whole on every rank
    nothing: tuple[str, ...]  # patterns that fit nothing

    def __str__(self) -> str:
        wide = max([len(row.pattern) for row in self], default=0) + 2
        lines = []
        for row in self:
            found = f"{len(row.paths)}: {row.paths[0]}{', ...' * (len(row.paths) > 1)}" if row.paths else "NOTHING"
            lines.append(f"{row.kind:<8}{row.pattern:<{wide}}{row.axes:<40}{found}")
        some = ", ".join(self.unmatched[:8]) + ", ..." * (len(self.unmatched) > 8)
        return "\n".join([*lines, f"{len(self.unmatched)} parameters that no pattern matches: {some or '-'}"])


def check(plan: Plan, model: Any, names: Iterable[tuple[str, str]] = ()) -> Table:
    """The table for a pytree of parameters, and for the names that a run came by."""
    paths = tree.paths(model)
    came_by = set(names)
    table, matched = Table(), set()
    for kind in KINDS:
        labels = [label for what, label in sorted(came_by) if what == kind]
        if kind in ("names", "gather") and not came_by:
            continue  # unknown until something has run
        for rule in plan.rules[kind]:
            fits = tuple(p for p in (labels if kind in ("names", "gather") else paths) if rule.fits(p))
            matched |= set(fits) if kind == "params" else set()
            axes = ", ".join(f"{axis}: {word!r}" for axis, word in rule.axes.items())
            table.append(Row(kind, rule.text, axes, fits))
    table.unmatched = tuple(p for p in paths if p not in matched)
    table.nothing = tuple(row.pattern for row in table if not row.paths)
    return table
