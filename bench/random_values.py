"""Random values on one core, beside NumPy, JAX and torch in the same run.

    python bench/random_values.py [--sizes 1000000 10000000] [--instructions avx2] [--quick] [--json FILE]

Million values a second in the median round. Run it where the peers are (bench/setup_peers.py); those that are missing
are left out. The process is bound to one core, so that every library has one thread. Each call gives an array: spmdx's
from its public functions, NumPy's and torch's into memory that they keep, JAX's from a compiled function.

Mesh-independent are the generators whose values do not depend on how the array is divided: spmdx's, and JAX's threefry
and philox4x32. Of each size the second table is one rank's block of a divided array against an array of as many values
that is not divided. Then come JAX's own numbers beside JAX, dropout beside NumPy and torch, and the other distributions
beside NumPy.
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # before the libraries count the cores

import numpy as np
from timer import Contestant, Report, Timing, heading, loop, race, table

import spmdx as sx
from spmdx import context, random
from spmdx.runtime import kernels

KEY, JAX_KEY = random.fold_in(random.key(0), 1), random.key(1, "threefry2x32")
NUMPY = {"Philox": np.random.Philox, "PCG64": np.random.PCG64, "SFC64": np.random.SFC64}
JAX = ("threefry2x32", "philox4x32", "rbg")
INDEPENDENT = ("JAX threefry2x32", "JAX philox4x32")
DRAWN = (("uniform", np.float32), ("uniform", np.float64), ("normal", np.float32), ("normal", np.float64))
Call = Callable[[], Any]

# The other distributions: spmdx's call, NumPy's.
MORE: dict[str, tuple[Callable[[int], Any], Callable[[Any, int], Any]]] = {
    "bits uint32": (lambda n: random.bits(KEY, n), lambda g, n: g.integers(0, 2**32, n, np.uint32)),
    "randint int64": (lambda n: random.randint(KEY, n, 0, 100), lambda g, n: g.integers(0, 100, n)),
    "bernoulli": (lambda n: random.bernoulli(KEY, n, 0.3), lambda g, n: g.random(n, np.float32) < np.float32(0.3)),
    "exponential": (lambda n: random.exponential(KEY, n), lambda g, n: g.standard_exponential(n)),
    "laplace": (lambda n: random.laplace(KEY, n), lambda g, n: g.laplace(size=n)),
    "gumbel": (lambda n: random.gumbel(KEY, n), lambda g, n: g.gumbel(size=n)),
    "cauchy": (lambda n: random.cauchy(KEY, n), lambda g, n: g.standard_cauchy(n)),
    "lognormal": (lambda n: random.lognormal(KEY, n), lambda g, n: g.lognormal(size=n)),
    "gamma 0.5": (lambda n: random.gamma(KEY, n, 0.5), lambda g, n: g.standard_gamma(0.5, n)),
    "gamma 2.5": (lambda n: random.gamma(KEY, n, 2.5), lambda g, n: g.standard_gamma(2.5, n)),
    "beta 0.5, 2": (lambda n: random.beta(KEY, n, 0.5, 2.0), lambda g, n: g.beta(0.5, 2.0, n)),
    "poisson 4": (lambda n: random.poisson(KEY, n, 4.0), lambda g, n: g.poisson(4.0, n)),
    "poisson 80": (lambda n: random.poisson(KEY, n, 80.0), lambda g, n: g.poisson(80.0, n)),
    "binomial 100, 0.3": (lambda n: random.binomial(KEY, n, 100, 0.3), lambda g, n: g.binomial(100, 0.3, n)),
}


class Alone:
    """One rank, which waits for nobody."""

    def together(self) -> None:
        pass

    def gather(self, value: Any) -> list[Any]:
        return [value]


def of_numpy(kind: str, dtype: Any, n: int) -> dict[str, Call]:
    calls = {}
    for name, bits in NUMPY.items():
        generator = np.random.Generator(bits(1))
        method = generator.random if kind == "uniform" else generator.standard_normal
        calls[f"NumPy {name}"] = partial(method, dtype=dtype, out=np.empty(n, dtype))
    return calls


def of_jax(kind: str, dtype: Any, n: int) -> dict[str, Call]:
    try:
        import jax
    except ImportError:
        return {}
    jax.config.update("jax_enable_x64", True)
    draw = jax.random.uniform if kind == "uniform" else jax.random.normal
    calls: dict[str, Call] = {}
    for impl in JAX:
        try:
            key = jax.random.key(1, impl=impl)
        except ValueError:  # this version of JAX has no such generator
            continue
        compiled = jax.jit(partial(draw, shape=(n,), dtype=dtype))
        calls[f"JAX {impl}"] = lambda key=key, compiled=compiled: compiled(key).block_until_ready()
    return calls


def of_torch(kind: str, dtype: Any, n: int) -> dict[str, Call]:
    try:
        import torch
    except ImportError:
        return {}
    torch.set_num_threads(1)
    x = torch.empty(n, dtype=torch.float32 if dtype is np.float32 else torch.float64)
    return {"torch": x.uniform_ if kind == "uniform" else x.normal_}


def timed(calls: dict[str, Call], quick: bool, rounds: int = 15) -> dict[str, Timing]:
    contestants: dict[str, Contestant | None] = {name: loop(call) for name, call in calls.items()}
    return race(contestants, Alone(), 5 if quick else rounds, 0.002, False)


def speed(n: int, timing: Timing | None) -> str:
    return f"{n / timing.median / 1e6:.0f}" if timing else "-"


def peers(n: int, quick: bool, report: Report) -> str:
    lines = []
    names: dict[str, None] = {}
    for kind, dtype in DRAWN:
        draw = getattr(random, kind)
        mine: dict[str, Call] = {
            "spmdx": partial(draw, KEY, n, dtype=dtype),
            "spmdx threefry2x32": partial(draw, JAX_KEY, n, dtype=dtype),
        }
        times = timed(mine | of_numpy(kind, dtype, n) | of_jax(kind, dtype, n) | of_torch(kind, dtype, n), quick)
        case = {"draw": kind, "dtype": np.dtype(dtype).name, "size": n}
        report.add(case, times)
        names |= dict.fromkeys(times)
        lines.append((case, times))
        if dtype is np.float32 and kernels.instruction_set() != "baseline":
            claims(report, case, times)
    rows = [[f"{c['draw']} {c['dtype']}", *(speed(n, t.get(name)) for name in names)] for c, t in lines]
    return table([f"{n:,} values, million a second", *names], rows)


def claims(report: Report, case: dict[str, Any], times: dict[str, Timing]) -> None:
    """The bars for float32 on AVX2 or better."""
    mine = times["spmdx"]

    def bar(text: str, others: list[str], least: float) -> None:
        if others:
            found = min(mine.speed(times[name]) for name in others)
            report.claim(case, f"at least {least} times {text}", found, found >= least)

    everyone = [name for name in times if not name.startswith("spmdx")]
    bar("NumPy's Philox", ["NumPy Philox"], 2.5 if case["draw"] == "uniform" else 3.0)
    if case["draw"] == "uniform":
        bar("the fastest peer", everyone, 1.0)
    else:
        bar("the fastest mesh-independent peer", [name for name in everyone if name in INDEPENDENT], 1.5)


def threefry(n: int, quick: bool, report: Report) -> str:
    """The same numbers, to the last bit, as JAX's."""
    try:
        import jax
    except ImportError:
        return "JAX is not installed: its numbers have no peer here."
    jax.config.update("jax_enable_x64", True)
    key, lines = jax.random.key(1, impl="threefry2x32"), []
    drawn: list[tuple[str, tuple[int, ...], str]] = [
        *(("bits", (), t) for t in ("uint8", "uint32", "uint64")),
        *(("uniform", (), t) for t in ("float16", "float32", "float64")),
        *(("randint", (0, 100), t) for t in ("int32", "int64")),
    ]
    for name, bounds, kind in drawn:
        theirs = partial(getattr(jax.random, name), shape=(n,), dtype=kind)
        compiled = jax.jit(lambda k, f=theirs, b=bounds: f(k, minval=b[0], maxval=b[1]) if b else f(k))
        calls: dict[str, Call] = {
            "spmdx": partial(getattr(random, name), JAX_KEY, n, *bounds, dtype=kind),
            "JAX": lambda f=compiled: f(key).block_until_ready(),
        }
        if not np.array_equal(calls["spmdx"]().numpy(), np.asarray(calls["JAX"]())):
            raise AssertionError(f"{name} {kind} is not JAX's")
        times = timed(calls, quick)
        report.add({"draw": name, "dtype": kind, "impl": "threefry2x32", "size": n}, times)
        lines.append([f"{name} {kind}", *(speed(n, t) for t in times.values()), ratio(times, "JAX")])
    return table([f"{n:,} of JAX's threefry2x32, million a second", "spmdx", "JAX", "ratio"], lines)


def ratio(times: dict[str, Timing], peer: str) -> str:
    return f"{times['spmdx'].speed(times[peer]):.1f}" if peer in times else "-"


def dropout(n: int, quick: bool, report: Report) -> str:
    """A tenth set to 0, the rest scaled. NumPy: a mask of float32 uniforms, two products, into memory that it keeps."""
    generator, lines = np.random.Generator(np.random.Philox(1)), []
    for kind in (np.dtype(np.float32), np.dtype(np.float64), np.dtype(sx.bfloat16), np.dtype(np.float16)):
        x = np.ones(n, kind)
        out, u, mask, given = np.empty(n, kind), np.empty(n, np.float32), np.empty(n, bool), sx.asarray(x)

        def theirs(x: Any = x, out: Any = out, u: Any = u, mask: Any = mask, kind: Any = kind) -> None:
            np.less(generator.random(dtype=np.float32, out=u), np.float32(0.9), out=mask)
            np.multiply(x, mask, out=out)
            np.multiply(out, kind.type(1 / 0.9), out=out)

        calls: dict[str, Call] = {"spmdx": partial(sx.nn.dropout, KEY, given, 0.1), "NumPy Philox": theirs}
        try:
            import torch

            torch.set_num_threads(1)
            calls["torch"] = partial(torch.nn.functional.dropout, torch.ones(n, dtype=getattr(torch, kind.name)), 0.1)
        except ImportError:
            pass
        times = timed(calls, quick)
        report.add({"draw": "dropout", "dtype": kind.name, "size": n}, times)
        shown = [speed(n, times.get(name)) for name in ("spmdx", "NumPy Philox", "torch")]
        lines.append([kind.name, *shown, ratio(times, "NumPy Philox"), ratio(times, "torch")])
    return table(
        [f"dropout of {n:,}, million a second", "spmdx", "NumPy Philox", "torch", "to NumPy", "to torch"], lines
    )


def others(n: int, quick: bool, report: Report) -> str:
    generator, lines = np.random.Generator(np.random.Philox(1)), []
    for name, (ours, theirs) in MORE.items():
        times = timed({"spmdx": partial(ours, n), "NumPy Philox": partial(theirs, generator, n)}, quick)
        report.add({"draw": name, "size": n}, times)
        lines.append([name, *(speed(n, t) for t in times.values()), ratio(times, "NumPy Philox")])
    return table([f"{n:,} values, million a second", "spmdx", "NumPy Philox", "ratio"], lines)


def divided(n: int, quick: bool, report: Report) -> str:
    """One rank of four: a block of n values of an array of 4 n, and n values that are not divided."""
    mesh, lines = sx.Mesh(("a", "b"), (2, 2)), []
    rows = 1000
    shapes: dict[str, tuple[tuple[int, ...], Any]] = {
        "rows": ((4 * rows, n // rows), {"a": sx.Shard(0), "b": sx.Shard(0)}),
        "columns": ((rows, 4 * n // rows), {"a": sx.Shard(1), "b": sx.Shard(1)}),
        "rows and columns": ((2 * rows, 2 * n // rows), {"a": sx.Shard(0), "b": sx.Shard(1)}),
        "columns, interleaved": (
            (rows, 4 * n // rows),
            {"a": sx.Shard(1, interleave=2), "b": sx.Shard(1, interleave=2)},
        ),
    }
    for kind, dtype in (("uniform", np.float32), ("normal", np.float32)):
        draw = getattr(random, kind)
        for name, (shape, placement) in shapes.items():

            def block(draw: Any = draw, shape: Any = shape, placement: Any = placement, dtype: Any = dtype) -> Any:
                with context.use(rank=1):
                    return draw(KEY, shape, dtype=dtype, mesh=mesh, placement=placement)

            made = block().block.size
            # Many rounds: this bar is a tenth away from equal, the others are factors.
            times = timed({"divided": block, "whole": partial(draw, KEY, made, dtype=dtype)}, quick, 101)
            case = {"draw": kind, "divided": name, "size": made}
            report.add(case, times)
            more = 1 / times["divided"].speed(times["whole"])
            report.claim(case, "at most 1.1 times the undivided time", more, more <= 1.1)
            lines.append([f"{kind} float32, {name}", *(speed(made, t) for t in times.values()), f"{more:.2f}"])
    return table([f"blocks of {n:,}, million a second", "divided", "whole", "time, ratio"], lines)


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("--sizes", type=int, nargs="+", default=[10**6, 10**7])
    sets = kernels.instruction_sets()
    reader.add_argument(
        "--instructions", choices=sets, default=sets[-1], help="spmdx's; those of the others are theirs"
    )
    reader.add_argument("--quick", action="store_true", help="few rounds: to see that it runs")
    reader.add_argument("--json", metavar="FILE", help="write all that was found")
    options = reader.parse_args()
    warnings.filterwarnings("ignore")
    kernels.set_threads(1)
    kernels.set_instruction_set(options.instructions)
    report = Report("random")
    print(heading())
    print(f"{kernels.instruction_set()}; one core\n")
    for n in options.sizes:
        for part in (peers, divided):
            print(part(n, options.quick, report), flush=True)
            print()
    for part in (threefry, dropout, others):
        print(part(min(options.sizes), options.quick, report), flush=True)
        print()
    print(report.summary())
    if options.json:
        report.write(options.json)


if __name__ == "__main__":
    main()
