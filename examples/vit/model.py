"""A vision transformer (Dosovitskiy et al., 2021), written for one device. No word of parallelism.

A model is a pytree of parameter descriptors and a function of parameters and images. `sx.name` says what values and
functions are; where they go, if anywhere, is a plan's business.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import spmdx as sx
from spmdx import nn


class Config(NamedTuple):
    """The sizes of a model."""

    image: int = 8  # height and width
    patch: int = 2
    classes: int = 10
    width: int = 48
    layers: int = 3
    heads: int = 4
    hidden: int = 96  # of the layer between two products of a block
    dropout: float = 0.1  # of what a block adds, while training

    @property
    def patches(self) -> int:
        """How many an image is cut into."""
        return (self.image // self.patch) ** 2


def parameters(config: Config) -> Any:
    """The model's parameters, as descriptors: ``{"outer": ..., "blocks": [...]}``."""
    c, draw = config, nn.initializers.normal(0.02)
    outer = {
        "patches": nn.Param((c.patch**2, c.width), nn.initializers.lecun_normal()),
        "patches_bias": nn.Param((c.width,)),
        "positions": nn.Param((c.patches, c.width), draw),
        "norm": _norm(c),
        "head": nn.Param((c.width, c.classes), draw),
        "head_bias": nn.Param((c.classes,)),
    }
    return {"outer": outer, "blocks": [_block_parameters(c) for _ in range(c.layers)]}


def logits(params: Any, images: Any, config: Config, key: Any = None) -> sx.Array:
    """The scores of every class, [batch, classes]; ``images`` is [batch, height, width], ``key`` draws dropout;
    without one nothing is dropped."""
    images = sx.name(images, "batch")
    outer = sx.name(params["outer"], "outer")
    block = sx.name(_block, "block")
    x = nn.patchify(images[:, None], config.patch)
    x = nn.linear(x, outer["patches"], outer["patches_bias"]) + outer["positions"]
    x = sx.name(x, "residual")
    key, rate = (sx.random.key(0), 0.0) if key is None else (key, config.dropout)  # a rate of 0 draws nothing
    for i, layer in enumerate(params["blocks"]):
        x = block(layer, x, rate, sx.random.fold_in(key, i))
    x = sx.name(nn.layer_norm(x, **outer["norm"]), "normed")
    return nn.linear(sx.mean(x, axis=1), outer["head"], outer["head_bias"])


def loss(params: Any, images: Any, labels: Any, config: Config, key: Any = None) -> sx.Array:
    """Mean cross-entropy; ``labels`` is [batch]."""
    scores = logits(params, images, config, key)
    return sx.mean(nn.cross_entropy(scores, sx.name(labels, "batch")))


def _norm(c: Config) -> Any:
    return {"scale": nn.Param((c.width,), 1.0), "bias": nn.Param((c.width,))}


def _block_parameters(c: Config) -> Any:
    size, inner = c.width // c.heads, nn.initializers.normal(c.width**-0.5)
    last = nn.initializers.normal(0.5 * (c.width * c.layers) ** -0.5)
    return {
        "norm1": _norm(c),
        **{name: nn.Param((c.width, c.heads, size), inner) for name in "qkv"},
        **{f"{name}_bias": nn.Param((c.heads, size)) for name in "qkv"},
        "out": nn.Param((c.heads, size, c.width), last),
        "out_bias": nn.Param((c.width,)),
        "norm2": _norm(c),
        "up": nn.Param((c.width, c.hidden), inner),
        "up_bias": nn.Param((c.hidden,)),
        "down": nn.Param((c.hidden, c.width), last),
        "down_bias": nn.Param((c.width,)),
    }


def _block(p: Any, x: sx.Array, rate: float, key: Any) -> sx.Array:
    h = sx.name(nn.layer_norm(x, **p["norm1"]), "normed")
    q, k, v = (sx.einsum("btd,dhk->bthk", h, p[name]) + p[f"{name}_bias"] for name in "qkv")
    h = sx.name(sx.einsum("bthk,hkd->btd", nn.attention(q, k, v), p["out"]), "residual")
    x, h = nn.add_norm(h, x, **p["norm2"], added=p["out_bias"], key=sx.random.fold_in(key, 0), rate=rate)
    h = nn.gelu(nn.linear(sx.name(h, "normed"), p["up"]), bias=p["up_bias"])
    h = sx.name(nn.linear(h, p["down"]), "residual") + p["down_bias"]
    return x + nn.dropout(sx.random.fold_in(key, 1), h, rate)
