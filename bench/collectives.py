"""Redistribution, beside the best raw mpi4py call that does the same, DTensor over gloo and Heat.

    python bench/collectives.py [--peers all|none] [--quick] [--ranks 2 4] [--sizes 64KB 1MB 16MB 128MB] [--json FILE]

A size is that of the global float32 array; a Partial array has a block of that size on every rank. A raw call packs
into a kept buffer where it needs to, and delivers a new array, as a redistribution does; "kept" is the same into one
array that it overwrites at every call, which saves it the page faults of fresh memory. Where plain MPI can do one
thing in several ways, all run, new and kept, and spmdx is compared with whichever was fastest.

Long copies take twice as long, unequally, where memory is fragmented and has no huge pages left; on Linux
`echo 1 > /proc/sys/vm/compact_memory`, as root, makes some again.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from launch import Ranks, on_ranks
from timer import Contestant, Report, Timing, heading, loop, race, table

SIZES = {"64KB": (128, 128), "1MB": (512, 512), "16MB": (2048, 2048), "128MB": (4096, 8192)}
CASES = ("S0->S1", "S1->S0", "S0->R", "S1->R", "P->R", "P->S0", "P->S1", "S0->ragged", "ragged->R")
OVER, RATIO, REDUCED = 6.0, 0.9, 1.5  # microseconds at 64 KB; of raw MPI's speed from 1 MB; reductions from 16 MB
Calls = dict[str, Callable[[], Any]]


def ragged(rows: int, ranks: int) -> tuple[int, ...]:
    """Uneven row counts: the first rank has half as much again as its share."""
    first = rows // ranks * 3 // 2
    each = (rows - first) // (ranks - 1)
    return (first, *[each] * (ranks - 2), rows - first - each * (ranks - 2))


# Each library: a function of the case that returns what to call, in as many ways as there are


def spmdx_calls(ranks: Ranks, shape: tuple[int, int]) -> Callable[[str], Calls]:
    import spmdx as sx

    mesh = sx.make_mesh({"p": ranks.size})
    whole = np.arange(shape[0] * shape[1], dtype=np.float32).reshape(shape)
    places = {
        "S0": sx.Shard(0),
        "S1": sx.Shard(1),
        "R": sx.Replicate(),
        "P": sx.Partial("sum"),
        "ragged": sx.Shard(0, sizes=ragged(shape[0], ranks.size)),
    }

    def calls(case: str) -> Calls:
        source, target = ({"p": places[name]} for name in case.split("->"))
        x = sx.asarray(whole, mesh=mesh, placement=source)
        return {"spmdx": lambda: sx.redistribute(x, target)}

    return calls


def raw_calls(ranks: Ranks, shape: tuple[int, int]) -> Callable[[str], Calls]:
    """mpi4py, by hand. Every way fills ``out``, which is new or kept."""
    from mpi4py import MPI

    comm, p, me = ranks.comm, ranks.size, ranks.rank
    rows, columns = shape
    r, c = rows // p, columns // p
    sizes = ragged(rows, p)
    kinds = {"S0": (r, columns), "S1": (rows, c), "R": shape, "P": shape, "ragged": (sizes[me], columns)}

    def subarrays(full: tuple[int, int], part: tuple[int, int], dim: int) -> list[Any]:
        made = []
        for i in range(p):
            start = (i * part[0], 0) if dim == 0 else (0, i * part[1])
            made.append(MPI.FLOAT.Create_subarray(full, part, start).Commit())
        return made

    def overlaps() -> tuple[list[int], list[int]]:
        """Rows that this rank sends to each under S0 -> ragged, and those that it gets."""
        edges = np.cumsum((0, *sizes))
        mine, wanted = (me * r, (me + 1) * r), (edges[me], edges[me + 1])
        send = [max(0, min(mine[1], b) - max(mine[0], a)) for a, b in itertools.pairwise(edges)]
        receive = [max(0, min(wanted[1], (i + 1) * r) - max(wanted[0], i * r)) for i in range(p)]
        return [int(n) * columns for n in send], [int(n) * columns for n in receive]

    def ways(case: str) -> dict[str, Callable[[Any], None]]:
        source = case.split("->")[0]
        x = np.ones(kinds[source], np.float32)
        if case == "S0->S1":
            packed = np.empty((p, r, c), np.float32)
            view = x.reshape(r, p, c).transpose(1, 0, 2)
            sends, receives = subarrays((r, columns), (r, c), 1), subarrays((rows, c), (r, c), 0)
            ones, zeros = [1] * p, [0] * p

            def alltoall(out: Any) -> None:
                np.copyto(packed, view)
                comm.Alltoall(packed, out)

            return {
                "pack, Alltoall": alltoall,
                "Alltoallw": lambda out: comm.Alltoallw([x, ones, zeros, sends], [out, ones, zeros, receives]),
            }
        if case == "S1->S0":
            landed = np.empty((p, r, c), np.float32)
            sends, receives = subarrays((rows, c), (r, c), 0), subarrays((r, columns), (r, c), 1)
            ones, zeros = [1] * p, [0] * p

            def alltoall_back(out: Any) -> None:
                comm.Alltoall(x, landed)
                np.copyto(out.reshape(r, p, c), landed.transpose(1, 0, 2))

            return {
                "Alltoall, unpack": alltoall_back,
                "Alltoallw": lambda out: comm.Alltoallw([x, ones, zeros, sends], [out, ones, zeros, receives]),
            }
        if case == "S0->R":
            return {"Allgather": lambda out: comm.Allgather(x, out)}
        if case == "S1->R":
            all_landed = np.empty((p, rows, c), np.float32)

            def gather(out: Any) -> None:
                comm.Allgather(x, all_landed)
                np.copyto(out.reshape(rows, p, c), all_landed.transpose(1, 0, 2))

            return {"Allgather, unpack": gather}
        if case == "P->R":
            mine = np.empty((r, columns), np.float32)

            def two_steps(out: Any) -> None:
                comm.Reduce_scatter_block(x, mine)
                comm.Allgather(mine, out)

            return {"Allreduce": lambda out: comm.Allreduce(x, out), "Reduce_scatter, Allgather": two_steps}
        if case == "P->S0":
            counts = [r * columns] * p
            return {
                "Reduce_scatter_block": lambda out: comm.Reduce_scatter_block(x, out),
                "Reduce_scatter": lambda out: comm.Reduce_scatter(x, out, counts),
            }
        if case == "P->S1":
            packed_all = np.empty((p, rows, c), np.float32)
            view_all = x.reshape(rows, p, c).transpose(1, 0, 2)

            def scatter(out: Any) -> None:
                np.copyto(packed_all, view_all)
                comm.Reduce_scatter_block(packed_all, out)

            return {"pack, Reduce_scatter_block": scatter}
        if case == "S0->ragged":
            give, get = overlaps()
            return {"Alltoallv": lambda out: comm.Alltoallv([x, give], [out, get])}
        counts_all = [n * columns for n in sizes]
        return {"Allgatherv": lambda out: comm.Allgatherv(x, [out, counts_all])}

    def calls(case: str) -> Calls:
        target = kinds[case.split("->")[1]]
        kept = np.empty(target, np.float32)
        made: Calls = {}
        for name, way in ways(case).items():
            made[f"MPI {name}"] = partial(_fresh, way, target)
            made[f"kept {name}"] = partial(way, kept)
        return made

    return calls


def _fresh(way: Callable[[Any], None], shape: tuple[int, int]) -> Any:
    out = np.empty(shape, np.float32)
    way(out)
    return out


def torch_calls(ranks: Ranks, shape: tuple[int, int]) -> Callable[[str], Calls]:
    import peers

    torch, tensor, mesh = peers.torch(ranks.rank, ranks.size)
    places = {"S0": tensor.Shard(0), "S1": tensor.Shard(1), "R": tensor.Replicate(), "P": tensor.Partial()}

    def calls(case: str) -> Calls:
        source, target = case.split("->")
        if source not in places or target not in places:
            return {}
        p, local = ranks.size, list(shape)
        if source[0] == "S":
            local[int(source[1])] //= p
        x = tensor.DTensor.from_local(torch.ones(local), mesh, [places[source]], run_check=False)
        return {"DTensor": lambda: x.redistribute(mesh, [places[target]])}

    return calls


def heat_calls(ranks: Ranks, shape: tuple[int, int]) -> Callable[[str], Calls]:
    import peers

    ht = peers.heat()
    splits = {"S0": 0, "S1": 1, "R": None}

    def calls(case: str) -> Calls:
        source, target = case.split("->")
        if source not in splits or target not in splits:
            return {}
        x = ht.ones(shape, dtype=ht.float32, split=splits[source])
        return {"Heat": lambda: ht.resplit(x, splits[target])}

    return calls


# On the ranks


def work(options: argparse.Namespace) -> None:
    """What every rank does; rank 0 writes what was found."""
    ranks = Ranks()
    ranks.settle()
    makers = [spmdx_calls, raw_calls, *(() if options.peers == "none" else (torch_calls, heat_calls))]
    report = Report("collectives")
    for size in options.sizes:
        libraries = [make(ranks, SIZES[size]) for make in makers]
        large = size == "128MB"
        rounds = 5 if options.quick or large else 15 if size == "16MB" else 31
        for name in options.cases:
            contestants: dict[str, Contestant | None] = {}
            for calls in libraries:
                contestants |= {label: loop(call) for label, call in calls(name).items()}
            # Loops that are long to the calls in which a contestant gets its arrays back into the caches.
            times = race(contestants, ranks, rounds, target=0.04 if size == "16MB" else 0.02, collective=True)
            judge({"move": name, "size": size, "ranks": ranks.size}, times, report)
    if ranks.rank == 0:
        report.write(options.worker)
    ranks.rest()


def judge(case: dict[str, Any], times: dict[str, Timing], report: Report) -> None:
    """The bars of one move at one size."""
    report.add(case, times)
    ours = times["spmdx"]
    raw = min((t for name, t in times.items() if name.startswith(("MPI ", "kept "))), key=lambda t: t.median)
    if case["size"] == "64KB":
        over = ours.over(raw) * 1e6
        report.claim(case, f"at most {OVER:.0f} us over raw MPI", over, over <= OVER)
        return
    reduces = case["move"].startswith("P") and case["size"] in ("16MB", "128MB")
    least = REDUCED if reduces else RATIO
    ratio = ours.speed(raw)
    report.claim(case, f"at least {least} of raw MPI's speed", ratio, ratio >= least)


# What is printed


def show(report: Report, options: argparse.Namespace) -> None:
    """The tables: medians, and raw MPI's time divided by spmdx's."""
    print(heading(), end="\n\n")
    found: dict[tuple[Any, ...], dict[str, float]] = {}
    for row in report.rows:
        found.setdefault(tuple(row.case.items()), {})[row.library] = row.time["median"]
    bars = {tuple(bar.case.items()): bar for bar in report.bars}
    for ranks in options.ranks:
        for size in options.sizes:
            unit, per = ("us", 1e6) if size in ("64KB", "1MB") else ("ms", 1e3)
            print(f"{size}, {ranks} ranks; {unit}")
            lines = []
            for move in options.cases:
                key = tuple({"move": move, "size": size, "ranks": ranks}.items())
                times, bar = found[key], bars[key]
                raw = min((n for n in times if n.startswith("MPI ")), key=times.__getitem__)
                kept = min(t for n, t in times.items() if n.startswith("kept "))
                columns = [times["spmdx"], times[raw], kept, times.get("DTensor"), times.get("Heat")]
                shown = ["" if t is None else f"{t * per:.3g}" if t * per < 100 else f"{t * per:.0f}" for t in columns]
                verdict = f"{bar.measured:+.1f} us" if size == "64KB" else f"{bar.measured:.2f}"
                lines.append([move, *shown, verdict, "met" if bar.met else "MISSED", raw[4:]])
            head = [
                "move",
                "spmdx",
                "raw MPI",
                "kept",
                "DTensor",
                "Heat",
                "over MPI" if size == "64KB" else "MPI/spmdx",
            ]
            print(table([*head, "bar", "raw MPI's best"], lines), end="\n\n")
    print(report.summary())


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("--peers", choices=("all", "none"), default="all")
    reader.add_argument("--quick", action="store_true", help="few short rounds: to see that it runs")
    reader.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    reader.add_argument("--sizes", choices=SIZES, nargs="+", default=list(SIZES))
    reader.add_argument("--cases", choices=CASES, nargs="+", default=list(CASES))
    reader.add_argument("--json", metavar="FILE", help="write all that was found")
    reader.add_argument("--worker", help=argparse.SUPPRESS)
    options = reader.parse_args()
    if options.worker:
        work(options)
        return
    report = Report("collectives")
    words = ["--peers", options.peers, "--sizes", *options.sizes, "--cases", *options.cases]
    words += ["--quick"] if options.quick else []
    for ranks in options.ranks:
        report.merge(on_ranks(__file__, ranks, words, limit=1200))
    if options.json:
        report.write(options.json)
    show(report, options)


if __name__ == "__main__":
    main()
