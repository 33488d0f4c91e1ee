"""Estimates equal closed forms (exact), and the trace of a step that does run."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import numpy as np
import pytest
from tiny_gpt import TINY, gradient, model, plans, tokens

import spmdx as sx
from spmdx import nn, optim, tree
from spmdx.plans import two_dimensional

# every dimension divides by 4096, so that the closed forms hold without rounding
WIDE = TINY._replace(
    vocabulary=4096, length=4096, width=4096, heads=4096, kv_heads=4096, hidden=4096, head_size=1, layers=3
)
SHAPES = model.parameters(WIDE)
LAYERS = WIDE.layers
BUCKETS = 6 * LAYERS + 2  # a matrix has 64 MiB, and fills a bucket of 25: six in a block, and two tables
RANKS = [8, 64, 512, 4096]
GRIDS = {8: (4, 2), 64: (8, 8), 512: (64, 8), 4096: (512, 8)}  # ranks along data and model
SQUARES = {8: (4, 2), 64: (8, 8), 512: (32, 16), 4096: (64, 64)}  # along rows and columns
ZERO = {"dp": 0, "zero1": 1, "zero2": 2, "zero3": 3}


def tokens_of(size: int) -> Any:
    """A batch of the wide model; no memory is behind it."""
    return np.broadcast_to(np.int64(0), (size, WIDE.length + 1))


def estimated(words: str, mesh: dict[str, int], batch: int) -> Any:
    plan = two_dimensional("rows", "columns", plans.DIMS) if words == "2d" else plans.plan(words)
    return plan.estimate(gradient(WIDE), SHAPES, tokens_of(batch), mesh=mesh)


class Held(NamedTuple):
    """Bytes of parameters that a rank has where its neighbours along "model" have other parts of them."""

    all: float
    block: float  # of them one block's
    outer: float
    small: float  # norms, and biases that are added to the residual stream: what sequence parallelism sees a part of


def held(m: int) -> Held:
    """Counted of the shapes: a parameter that tensor parallelism divides counts for 1 / m."""

    def count(chosen: Any) -> float:
        divided = [any(fnmatchcase(path, pattern) for pattern in plans.DIMS) for path in tree.paths(SHAPES)]
        sizes = [4 * np.prod(leaf.shape) for leaf in tree.leaves(SHAPES)]
        each = zip(tree.paths(SHAPES), sizes, divided)
        return float(sum(size / (m if inside else 1) for path, size, inside in each if chosen(path, inside)))

    return Held(
        count(lambda path, inside: True),
        count(lambda path, inside: path.startswith("blocks.0.")),
        count(lambda path, inside: path.startswith("outer.")),
        count(lambda path, inside: not inside and "positions" not in path),
    )


def share(p: int) -> float:
    """What a rank sends to the others of p, of what it reduces or gathers."""
    return (p - 1) / p


def over_data(stage: int, n: Held, d: int) -> float:
    """Data parallelism and ZeRO, forward and backward. ZeRO-3 gathers all forward, all but the last block and what is
    outside of blocks backward, and scatters all."""
    return (2 * n.all, n.all, n.all, 3 * n.all - n.block - n.outer)[stage] * share(d)


def over_model(m: int, sequences: int = 1) -> float:
    """Tensor parallelism: an all-reduce of activations where "residual" is named forward (the embedding, two a block)
    and "normed" backward (two a block, one before the head); of the loss the maxima, the sums and the picks."""
    positions = 4 * sequences * WIDE.length
    return 2 * ((2 * LAYERS + 1) * 2 * positions * WIDE.width + 3 * positions) * share(m)


@pytest.mark.parametrize("p", RANKS)
@pytest.mark.parametrize("words", ZERO)
def test_along_data(words: str, p: int) -> None:
    found, n = estimated(words, {"data": p}, p), held(1)
    assert found.moved == {("data",): over_data(ZERO[words], n, p)}
    assert found.params == (n.all / p if words == "zero3" else n.all)
    each = [
        {"all_reduce": BUCKETS},
        {"reduce_scatter": BUCKETS},  # the gathering of new parameters is the update's
        {"reduce_scatter": LAYERS + 2},  # of the tables of tokens and positions each fills one
        {"all_gather": 2 * LAYERS, "reduce_scatter": LAYERS + 1},
    ]
    assert found.collectives == each[ZERO[words]]


@pytest.mark.parametrize("p", RANKS)
def test_along_model(p: int) -> None:
    tensor, sequence, n = estimated("megatron", {"model": p}, 1), estimated("megatron+sp", {"model": p}, 1), held(p)
    assert tensor.moved == {("model",): over_model(p)}
    # each all-reduce becomes two halves of it; norms and biases see a part of the sequence: their gradients are summed
    assert sequence.moved == {("model",): over_model(p) + 2 * n.small * share(p)}
    assert tensor.params == sequence.params == n.all
    places = 2 * (2 * LAYERS + 1)
    assert tensor.collectives == {"all_reduce": places + 2}
    assert sequence.collectives == {"reduce_scatter": places, "all_gather": places, "all_reduce": 3}


@pytest.mark.parametrize("p", RANKS)
@pytest.mark.parametrize("words", ZERO)
def test_tensor_parallel_and_data(words: str, p: int) -> None:
    """What each axis moves, of what the other has left of it: of the batch two sequences."""
    d, m = GRIDS[p]
    found, n = estimated(f"megatron+{words}", {"data": d, "model": m}, 2 * d), held(m)
    assert found.moved == {("data",): over_data(ZERO[words], n, d), ("model",): over_model(m, 2)}
    assert found.params == (n.all / d if words == "zero3" else n.all)


@pytest.mark.parametrize("p", RANKS)
@pytest.mark.parametrize("words", ZERO)
def test_sequence_parallel_and_data(words: str, p: int) -> None:
    """Gradients of norms and biases are summed over both axes: at once, or over "model" what "data" has left."""
    d, m = GRIDS[p]
    found, n = estimated(f"megatron+sp+{words}", {"data": d, "model": m}, 2 * d), held(m)
    expected = {("data",): over_data(ZERO[words], n, d), ("model",): over_model(m, 2)}
    if words == "dp":
        expected["data",] -= 2 * n.small * share(d)
        expected["data", "model"] = 2 * n.small * share(p)
    else:
        expected["model",] += 2 * n.small / d * share(m)
    assert found.moved == expected
    assert found.params == (n.all / d if words == "zero3" else n.all)


@pytest.mark.parametrize("p", RANKS)
def test_two_dimensional(p: int) -> None:
    """Panels of parameters along the rows, activations along the columns."""
    rows, columns = SQUARES[p]
    found, n = estimated("2d", {"rows": rows, "columns": columns}, rows), held(columns)
    assert found.moved == {("rows",): over_data(3, n, rows), ("columns",): over_model(columns)}
    assert found.params == n.all / rows
    assert found.collectives == {
        "all_gather": 2 * LAYERS,
        "reduce_scatter": LAYERS + 1,
        "all_reduce": 2 * (2 * LAYERS + 1) + 2,
    }


@pytest.mark.parametrize(
    ("words", "axes"), [("dp", {"data": 3}), ("megatron+sp+zero3", {"data": 2, "model": 3})], ids=str
)
def test_as_the_trace(words: str, axes: dict[str, int]) -> None:
    plan = plans.plan(words)
    found = plan.estimate(gradient(), model.parameters(TINY), tokens(), mesh=axes, dtype=np.float64)
    with plan.on(sx.make_mesh(axes, device="sim")):
        params = nn.init(model.parameters(TINY), sx.random.key(0))
        with sx.debug.trace() as trace:
            gradient()(params, sx.asarray(tokens()))
    assert [r[:4] for r in found.records] == [r[:4] for r in trace]
    assert found.bytes == trace.bytes
    assert found.params == sum(p.spec.largest_block * 8 for p in tree.leaves(params))


@pytest.mark.parametrize("p", RANKS)
@pytest.mark.parametrize("words", ["dp", "zero1", "zero2", "zero3", "megatron+zero1", "megatron+zero3"])
def test_whole_step(words: str, p: int) -> None:
    """With the update: ZeRO-1 and 2 move what data parallelism moves, for a fraction of the state; ZeRO-3 no more than
    in the gradient."""
    optimizer = optim.adamw(1e-3, weight_decay=0.1)

    def step(params: Any, batch: Any) -> Any:
        state = optimizer.init(params)
        _, grads = gradient(WIDE)(params, batch)
        updates, state = optimizer.update(grads, state, params)
        return optim.apply_updates(params, updates)

    d, m = GRIDS[p] if "megatron" in words else (p, 1)
    stage, n = ZERO[words.rpartition("+")[2]], held(m)
    mesh = {"data": d, "model": m} if m > 1 else {"data": d}
    found = plans.plan(words).estimate(step, SHAPES, tokens_of(d), mesh=mesh)
    assert found.moved["data",] == over_data(3 if stage == 3 else 0, n, d)
