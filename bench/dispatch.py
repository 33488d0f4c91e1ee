"""What one eager operation costs on small arrays, beside bare NumPy and beside other libraries.

    python bench/dispatch.py [--peers all|none] [--quick] [--json FILE]

Arrays are float32, sharded on dimension 0 over one or two ranks, and no operation communicates. NumPy works on the
same blocks. DTensor goes by gloo; JAX runs eagerly in one process on as many forced host devices as there are ranks.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
from launch import Ranks, on_ranks
from timer import Contestant, Report, Timing, heading, loop, race, table

SIZES = (8, 64)
RANKS = (1, 2)
OPERATIONS = ("add", "mul", "exp", "sum", "matmul", "transpose", "slice", "reshape", "scalar")
FRESH = ("add", "exp", "sum", "matmul", "transpose", "slice", "reshape", "A[:, :i]")
NAMES = {"numpy": "NumPy", "spmdx": "spmdx", "torch": "DTensor", "jax": "JAX", "heat": "Heat"}
OVER, OVER_SCALAR, OVER_RECORDING, FIRST = 1.0, 1.5, 2.0, 300.0  # microseconds
DISTINCT = 100_000  # calls after which the memos are counted

Calls = dict[str, Callable[[], Any]]


def calls(x: Any, y: Any, w: Any, exp: Callable[[Any], Any], total: Callable[[Any], Any], reshape: Any) -> Calls:
    """The operations, written as a user of the library writes them."""
    n, k = x.shape
    halves = (n, 2, k // 2)
    return {
        "add": lambda: x + y,
        "mul": lambda: x * y,
        "exp": lambda: exp(x),
        "sum": lambda: total(x),
        "matmul": lambda: x @ w,
        "transpose": lambda: x.T,
        "slice": lambda: x[:, 1:5],
        "reshape": lambda: reshape(x, halves),
        "scalar": lambda: x * 2.5,
    }


class NumPy:
    """Bare NumPy on the blocks that spmdx has."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks

    def array(self, value: Any) -> Any:
        return np.array_split(value, self.ranks.size)[self.ranks.rank].copy()

    def replicated(self, value: Any) -> Any:
        return value.copy()

    def calls(self, x: Any, y: Any, w: Any) -> Calls:
        add = np.add.reduce
        found = calls(x, y, w, np.exp, lambda x: add(x, 1), lambda x, shape: x.reshape(shape))
        halves = (*x.shape[:1], 2, x.shape[1] // 2)
        return {**found, "reshape": lambda: x.reshape(halves)}

    loop = staticmethod(loop)

    def recording(self, value: Any, other: Any, w: Any, name: str) -> Contestant | None:
        return loop(self.calls(self.array(value), self.array(other), self.replicated(w))[name])


class Spmdx:
    """spmdx on a mesh of one axis."""

    def __init__(self, ranks: Ranks) -> None:
        import spmdx as sx

        self.sx = sx
        self.mesh = sx.make_mesh({"p": ranks.size})

    def array(self, value: Any) -> Any:
        return self.sx.asarray(value, mesh=self.mesh, placement={"p": self.sx.Shard(0)})

    def replicated(self, value: Any) -> Any:
        return self.sx.asarray(value, mesh=self.mesh)

    def calls(self, x: Any, y: Any, w: Any) -> Calls:
        total = self.sx.sum
        return calls(x, y, w, self.sx.exp, lambda x: total(x, axis=1), self.sx.reshape)

    loop = staticmethod(loop)

    def recording(self, value: Any, other: Any, w: Any, name: str) -> Contestant | None:
        """The loop runs inside a gradient, on watched operands: every result is recorded."""
        x, y, w = self.array(value), self.array(other), self.replicated(w)

        def time(count: int) -> float:
            spent = []

            def inside(x: Any, y: Any, w: Any) -> Any:
                spent.append(loop(self.calls(x, y, w)[name])(count))
                return x

            self.sx.vjp(inside, x, y, w)
            return spent[0]

        return time


class Torch:
    """DTensor over gloo."""

    def __init__(self, ranks: Ranks) -> None:
        import peers

        self.torch, self.tensor, self.mesh = peers.torch(ranks.rank, ranks.size)

    def array(self, value: Any) -> Any:
        return self.tensor.distribute_tensor(self.torch.from_numpy(value.copy()), self.mesh, [self.tensor.Shard(0)])

    def replicated(self, value: Any) -> Any:
        return self.tensor.distribute_tensor(self.torch.from_numpy(value.copy()), self.mesh, [self.tensor.Replicate()])

    def calls(self, x: Any, y: Any, w: Any) -> Calls:
        torch = self.torch
        return calls(x, y, w, torch.exp, lambda x: torch.sum(x, 1), torch.reshape)

    loop = staticmethod(loop)

    def recording(self, value: Any, other: Any, w: Any, name: str) -> Contestant | None:
        leaves = [self.array(value), self.array(other), self.replicated(w)]
        return loop(self.calls(*(leaf.requires_grad_(True) for leaf in leaves))[name])


class Jax:
    """JAX without jit, which has no recording to compare: rank 0 runs all devices, the others sleep."""

    def __init__(self, ranks: Ranks) -> None:
        import peers

        self.here = ranks.rank == 0
        self.jax, self.sharded, self.whole = peers.jax(ranks.size)

    def array(self, value: Any) -> Any:
        return self.jax.device_put(value, self.sharded) if self.here else value

    def replicated(self, value: Any) -> Any:
        return self.jax.device_put(value, self.whole) if self.here else value

    def calls(self, x: Any, y: Any, w: Any) -> Calls:
        np_of_jax = self.jax.numpy
        return calls(x, y, w, np_of_jax.exp, lambda x: np_of_jax.sum(x, 1), np_of_jax.reshape)

    def loop(self, call: Callable[[], Any]) -> Contestant | None:
        """Dispatch is asynchronous: a loop ends when its last result is there."""
        if not self.here:
            return None

        def time(count: int) -> float:
            start = perf_counter()
            for _ in range(count):
                out = call()
            self.jax.block_until_ready(out)
            return perf_counter() - start

        return time

    def recording(self, value: Any, other: Any, w: Any, name: str) -> Contestant | None:
        return None


class Heat:
    """Heat; it has no gradients."""

    def __init__(self, ranks: Ranks) -> None:
        import peers

        self.ht = peers.heat()

    def array(self, value: Any) -> Any:
        return self.ht.array(value, split=0)

    def replicated(self, value: Any) -> Any:
        return self.ht.array(value)

    def calls(self, x: Any, y: Any, w: Any) -> Calls:
        ht = self.ht
        return calls(x, y, w, ht.exp, lambda x: ht.sum(x, axis=1), ht.reshape)

    loop = staticmethod(loop)

    def recording(self, value: Any, other: Any, w: Any, name: str) -> Contestant | None:
        return None


LIBRARIES: dict[str, Any] = {"numpy": NumPy, "spmdx": Spmdx, "torch": Torch, "jax": Jax, "heat": Heat}


# On the ranks


def work(options: argparse.Namespace) -> None:
    """What every rank does; rank 0 writes what was found."""
    ranks = Ranks()
    names = ["numpy", "spmdx", *(() if options.peers == "none" else ("torch", "jax", "heat"))]
    libraries = {name: LIBRARIES[name](ranks) for name in names}
    report = Report("dispatch")
    for n in SIZES:
        steady(libraries, ranks, n, report, options.quick)
    fresh(libraries, ranks, report, options.quick)
    memos(libraries["spmdx"], ranks, report, DISTINCT // 10 if options.quick else DISTINCT)
    if ranks.rank == 0:
        report.write(options.worker)
    ranks.rest()


def steady(libraries: dict[str, Any], ranks: Ranks, n: int, report: Report, quick: bool) -> None:
    """Calls seen before, without and with recording."""
    x, y, w = (np.random.default_rng(i).random((n, n), dtype=np.float32) for i in range(3))
    how: dict[str, Any] = {"rounds": 15 if quick else 101, "target": 0.001, "collective": False}
    made = {name: lib.calls(lib.array(x), lib.array(y), lib.replicated(w)) for name, lib in libraries.items()}
    for operation in OPERATIONS:
        case = {"operation": operation, "size": n, "ranks": ranks.size, "recording": False}
        contestants = {name: lib.loop(made[name][operation]) for name, lib in libraries.items()}
        judge(case, race(contestants, ranks, **how), report)
        found = {name: lib.recording(x, y, w, operation) for name, lib in libraries.items()}
        contestants = {name: time for name, time in found.items() if name not in ("jax", "heat")}
        judge({**case, "recording": True}, race(contestants, ranks, **how), report)


def judge(case: dict[str, Any], times: dict[str, Timing], report: Report) -> None:
    """The bar of one operation: so many microseconds over NumPy, or under a fifth of DTensor's time."""
    report.add(case, times)
    over = times["spmdx"].over(times["numpy"]) * 1e6
    limit = OVER_RECORDING if case["recording"] else OVER_SCALAR if case["operation"] == "scalar" else OVER
    fifth = "torch" in times and times["torch"].speed(times["spmdx"]) < 0.2
    report.claim(case, f"at most {limit} us over NumPy, or a fifth of DTensor", over, over <= limit or fifth)


def fresh(libraries: dict[str, Any], ranks: Ranks, report: Report, quick: bool) -> None:
    """The first call with shapes that were never seen, one after another; only the call itself is timed."""
    for operation in FRESH:
        case = {"operation": operation, "ranks": ranks.size}
        times = {}
        for name, lib in libraries.items():
            some = range(5 if name == "jax" else 10 if quick else 60)
            spent = list(each_fresh(lib, name, operation, some, ranks))[len(some) // 5 :]
            everyone = ranks.gather([] if name == "jax" and ranks.rank else spent)
            times[name] = Timing([seconds for each in everyone for seconds in each])
        report.add({**case, "first": True}, times)
        first = times["spmdx"].median * 1e6
        report.claim({**case, "first": True}, f"a new shape's first call under {FIRST:.0f} us", first, first < FIRST)


def each_fresh(lib: Any, name: str, operation: str, some: range, ranks: Ranks) -> Iterator[float]:
    """Seconds of each first call, one right after another: everything but the call is made beforehand."""
    ready: list[Callable[[], Any]] = []
    a = lib.array(np.zeros((8, 4096), np.float32))
    for i in some:
        if operation == "A[:, :i]":
            ready.append(partial(lambda i: a[:, : 3000 + i], i))
            continue
        columns = 16 + 4 * FRESH.index(operation)
        x, w = (np.ones((n, columns), np.float32) for n in (16 + 2 * i, columns))
        ready.append(lib.calls(lib.array(x), lib.array(x), lib.replicated(w))[operation])
    ranks.together()
    for call in ready:
        start = perf_counter()
        if name != "jax":
            call()
        elif ranks.rank == 0:
            call().block_until_ready()
        yield perf_counter() - start


def memos(lib: Any, ranks: Ranks, report: Report, distinct: int) -> None:
    """How many calls are remembered after ever new ones, and what an ever new slice costs in the long run."""
    from spmdx.op import MEMO_SIZE, registry

    a = lib.array(np.zeros((2, distinct + 1), np.float32))
    start = perf_counter()
    for i in range(distinct):
        a[:, :i]
    spent = (perf_counter() - start) / distinct
    held = max(max(len(operation.memo), len(operation.entries)) for operation in registry.values())
    case = {"operation": f"{distinct} distinct slices", "ranks": ranks.size}
    report.add({**case, "memo": held}, {"spmdx": Timing(ranks.gather(spent))})
    report.claim(case, f"each operation remembers at most {MEMO_SIZE} calls", held, held <= MEMO_SIZE)


# What is printed


def microseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e6:.2f}" if seconds < 1e-4 else f"{seconds * 1e6:,.0f}"


def show(report: Report) -> None:
    """The tables: medians in microseconds."""
    print(heading(), end="\n\n")
    libraries = [name for name in NAMES if any(row.library == name for row in report.rows)]
    found: dict[tuple[Any, ...], dict[str, float]] = {}
    for row in report.rows:
        found.setdefault(tuple(row.case.items()), {})[row.library] = row.time["median"]
    bars = {tuple(bar.case.items()): bar for bar in report.bars}
    for ranks in RANKS:
        for size in SIZES:
            for recording in (False, True):
                how = "recording gradients" if recording else "not recording"
                print(f"{size}x{size} float32, Shard(0), {ranks} rank(s), {how}; microseconds")
                lines = []
                for operation in OPERATIONS:
                    key = tuple({"operation": operation, "size": size, "ranks": ranks, "recording": recording}.items())
                    times, bar = found[key], bars[key]
                    line = [operation, *(microseconds(times.get(name)) for name in libraries)]
                    lines.append([*line, f"{bar.measured:+.2f}", "met" if bar.met else "MISSED"])
                print(table(["operation", *(NAMES[n] for n in libraries), "over NumPy", "bar"], lines), end="\n\n")
        print(f"first call with a new shape, {ranks} rank(s); microseconds")
        lines = []
        for operation in FRESH:
            key = tuple({"operation": operation, "ranks": ranks, "first": True}.items())
            lines.append(
                [operation, *(microseconds(found[key].get(n)) for n in libraries), "met" if bars[key].met else "MISSED"]
            )
        print(table(["operation", *(NAMES[n] for n in libraries), "bar"], lines), end="\n\n")
    for row in report.rows:
        if "memo" in row.case:
            each = microseconds(row.time["median"])
            print(
                f"{row.case['operation']}, {row.case['ranks']} rank(s): {row.case['memo']} remembered, {each} us each"
            )
    print(report.summary())


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("--peers", choices=("all", "none"), default="all")
    reader.add_argument("--quick", action="store_true", help="few short rounds: to see that it runs")
    reader.add_argument("--json", metavar="FILE", help="write all that was found")
    reader.add_argument("--worker", help=argparse.SUPPRESS)
    options = reader.parse_args()
    if options.worker:
        work(options)
        return
    report = Report("dispatch")
    words = ["--peers", options.peers, *(["--quick"] if options.quick else [])]
    for ranks in RANKS:
        report.merge(on_ranks(__file__, ranks, words, limit=900))
    if options.json:
        report.write(options.json)
    show(report)


if __name__ == "__main__":
    main()
