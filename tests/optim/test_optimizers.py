"""Optimizers against NumPy over several steps, wherever parameters lie; and what they send, from the trace."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cases import CASES, SHAPES, close, drawn, leaves

import spmdx as sx
from spmdx import optim, tree
from spmdx.later import made
from spmdx.mesh import Mesh
from spmdx.runtime import kernels
from spmdx.runtime.pending import Coming

R, S, P = sx.Replicate(), sx.Shard, sx.Partial()
ONE = Mesh(("a",), (2,), None, "sim")
TWO = Mesh(("a", "b"), (2, 2), None, "sim")
PLACEMENTS = {
    "replicated": (ONE, lambda ndim: {}),
    "first": (ONE, lambda ndim: {"a": S(0)}),
    "last": (ONE, lambda ndim: {"a": S(-1)}),
    "first and last": (TWO, lambda ndim: {"a": S(0), "b": S(-1)}),
    "nested": (TWO, lambda ndim: {"a": S(-1), "b": S(-1)}),
}
LOCAL = ("adamw", "adam", "sgd", "momentum", "nesterov", "lion")
STEPS = 4

each_case = pytest.mark.parametrize("name", CASES)
each_placement = pytest.mark.parametrize("where", PLACEMENTS)


def put(values: Any, where: str, dtype: Any = None) -> Any:
    mesh, placement = PLACEMENTS[where]
    return tree.map(lambda x: sx.asarray(x, mesh=mesh, placement=placement(x.ndim), dtype=dtype), values)


@each_case
@each_placement
def test_as_numpy(name: str, where: str) -> None:
    """Close to 1e-12 in float64 after four steps; parameters and states stay where they are."""
    optimizer, one = CASES[name]
    params, want = put(drawn(0), where), drawn(0)
    state = optimizer.init(params)
    places = [x.spec for x in tree.leaves((params, state))]
    memories: list[dict[str, Any]] = [{} for _ in tree.leaves(want)]
    for t in range(1, STEPS + 1):
        grads = drawn(t)
        updates, state = optimizer.update(put(grads, where), state, params)
        params = optim.apply_updates(params, updates)
        leaves, treedef = tree.flatten(want)
        want = tree.unflatten(treedef, [one(g, p, m, t) for g, p, m in zip(tree.leaves(grads), leaves, memories)])
        close(params, want, 1e-12)
        assert [x.spec for x in tree.leaves((params, state))] == places


@pytest.mark.parametrize("name", LOCAL)
@each_placement
def test_nothing_is_sent_where_all_lie_alike(name: str, where: str) -> None:
    optimizer = CASES[name][0]
    params, grads = put(drawn(0), where), put(drawn(1), where)
    with sx.debug.trace() as trace:
        updates, _ = optimizer.update(grads, optimizer.init(params), params)
        optim.apply_updates(params, updates)
    assert not trace, trace


def test_state_lies_as_its_parameter() -> None:
    params = put(drawn(0), "first and last")
    state = optim.adamw(1e-3).init(params)
    for slot in (state.mean, state.square):
        assert [x.spec for x in tree.leaves(slot)] == [p.spec for p in tree.leaves(params)]


def test_divided_state_of_whole_parameters() -> None:
    """ZeRO-1: the numbers of one device; gradients are sliced, updates gathered in one message."""
    params, grads = put(drawn(0), "replicated"), put(drawn(1), "replicated")
    optimizer = optim.adamw(1e-2, weight_decay=0.1)
    state = optimizer.init(params)
    divided = state._replace(mean=put(leaves(SHAPES), "first"), square=put(leaves(SHAPES), "first"))
    want = optim.apply_updates(params, optimizer.update(grads, state, params)[0])
    with sx.debug.trace() as trace:
        updates, after = optimizer.update(grads, divided, params)
        got = optim.apply_updates(params, updates)
    close(got, tree.map(lambda x: x.numpy(), want), 0.0)
    assert [r.verb for r in trace] == ["all_gather"], trace
    assert [x.spec for x in tree.leaves(after.mean)] == [x.spec for x in tree.leaves(divided.mean)]
    assert [x.spec for x in tree.leaves(got)] == [p.spec for p in tree.leaves(params)]


class Arrived:
    """A collective that is done."""

    def __init__(self, block: Any) -> None:
        self.block = block

    def wait(self) -> list[Any]:
        return [self.block]


def on_its_way(x: Any) -> Any:
    """An array as gradients are between nodes, where nobody has waited for it."""
    return made(Coming(Arrived(x._block), 0, lambda block: block), x.spec)


@pytest.mark.parametrize("late", [False, True], ids=["there", "on their way"])
@pytest.mark.parametrize("rate", [1e-2, lambda t: 1e-2 * (t + 1)])
def test_all_parameters_in_one_pass(rate: Any, late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact: steps whose calls were seen before are made together; some parameters decay, of two dtypes."""
    from spmdx.ops import together

    passes: list[int] = []
    kernel = kernels.HOST.build.adam

    def counted(some: Any, numbers: Any) -> None:
        passes.append(len(some))
        kernel(some, numbers)

    monkeypatch.setattr(kernels.HOST.build, "adam", counted)

    def steps() -> list[Any]:
        params: Any = tree.map(sx.asarray, drawn(0))
        found: list[Any] = []
        params["half"], params["single"] = params["weight"].astype(sx.bfloat16), params["weight"].astype("float32")
        optimizer = optim.adamw(rate, mask=lambda params: tree.map(lambda p: p.ndim > 1, params))
        state = optimizer.init(params)
        for _ in range(3):
            grads = tree.map(lambda p: on_its_way(p * 0.5) if late else p * 0.5, params)
            updates, state = optimizer.update(grads, state, params)
            params = optim.apply_updates(params, updates)
            found += [x.numpy().astype(float).tobytes() for x in tree.leaves((params, state))]
        return found

    steps()
    passes.clear()
    with_pass = steps()
    assert passes == [1, 3, 1] * 3  # without and with decay, and float32: in each step
    monkeypatch.setattr(together, "seen", lambda *_: None)
    assert steps() == with_pass


def test_half_width_parameters_have_float32_states() -> None:
    params = put(drawn(0), "first", sx.bfloat16)
    optimizer = optim.adamw(1e-2)
    updates, state = optimizer.update(put(drawn(1), "first", sx.bfloat16), optimizer.init(params), params)
    assert {x.dtype.name for x in tree.leaves((state.mean, state.square, updates))} == {"float32"}
    assert {x.dtype.name for x in tree.leaves(optim.apply_updates(params, updates))} == {"bfloat16"}


def test_float32_stays_float32_under_a_schedule() -> None:
    params = put(drawn(0), "last", "float32")
    optimizer = optim.chain(
        optim.clip_by_global_norm(1.0), optim.adamw(optim.warmup_cosine_decay_schedule(1e-2, 2, 10))
    )
    state = optimizer.init(params)
    for t in range(3):
        updates, state = optimizer.update(put(drawn(t), "last", "float32"), state, params)
        assert {x.dtype.name for x in tree.leaves(updates)} == {"float32"}


# Clipping


@each_placement
@pytest.mark.parametrize("most", [0.5, 1e6])
def test_clip_by_global_norm(where: str, most: float) -> None:
    """Close to 1e-14; one all-reduce of one number, however the arrays are divided."""
    values = drawn(3)
    norm = np.sqrt(sum((x * x).sum() for x in tree.leaves(values)))
    with sx.debug.trace() as trace:
        got, _ = optim.clip_by_global_norm(most).update(put(values, where), None)
    close(got, tree.map(lambda x: x * min(1.0, most / norm), values), 1e-14)
    assert [(r.verb, r.axes) for r in trace] == (
        [] if where == "replicated" else [("all_reduce", PLACEMENTS[where][0].axis_names)]
    )


def test_arrays_divided_in_different_ways_share_the_one_all_reduce() -> None:
    values = drawn(4)
    arrays = [
        sx.asarray(x, mesh=TWO, placement=p)
        for x, p in zip(tree.leaves(values), ({"a": S(0)}, {"b": S(1)}, {"a": S(0), "b": S(1)}, {}))
    ]
    with sx.debug.trace() as trace:
        norm = optim.global_norm(arrays)
    assert abs(norm.item() - np.sqrt(sum((x * x).sum() for x in tree.leaves(values)))) < 1e-13
    assert [r.verb for r in trace] == ["all_reduce"], trace


def test_clip() -> None:
    got, _ = optim.clip(0.3).update(put(drawn(0), "first"), None)
    close(got, tree.map(lambda x: np.clip(x, -0.3, 0.3), drawn(0)), 0.0)


# Schedules


@pytest.mark.parametrize("step", [0, 1, 3, 4, 7, 12, 20])
def test_schedules(step: int) -> None:
    def cosine(start: float, steps: int, end: float, t: int) -> float:
        return end + (start - end) * 0.5 * (1 + np.cos(np.pi * min(t / steps, 1)))

    warm = 2.0 * step / 4 if step < 4 else cosine(2.0, 8, 0.2, step - 4)
    found = {
        optim.constant_schedule(3.0): 3.0,
        optim.linear_schedule(1.0, 5.0, 10): 1 + 4 * min(step / 10, 1),
        optim.cosine_decay_schedule(2.0, 10, 0.5): cosine(2.0, 10, 0.5, step),
        optim.warmup_cosine_decay_schedule(2.0, 4, 12, end=0.2): warm,
        optim.exponential_decay(2.0, 3, 0.5): 2 * 0.5 ** (step / 3),
        optim.exponential_decay(2.0, 3, 0.5, staircase=True): 2 * 0.5 ** (step // 3),
        optim.exponential_decay(2.0, 3, 0.5, end=0.3): max(2 * 0.5 ** (step / 3), 0.3),
        optim.exponential_decay(1.0, 3, 2.0, end=3.0): min(2 ** (step / 3), 3),
        optim.piecewise_constant_schedule(2.0, {3: 0.5, 7: 0.1}): 2.0 if step < 3 else 1.0 if step < 7 else 0.1,
        optim.piecewise_constant_schedule(2.0, {}): 2.0,
    }
    for schedule, want in found.items():
        assert abs(float(schedule(step)) - want) < 1e-14
        assert abs(float(schedule(sx.asarray(step, mesh=ONE))) - want) < 1e-14


def test_a_schedule_counts_the_steps() -> None:
    params = put(drawn(0), "first")
    optimizer = optim.sgd(optim.linear_schedule(0.0, 1.0, 4))
    state = optimizer.init(params)
    for t in range(3):
        updates, state = optimizer.update(put(drawn(1), "first"), state, params)
        close(updates, tree.map(lambda g, t=t: -t / 4 * g, drawn(1)), 1e-15)


# Masks, and what is wrong


def test_a_mask_says_what_decays() -> None:
    params, grads = put(drawn(0), "first"), put(drawn(1), "first")
    mask = tree.map(lambda p: p.ndim > 1, params)
    decays = optim.adamw(1e-2, weight_decay=0.5, mask=lambda params: mask)
    plain, all_of_them = optim.adam(1e-2), optim.adamw(1e-2, weight_decay=0.5)
    got, without, whole = (o.update(grads, o.init(params), params)[0] for o in (decays, plain, all_of_them))
    close(got, tree.map(lambda yes, a, b: (b if yes else a).numpy(), mask, without, whole), 0.0)


def test_a_step_for_some_parameters() -> None:
    """Exact: the others' gradients pass, or are set to 0; state is kept for those alone."""
    params, grads = put(drawn(0), "first"), put(drawn(1), "first")
    some = optim.by_path({"weight": True, "deep.*": True}, False)
    step = optim.masked(optim.chain(optim.momentum(0.5), optim.scale(2.0)), some)
    state = step.init(params)
    assert {x.shape for x in tree.leaves(state)} == {SHAPES["weight"], (3, 4, 5)}
    updates, _ = step.update(grads, state, params)
    close(
        updates,
        {k: tree.map(lambda x, k=k: x * (2 if k in ("weight", "deep") else 1), v) for k, v in drawn(1).items()},
        0.0,
    )
    frozen = optim.partition(
        {"train": optim.identity(), "keep": optim.set_to_zero()}, optim.by_path({"*": "keep", "tall": "train"})
    )
    updates, _ = frozen.update(grads, frozen.init(params), params)
    assert [x.spec for x in tree.leaves(updates)] == [p.spec for p in tree.leaves(params)]
    close(updates, {k: tree.map(lambda x, k=k: x * (k == "tall"), v) for k, v in drawn(1).items()}, 0.0)


def test_partition_names_an_unknown_label() -> None:
    split = optim.partition({"a": optim.sgd(0.1)}, lambda params: tree.map(lambda p: "b", params))
    with pytest.raises(sx.SpmdxError, match=r"unknown ones: \['b'\]"):
        split.init(put(drawn(0), "first"))


def test_decay_without_parameters_says_what_to_write() -> None:
    params = put(drawn(0), "first")
    optimizer = optim.adamw(1e-3)
    with pytest.raises(sx.SpmdxError, match=r"optimizer.update\(grads, state, params\)"):
        optimizer.update(params, optimizer.init(params))


@pytest.mark.parametrize("name", CASES)
def test_arrays_of_numpys_say_what_to_write(name: str) -> None:
    """Of gradients and of parameters, in every optimizer: by their paths."""
    optimizer, _ = CASES[name]
    params = put(drawn(0), "first")
    state = optimizer.init(params)
    for wrong in (lambda: optimizer.update(drawn(1), state, params), lambda: optimizer.init(drawn(0))):
        with pytest.raises(sx.errors.DtypeError, match=r"(bias|tall|cube) is a ndarray.\n  Write sx\.asarray\(value"):
            wrong()
    with pytest.raises(sx.errors.DtypeError, match="bias is a ndarray"):
        optim.apply_updates(drawn(0), params)


@pytest.mark.parametrize("name", [n for n in CASES if n != "sgd"])
def test_other_gradients_than_parameters_say_so(name: str) -> None:
    optimizer, _ = CASES[name]
    params = put(drawn(0), "first")
    grads = {k: v for k, v in params.items() if k != "bias"}
    with pytest.raises(sx.SpmdxError, match="Write"):
        optimizer.update(grads, optimizer.init(params), params)


def test_schedules_are_joined_at_one_boundary_less() -> None:
    with pytest.raises(sx.errors.ArgumentError, match="2 schedules are joined at 2 boundaries"):
        optim.join_schedules([optim.constant_schedule(1.0)] * 2, [2, 3])


def test_decays_that_are_none() -> None:
    for wrong in (lambda: optim.exponential_decay(1.0, 0, 0.5), lambda: optim.exponential_decay(1.0, 10, 0.0)):
        with pytest.raises(sx.errors.ArgumentError, match=r"\n  Write optim\.exponential_decay\(1e-3"):
            wrong()
    with pytest.raises(sx.errors.ArgumentError, match=r"dict of step to factor; got \[3\]"):
        optim.piecewise_constant_schedule(1.0, [3])  # type: ignore[arg-type]
