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
    """The rows, and what no pattern fits. ``print(table)`` shows it."""

    unmatched: tuple[str, ...]  # parameters: whole on every rank
    nothing: tuple[str, ...]  # patterns that fit nothing
    unnamed: tuple[str, ...]  # names that the model has: of values and functions that stay as they are
    unknown: int  # patterns of names, of which nothing is known until something has run

    def __str__(self) -> str:
        wide = max([len(row.pattern) for row in self], default=0) + 2
        lines = []
        for row in self:
            found = f"{len(row.paths)}: {row.paths[0]}{', ...' * (len(row.paths) > 1)}" if row.paths else "NOTHING"
            lines.append(f"{row.kind:<8}{row.pattern:<{wide}}{row.axes:<40}{found}")
        lines.append(f"{len(self.unmatched)} parameters that no pattern matches: {_some(self.unmatched)}")
        if self.unknown:
            lines.append(
                f"{self.unknown} patterns of names, which only a run tells: check(model, step=step, args=(x, y))"
            )
        else:
            lines.append(f"{len(self.unnamed)} names that no pattern matches: {_some(self.unnamed)}")
        return "\n".join(lines)


def _some(words: tuple[str, ...]) -> str:
    return (", ".join(words[:8]) + ", ..." * (len(words) > 8)) or "-"


NAMED = ("names", "gather")  # the kinds whose patterns are of names


def check(plan: Plan, model: Any, came_by: Iterable[tuple[str, str]] | None) -> Table:
    """The table for a pytree of parameters, and for the names that a run came by (None: nothing has run)."""
    paths = tree.paths(model)
    seen = sorted(set(came_by or ()))
    table, matched, fitted = Table(), set(), set()
    for kind in KINDS:
        if kind in NAMED and came_by is None:
            continue
        labels = [label for what, label in seen if what == kind] if kind in NAMED else paths
        for rule in plan.rules[kind]:
            fits = tuple(p for p in labels if rule.fits(p))
            matched |= set(fits) if kind == "params" else set()
            fitted |= set(fits) if kind in NAMED else set()
            axes = ", ".join(f"{axis}: {word!r}" for axis, word in rule.axes.items())
            table.append(Row(kind, rule.text, axes, fits))
    table.unmatched = tuple(p for p in paths if p not in matched)
    table.nothing = tuple(row.pattern for row in table if not row.paths)
    table.unnamed = tuple(dict.fromkeys(label for _, label in seen if label not in fitted))
    table.unknown = sum(len(plan.rules[kind]) for kind in NAMED) if came_by is None else 0
    return table
