"""Continue a text, with weights in Hugging Face's layout (the extra [hf] brings the tokenizer).

    python examples/gpt/generate.py FOLDER "The answer is"
    mpiexec -n 4 python examples/gpt/generate.py FOLDER "The answer is" --mesh model=4 --plan megatron

FOLDER holds config.json and safetensors files, of GPT-2 or Llama.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from from_hf import load
from model import Config, extend
from plans import plan

import spmdx as sx
from spmdx import plans


def generate(
    params: Any, config: Config, prompt: Any, count: int, key: sx.random.Key, temperature: float = 1.0
) -> sx.Array:
    """``count`` tokens after a prompt [batch, t], drawn one by one: integers [batch, count].

    Args:
        key: token i draws from ``fold_in(key, i)``: the same wherever it is drawn.
        temperature: scores are divided by it before a draw; 0 takes the greatest.

    The keys and values of earlier tokens are kept, so that each token costs one position's work. A text that is longer
    than ``config.length`` is read again from its last half whenever the model's sight is full.
    """
    text, cache = [sx.asarray(prompt)], None
    new = text[0][:, -config.length :]
    for i in range(count):
        if cache is not None and cache.used == config.length:
            new, cache = sx.concat(text, axis=1)[:, -(config.length // 2 + 1) :], None
        scores, cache = extend(params, new, config, cache)
        new = _draw(sx.random.fold_in(key, i), scores, temperature)[:, None]
        text.append(new)
    return sx.concat(text, axis=1)[:, text[0].shape[1] :]


def _draw(key: sx.random.Key, scores: sx.Array, temperature: float) -> sx.Array:
    if temperature == 0:
        return sx.argmax(scores, axis=-1)
    return sx.random.categorical(key, scores / temperature)


def main() -> None:
    """Read the weights, continue the text, print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("text")
    parser.add_argument("--mesh", default="model=-1", help="axes and sizes, as data=2,model=2")
    parser.add_argument("--plan", default="megatron", help=f"of {', '.join(plans.WORDS)}, joined by +")
    parser.add_argument("--count", type=int, default=100, help="tokens to generate")
    parser.add_argument("--length", type=int, default=1024, help="the longest sequence that the model sees")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    from transformers import AutoTokenizer  # what is heavy, and needed here alone

    tokenizer = AutoTokenizer.from_pretrained(options.folder)
    sizes = {name: int(size) for name, size in (entry.split("=") for entry in options.mesh.split(","))}
    mesh = sx.make_mesh(sizes)
    with plan(options.plan).on(mesh):
        config, params = load(options.folder, length=options.length)
        prompt = np.array([tokenizer.encode(options.text)])
        made = generate(params, config, prompt, options.count, sx.random.key(options.seed), options.temperature)
        tokens = made.numpy()[0].tolist()
    if mesh.rank == 0:
        print(options.text + tokenizer.decode(tokens))


if __name__ == "__main__":
    main()
