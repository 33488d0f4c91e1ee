"""Train a byte-level language model on the source text of Python's standard library, which every Python comes with.

    python examples/gpt/train.py
    mpiexec -n 4 python examples/gpt/train.py --mesh data=2,model=2 --plan megatron+zero3
    mpiexec -n 4 python examples/gpt/train.py --mesh data=2,model=2 --plan 2d --compute bfloat16
    python examples/gpt/train.py --mesh data=64,model=8 --plan megatron+sp+zero3 --estimate
    python examples/gpt/train.py --checkpoint FOLDER --save-every 50 [--resume]

The loop is that of one device; the plan says where the pieces lie, and the losses stay those of one rank. A tenth of
the files is held out for validation. Leaves a picture of the losses and prints a sample. A run may be resumed on
another mesh and by another plan: the checkpoint has global values, and a batch depends on the seed and the step alone.
With --compute bfloat16 the model computes, and ZeRO-3 gathers, in half of float32's bytes; parameters, their gradients
and the optimizer's state stay in --dtype.
"""

from __future__ import annotations

import argparse
import json
import sys
import sysconfig
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from generate import generate
from model import Config, loss, parameters
from plans import plan
from tqdm import tqdm

import spmdx as sx
from spmdx import checkpoint, nn

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import adamw, make_step, parser, picture

PROMPT = b"def read(self, size=-1):\n    "


class Text(NamedTuple):
    """Bytes to train on and bytes held out; whole files go to one or the other."""

    train: Any
    held_out: Any


def standard_library(most: int = 20_000_000) -> Text:
    """The source text of the standard library, 90 to 10 by file, in an order that is the same everywhere."""
    root = Path(sysconfig.get_path("stdlib"))
    files = [p.relative_to(root) for p in root.rglob("*.py") if "site-packages" not in p.parts]
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    for path in sorted(files, key=lambda p: zlib.crc32(p.as_posix().encode())):
        parts[zlib.crc32(path.as_posix().encode()[::-1]) % 10 == 0].append((root / path).read_bytes())
    return Text(*(np.frombuffer(b"\0".join(part)[:most], np.uint8) for part in parts))


def batch(text: Any, size: int, length: int, seed: tuple[int, ...]) -> Any:
    """Pieces of the text, the same on every rank: integers [size, length + 1]."""
    starts = np.random.default_rng(seed).integers(0, len(text) - length - 1, size)
    return text[starts[:, None] + np.arange(length + 1)].astype(np.int64)


def sample(params: Any, config: Config, count: int, seed: int = 0) -> str:
    """The prompt and ``count`` bytes more, drawn one by one."""
    prompt = np.frombuffer(PROMPT, np.uint8)[None].astype(np.int64)
    made = generate(params, config, prompt, count, sx.random.key(seed), temperature=0.8)
    return (PROMPT + bytes(made.numpy()[0].tolist())).decode(errors="replace")


class Progress(NamedTuple):
    """All that a run is after some steps, and what a checkpoint holds."""

    params: Any
    state: Any
    steps: int
    history: str  # the losses so far, and those held out: a text of two lists


def start(options: argparse.Namespace, begin: Callable[[], tuple[Any, Any]]) -> Progress:
    """The beginning, or what the checkpoint holds, of which each rank reads its own blocks."""
    if not options.resume:
        return Progress(*begin(), 0, "[[], []]")
    found: Progress = checkpoint.load(file_of(options), Progress(*sx.eval_shape(begin), 0, ""))
    if found.steps >= options.steps:
        raise SystemExit(f"The checkpoint has taken {found.steps} steps.\n  Write --steps {2 * found.steps}")
    return found


def file_of(options: argparse.Namespace) -> Path:
    """The newest checkpoint of a run."""
    return Path(options.checkpoint) / "latest.safetensors"


def objective(config: Config, options: argparse.Namespace) -> Callable[[Any, Any], sx.Array]:
    """The loss of parameters and tokens, computed in the dtype that is asked for."""

    def of(params: Any, tokens: Any) -> sx.Array:
        return loss(nn.cast(params, np.dtype(options.compute or options.dtype)), tokens, config)

    return of


class Run(NamedTuple):
    """What a run leaves behind, with what it was resumed from."""

    losses: list[float]
    validation: list[tuple[int, float]]
    params: Any


def train(config: Config, text: Text, options: argparse.Namespace, hide: bool | None) -> Run:
    """Train under whatever plan is running."""
    optimizer = adamw(options, weight_decay=0.1)

    def begin() -> tuple[Any, Any]:
        params = nn.init(parameters(config), sx.random.key(options.seed), dtype=np.dtype(options.dtype))
        return params, optimizer.init(params)

    params, state, first, history = start(options, begin)
    of = objective(config, options)
    step = make_step(of, optimizer)
    losses, validation = json.loads(history)
    label = f"{nn.count(params):,} parameters"
    progress = tqdm(range(first, options.steps), label, options.steps, initial=first, disable=hide)
    for i in progress:
        begun = time.perf_counter()
        tokens = sx.asarray(batch(text.train, options.batch, config.length, (options.seed, i)))
        params, state, value = step(params, state, tokens)
        losses.append(float(value))
        rate, last = options.batch * config.length / (time.perf_counter() - begun), i == options.steps - 1
        if last or i % options.validate == options.validate - 1:
            held_out = [batch(text.held_out, options.batch, config.length, (1, k)) for k in range(4)]
            found = [float(of(params, sx.asarray(tokens))) for tokens in held_out]
            validation.append((i + 1, sum(found) / len(found)))
        if options.checkpoint and (last or i % options.save_every == options.save_every - 1):
            history = json.dumps([losses, validation])
            checkpoint.save(file_of(options), Progress(params, state, i + 1, history))
        held = f"{validation[-1][1]:.3f}" if validation else "-"
        progress.set_postfix(loss=f"{losses[-1]:.3f}", held_out=held, tokens_per_second=f"{rate:,.0f}")
    return Run(losses, validation, params)


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """What the command line says, or the words given."""
    sizes = {"layers": 4, "width": 128, "heads": 8, "length": 128, "batch": 16}
    counts = {"validate": 50, "sample": 200}  # steps between validations; bytes to generate at the end
    command = parser(__doc__, steps=200, rate=3e-3, plot="gpt-loss.png", **sizes, **counts)
    command.add_argument("--form", choices=["gpt2", "llama"], default="gpt2")
    command.add_argument("--compute", help="the dtype that the model computes in, as bfloat16; --dtype if left out")
    command.add_argument("--checkpoint", help="the folder for checkpoints, on a file system that all ranks share")
    command.add_argument("--save-every", type=int, default=100, help="steps between checkpoints")
    command.add_argument("--resume", action="store_true", help="go on from the checkpoint; the other options as before")
    options = command.parse_args(words)
    if options.resume and not options.checkpoint:
        command.error("--resume needs the folder with the checkpoint: --checkpoint FOLDER --resume")
    if options.checkpoint:
        Path(options.checkpoint).mkdir(parents=True, exist_ok=True)
    return options


def main() -> None:
    """Train, validate, sample, draw."""
    options = arguments()
    width, heads = options.width, options.heads
    config = Config(options.form, 256, options.length, width, options.layers, heads, heads, 4 * width)
    chosen = plan(options.plan)
    if options.estimate:
        tokens = np.zeros((options.batch, config.length + 1), np.int64)
        gradient = sx.value_and_grad(objective(config, options))
        print(chosen.estimate(gradient, parameters(config), tokens, mesh=options.mesh, dtype=options.dtype))
        return
    mesh = sx.make_mesh(options.mesh)
    with chosen.on(mesh) as running:
        run = train(config, standard_library(), options, hide=None if mesh.rank == 0 else True)
        text = sample(run.params, config, options.sample)
    if mesh.rank == 0:
        print(chosen.check(parameters(config), running.used))
        print(f"loss {run.losses[-1]:.4f}, held out {run.validation[-1][1]:.4f} nats a byte\n\n{text}")
        curves = {"training": list(enumerate(run.losses, 1)), "held out": run.validation}
        picture(options.plot, f"{options.form} on {mesh.size} ranks, {options.plan}", "loss, nats a byte", curves)


if __name__ == "__main__":
    main()
