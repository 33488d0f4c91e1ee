"""Weights of GPT-2 and Llama in Hugging Face's safetensors layout, as parameters of the models in model.py.

    config, params = from_hf.load("folder/with/config.json/and/model.safetensors")

Files are mapped, not loaded: each rank reads its share of them, and gets the blocks that the running plan gives it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from model import Config, Stretch, parameters

import spmdx as sx
from spmdx import nn

OUTER = {
    "gpt2": {"tokens": "wte", "head": "lm_head", "positions": "wpe", "norm": "ln_f"},
    "llama": {"tokens": "embed_tokens", "head": "lm_head", "norm": "norm"},
}
BLOCK = {
    "gpt2": {
        "norm1": "h.{}.ln_1",
        **dict.fromkeys("qkv", "h.{}.attn.c_attn"),
        "out": "h.{}.attn.c_proj",
        "norm2": "h.{}.ln_2",
        "up": "h.{}.mlp.c_fc",
        "down": "h.{}.mlp.c_proj",
    },
    "llama": {
        "norm1": "layers.{}.input_layernorm",
        **{part: f"layers.{{}}.self_attn.{part}_proj" for part in "qkv"},
        "out": "layers.{}.self_attn.o_proj",
        "norm2": "layers.{}.post_attention_layernorm",
        **{part: f"layers.{{}}.mlp.{part}_proj" for part in ("gate", "up", "down")},
    },
}
# What the models of model.py do; a config.json that says something else is of another model.
ONLY: dict[str, dict[str, tuple[Any, ...]]] = {
    "gpt2": {
        "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
    },
    "llama": {"hidden_act": ("silu",), "attention_bias": (False,), "mlp_bias": (False,)},
}


def load(folder: Any, dtype: Any = np.float32, length: int | None = None) -> tuple[Config, Any]:
    """The config and the parameters in a folder, placed by the running plan.

    Args:
        folder: with config.json, and model.safetensors or the files that model.safetensors.index.json names.
        dtype: of the parameters, whatever that of the file is.
        length: the longest sequence, where that is to be shorter than the config's.
    """
    config = read_config(folder, length)
    return config, nn.init(described(folder, config), sx.random.key(0), dtype=dtype)


def read_config(folder: Any, length: int | None = None) -> Config:
    """What config.json says of the model.

    Raises:
        ValueError: a model that model.py does not have.
    """
    found = json.loads((Path(folder) / "config.json").read_text())
    form = found.get("model_type")
    if form not in ONLY:
        raise ValueError(f"config.json says model_type={form!r}; model.py has {' and '.join(ONLY)}.")
    for name, known in ONLY[form].items():
        if found.get(name, known[0]) not in known:
            raise ValueError(f"config.json says {name}={found[name]!r}; model.py has {known[0]!r} alone.")
    config = _gpt2(found) if form == "gpt2" else _llama(found)
    return config if length is None else config._replace(length=min(length, config.length))


def _gpt2(found: Mapping[str, Any]) -> Config:
    width, heads = found["n_embd"], found["n_head"]
    return Config(
        "gpt2",
        vocabulary=found["vocab_size"],
        length=found["n_positions"],
        width=width,
        layers=found["n_layer"],
        heads=heads,
        kv_heads=heads,
        hidden=found.get("n_inner") or 4 * width,
        tied=found.get("tie_word_embeddings", True),
        epsilon=found.get("layer_norm_epsilon", 1e-5),
    )


def _llama(found: Mapping[str, Any]) -> Config:
    turns = found.get("rope_parameters") or found.get("rope_scaling") or {}
    return Config(
        "llama",
        vocabulary=found["vocab_size"],
        length=found["max_position_embeddings"],
        width=found["hidden_size"],
        layers=found["num_hidden_layers"],
        heads=found["num_attention_heads"],
        kv_heads=found.get("num_key_value_heads") or found["num_attention_heads"],
        hidden=found["intermediate_size"],
        head_size=found.get("head_dim"),
        tied=found.get("tie_word_embeddings", False),
        epsilon=found.get("rms_norm_eps", 1e-6),
        base=turns.get("rope_theta", found.get("rope_theta", 10000.0)),
        stretch=_stretch(turns),
    )


def _stretch(turns: Mapping[str, Any]) -> Stretch | None:
    kind = turns.get("rope_type", turns.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise ValueError(f"config.json says rope_type={kind!r}; model.py has 'default' and 'llama3'.")
    names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    return Stretch(*(turns[name] for name in names))


def described(folder: Any, config: Config) -> Any:
    """The model's parameters as descriptors, which ``nn.init`` makes by reading them from the folder's files."""
    views, wanted = _views(Path(folder)), parameters(config)
    leaves, treedef = sx.tree.flatten(wanted)
    made = [_described(views, config, path, leaf.shape) for path, leaf in zip(sx.tree.paths(wanted), leaves)]
    return sx.tree.unflatten(treedef, made)


def _views(folder: Path) -> dict[str, Any]:
    index = folder / "model.safetensors.index.json"
    names = set(json.loads(index.read_text())["weight_map"].values()) if index.exists() else ["model.safetensors"]
    return {k: v for name in sorted(names) for k, v in sx.checkpoint.views(folder / name).items()}


def _described(views: Mapping[str, Any], config: Config, path: str, shape: tuple[int, ...]) -> nn.Param:
    part, name = _name(path, config.form)
    found = next((views[start + name] for start in ("", "transformer.", "model.") if start + name in views), None)
    if found is None:
        raise ValueError(f"the files have no {name}, which is {path} of a model of form {config.form!r}.")
    view = _laid_out(found, part, config)
    if view.size != np.prod(shape):
        raise ValueError(f"{name} has shape {list(found.shape)}; config.json makes it {path}, {list(shape)}.")

    def read(key: Any, shape: tuple[int, ...], dtype: Any, **where: Any) -> sx.Array:
        return sx.checkpoint.read(view.reshape(shape), dtype, **where)

    return nn.Param(shape, read)


def _name(path: str, form: str) -> tuple[str, str]:
    """The part of the model that a parameter belongs to, and its name in the files: "q" and "h.3.attn.c_attn.bias"."""
    first, *rest = path.split(".")
    number, part = ("", rest[0]) if first == "outer" else rest[:2]
    part, table = part.removesuffix("_bias"), (OUTER if first == "outer" else BLOCK)[form]
    return part, f"{table[part].format(number)}.{'bias' if path.endswith('bias') else 'weight'}"


def _laid_out(view: Any, part: str, config: Config) -> Any:
    """A tensor of the files with its elements in the order of the parameter's."""
    if config.form == "llama":
        return view if part in ("tokens", "head") else view.T  # layers are stored as [out, in]
    if part in ("q", "k", "v"):  # side by side in the last dimension
        third = view.shape[-1] // 3
        return view[..., third * "qkv".index(part) :][..., :third]
    return view[: config.length] if part == "positions" else view
