"""Run by test_losses.py under mpiexec: the losses of the GPT under every plan that these ranks can run."""

from __future__ import annotations

import sys

import numpy as np
from tiny_gpt import run

import spmdx as sx
from spmdx import context
from spmdx.runtime.shared import SharedGroup

STEPS = 10
BOUND = {np.float64: 1e-10, np.float32: 1e-5}
CASES = {
    2: [*((words, {"data": 2}) for words in ("dp", "zero1", "zero2", "zero3")), ("2d", {"data": 2, "model": 1})],
    3: [*((words, {"data": 3}) for words in ("dp", "zero1", "zero2", "zero3")), ("2d", {"data": 1, "model": 3})],
    4: [(words, {"data": 2, "model": 2}) for words in ("2d", "megatron+dp", "megatron+sp+dp", "megatron+sp+zero3")],
}
for n in (2, 3):
    CASES[n] += [(words, {"model": n}) for words in ("megatron", "megatron+sp")]


def main() -> None:
    world = context.world()
    group = world.comm(sx.make_mesh({"all": -1})).group(("all",))
    if isinstance(group, SharedGroup) != (sys.argv[1] == "shared"):
        raise SystemExit(f"messages go by a {type(group).__name__}")
    for dtype, bound in BOUND.items():
        expected = run("", sx.make_mesh({"all": 1}, device="sim"), STEPS, dtype)
        for words, axes in CASES[world.size]:
            losses = run(words, sx.make_mesh(axes), STEPS, dtype)
            np.testing.assert_allclose(losses, expected, rtol=bound, atol=0, err_msg=f"{words} on {axes}")
    if world.rank == 0:
        print(len(BOUND) * len(CASES[world.size]))


if __name__ == "__main__":
    main()
