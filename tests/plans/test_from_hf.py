"""Weights in Hugging Face's layout: logits close to a plain NumPy forward pass, and to transformers' own models."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_gpt import model, plans

import spmdx as sx

import from_hf  # isort: skip  # beside model.py, which tiny_gpt makes importable
import generate  # isort: skip

GPT2 = {
    "model_type": "gpt2",
    "vocab_size": 11,
    "n_positions": 10,
    "n_embd": 8,
    "n_layer": 2,
    "n_head": 4,
    "layer_norm_epsilon": 1e-3,
}
TURNS = {
    "rope_type": "llama3",
    "rope_theta": 50.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LLAMA = {
    "model_type": "llama",
    "vocab_size": 11,
    "max_position_embeddings": 64,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "intermediate_size": 20,
    "rms_norm_eps": 1e-3,
    "rope_parameters": TURNS,
}
TOKENS = np.random.default_rng(0).integers(0, 11, (2, 10))


def gpt2_shapes(c: Any) -> dict[str, tuple[int, ...]]:
    w, found = (
        c["n_embd"],
        {"wte.weight": (c["vocab_size"], c["n_embd"]), "wpe.weight": (c["n_positions"], c["n_embd"])},
    )
    sizes = {"attn.c_attn": (w, 3 * w), "attn.c_proj": (w, w), "mlp.c_fc": (w, 4 * w), "mlp.c_proj": (4 * w, w)}
    for i in range(c["n_layer"]):
        for name, (rows, columns) in sizes.items():
            found |= {f"h.{i}.{name}.weight": (rows, columns), f"h.{i}.{name}.bias": (columns,)}
        found |= {f"h.{i}.ln_{n}.{part}": (w,) for n in (1, 2) for part in ("weight", "bias")}
    return found | {"ln_f.weight": (w,), "ln_f.bias": (w,)}


def llama_shapes(c: Any) -> dict[str, tuple[int, ...]]:
    w, hidden, size = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    few, many = size * c["num_key_value_heads"], size * c["num_attention_heads"]
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (c["vocab_size"], w), "model.norm.weight": (w,)}
    sizes = {"q": (many, w), "k": (few, w), "v": (few, w), "o": (w, many)}
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}."
        found |= {f"{at}self_attn.{part}_proj.weight": shape for part, shape in sizes.items()}
        found |= {f"{at}mlp.{part}_proj.weight": (hidden, w) for part in ("gate", "up")}
        found |= {f"{at}mlp.down_proj.weight": (w, hidden)}
        found |= {f"{at}{part}_layernorm.weight": (w,) for part in ("input", "post_attention")}
    return found if c.get("tie_word_embeddings") else found | {"lm_head.weight": (c["vocab_size"], w)}


def written(folder: Path, config: dict[str, Any], start: str = "", parts: int = 1) -> dict[str, Any]:
    """A model with random weights in a folder, in one file or several; the weights."""
    draw = np.random.default_rng(1)
    shapes = gpt2_shapes(config) if config["model_type"] == "gpt2" else llama_shapes(config)
    weights = {name: 0.5 * draw.normal(size=shape) + (len(shape) == 1) for name, shape in shapes.items()}
    (folder / "config.json").write_text(json.dumps(config))
    names = [f"model-{i + 1}-of-{parts}.safetensors" for i in range(parts)] if parts > 1 else ["model.safetensors"]
    for i, name in enumerate(names):
        sx.checkpoint.save(folder / name, {start + k: weights[k] for k in list(weights)[i::parts]})
    if parts > 1:
        index = {start + k: names[i % parts] for i, k in enumerate(weights)}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return weights


# The same models in NumPy


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attention(q: Any, k: Any, v: Any) -> Any:
    """Causal, of [batch, heads, t, size]."""
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    return softmax(np.where(np.tri(q.shape[-2], dtype=bool), scores, -np.inf)) @ v


def by_head(x: Any, heads: int) -> Any:
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def gpt2_logits(w: dict[str, Any], c: Any, tokens: Any) -> Any:
    def norm(x: Any, at: str) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + c["layer_norm_epsilon"])
        return scaled * w[f"{at}.weight"] + w[f"{at}.bias"]

    def linear(x: Any, at: str) -> Any:
        return x @ w[f"{at}.weight"] + w[f"{at}.bias"]

    x = w["wte.weight"][tokens] + w["wpe.weight"][: tokens.shape[1]]
    for i in range(c["n_layer"]):
        at, heads = f"h.{i}.", c["n_head"]
        q, k, v = np.split(linear(norm(x, at + "ln_1"), at + "attn.c_attn"), 3, -1)
        seen = attention(by_head(q, heads), by_head(k, heads), by_head(v, heads))
        x = x + linear(seen.swapaxes(1, 2).reshape(x.shape), at + "attn.c_proj")
        h = linear(norm(x, at + "ln_2"), at + "mlp.c_fc")
        h = 0.5 * h * (1 + np.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)))
        x = x + linear(h, at + "mlp.c_proj")
    return norm(x, "ln_f") @ w["wte.weight"].T


def llama_logits(w: dict[str, Any], c: Any, tokens: Any) -> Any:
    heads, few, size = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
    turns = c["rope_parameters"]
    speeds = []
    for i in range(size // 2):  # as the published configuration defines it
        speed = turns["rope_theta"] ** (-2 * i / size)
        within = turns["original_max_position_embeddings"] * speed / (2 * math.pi)
        low, high = turns["low_freq_factor"], turns["high_freq_factor"]
        smooth = 0.0 if within < low else 1.0 if within > high else (within - low) / (high - low)
        speeds.append((1 - smooth) * speed / turns["factor"] + smooth * speed)
    assert len({round(s / turns["rope_theta"] ** (-2 * i / size), 6) for i, s in enumerate(speeds)}) == 3
    angles = np.arange(tokens.shape[1])[:, None] * np.array(speeds)

    def turned(x: Any) -> Any:
        a, b = np.split(x, 2, -1)
        return np.concatenate([a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)], -1)

    def norm(x: Any, at: str) -> Any:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + c["rms_norm_eps"]) * w[f"model.{at}.weight"]

    x = w["model.embed_tokens.weight"][tokens]
    for i in range(c["num_hidden_layers"]):
        at = f"layers.{i}"
        h = norm(x, f"{at}.input_layernorm")
        q, k, v = (h @ w[f"model.{at}.self_attn.{part}_proj.weight"].T for part in "qkv")
        k, v = (np.repeat(by_head(part, few), heads // few, 1) for part in (k, v))
        seen = attention(turned(by_head(q, heads)), turned(k), v).swapaxes(1, 2).reshape(*tokens.shape, heads * size)
        x = x + seen @ w[f"model.{at}.self_attn.o_proj.weight"].T
        h = norm(x, f"{at}.post_attention_layernorm")
        gate, up, down = (w[f"model.{at}.mlp.{part}_proj.weight"].T for part in ("gate", "up", "down"))
        x = x + ((h @ gate) / (1 + np.exp(-(h @ gate))) * (h @ up)) @ down
    return norm(x, "norm") @ w.get("lm_head.weight", w["model.embed_tokens.weight"]).T


@pytest.mark.parametrize("words", ["", "megatron+zero3"])
@pytest.mark.parametrize(
    ("config", "start", "parts"),
    [(GPT2, "", 1), (GPT2, "transformer.", 2), (LLAMA, "", 1), ({**LLAMA, "tie_word_embeddings": True}, "", 3)],
    ids=["gpt2", "gpt2 in parts", "llama", "llama, tied, in parts"],
)
def test_numpy(config: dict[str, Any], start: str, parts: int, words: str, tmp_path: Path) -> None:
    """Close: 1e-12 of the largest, in float64."""
    weights = written(tmp_path, config, start, parts)
    expected = (gpt2_logits if config["model_type"] == "gpt2" else llama_logits)(weights, config, TOKENS)
    mesh = sx.make_mesh({"data": 2, "model": 2} if words else {"all": 1}, device="sim")
    with (plans.plan(words) if words else sx.Plan()).on(mesh):
        found, params = from_hf.load(tmp_path, dtype=np.float64)
        logits = model.logits(params, sx.asarray(TOKENS), found).numpy()
        np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-12 * abs(expected).max())
        if words:
            assert params["blocks"][0]["q"].spec.dim_of("model") == 1
        shorter, params = from_hf.load(tmp_path, length=5)
        tokens = generate.generate(params, shorter, TOKENS[:, :4], 2, sx.random.key(0), temperature=0).numpy()
    np.testing.assert_array_equal(tokens[:, 0], expected[:, 3].argmax(-1))
    assert shorter.length == 5
    assert sx.tree.leaves(params)[0].dtype == np.float32


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model_type": "bert"}, r"model_type='bert'; model.py has gpt2 and llama"),
        ({"attention_bias": True}, r"attention_bias=True; model.py has False alone"),
        ({"rope_parameters": {"rope_type": "yarn"}}, r"rope_type='yarn'; model.py has 'default' and 'llama3'"),
        (
            {"intermediate_size": 24},
            r"down_proj.weight has shape \[8, 20\]; config.json makes it blocks.0.down, \[24, 8\]",
        ),
        ({"num_hidden_layers": 3}, r"have no layers.2.\w+.*, which is blocks.2.\w+.* of a model of form 'llama'"),
    ],
    ids=str,
)
def test_other_models(change: dict[str, Any], says: str, tmp_path: Path) -> None:
    written(tmp_path, LLAMA)
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, **change}))
    with pytest.raises(ValueError, match=says):
        from_hf.load(tmp_path)


def test_older_configs(tmp_path: Path) -> None:
    """Before version 5 of transformers, rotations stood in two places."""

    def read(config: dict[str, Any]) -> Any:
        (tmp_path / "config.json").write_text(json.dumps(config))
        return from_hf.read_config(tmp_path)

    plain = {k: v for k, v in LLAMA.items() if k != "rope_parameters"}
    turns = {k: v for k, v in TURNS.items() if k != "rope_theta"}
    assert read({**plain, "rope_theta": 50.0, "rope_scaling": turns}) == read(LLAMA)
    assert read({**plain, "rope_theta": 50.0, "rope_scaling": None}) == read(LLAMA)._replace(stretch=None)
    assert read(plain).base == 10000.0


@pytest.mark.parametrize("form", ["gpt2", "llama", "llama, tied"])
def test_transformers(form: str, tmp_path: Path) -> None:
    """Close: 1e-4, in float32; and the same tokens, greedily."""
    torch = pytest.importorskip("torch", reason="the extra [hf] is not installed")
    hf = pytest.importorskip("transformers", reason="the extra [hf] is not installed")
    torch.manual_seed(0)
    if form == "gpt2":
        theirs = hf.GPT2LMHeadModel(hf.GPT2Config(**GPT2, initializer_range=0.2, bos_token_id=0, eos_token_id=0))
    else:
        given = {**LLAMA, "tie_word_embeddings": "tied" in form, "pad_token_id": 0}
        theirs = hf.LlamaForCausalLM(hf.LlamaConfig(**given, initializer_range=0.2))
    for weight in theirs.parameters():
        if weight.ndim == 1:
            torch.nn.init.normal_(weight, 0.5, 0.5)
    theirs.eval().save_pretrained(tmp_path)
    with torch.no_grad():
        expected = theirs(torch.tensor(TOKENS)).logits.numpy()
        tokens = theirs.generate(torch.tensor(TOKENS[:, :4]), max_new_tokens=6, do_sample=False, eos_token_id=None)
    for words, axes in (("", {"all": 1}), ("megatron", {"model": 2}), ("zero3", {"data": 3})):
        with (plans.plan(words) if words else sx.Plan()).on(sx.make_mesh(axes, device="sim")):
            config, params = from_hf.load(tmp_path)
            logits = model.logits(params, sx.asarray(TOKENS), config).numpy()
            np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4)
            made = generate.generate(params, config, TOKENS[:, :4], 6, sx.random.key(0), temperature=0).numpy()
            np.testing.assert_array_equal(made, tokens.numpy()[:, 4:])
