"""A residual stream between two layers: what one adds to it, and the norm of it that the next reads."""

from __future__ import annotations

from typing import Any

import numpy as np

from spmdx.array import Array
from spmdx.autodiff import vjp
from spmdx.errors import ArgumentError, ShapeError
from spmdx.nn.dropout import prepared
from spmdx.nn.norm import layer_norm, rms_norm
from spmdx.ops.neural import settled
from spmdx.ops.place import arrays
from spmdx.ops.together import AddNorm, add_norm_gradients
from spmdx.ops.together import add_norm as in_one_pass
from spmdx.random.key import Key
from spmdx.tape import recording
from spmdx.transforms.bundle import bundled

EPS = {True: 1e-5, False: 1e-6}  # of layer_norm, of rms_norm


def add_norm(
    x: Any,
    residual: Any,
    scale: Any = None,
    bias: Any = None,
    *,
    added: Any = None,
    key: Key | None = None,
    rate: Any = 0.0,
    centered: bool = True,
    eps: float | None = None,
) -> tuple[Array, Array]:
    """What a layer gives, added to the residual stream, and the norm of the stream, which the next layer reads.

    ``stream = residual + dropout(key, x + added, rate)`` and ``layer_norm(stream, scale, bias)``, to the bit on a CPU;
    in one pass over memory each way, where nothing moves and everything is of float32 or of float64, or on a GPU of any
    one floating dtype.

    Args:
        x: what the layer gives; a Partial one, as of a product whose rows are divided, is finished first.
        residual: the stream before it, of the same shape.
        scale, bias: of the norm: vectors as long as the last dimension, or None.
        added: the layer's own bias, another such vector, or None.
        key, rate: of :func:`dropout`; a rate of 0 drops nothing.
        centered: False for :func:`rms_norm`, which has no bias.
        eps: of the norm; its own default if left out.

    Returns:
        ``(stream, normed)``: ``x, h = nn.add_norm(layer(h), x, scale, bias)``.
    """
    x, residual = arrays(x, residual)
    _check(x, residual, {"scale": scale, "bias": bias, "added": added}, centered)
    if key is None and not (isinstance(rate, (int, float)) and rate == 0):
        raise ArgumentError(f"dropout at a rate of {rate!r} needs a key.", f"add_norm(..., key=key, rate={rate!r})")
    drop = None if key is None else prepared(key, x, rate)
    how = AddNorm(drop, EPS[centered] if eps is None else float(eps), centered)
    operands = settled(x), settled(residual), scale, bias, added
    found = in_one_pass(how, *operands)
    return _apart(how, *operands) if found is None else _recorded(how, found, operands)


def _apart(how: AddNorm, x: Any, residual: Any, scale: Any, bias: Any, added: Any) -> tuple[Array, Array]:
    """In calls of their own: what it means."""
    y = x if added is None else x + added
    stream = settled(residual + (y if how.drop is None else how.drop(y)))
    if how.centered:
        return stream, layer_norm(stream, scale, bias, eps=how.eps)
    return stream, rms_norm(stream, scale, eps=how.eps)


def _recorded(how: AddNorm, found: tuple[Array, Array], operands: tuple[Any, ...]) -> tuple[Array, Array]:
    """What was made in one pass, with its gradients, which are as well."""
    given, stream = [a for a in operands if a is not None], found[0]

    def composed(*some: Any) -> tuple[Array, Array]:
        rest = iter(some)
        return _apart(how, *[None if a is None else next(rest) for a in operands])

    def back(g: list[Any]) -> list[Any]:
        if recording():  # a gradient of this gradient is wanted
            wanted = [i for i in range(2) if g[i] is not None]
            return list(vjp(lambda *some: [composed(*some)[i] for i in wanted], *given)[1]([g[i] for i in wanted]))
        back = add_norm_gradients(how, g[0], settled(g[1]), stream, *operands[2:])
        return [b for a, b in zip(operands, back) if a is not None]

    recorded, norm = bundled(found, given, "add_norm", back)  # `stream` is what `back` keeps
    return recorded, norm


def _check(x: Array, residual: Array, vectors: dict[str, Any], centered: bool) -> None:
    if not x.ndim or x.shape != residual.shape:
        raise ShapeError(
            f"add_norm adds x to a residual stream of the same shape; got {x.shape} and {residual.shape}.",
            "x, h = add_norm(layer(h), x, scale, bias)",
        )
    for name, vector in vectors.items():
        shape = x.shape[-1:] if vector is None else np.shape(vector)
        if shape != x.shape[-1:]:
            raise ShapeError(
                f"{name} is a vector as long as the last dimension of x, {x.shape[-1]}; its shape is {shape}.",
                f"{name} of shape ({x.shape[-1]},)",
            )
    if vectors["bias"] is not None and not centered:
        raise ArgumentError("rms_norm has no bias.", "add_norm(x, residual, scale, centered=False)")


__all__ = ["add_norm"]
