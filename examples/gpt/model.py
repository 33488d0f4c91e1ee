"""Two language models, written for one device: GPT-2's form and Llama 3's. No word of parallelism.

A model is a pytree of parameter descriptors and a function of parameters and tokens. `sx.name` says what values and
functions are; where they go, if anywhere, is a plan's business.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import spmdx as sx
from spmdx import nn


class Config(NamedTuple):
    """The sizes of a model. ``kv_heads`` and ``hidden`` matter to Llama only."""

    form: str = "gpt2"
    vocabulary: int = 256
    length: int = 256  # the longest sequence
    width: int = 256
    layers: int = 4
    heads: int = 8
    kv_heads: int = 8
    hidden: int = 1024  # of the layer between two products of a block


def parameters(config: Config) -> Any:
    """The model's parameters, as descriptors: ``{"outer": ..., "blocks": [...]}``."""
    outer, block = (_gpt2_outer, _gpt2_block) if config.form == "gpt2" else (_llama_outer, _llama_block)
    return {"outer": outer(config), "blocks": [block(config) for _ in range(config.layers)]}


def logits(params: Any, tokens: Any, config: Config) -> sx.Array:
    """The scores of every next token, [batch, length, vocabulary]."""
    tokens = sx.name(tokens, "batch")
    outer = sx.name(params["outer"], "outer")
    block = sx.name(_gpt2 if config.form == "gpt2" else _llama, "block")
    x = nn.embedding(outer["tokens"], tokens)
    if config.form == "gpt2":
        x = x + outer["positions"][: tokens.shape[1]]
    x = sx.name(x, "residual")
    for layer in params["blocks"]:
        x = block(layer, x)
    norm = nn.layer_norm(x, **outer["norm"]) if config.form == "gpt2" else nn.rms_norm(x, **outer["norm"])
    return sx.einsum("btd,vd->btv", sx.name(norm, "normed"), outer["head" if "head" in outer else "tokens"])


def loss(params: Any, tokens: Any, config: Config) -> sx.Array:
    """Mean cross-entropy of the next token; ``tokens`` is [batch, length + 1]."""
    labels = sx.name(tokens[:, 1:], "batch")
    return sx.mean(nn.cross_entropy(logits(params, tokens[:, :-1], config), labels))


def _normal(scale: float) -> Any:
    return lambda key, shape, **where: scale * sx.random.normal(key, shape, **where)


# GPT-2: layer norm, learned positions, GELU, tied embeddings (Radford et al., 2019)


def _gpt2_outer(c: Config) -> Any:
    return {
        "tokens": nn.Param((c.vocabulary, c.width), _normal(0.02)),
        "positions": nn.Param((c.length, c.width), _normal(0.02)),
        "norm": _norm(c),
    }


def _norm(c: Config) -> Any:
    return {"scale": nn.Param((c.width,), 1.0), "bias": nn.Param((c.width,))}


def _gpt2_block(c: Config) -> Any:
    inner, last = _normal(0.02), _normal(0.02 / (2 * c.layers) ** 0.5)
    size = c.width // c.heads
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


def _gpt2(p: Any, x: sx.Array) -> sx.Array:
    h = sx.name(nn.layer_norm(x, **p["norm1"]), "normed")
    q, k, v = (sx.einsum("btd,dhk->bthk", h, p[name]) + p[f"{name}_bias"] for name in "qkv")
    seen = nn.attention(q, k, v, causal=True)
    x = x + sx.name(sx.einsum("bthk,hkd->btd", seen, p["out"]), "residual") + p["out_bias"]
    h = sx.name(nn.layer_norm(x, **p["norm2"]), "normed")
    h = nn.gelu(h @ p["up"] + p["up_bias"])
    return x + sx.name(h @ p["down"], "residual") + p["down_bias"]


# Llama 3: RMS norm, rotary positions, grouped queries, SwiGLU, no biases (Grattafiori et al., 2024)


def _llama_outer(c: Config) -> Any:
    table = nn.Param((c.vocabulary, c.width), _normal(0.02))
    return {"tokens": table, "head": table, "norm": {"scale": nn.Param((c.width,), 1.0)}}


def _llama_block(c: Config) -> Any:
    inner, last = _normal(0.02), _normal(0.02 / (2 * c.layers) ** 0.5)
    size = c.width // c.heads
    return {
        "norm1": {"scale": nn.Param((c.width,), 1.0)},
        "q": nn.Param((c.width, c.heads, size), inner),
        **{name: nn.Param((c.width, c.kv_heads, size), inner) for name in "kv"},
        "out": nn.Param((c.heads, size, c.width), last),
        "norm2": {"scale": nn.Param((c.width,), 1.0)},
        "gate": nn.Param((c.width, c.hidden), inner),
        "up": nn.Param((c.width, c.hidden), inner),
        "down": nn.Param((c.hidden, c.width), last),
    }


def _llama(p: Any, x: sx.Array) -> sx.Array:
    h = sx.name(nn.rms_norm(x, **p["norm1"]), "normed")
    q, k, v = (sx.einsum("btd,dhk->bthk", h, p[name]) for name in "qkv")
    seen = nn.attention(nn.rope(q), nn.rope(k), v, causal=True)
    x = x + sx.name(sx.einsum("bthk,hkd->btd", seen, p["out"]), "residual")
    h = sx.name(nn.rms_norm(x, **p["norm2"]), "normed")
    return x + sx.name(nn.swiglu(h @ p["gate"], h @ p["up"]) @ p["down"], "residual")
