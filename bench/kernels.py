"""Random values on one core, beside NumPy's Philox filling an array of the same size.

    python bench/kernels.py [--size 65536] [--threads 1] [--quick] [--json FILE]

Million elements a second in the fastest round, and the ratio of those. Both sides write into memory that they have:
NumPy by ``out=``, the kernels into a kept block. NumPy has no float16 and no bits of any width; those rows stand alone.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import numpy as np
from timer import Report, heading, loop, race, table

from spmdx import _kernels

WORDS = (1, 2, 3, 4)
ROWS = [  # kernel, its element type, the array's dtype
    ("bits", "u32", np.uint32),
    ("bits", "u64", np.uint64),
    ("uniform", "f32", np.float32),
    ("uniform", "f64", np.float64),
    ("uniform", "bf16", np.uint16),
    ("normal", "f32", np.float32),
    ("normal", "f64", np.float64),
    ("normal", "f16", np.uint16),
    ("normal", "bf16", np.uint16),
    ("randint", "u64", np.uint64),
    ("bernoulli", "u8", np.uint8),
]
FASTER = {"uniform": 2.0, "normal": 2.0}  # times NumPy, at float32 and float64, on AVX2 or better


class Alone:
    """One rank, which waits for nobody."""

    def together(self) -> None:
        pass

    def gather(self, value: Any) -> list[Any]:
        return [value]


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("--size", type=int, default=65536)
    reader.add_argument("--threads", type=int, default=1)
    reader.add_argument("--quick", action="store_true", help="few short rounds: to see that it runs")
    reader.add_argument("--json", metavar="FILE", help="write all that was found")
    options = reader.parse_args()
    _kernels.set_threads(options.threads)
    n, report, lines = options.size, Report("kernels"), []
    generator = np.random.Generator(np.random.Philox(1))
    for kind, code, dtype in ROWS:
        out = np.empty(n, dtype)
        real = (0.5, 0.0, 0.0) if kind == "bernoulli" else (0.0, 1.0, 1.0)
        fill = partial(_kernels.fill, out, kind, code, WORDS, (n,), [[(0, n)]], real, 0, 100)
        ways = {"spmdx": loop(fill)}
        numpy = {"uniform": generator.random, "normal": generator.standard_normal}.get(kind)
        if numpy is not None and dtype in (np.float32, np.float64):
            ways["NumPy"] = loop(partial(numpy, dtype=dtype, out=np.empty(n, dtype)))
        times = race(ways, Alone(), 5 if options.quick else 60, 0.002, False)
        case = {"kernel": kind, "type": code, "size": n, "threads": options.threads}
        report.add(case, times)
        speeds = [f"{n / min(times[name].rounds) / 1e6:.0f}" if name in times else "" for name in ("spmdx", "NumPy")]
        ratio = ""
        if "NumPy" in times:
            faster = min(times["NumPy"].rounds) / min(times["spmdx"].rounds)
            ratio = f"{faster:.1f}"
            if _kernels.instruction_set() != "baseline":
                report.claim(case, f"at least {FASTER[kind]} times NumPy's speed", faster, faster >= FASTER[kind])
        lines.append([f"{kind} {code}", *speeds, ratio])
    print(heading())
    print(f"{n} elements, {options.threads} threads, {_kernels.instruction_set()}; million a second\n")
    print(table(["", "spmdx", "NumPy Philox", "ratio"], lines))
    print(report.summary())
    if options.json:
        report.write(options.json)


if __name__ == "__main__":
    main()
