"""Run by test_ahead.py under mpiexec, on MPI alone: gradients on their way in buckets, of which one rank reads one, and
which nobody waits for before the end; and a gradient that broke off between two buckets."""

from __future__ import annotations

from typing import Any

import numpy as np

import spmdx as sx
from spmdx.later import Later
from spmdx.runtime import mpi, shared

shared.SharedWorld = mpi.MPIWorld  # type: ignore[misc,assignment]  # as between nodes


def loss(layers: Any, x: Any) -> Any:
    x = sx.name(x, "batch")
    for w in layers:
        x = sx.tanh(x @ w)
    return sx.sum(x)


def main() -> None:
    mesh = sx.make_mesh({"data": -1})
    draw = np.random.default_rng(0)
    layers, x = [draw.normal(size=(20, 20)) for _ in range(8)], np.ones((6, 20))
    broken = sx.custom_vjp(lambda x: x)

    def breaks(kept: Any, g: Any) -> Any:
        raise ValueError("in the middle")

    broken.defvjp(lambda x: (x, None), breaks)
    with (sx.plans.data_parallel() | sx.Plan(bucket=6_000)).on(mesh):
        with sx.debug.trace() as trace:
            try:
                sx.grad(lambda p: loss(p[3:], broken(loss(p[:3], x) + x)))(layers)
            except ValueError:
                assert trace.count(), "a bucket was full before"
        value, grads = sx.value_and_grad(loss)(layers, x)
        assert all(type(g) is Later for g in grads)
        if mesh.rank == 0:
            assert grads[-1].block.shape == (20, 20)
        total = float(value)
        _, grads = sx.value_and_grad(loss)(layers, x)  # which nobody reads
    if mesh.rank == 0:
        print(f"{total:.6f}")


if __name__ == "__main__":
    main()
