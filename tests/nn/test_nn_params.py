"""Parameters made where they lie, mixed precision, and a small network trained under several placements."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from helpers import ALONE, FOUR, TWO, close, draw, put, verbs

import spmdx as sx
from spmdx import nn, optim, tree
from spmdx.plans import Plan

S = sx.Shard
MODEL = {
    "layers": [
        {"up": nn.Param((6, 8), sx.random.normal), "bias": nn.Param((8,)), "down": nn.Param((8, 6), sx.random.normal)}
        for _ in range(2)
    ],
    "scale": nn.Param((6,), 1.0),
}
TENSOR = Plan({"*.up": {"b": S(1)}, "*.bias": {"b": S(0)}, "*.down": {"b": S(0)}})
FULL = TENSOR | Plan({"*.up": {"a": S(0)}, "*.down": {"a": S(1)}})
KEY = sx.random.key(7)


def made(plan: Any = None, mesh: Any = FOUR, **more: Any) -> Any:
    return nn.init(MODEL, KEY, plan, mesh, **more)


@pytest.mark.parametrize("plan", [None, TENSOR, FULL])
def test_values_do_not_depend_on_the_plan(plan: Any) -> None:
    """Exact; nothing is sent, and no rank holds more than its blocks."""
    want = [x.numpy() for x in tree.leaves(made(mesh=ALONE))]
    with sx.debug.trace() as trace:
        found = made(plan)
    assert not trace
    for x, w in zip(tree.leaves(found), want):
        close(x, w, 0.0)
    if plan is FULL:
        assert {b.shape for b in found["layers"][0]["up"].block} == {(3, 4)}
        assert {b.shape for b in found["layers"][1]["bias"].block} == {(4,)}


def test_values_depend_on_their_own_path_alone() -> None:
    """Exact: what else the model holds changes nothing; different paths have different values."""
    alone = nn.init({"layers": [{"up": MODEL["layers"][0]["up"]}]}, KEY, mesh=ALONE)
    whole = made(mesh=ALONE)
    assert np.array_equal(alone["layers"][0]["up"].numpy(), whole["layers"][0]["up"].numpy())
    assert not np.array_equal(whole["layers"][0]["up"].numpy(), whole["layers"][1]["up"].numpy())


def test_the_hash_of_a_path_is_the_same_for_ever() -> None:
    """Checkpoints and papers rest on it: the words were computed once, by this formula."""
    import hashlib

    n = int.from_bytes(hashlib.blake2b(b"layers.0.up", digest_size=8).digest(), "little") % 2**63
    assert nn.path_key(KEY, "layers.0.up") == sx.random.fold_in(KEY, n)
    old = sx.random.key(7, impl="threefry2x32")
    assert nn.path_key(old, "layers.0.up") == sx.random.fold_in(old, n % 2**32)


def test_the_running_plan_is_taken() -> None:
    with FULL.on(FOUR):
        found = nn.init(MODEL, KEY)
    assert [x.spec for x in tree.leaves(found)] == [x.spec for x in tree.leaves(made(FULL))]


def test_dtypes_and_other_leaves() -> None:
    mixed = {"a": nn.Param((2,), 0.5), "b": nn.Param(3, dtype="float16"), "c": put(draw(2))}
    found = nn.init(mixed, KEY, mesh=ALONE, dtype="float32")
    assert [found[k].dtype.name for k in "abc"] == ["float32", "float16", "float64"]
    assert found["c"] is mixed["c"]
    assert nn.init(mixed, KEY, mesh=ALONE)["a"].dtype == np.float64
    assert nn.count(MODEL) == nn.count(made()) == 2 * (48 + 8 + 48) + 6


def test_an_init_that_is_none() -> None:
    with pytest.raises(sx.SpmdxError, match=r"init=sx\.random\.normal"):
        nn.Param((2,), "normal")
    with pytest.raises(sx.SpmdxError, match="made shape"):
        nn.init(nn.Param((2,), lambda key, shape, **how: put(draw(3))), KEY, mesh=ALONE)


# A network trained


def loss(params: Any, x: Any, labels: Any) -> Any:
    for layer in params["layers"]:
        h = nn.gelu(nn.linear(nn.rms_norm(x, params["scale"]), layer["up"], layer["bias"]))
        x = x + nn.linear(h, layer["down"])
    return nn.cross_entropy(x, labels).mean()


def trained(plan: Any, batch: Any, mesh: Any = FOUR, steps: int = 5) -> tuple[list[float], Any]:
    params = made(plan, mesh)
    optimizer = optim.chain(optim.clip_by_global_norm(1.0), optim.adamw(1e-2))
    state, losses = optimizer.init(params), []
    x, labels = put(draw(8, 6), mesh, **batch), np.arange(8) % 6
    for _ in range(steps):
        value, grads = sx.value_and_grad(loss)(params, x, labels)
        updates, state = optimizer.update(grads, state, params)
        params = optim.apply_updates(params, updates)
        losses.append(float(value))
    return losses, params


def test_training_is_that_of_one_device() -> None:
    """Losses and parameters close to 1e-10 after five steps, for data, tensor and fully divided parallelism."""
    want, params = trained(None, {}, ALONE)
    assert want[-1] < want[0]
    for plan, batch in ((None, {"a": S(0)}), (TENSOR, {"a": S(0)}), (FULL, {"a": S(0)}), (FULL, {})):
        losses, found = trained(plan, batch)
        close(losses, want, 1e-10)
        for x, w in zip(tree.leaves(found), tree.leaves(params)):
            close(x, w.numpy(), 1e-10)


# Mixed precision


def test_masters_stay_float32() -> None:
    params = made(mesh=TWO, dtype="float32")
    x = put(draw(4, 6), TWO, a=S(0)).astype(sx.bfloat16)

    def half(params: Any) -> Any:
        low = nn.cast(params, sx.bfloat16)
        assert {p.dtype.name for p in tree.leaves(low)} == {"bfloat16"}
        return loss(low, x, np.arange(4))

    value, grads = sx.value_and_grad(half)(params)
    assert value.dtype == np.float32
    assert {g.dtype.name for g in tree.leaves(grads)} == {"float32"}
    full = float(loss(params, x.astype("float32"), np.arange(4)))
    assert abs(float(value) - full) < 0.05 * abs(full)


def test_loss_scale() -> None:
    """Exact: a power of two changes no gradient; it halves after a step that overflowed, and doubles in time."""
    scale = nn.loss_scale(2.0**10, mesh=TWO)
    w = put(draw(5).astype("float32"), TWO, a=S(0))
    plain = sx.grad(lambda w: (w * w).sum())(w)
    scaled = sx.grad(lambda w: scale.scale((w * w).sum()))(w)
    assert np.array_equal(scale.unscale(scaled).numpy(), plain.numpy())
    lowered = scale.adjust(put(np.array(False), TWO))
    assert float(lowered.value) == 2.0**9
    for _ in range(3):
        lowered = lowered.adjust(put(np.array(True), TWO), interval=3)
    assert (float(lowered.value), int(lowered.good_steps)) == (2.0**10, 0)
    greatest = nn.loss_scale(2.0**127)
    assert float(greatest.adjust(sx.asarray(True), interval=1).value) == 2.0**127  # an infinity would stay one


def test_all_finite_takes_one_collective() -> None:
    grads = [put(draw(4), TWO, a=S(0)), put(draw(3, 4), TWO, a=S(1)), put(draw(2), TWO)]
    with sx.debug.trace() as trace:
        assert bool(nn.all_finite(grads))
    assert verbs(trace) == ["all_reduce"], trace
    spoiled = [grads[0], put(np.array([[1.0, 2.0, 3.0, np.inf]]), TWO, a=S(1))]
    finite = nn.all_finite(spoiled)
    assert not bool(finite)
    assert nn.select(finite, grads[0], grads[0] * 2).numpy()[0] == 2 * grads[0].numpy()[0]


def test_training_on_ranks() -> None:
    """Close to 1e-10: the same on four thread ranks as in the simulator."""

    def on_ranks() -> list[float]:
        return trained(FULL, {"a": S(0)}, sx.make_mesh({"a": 2, "b": 2}), 3)[0]

    want = trained(None, {}, ALONE, 3)[0]
    for losses in sx.testing.spmd(4)(on_ranks)():
        close(losses, want, 1e-10)


def test_attention_and_convolution_on_ranks() -> None:
    """Close to 1e-12, gradients too: what asks for its bounds, on two thread ranks."""
    q, k, v, w = draw(2, 5, 2, 4), draw(2, 5, 2, 4, seed=1), draw(2, 5, 2, 4, seed=2), draw(3, 2, 2, 2)

    def value(mesh: Any, **where: Any) -> tuple[float, list[Any]]:
        def loss(q: Any, k: Any, v: Any, w: Any) -> Any:
            y = nn.attention(nn.rope(q), nn.rope(k), v, causal=True)
            return (nn.conv2d(y.transpose(0, 2, 1, 3), w) ** 2).sum()

        args = [put(x, mesh, **where) for x in (q, k, v)] + [put(w, mesh)]
        y, grads = sx.value_and_grad(loss, argnums=(0, 1, 2, 3))(*args)
        return float(y), [g.numpy() for g in grads]

    want, grads = value(ALONE)
    for where in ({"a": S(0)}, {"a": S(1)}, {"a": S(2)}):
        for found, g in sx.testing.spmd(2)(lambda where=where: value(sx.make_mesh({"a": 2}), **where))():
            assert abs(found - want) < 1e-10
            for x, y in zip(g, grads):
                close(x, y)
