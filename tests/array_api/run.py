"""Run the public Array API suite (data-apis/array-api-tests) over spmdx, and count its results by function.

    python tests/array_api/run.py CHECKOUT [--mesh 3] [--json FILE] [pytest's arguments]
    python tests/array_api/run.py --table FILE...

CHECKOUT is a clone of the suite with its submodule; nothing is fetched. With ``--mesh 3`` or ``--mesh 2x2`` every array
that the suite makes is divided over a simulated mesh, so that uneven, empty and Partial blocks take part; without it
arrays lie on one rank. ``--table`` writes the tables of docs/array-api.md from what ``--json`` kept.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import spmdx as sx

# The suite makes most of its arrays by filling a vector and reshaping it.
CREATORS = ("arange", "asarray", "empty", "eye", "from_dlpack", "full", "linspace", "ones", "reshape", "zeros")
LETTERS = "abcd"
MISSING = re.compile(r"is not defined in spmdx|not found in array module|has no attribute|missing the |hasattr\(")
STATES = ("passed", "failed", "missing")
NAMES_ONLY = ("has names", "signatures")  # one test for each name: nothing to list


# Arrays that are divided


def divide(mesh: sx.Mesh) -> None:
    """Make the public functions that the suite creates arrays with place them over the mesh."""
    for name in CREATORS:
        setattr(sx, name, _divided(getattr(sx, name), mesh))


def _divided(create: Any, mesh: sx.Mesh) -> Any:
    @functools.wraps(create)
    def made(*args: Any, **kwargs: Any) -> Any:
        x = create(*args, **kwargs)
        return x.redistribute(placement(x, mesh)) if x.mesh == mesh else x

    return made


def placement(x: sx.Array, mesh: sx.Mesh) -> dict[str, Any]:
    """Over the first axis a dimension that depends on the shape, over the second the next one; 0-d numbers are sums
    still to be finished."""
    if x.ndim:
        return {a: sx.Shard((sum(x.shape) + i) % x.ndim) for i, a in enumerate(mesh.axis_names)}
    return {} if x.dtype == sx.bool else {mesh.axis_names[0]: sx.Partial("sum")}


# Counts


class Record:
    """A plugin of pytest that keeps each test's outcome."""

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}
        self.reasons: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Keep what a test came to; "missing" where it came to a name that is not there."""
        if report.passed and report.when != "call":
            return
        said = str(report.longrepr)
        state = "missing" if not report.passed and MISSING.search(said) else report.outcome
        if self.outcomes.get(report.nodeid) != "failed":
            self.outcomes[report.nodeid] = state
        if state in ("failed", "skipped"):
            self.reasons[report.nodeid] = said[-1500:]


def group_and_function(test: str) -> tuple[str, str]:
    """The table's row and the function that a test is of."""
    file, _, name = test.partition("::")
    group = Path(file).stem.removeprefix("test_").replace("_functions", "").replace("_", " ")
    bare, _, parameters = name.partition("[")
    parameters = parameters.rstrip("]")
    if group == "has names":
        return group, parameters.split("-")[-1]
    if group in ("signatures", "special cases"):
        return group, re.split(r"[^\w]", parameters)[0] or bare
    return group, bare.split("::")[-1].removeprefix("test_") if "::" not in bare else bare.split("::")[-1]


def counts(outcomes: dict[str, str]) -> dict[str, dict[str, Counter[str]]]:
    """Group -> function -> state -> number of tests."""
    found: dict[str, dict[str, Counter[str]]] = {}
    for test, state in outcomes.items():
        group, function = group_and_function(test)
        found.setdefault(group, {}).setdefault(function, Counter())[state] += 1
    return found


def table(runs: dict[str, dict[str, str]]) -> Iterator[str]:
    """The lines of the tables: by group for each run, then by function for the first."""
    heads = [f"{run}: {state}" for run in runs for state in STATES]
    yield "| group | " + " | ".join(heads) + " |"
    yield "|---" * (1 + len(heads)) + "|"
    each = [counts(outcomes) for outcomes in runs.values()]
    for group in each[0]:
        yield _row(group, [sum(found.get(group, {}).values(), Counter()) for found in each], "{}")
    totals = [Counter(outcomes.values()) for outcomes in runs.values()]
    yield _row("**all**", totals, "**{}**")
    yield "\n## By function\n"
    yield "Numbers of tests that passed on one rank; in brackets those that did not.\n"
    for group, functions in each[0].items():
        if group not in NAMES_ONLY:
            yield f"- **{group}**: " + ", ".join(_function(f, c) for f, c in sorted(functions.items()))


def _row(head: str, sums: list[Counter[str]], form: str) -> str:
    return f"| {head} | " + " | ".join(form.format(s[state]) for s in sums for state in STATES) + " |"


def _function(name: str, found: Counter[str]) -> str:
    rest = ", ".join(f"{n} {word}" for word, n in sorted(found.items()) if word != "passed")
    return f"`{name}` {found['passed']}" + (f" ({rest})" if rest else "")


def main() -> int:
    """Read the command line, and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", nargs="?", type=Path, help="a clone of array-api-tests, with its submodule")
    parser.add_argument("--mesh", help="sizes of a simulated mesh to divide every array over: 2, 3, 2x2")
    parser.add_argument("--json", type=Path, help="where to keep the outcomes")
    parser.add_argument("--table", type=Path, nargs="+", metavar="FILE", help="outcomes to write tables of")
    options, rest = parser.parse_known_args()
    if options.table:
        runs: dict[str, dict[str, str]] = {}
        for path in options.table:
            kept = json.loads(path.read_text())
            runs.setdefault(kept["mesh"], {}).update(kept["outcomes"])
        print("\n".join(table(runs)))
        return 0
    if options.checkout is None or not (options.checkout / "array_api_tests").is_dir():
        parser.error("no clone of the suite given: git clone --recursive https://github.com/data-apis/array-api-tests")
    return run(options.checkout.resolve(), options.mesh, options.json, rest)


def run(checkout: Path, sizes: str | None, keep: Path | None, rest: list[str]) -> int:
    """Run the suite in this process."""
    os.environ["ARRAY_API_TESTS_MODULE"] = "spmdx"
    os.chdir(checkout)
    sys.path.insert(0, str(checkout))
    import pytest  # after the module is named, for the suite reads it when it is imported

    record = Record()
    arguments = ["-p", "no:cacheprovider", "--disable-warnings", *rest]
    if sizes is None:
        status = pytest.main(arguments, [record])
    else:
        shape = {LETTERS[i]: int(n) for i, n in enumerate(sizes.split("x"))}
        with sx.use_mesh(sx.make_mesh(shape, device="sim")) as mesh:
            divide(mesh)
            status = pytest.main(arguments, [record])
    if keep is not None:
        name = "one rank" if sizes is None else f"{sizes} ranks"
        kept = {"mesh": name, "outcomes": record.outcomes, "reasons": record.reasons}
        keep.write_text(json.dumps(kept, indent=0))
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
