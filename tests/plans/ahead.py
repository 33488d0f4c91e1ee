"""Run by test_ahead.py under mpiexec: steps of a deep GPT under a plan, messages waited for and not, on MPI alone. Two
more words, or "-": the dtype that it computes in, which its float32 parameters are cast to before the first block; and
the bytes of a bucket."""

from __future__ import annotations

import sys
from typing import Any

from tiny_gpt import TINY, gradient, model, plans, tokens

import spmdx as sx
from spmdx import nn, optim
from spmdx.later import Later
from spmdx.plans.running import Group
from spmdx.runtime import mpi, pending, shared

shared.SharedWorld = mpi.MPIWorld  # type: ignore[misc,assignment]  # as between nodes
DEEP = TINY._replace(layers=4)


def cast_first(dtype: str) -> Any:
    """``(params, tokens) -> (loss, gradients)``, computed in this dtype."""
    return sx.value_and_grad(lambda params, batch: model.loss(nn.cast(params, dtype), batch, DEEP))


def steps(
    words: str, mesh: Any, dtype: str | None, bucket: int | None
) -> tuple[list[float], Any, list[Any], list[int], list[bool]]:
    """Losses, parameters; of the last step what was sent, how much was on its way when something began, and whether a
    block's parameters were on their way when it was entered."""
    optimizer, step, losses = optim.adamw(1e-2), cast_first(dtype) if dtype else gradient(DEEP), []
    begun: list[int] = []
    first = pending.Pending.__init__

    def counted(self: Any, *args: Any) -> None:
        first(self, *args)
        begun.append(len(pending.here.going))

    pending.Pending.__init__ = counted  # type: ignore[method-assign]
    enter, entered = Group.enter, []

    def counted_enter(self: Any) -> Any:
        entered.append(self.gathered is not None)
        return enter(self)

    Group.enter = counted_enter  # type: ignore[method-assign]
    with (plans.plan(words) | sx.Plan(bucket=bucket)).on(mesh):
        params = nn.init(model.parameters(DEEP), sx.random.key(1), dtype="float32" if dtype else None)
        state = optimizer.init(params)
        for i in range(3):
            begun.clear()
            entered.clear()
            with sx.debug.trace() as trace:
                value, grads = step(params, sx.asarray(tokens(DEEP, seed=i)))
            on_their_way = sum(type(g) is Later for g in sx.tree.leaves(grads))
            updates, state = optimizer.update(grads, state, params)
            params = optim.apply_updates(params, updates)
            losses.append(float(value))
    pending.Pending.__init__, Group.enter = first, enter  # type: ignore[method-assign]
    if (
        "megatron" not in words and not dtype
    ):  # a gradient that is cast back has come; there a gradient that moves is one of activations
        assert (on_their_way > 0) == bool(begun), "the last gradients are waited for by the optimizer alone"
    assert not pending.here.going, "what has begun has ended"
    return losses, [p.block.tobytes() for p in sx.tree.leaves(params)], sorted(r[:4] for r in trace), begun, entered


def main() -> None:
    words, dtype, bucket = (None if word == "-" else word for word in sys.argv[1:])
    size = None if bucket is None else int(bucket)
    mesh = sx.make_mesh({"model" if "megatron" in words else "data": -1})
    ahead = steps(words, mesh, dtype, size)
    mpi.MPIGroup.begins, mpi.MPIGroup.begin = False, lambda *_: None  # type: ignore[method-assign,assignment]
    waited = steps(words, mesh, dtype, size)
    assert ahead[:3] == waited[:3], f"the same bits, by the same messages: {ahead[0]} {waited[0]}"
    assert not waited[3] and not any(waited[4])
    if dtype:
        wide = steps(words, mesh, "float32", size)  # no cast at all
        halves = [(verb, axes, size // 2, of) for verb, axes, size, of in wide[2] if of == "block"]
        assert [r for r in ahead[2] if r[3] == "block"] == halves, "narrow parameters travel"
    if mesh.rank == 0:
        print(len(ahead[3]), len(ahead[2]), sum(ahead[4]))


if __name__ == "__main__":
    main()
