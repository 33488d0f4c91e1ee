"""Cross-entropy against NumPy, wherever the logits lie: vocabulary-parallel it never gathers them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from helpers import FOUR, TWO, close, draw, everywhere, gradients, put, slope, verbs, weighted

import spmdx as sx
from spmdx import nn
from spmdx.later import made
from spmdx.plans import Plan
from spmdx.runtime.pending import Coming

LOGITS, LABELS = draw(3, 2, 7), np.array([[0, 6], [3, 3], [1, 5]])


def oracle(x: Any, labels: Any = LABELS, smoothing: float = 0.0) -> Any:
    low = x - x.max(-1, keepdims=True)
    logs = low - np.log(np.exp(low).sum(-1, keepdims=True))
    picked = np.take_along_axis(logs, labels[..., None], -1)[..., 0]
    return -(1 - smoothing) * picked - smoothing * logs.mean(-1)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_as_numpy(smoothing: float) -> None:
    """Close to 1e-12; gradients close to 1e-8 of central differences."""

    def loss(x: Any) -> Any:
        return nn.cross_entropy(x, LABELS, smoothing=smoothing)

    want = slope(weighted(lambda x: oracle(x, LABELS, smoothing)), (LOGITS,), 0)
    for x in everywhere(LOGITS):
        close(loss(x), oracle(LOGITS, LABELS, smoothing))
        close(gradients(loss, x)[0], want, 1e-8)

    def size(x: Any) -> Any:
        return (gradients(loss, x)[0] ** 2).sum()

    close(sx.grad(size)(put(LOGITS)), slope(lambda x: size(put(x)).item(), (LOGITS,), 0, 1e-5), 1e-6)


@pytest.mark.parametrize("mesh, placement", [(TWO, {"a": sx.Shard(1)}), (FOUR, {"a": sx.Shard(0), "b": sx.Shard(1)})])
def test_divided_classes_are_never_gathered(mesh: Any, placement: Any) -> None:
    """Of 64 tokens and 500 classes: the maxima are all-reduced, then the sums with the picked logits, and, where tokens
    are divided too, the mean loss. The gradient needs no message more."""
    x, labels = draw(64, 500), np.arange(64) * 7
    logits = put(x, mesh, **placement)
    with Plan().on(mesh), sx.debug.trace() as trace:
        loss, g = sx.value_and_grad(lambda x: nn.cross_entropy(x, labels).mean())(logits)
    close(loss, oracle(x, labels).mean())
    assert verbs(trace) == ["all_reduce"] * 2, trace
    assert trace.bytes < 4 * 64 * 8, trace
    with Plan().on(mesh), sx.debug.trace() as trace:
        found = float(nn.cross_entropy(logits, labels).mean())
    assert verbs(trace) == ["all_reduce"] * (2 + ("b" in placement)), trace
    assert abs(found - oracle(x, labels).mean()) < 1e-12
    assert g.spec is logits.spec


def test_great_scores_do_not_overflow() -> None:
    x = np.array([[1e4, -1e4, 0.0], [700.0, 800.0, 900.0]])
    close(nn.cross_entropy(put(x), np.array([0, 1])), np.array([0.0, 100.0]))
    assert np.isfinite(gradients(lambda x: nn.cross_entropy(x, np.array([1, 1])), put(x))[0].numpy()).all()


def test_great_scores_leave_their_differences() -> None:
    """Also along a divided dimension: the greatest goes off before the logarithm is added."""
    x = np.array([[1e4, 1e4 + 1, 1e4 + 3]], np.float32)
    logs = nn.log_softmax(sx.asarray(x - 1e4)).numpy()
    for placement in ({}, {"a": sx.Shard(1)}):
        great = sx.asarray(x, mesh=sx.make_mesh({"a": 3}, device="sim"), placement=placement)
        assert np.allclose(nn.log_softmax(great).numpy(), logs, rtol=0, atol=1e-6)
        assert abs(nn.cross_entropy(great, np.array([1])).numpy() + logs[0, 1]) < 1e-6


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_great_scores_leave_their_digits(smoothing: float) -> None:
    """Of scores around a thousand the loss and its gradient are as close to float64's as those of small scores are."""
    x = (1000 + np.random.default_rng(3).normal(size=(40, 33))).astype(np.float32)
    labels = np.arange(40) % 33
    wide = sx.asarray(x.astype(np.float64))
    want, slopes = sx.value_and_grad(lambda x: nn.cross_entropy(x, labels, smoothing=smoothing).sum())(wide)
    mesh = sx.make_mesh({"a": 3}, device="sim")
    for placement in ({}, {"a": sx.Shard(1)}):
        given = sx.asarray(x, mesh=mesh, placement=placement)
        loss, g = sx.value_and_grad(lambda x: nn.cross_entropy(x, labels, smoothing=smoothing).sum())(given)
        assert abs(loss.numpy() / want.numpy() - 1) < 1e-6
        assert np.abs(g.numpy() - slopes.numpy()).max() < 3e-7


def test_half_width_counts_in_float32() -> None:
    x = put(LOGITS).astype(sx.bfloat16)
    loss = nn.cross_entropy(x, LABELS)
    assert loss.dtype == np.float32
    close(loss.astype(float), oracle(x.astype(float).numpy()), 1e-5)
    assert gradients(lambda x: nn.cross_entropy(x, LABELS), x)[0].dtype == sx.bfloat16


@pytest.mark.parametrize(
    "labels, words",
    [
        (np.full((3, 2), 7), "out of range"),
        (np.zeros((3, 2)), "integers"),
        (np.zeros(3, int), "labels"),
        (np.full((3, 2), -1), r"label -1 is out of range(.|\n)*labels >= 0"),
    ],
)
def test_labels_that_do_not_fit(labels: Any, words: str) -> None:
    with pytest.raises(sx.SpmdxError, match=words):
        nn.cross_entropy(put(LOGITS), labels)


@pytest.mark.parametrize("way", ["vmap", "on their way", "partial", "int8"])
def test_negative_labels_are_seen_however_they_come(way: str) -> None:
    labels = np.array([[0, 6], [3, -2], [1, 5]])
    logits, given = put(LOGITS, TWO), put(labels, TWO)
    if way == "partial":
        given = put(labels, TWO, a=sx.Partial("sum"))
    elif way == "on their way":
        given = made(Coming(Done(given._block), 0, lambda block: block), given.spec)
    elif way == "int8":
        given = given.astype("int8")
    loss = sx.vmap(nn.cross_entropy) if way == "vmap" else nn.cross_entropy
    with pytest.raises(sx.errors.BoundsError, match="label -2 is out of range"):
        loss(logits, given)


class Done:
    """A collective that is done."""

    def __init__(self, block: Any) -> None:
        self.block = block

    def wait(self) -> list[Any]:
        return [self.block]


def test_logits_and_smoothing_that_do_not_fit() -> None:
    with pytest.raises(sx.errors.DtypeError, match="logits"):
        nn.cross_entropy(put(LOGITS).astype(int), LABELS)
    with pytest.raises(sx.errors.ArgumentError, match="smoothing"):
        nn.cross_entropy(put(LOGITS), LABELS, smoothing=1.5)


def test_labels_are_left_out_as_the_error_says() -> None:
    labels = LABELS.copy()
    labels[0] = -1
    loss, grad = sx.value_and_grad(lambda x: sx.sum(nn.cross_entropy(x, labels.clip(0)) * (labels >= 0)))(put(LOGITS))
    close(loss, oracle(LOGITS, np.maximum(labels, 0))[1:].sum())
    assert not grad.numpy()[0].any()
