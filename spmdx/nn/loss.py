"""Losses."""

from __future__ import annotations

from typing import Any

from spmdx.array import Array
from spmdx.autodiff import vjp
from spmdx.dtypes import NARROW, float32
from spmdx.errors import ArgumentError, DtypeError, ShapeError
from spmdx.ops import elementwise as e
from spmdx.ops.likelihood import _cross_entropy_back, _from_zero, _sum_exp, _sum_low
from spmdx.ops.moments import logsumexp
from spmdx.ops.neural import settled, settled_together
from spmdx.ops.place import arrays
from spmdx.ops.reduce import max, sum
from spmdx.ops.scan import take_along_axis
from spmdx.tape import recording
from spmdx.transforms.custom import custom_vjp


def cross_entropy(logits: Array, labels: Any, *, smoothing: float = 0.0) -> Array:
    """-log(softmax(logits)[label]) for every label: logits [..., classes], labels [...], result [...].

    Args:
        labels: integers from 0 to ``classes - 1``.
        smoothing: this share of each target is spread evenly over all classes (Szegedy and others, 2016).

    Where the classes are divided, logits are never gathered: one all-reduce of the maxima, one of the sums and of the
    picked logits together. float16 and bfloat16 count in float32.

    Raises:
        BoundsError: a label out of range.
    """
    logits, labels = arrays(logits, labels)
    if logits.dtype.kind not in "fV":
        raise DtypeError(f"logits are floating-point numbers; these are {logits.dtype.name}.", "logits.astype(float)")
    if not 0 <= smoothing <= 1:
        raise ArgumentError(f"smoothing is a share between 0 and 1; got {smoothing!r}.", "smoothing=0.1")
    if labels.dtype.kind not in "iu":
        raise DtypeError(f"labels are integers; these are {labels.dtype.name}.", "labels.astype(int)")
    if labels.shape != logits.shape[:-1]:
        raise ShapeError(
            f"cross_entropy of logits {logits.shape} and labels {labels.shape}.",
            "logits[..., classes] and labels[...] with the same leading dimensions",
        )
    if labels.dtype.kind == "i":
        labels = _from_zero(labels, logits.shape[-1])
    found: Array = _cross_entropy(settled(logits), labels, smoothing)
    return found


def _picked(x: Array, labels: Array, kind: Any) -> Array:
    picked: Array = sum(take_along_axis(x, labels[..., None], -1), -1).astype(kind)
    return picked


def _loss(x: Array, total: Array, labels: Array, smoothing: float) -> Array:
    picked = _picked(x, labels, total.dtype)
    if not smoothing:
        return total - picked
    even: Array = sum(x, -1, total.dtype) / x.shape[-1]
    return total - (picked * (1 - smoothing) + even * smoothing)


def _loss_and_sums(x: Array, labels: Array, smoothing: float) -> tuple[Array, Array, Array]:
    """The loss; and for a gradient that is known the greatest of the scores, and the sum of exp(x - that).

    The logarithm of that sum and the greatest are never added: a number of both would have the scores' ulp.
    """
    kind = float32 if x.dtype in NARROW else x.dtype
    top = settled(max(x, -1)).astype(kind)
    top = e.where(e.isfinite(top), top, 0)
    parts = [_sum_exp(x, top), _picked(x, labels, kind)]
    if not smoothing:
        sums, picked = settled_together(*parts)
        return e.log(sums) + (top - picked), top, sums
    sums, picked, low = settled_together(*parts, _sum_low(x, top))
    target = (picked - top) * (1 - smoothing) + low * (smoothing / x.shape[-1])
    return e.log(sums) - target, top, sums


@custom_vjp
def _cross_entropy(x: Array, labels: Array, smoothing: float) -> Array:
    return _loss_and_sums(x, labels, smoothing)[0]


def _forward(x: Array, labels: Array, smoothing: float) -> Any:
    loss, top, sums = _loss_and_sums(x, labels, smoothing)
    return loss, (x, top, sums, labels, smoothing)


def _backward(kept: Any, g: Array) -> Any:
    x, top, sums, labels, smoothing = kept
    if recording():
        _, back = vjp(lambda x: _loss(x, logsumexp(x.astype(top.dtype), -1), labels, smoothing), x)
        return *back(g), None, None
    return _cross_entropy_back(settled(g), x, top, sums, labels, smoothing, x.shape[-1]), None, None


_cross_entropy.defvjp(_forward, _backward)

__all__ = ["cross_entropy"]
