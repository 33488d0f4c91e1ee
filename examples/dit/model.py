"""A diffusion transformer (Peebles and Xie, 2023), written for one device. No word of parallelism.

A model is a pytree of parameter descriptors and a function. `sx.name` says what values and functions are; where they
go, if anywhere, is a plan's business.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

import spmdx as sx
from spmdx import nn


class Config(NamedTuple):
    """The sizes of a model."""

    image: int = 8  # height and width
    patch: int = 2
    classes: int = 10  # and one more, which stands for any
    width: int = 64
    layers: int = 3
    heads: int = 4
    hidden: int = 128  # of the layer between two products of a block
    dropout: float = 0.05  # of what a block adds, while training

    @property
    def patches(self) -> int:
        """How many an image is cut into."""
        return (self.image // self.patch) ** 2


def parameters(config: Config) -> Any:
    """The model's parameters, as descriptors: ``{"outer": ..., "blocks": [...]}``."""
    c, glorot = config, nn.initializers.glorot_normal()
    outer = {
        "patches": nn.Param((c.patch**2, c.width), glorot),
        "patches_bias": nn.Param((c.width,)),
        "positions": nn.Param((c.patches, c.width), nn.initializers.normal(0.02)),
        "classes": nn.Param((c.classes + 1, c.width), nn.initializers.normal(0.02)),
        "time1": nn.Param((c.width, c.width), glorot),
        "time1_bias": nn.Param((c.width,)),
        "time2": nn.Param((c.width, c.width), glorot),
        "time2_bias": nn.Param((c.width,)),
        "final": nn.Param((c.width, 2, c.width)),  # the last norm's shift and scale
        "final_bias": nn.Param((2, c.width)),
        "head": nn.Param((c.width, c.patch**2)),  # 0: the first guess of the noise is none
        "head_bias": nn.Param((c.patch**2,)),
    }
    return {"outer": outer, "blocks": [_block_parameters(c) for _ in range(c.layers)]}


def noise_in(params: Any, images: Any, times: Any, classes: Any, config: Config, key: Any = None) -> sx.Array:
    """The noise that a model finds in noisy images.

    Args:
        images: [batch, height, width].
        times: [batch], from 0 (clean) to 1 (nothing but noise).
        classes: [batch], integers; ``config.classes`` stands for any class.
        key: draws dropout; None drops nothing.
    """
    images, times, classes = sx.name((images, times, classes), "batch")
    outer = sx.name(params["outer"], "outer")
    block = sx.name(_block, "block")
    h = nn.linear(waves(times, config.width).astype(images.dtype), outer["time1"], outer["time1_bias"])
    h = nn.linear(nn.silu(h), outer["time2"], outer["time2_bias"])
    condition = nn.silu(h + nn.embedding(outer["classes"], classes))
    x = nn.patchify(images[:, None], config.patch)
    x = nn.linear(x, outer["patches"], outer["patches_bias"]) + outer["positions"]
    x = sx.name(x, "residual")
    for i, layer in enumerate(params["blocks"]):
        x = block(layer, x, condition, config.dropout, None if key is None else sx.random.fold_in(key, i))
    shift, scale = _modulation(condition, outer["final"], outer["final_bias"])
    x = nn.linear(sx.name(_modulated(x, shift, scale), "normed"), outer["head"], outer["head_bias"])
    return nn.unpatchify(x, config.patch, (1, config.image, config.image))[:, 0]


def waves(times: sx.Array, width: int) -> sx.Array:
    """Sines and cosines of times in [0, 1], [batch, width]: wave lengths from 2 pi to 2 pi / 1000."""
    angles = times[:, None] * np.exp(np.linspace(0, math.log(1000), width // 2))
    return sx.concat([sx.sin(angles), sx.cos(angles)], axis=1)


def _block_parameters(c: Config) -> Any:
    size, glorot = c.width // c.heads, nn.initializers.normal(c.width**-0.5)
    last = nn.initializers.normal(c.hidden**-0.5)
    return {
        "adapt": nn.Param((c.width, 6, c.width)),  # 0: at first every block is the identity (adaLN-Zero)
        "adapt_bias": nn.Param((6, c.width)),
        **{name: nn.Param((c.width, c.heads, size), glorot) for name in "qkv"},
        **{f"{name}_bias": nn.Param((c.heads, size)) for name in "qkv"},
        "out": nn.Param((c.heads, size, c.width), glorot),
        "out_bias": nn.Param((c.width,)),
        "up": nn.Param((c.width, c.hidden), glorot),
        "up_bias": nn.Param((c.hidden,)),
        "down": nn.Param((c.hidden, c.width), last),
        "down_bias": nn.Param((c.width,)),
    }


def _block(p: Any, x: sx.Array, condition: sx.Array, rate: float, key: Any) -> sx.Array:
    shift1, scale1, gate1, shift2, scale2, gate2 = _modulation(condition, p["adapt"], p["adapt_bias"])
    h = sx.name(_modulated(x, shift1, scale1), "normed")
    q, k, v = (sx.einsum("btd,dhk->bthk", h, p[name]) + p[f"{name}_bias"] for name in "qkv")
    h = sx.name(sx.einsum("bthk,hkd->btd", nn.attention(q, k, v), p["out"]), "residual") + p["out_bias"]
    x = x + gate1 * _dropped(h, rate, key, 0)
    h = sx.name(_modulated(x, shift2, scale2), "normed")
    h = nn.gelu(nn.linear(h, p["up"], p["up_bias"]))
    h = sx.name(nn.linear(h, p["down"]), "residual") + p["down_bias"]
    return x + gate2 * _dropped(h, rate, key, 1)


def _modulation(condition: sx.Array, weight: sx.Array, bias: sx.Array) -> list[sx.Array]:
    """Shifts, scales and gates, each [batch, 1, width], of a condition [batch, width]."""
    found = sx.einsum("bd,dnw->bnw", condition, weight) + bias
    return [found[:, i : i + 1] for i in range(bias.shape[0])]


def _modulated(x: sx.Array, shift: sx.Array, scale: sx.Array) -> sx.Array:
    return nn.layer_norm(x) * (1 + scale) + shift


def _dropped(x: sx.Array, rate: float, key: Any, number: int) -> sx.Array:
    return x if key is None else nn.dropout(sx.random.fold_in(key, number), x, rate)
