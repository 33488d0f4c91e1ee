"""Two language models, written for one device: GPT-2's form and Llama 3's. No word of parallelism.

A model is a pytree of parameter descriptors and a function of parameters and tokens. `sx.name` says what values and
functions are; where they go, if anywhere, is a plan's business.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import spmdx as sx
from spmdx import nn


class Stretch(NamedTuple):
    """How Llama 3.1 slows rotations down, so that models trained on ``length`` positions see ``factor`` times as many:
    wholly what turns less than ``low`` times within ``length``, and not at all what turns more than ``high`` times."""

    factor: float = 8.0
    low: float = 1.0
    high: float = 4.0
    length: int = 8192


class Config(NamedTuple):
    """The sizes of a model, and its constants. ``kv_heads``, ``base`` and ``stretch`` matter to Llama only."""

    form: str = "gpt2"
    vocabulary: int = 256
    length: int = 256  # the longest sequence
    width: int = 256
    layers: int = 4
    heads: int = 8
    kv_heads: int = 8
    hidden: int = 1024  # of the layer between two products of a block
    head_size: int | None = None  # width / heads if left out
    tied: bool | None = None  # the head is the table of tokens; if left out, in GPT-2's form and not in Llama's
    epsilon: float = 1e-5  # of the norms
    base: float = 10000.0  # of the rotary positions
    stretch: Stretch | None = None

    @property
    def size(self) -> int:
        """Features of a head."""
        return self.head_size or self.width // self.heads


def parameters(config: Config) -> Any:
    """The model's parameters, as descriptors: ``{"outer": ..., "blocks": [...]}``."""
    outer, block = (_gpt2_outer, _gpt2_block) if config.form == "gpt2" else (_llama_outer, _llama_block)
    return {"outer": outer(config), "blocks": [block(config) for _ in range(config.layers)]}


def logits(params: Any, tokens: Any, config: Config) -> sx.Array:
    """The scores of every next token, [batch, length, vocabulary]."""
    outer = sx.name(params["outer"], "outer")
    h, _ = _through(outer, params["blocks"], tokens, config, 0, [None] * config.layers)
    return _head(outer, h)


class Cache(NamedTuple):
    """What attention needs of the tokens so far: of each layer the keys and values, [batch, config.length, kv_heads,
    size], of which the first ``used`` positions are theirs and the others 0."""

    used: int
    layers: list[Any]


def extend(params: Any, tokens: Any, config: Config, cache: Cache | None = None) -> tuple[sx.Array, Cache]:
    """The scores of the token after ``tokens`` [batch, t], [batch, vocabulary], and a cache that holds these as well.

    Args:
        cache: of the tokens before these; None at the start of a text.
    """
    used, layers = cache or Cache(0, [()] * config.layers)
    outer = sx.name(params["outer"], "outer")
    h, layers = _through(outer, params["blocks"], tokens, config, used, layers)
    return _head(outer, h[:, -1:])[:, 0], Cache(used + tokens.shape[1], layers)


def _through(
    outer: Any, blocks: Any, tokens: Any, config: Config, start: int, past: list[Any]
) -> tuple[sx.Array, list[Any]]:
    """The norm of the stream after all blocks, and what these keep; the first token is at position ``start``."""
    stop = start + tokens.shape[1]
    x = nn.embedding(outer["tokens"], sx.name(tokens, "batch"))
    if config.form == "gpt2":
        x = x + outer["positions"][start:stop]
    x, given, kept = sx.name(x, "residual"), (None, None), []
    block = sx.name(_gpt2 if config.form == "gpt2" else _llama, "block")
    attend = _attention(config, np.arange(start, stop))
    for layer, before in zip(blocks, past):
        x, given, after = block(layer, x, given, config, attend, before)
        kept.append(after)
    return _normed(outer["norm"], x, given, config)[1], kept


def _head(outer: Any, h: sx.Array) -> sx.Array:
    return sx.einsum("btd,vd->btv", h, outer["head" if "head" in outer else "tokens"])


def _normed(norm: Any, x: sx.Array, given: Any, config: Config) -> tuple[sx.Array, sx.Array]:
    """The stream, once what the layer before has given is added to it, and its norm.

    A block leaves the addition to whoever reads the stream next, where it is one pass over memory with the norm.
    """
    y, bias = given
    centered, eps = config.form == "gpt2", config.epsilon
    if y is not None:
        x, h = nn.add_norm(y, x, **norm, added=bias, centered=centered, eps=eps)
    else:
        h = (nn.layer_norm if centered else nn.rms_norm)(x, **norm, eps=eps)
    return x, sx.name(h, "normed")


def _attention(config: Config, positions: Any) -> Callable[..., Any]:
    """``attend(q, k, v, past) -> (seen, past)`` for tokens at these positions.

    ``past`` is the layer's part of a cache: None keeps nothing, () begins one.
    """
    table = None if config.form == "gpt2" else _rotations(config, positions)

    def attend(q: sx.Array, k: sx.Array, v: sx.Array, past: Any) -> tuple[sx.Array, Any]:
        if table is not None:
            q, k = nn.rope(q, table=table), nn.rope(k, table=table)
        if past:
            k, v = (old.at[:, positions].set(new) for old, new in zip(past, (k, v)))
            return nn.attention(q, k, v, mask=positions[:, None] >= np.arange(config.length)), (k, v)
        found = nn.attention(q, k, v, causal=True)
        if past is None:
            return found, None
        room = ((0, 0), (0, config.length - len(positions)), (0, 0), (0, 0))
        return found, (sx.pad(k, room), sx.pad(v, room))

    return attend


def loss(params: Any, tokens: Any, config: Config) -> sx.Array:
    """Mean cross-entropy of the next token; ``tokens`` is [batch, length + 1]."""
    labels = sx.name(tokens[:, 1:], "batch")
    return sx.mean(nn.cross_entropy(logits(params, tokens[:, :-1], config), labels))


def _normal(scale: float) -> Any:
    return lambda key, shape, **where: scale * sx.random.normal(key, shape, **where)


# GPT-2: layer norm, learned positions, GELU, tied embeddings (Radford et al., 2019)


def _gpt2_outer(c: Config) -> Any:
    table = nn.Param((c.vocabulary, c.width), _normal(0.02))
    return {
        "tokens": table,
        **({"head": table} if c.tied is False else {}),
        "positions": nn.Param((c.length, c.width), _normal(0.02)),
        "norm": _norm(c),
    }


def _norm(c: Config) -> Any:
    return {"scale": nn.Param((c.width,), 1.0), "bias": nn.Param((c.width,))}


def _gpt2_block(c: Config) -> Any:
    inner, last = _normal(0.02), _normal(0.02 / (2 * c.layers) ** 0.5)
    return {
        "norm1": _norm(c),
        **{name: nn.Param((c.width, c.heads, c.size), inner) for name in "qkv"},
        **{f"{name}_bias": nn.Param((c.heads, c.size)) for name in "qkv"},
        "out": nn.Param((c.heads, c.size, c.width), last),
        "out_bias": nn.Param((c.width,)),
        "norm2": _norm(c),
        "up": nn.Param((c.width, c.hidden), inner),
        "up_bias": nn.Param((c.hidden,)),
        "down": nn.Param((c.hidden, c.width), last),
        "down_bias": nn.Param((c.width,)),
    }


def _gpt2(p: Any, x: sx.Array, given: Any, c: Config, attend: Any, past: Any) -> tuple[sx.Array, Any, Any]:
    x, h = _normed(p["norm1"], x, given, c)
    q, k, v = (sx.einsum("btd,dhk->bthk", h, p[name]) + p[f"{name}_bias"] for name in "qkv")
    seen, past = attend(q, k, v, past)
    y = sx.name(sx.einsum("bthk,hkd->btd", seen, p["out"]), "residual")
    x, h = _normed(p["norm2"], x, (y, p["out_bias"]), c)
    h = nn.gelu(nn.linear(h, p["up"]), bias=p["up_bias"])
    return x, (sx.name(nn.linear(h, p["down"]), "residual"), p["down_bias"]), past


# Llama 3: RMS norm, rotary positions, grouped queries, SwiGLU, no biases (Grattafiori et al., 2024)


def _llama_outer(c: Config) -> Any:
    table = nn.Param((c.vocabulary, c.width), _normal(0.02))
    head = {} if c.tied else {"head": table}
    return {"tokens": table, **head, "norm": {"scale": nn.Param((c.width,), 1.0)}}


def _llama_block(c: Config) -> Any:
    inner, last = _normal(0.02), _normal(0.02 / (2 * c.layers) ** 0.5)
    return {
        "norm1": {"scale": nn.Param((c.width,), 1.0)},
        "q": nn.Param((c.width, c.heads, c.size), inner),
        **{name: nn.Param((c.width, c.kv_heads, c.size), inner) for name in "kv"},
        "out": nn.Param((c.heads, c.size, c.width), last),
        "norm2": {"scale": nn.Param((c.width,), 1.0)},
        "gate": nn.Param((c.width, c.hidden), inner),
        "up": nn.Param((c.width, c.hidden), inner),
        "down": nn.Param((c.hidden, c.width), last),
    }


def _llama(p: Any, x: sx.Array, given: Any, c: Config, attend: Any, past: Any) -> tuple[sx.Array, Any, Any]:
    x, h = _normed(p["norm1"], x, given, c)
    q, k, v = (sx.einsum("btd,dhk->bthk", h, p[name]) for name in "qkv")
    seen, past = attend(q, k, v, past)
    y = sx.name(sx.einsum("bthk,hkd->btd", seen, p["out"]), "residual")
    x, h = _normed(p["norm2"], x, (y, None), c)
    return x, (sx.name(nn.swiglu(h @ p["gate"], h @ p["up"]) @ p["down"], "residual"), None), past


def _rotations(c: Config, positions: Any) -> tuple[Any, Any]:
    """The cosines and sines of rotary positions, [t, size / 2]."""
    speeds = c.base ** (-np.arange(0, c.size, 2) / c.size)  # radians a position
    if c.stretch is not None:
        factor, low, high, length = c.stretch
        kept = np.clip((length * speeds / (2 * np.pi) - low) / (high - low), 0, 1)
        speeds = speeds * (kept + (1 - kept) / factor)
    angles = sx.asarray(positions[:, None] * speeds)
    return sx.cos(angles), sx.sin(angles)
