"""Parameters, masters and scales that do not fit say what to write; what is made takes no more memory than it must."""

from __future__ import annotations

import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "plans"))

from tiny_gpt import TINY, model, plans, tokens

import spmdx as sx
from spmdx import nn, optim
from spmdx.errors import ArgumentError, DtypeError, ShapeError
from spmdx.mesh import Mesh
from spmdx.nn import initializers
from spmdx.plans import Plan, Spread
from spmdx.runtime import pool

KEY = sx.random.key(0)
NORMAL = nn.Param((3,), sx.random.normal)
X = sx.ones((3, 2))


@pytest.mark.parametrize(
    "model",
    [{"a.b": NORMAL, "a": {"b": NORMAL}}, {"a": {"b": {"c": NORMAL}, "b.c": NORMAL}}, {"1": NORMAL, 1: NORMAL}],
)
def test_two_paths_that_read_alike(model: Any) -> None:
    """They would have one key, and the same values."""
    with pytest.raises(ArgumentError, match=r"two leaves of the tree have the path .*\n  Write keys without dots"):
        nn.init(model, KEY)


@pytest.mark.parametrize("key", [None, 7, "seed", np.random.default_rng(0)])
def test_no_key(key: Any) -> None:
    with pytest.raises(
        DtypeError, match=r"drawn with a key; got .*\n  Write nn\.init\(params, sx\.random\.key\([07]\)\)"
    ):
        nn.init({"w": NORMAL}, key)


@pytest.mark.parametrize("made", [3, None, np.ones(3), [X]])
def test_an_init_that_makes_no_array(made: Any) -> None:
    with pytest.raises(DtypeError, match=r"the init of 'w' made a .*, not an Array\.\n  Write init=sx\.random\.normal"):
        nn.init({"w": nn.Param((3,), lambda key, shape, **how: made)}, KEY)


def test_no_plan_and_no_mesh() -> None:
    for wrong in ({"mesh": {"data": 1}}, {"plan": "zero3"}, {"mesh": "cpu"}):
        with pytest.raises(ArgumentError, match=r"takes a plan and a mesh"):
            nn.init({"w": NORMAL}, KEY, **wrong)  # type: ignore[arg-type]


WHOLE = ("orthogonal",)  # makes all of it on every rank, and says so
NONE = ("fans", "zeros", "ones")
MAKERS = {name: getattr(initializers, name) for name in initializers.__all__ if name not in NONE}
MAKERS |= {"zeros": lambda: initializers.zeros, "ones": lambda: initializers.ones}
MAKERS |= {f"random.{name}": lambda name=name: getattr(sx.random, name) for name in ("normal", "uniform")}
MORE = {"constant": (2.0,), "variance_scaling": (1.0, "fan_in", "normal")}


@pytest.mark.parametrize("plan", [Spread(), sx.Shard(0), sx.Shard(1)], ids=str)
@pytest.mark.parametrize("name", MAKERS)
def test_no_rank_holds_a_whole_parameter(name: str, plan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank of 16, at its peak: less than a third of the parameter, of which it keeps a sixteenth."""
    monkeypatch.setattr(pool, "_source", lambda count, dtype: None)  # so that tracemalloc sees all memory
    size = 256 if name in WHOLE else 512
    params = {"w": nn.Param((size, size), MAKERS[name](*MORE.get(name, ())))}
    mesh = Mesh(("data",), (16,))

    def make() -> Any:
        with Plan({"*": {"data": plan}}).on(mesh):
            return nn.init(params, KEY)["w"]

    make()  # what is decided once
    tracemalloc.start()
    made = make()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert made.block.nbytes == 8 * size * size // 16
    assert (peak > 8 * size * size) if name in WHOLE else (peak < 8 * size * size / 3)


# Mixed precision


def test_select_of_trees_that_differ() -> None:
    with pytest.raises(ShapeError, match=r"the tree in the other case has the structure"):
        nn.select(True, {"a": X}, {"b": X})
    with pytest.raises(ShapeError, match=r"a has shape \(3, 2\), and \(2,\) in the other case\.\n  Write nn\.select"):
        nn.select(True, {"a": X}, {"a": X[0]})
    with pytest.raises(ShapeError, match=r"one condition for all arrays\.\n  Write nn\.select\(nn\.all_finite"):
        nn.select(X > 0, {"a": X}, {"a": X})
    assert nn.select(sx.asarray(False), {"a": X, "n": 1}, {"a": X * 2, "n": 2})["n"].item() == 2


def test_a_scale_of_what_is_no_array() -> None:
    scale = nn.loss_scale()
    for loss in (3.0, np.float32(3.0), sx.asarray(3), None):
        with pytest.raises(DtypeError, match=r"the loss that is scaled is .*\n  Write scale\.scale\(sx\.mean"):
            scale.scale(loss)  # type: ignore[arg-type]
    with pytest.raises(DtypeError, match=r"gradients are Arrays; w is a float\.\n  Write scale\.unscale\(sx\.grad"):
        scale.unscale({"w": 3.0})


STEPS = {
    "adamw": optim.chain(optim.clip_by_global_norm(1.0), optim.adamw(1e-2)),
    "lion": optim.chain(optim.clip(1.0), optim.lion(1e-3)),
    "adafactor": optim.adafactor(),
    "muon": optim.muon(1e-2),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("words", ["zero3", "zero1"])
@pytest.mark.parametrize("name", STEPS)
def test_steps_that_overflow_are_left_out_without_warnings(name: str, words: str) -> None:
    """The GPT in float16 under a plan, from a scale that is too great: the first steps change nothing, the others
    train; the loss, and whether there is one, is the same on all ranks."""
    optimizer = STEPS[name]
    config = TINY._replace(layers=1)

    def loss(params: Any, batch: Any) -> Any:
        return model.loss(nn.cast(params, np.float16), batch, config)

    with plans.plan(words).on(sx.make_mesh({"data": 2}, device="sim")):
        params = nn.init(model.parameters(config), KEY, dtype="float32")
        state, scale = optimizer.init(params), nn.loss_scale(2.0**20)
        fine, losses = [], []
        for _ in range(8):
            value, grads, finite = scale.value_and_grad(loss)(params, sx.asarray(tokens(config)))
            updates, after = optimizer.update(grads, state, params)
            moved = optim.apply_updates(params, updates)
            before = params["outer"]["tokens"].numpy()
            params, state = nn.select(finite, (moved, after), (params, state))
            scale = scale.adjust(finite)
            fine.append(bool(finite))
            losses.append(float(value))
            assert np.array_equal(before, params["outer"]["tokens"].numpy()) != fine[-1]
    assert fine == sorted(fine) and not fine[0] and fine[-1]
    assert losses[-1] < losses[0]
    assert float(scale.value) == 2.0 ** (20 - fine.count(False))


def test_value_and_grad_of_a_scaled_loss() -> None:
    """Exact: the loss and its gradients, and what else the function returns."""
    scale = nn.loss_scale(2.0**10)

    def both(a: Any, b: Any) -> Any:
        return sx.sum(a * a * b), a.shape

    (value, aux), grads, finite = scale.value_and_grad(both, argnums=(0, 1), has_aux=True)(X * 2, X * 3)
    want = sx.grad(lambda a, b: both(a, b)[0], argnums=(0, 1))(X * 2, X * 3)
    assert (float(value), aux, bool(finite)) == (72.0, (3, 2), True)
    for g, w in zip(grads, want):
        assert np.array_equal(g.numpy(), w.numpy())
