"""What optimizers are given that does not fit: errors that say the line to write, and nothing done in silence."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cases import CASES

import spmdx as sx
from spmdx import optim
from spmdx.errors import ArgumentError, DtypeError, ShapeError

X = sx.asarray(np.arange(1.0, 7.0).reshape(3, 2))
HELD = [name for name in CASES if name != "sgd"]


@pytest.mark.parametrize("name", HELD)
def test_another_optimizers_state(name: str) -> None:
    """Also where both keep one tree of the parameters' shapes."""
    optimizer, _ = CASES[name]
    for other in ("adamw", "momentum", "lion", "muon", "adafactor"):
        state = CASES[other][0].init({"w": X})
        if (
            type(state) is type(optimizer.init({"w": X}))
            and other in (name, "momentum")
            and name in (other, "nesterov")
        ):
            continue
        if {name, other} <= {"adam", "adamw"}:
            continue
        with pytest.raises(ArgumentError, match=r"\n  Write state = optimizer\.init\(params\)"):
            optimizer.update({"w": X}, state, {"w": X})
    for state in (None, (), 3, {"w": X}):
        with pytest.raises(ArgumentError, match=r"\n  Write state = optimizer\.init\(params\)"):
            optimizer.update({"w": X}, state, {"w": X})


def test_a_chain_of_other_length() -> None:
    long, short = optim.chain(optim.scale(2.0), optim.scale(3.0)), optim.chain(optim.scale(2.0))
    with pytest.raises(ArgumentError, match=r"chain of 2 steps takes the tuple of their 2 states; got a tuple of 1\."):
        long.update(X, short.init(X))
    assert long.update(X, long.init(X))[0].numpy()[0, 0] == 6.0


@pytest.mark.parametrize("name", HELD)
def test_gradients_of_other_shapes(name: str) -> None:
    optimizer, _ = CASES[name]
    state = optimizer.init({"a": {"w": X}})
    for grads, params in ((X[:2], X), (X[0], X), (sx.asarray(1.0), X)):
        with pytest.raises(ShapeError, match=r"a\.w.*shape.*\n  Write updates, state = optimizer\.update"):
            optimizer.update({"a": {"w": grads}}, state, {"a": {"w": params}})


def test_updates_of_other_shapes() -> None:
    for params, updates in ((sx.asarray(1.0), X), (X, sx.asarray(1.0)), (X, X[:1]), (X, X[0])):
        with pytest.raises(ShapeError, match=r"the update a has shape .* beside a parameter of shape"):
            optim.apply_updates({"a": params}, {"a": updates})
    with pytest.raises(ShapeError, match="same containers"):
        optim.apply_updates({"a": X}, {"b": X})
    with pytest.raises(ShapeError, match="beside a gradient of shape"):
        optim.add_decayed_weights(0.1).update({"a": X[0]}, (), {"a": X})


@pytest.mark.parametrize("name", CASES)
def test_parameters_that_are_no_floats(name: str) -> None:
    optimizer, _ = CASES[name]
    for kind in (int, bool):
        with pytest.raises(DtypeError, match=r"floating-point parameters; a\.i is .*\n  Write x\.astype\(float\)"):
            optimizer.init({"a": {"i": X.astype(kind)}, "w": X})
    with pytest.raises(DtypeError, match=r"w is a float\.\n  Write sx\.asarray"):
        optimizer.init({"w": 1.0})


def test_an_update_that_would_be_cut_off() -> None:
    for kind, update in ((int, X), (float, X * 1j)):
        with pytest.raises(DtypeError, match=r"the parameter w is .* and would be"):
            optim.apply_updates({"w": X.astype(kind)}, {"w": update})
    assert optim.apply_updates({"w": X.astype(int)}, {"w": X.astype(int)})["w"].dtype == int
    assert optim.apply_updates({"w": X.astype("float32")}, {"w": X})["w"].dtype == np.float32


@pytest.mark.parametrize(
    "rate", ["fast", None, True, 1j, [0.1], np.array([0.1, 0.2]), sx.asarray([0.1, 0.2]), {"w": 0.1}]
)
def test_a_rate_that_is_no_number(rate: Any) -> None:
    for make in (optim.adamw, optim.sgd, optim.lion, optim.muon, optim.adafactor):
        with pytest.raises(ArgumentError, match=r"a learning rate is a number, .*\n  Write optim\.adamw\(1e-3\)"):
            make(rate)
    scheduled = optim.sgd(lambda t: rate)
    with pytest.raises(ArgumentError, match="a learning rate is a number"):
        scheduled.update(X, scheduled.init(X))
    nested = optim.sgd(lambda t: optim.constant_schedule)
    with pytest.raises(ArgumentError, match="a schedule gives a number"):
        nested.update(X, nested.init(X))


def test_rates_that_are_numbers() -> None:
    for rate in (1, np.float32(1), np.int64(1), np.array(1.0), sx.asarray(1.0), lambda t: 1, lambda t: t * 0 + 1.0):
        optimizer = optim.sgd(rate)
        assert np.array_equal(optimizer.update(X, optimizer.init(X))[0].numpy(), -X.numpy())


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: optim.chain(1e-3),
        lambda: optim.chain([optim.sgd(0.1)]),
        lambda: optim.chain(optim.sgd(0.1), None),
        lambda: optim.partition(optim.sgd(0.1), {"w": "a"}),
        lambda: optim.partition({"a": optim.sgd}, {"w": "a"}),
        lambda: optim.masked(optim.adamw, True),
        lambda: optim.scale(None),
        lambda: optim.clip("1"),
        lambda: optim.clip_by_global_norm(X),
    ],
)
def test_what_is_no_step(wrong: Any) -> None:
    with pytest.raises(ArgumentError, match=r"(?s)(no step of an optimizer|a number is needed).*\n  Write optim\."):
        wrong()


# Norms


def test_the_norm_has_a_gradient() -> None:
    """Close to 1e-15: x over the norm."""
    for dtype in ("float32", "float64"):
        x = X.astype(dtype)
        found = sx.grad(lambda p: optim.global_norm(p))({"a": x, "b": x * 2})["b"]
        assert found.dtype == x.dtype
        assert np.max(np.abs(found.numpy() - (x * 2).numpy() / np.sqrt(5 * 91))) < np.finfo(dtype).eps


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint8", "bool", "float16", "float32", "float64", "complex128"])
def test_the_norm_is_real_and_does_not_wrap(dtype: str) -> None:
    values = np.array([100, 100, 3]).astype(dtype)
    found = optim.global_norm({"a": sx.asarray(values), "b": sx.asarray(1.0)})
    assert found.dtype.kind == "f"
    assert abs(float(found) - np.sqrt((abs(values.astype(complex)) ** 2).sum() + 1)) < 1e-4
    assert optim.global_norm(sx.asarray(np.array([3 + 4j]))).item() == 5.0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("most", [0.0, 1.0])
def test_gradients_of_norm_0_are_not_divided_by_it(most: float) -> None:
    step = optim.clip_by_global_norm(most)
    with np.errstate(all="raise"):
        for dtype in (float, "float32"):
            grads = {"a": (X * 0).astype(dtype), "b": sx.zeros((0,), dtype=dtype)}
            assert not np.any(step.update(grads, ())[0]["a"].numpy())


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", CASES)
def test_gradients_of_0_and_empty_parameters(name: str) -> None:
    optimizer, _ = CASES[name]
    params = {"a": X, "none": sx.zeros((0, 3))}
    with np.errstate(all="raise", under="ignore"):
        updates, _ = optimizer.update({"a": X * 0, "none": params["none"]}, optimizer.init(params), params)
    assert np.all(np.isfinite(updates["a"].numpy()))
    assert updates["none"].shape == (0, 3)
