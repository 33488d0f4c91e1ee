"""A training run that is interrupted and resumed, on the same mesh and on another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_gpt import TINY, plans

import spmdx as sx
from spmdx import optim
from spmdx.testing import spmd

pytest.importorskip("matplotlib", reason="the extra [examples] is not installed")
pytest.importorskip("tqdm", reason="the extra [examples] is not installed")

import train  # isort: skip  # beside model.py, which tiny_gpt makes importable

CONFIG = TINY._replace(vocabulary=256)
TEXT = train.Text(*(np.random.default_rng(i).integers(97, 123, 500).astype(np.uint8) for i in range(2)))
STEPS = 6


class Interrupted(Exception):
    """As if the machine had stopped."""


def run(folder: Path, words: str, axes: dict[str, int], *more: str) -> list[Any]:
    """Train on thread ranks; of each the losses, also those held out, and the bits of the parameters."""
    line = f"--steps {STEPS} --batch 4 --validate 2 --checkpoint {folder} --save-every 2"
    options = train.arguments([*line.split(), *more])

    def on_rank() -> Any:
        with plans.plan(words).on(sx.make_mesh(axes)):
            made = train.train(CONFIG, TEXT, options, hide=True)
            held_out = [tuple(point) for point in made.validation]
            return (made.losses, held_out), [x.numpy().tobytes() for x in sx.tree.leaves(made.params)]

    return spmd(int(np.prod(list(axes.values()))))(on_rank)()


def interrupt(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    batch = train.batch

    def until(text: Any, size: int, length: int, seed: tuple[int, ...]) -> Any:
        if seed == (0, step):
            raise Interrupted
        return batch(text, size, length, seed)

    monkeypatch.setattr(train, "batch", until)


def test_a_resumed_run_is_the_run_that_never_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words, axes = "megatron+zero3", {"data": 2, "model": 1}
    whole = run(tmp_path / "whole", words, axes)
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        interrupt(patch, 3)
        run(tmp_path / "cut", words, axes)
    kept = (tmp_path / "cut" / "latest.safetensors").read_bytes()  # after 2 steps; the third is lost
    for (losses, params), (all_losses, all_params) in zip(run(tmp_path / "cut", words, axes, "--resume"), whole):
        assert losses == all_losses  # exact, and with those before
        assert params == all_params
    for other, sizes in (("zero1", {"data": 3}), ("megatron", {"model": 2}), ("dp", {"data": 1})):
        (tmp_path / "cut" / "latest.safetensors").write_bytes(kept)
        (losses, held_out), _ = run(tmp_path / "cut", other, sizes, "--resume")[0]
        np.testing.assert_allclose(losses, whole[0][0][0], rtol=1e-5, atol=0)
        np.testing.assert_allclose(held_out, whole[0][0][1], rtol=1e-5, atol=0)
        assert [i for i, _ in held_out] == [2, 4, 6]


def test_half_width_compute_and_whole_masters(tmp_path: Path) -> None:
    """The losses are those of float32, as far as bfloat16 goes; what is kept and what the optimizer sees is float32."""
    (whole, _), (half, _) = (run(tmp_path, "zero3", {"data": 2}, *more)[0] for more in ((), ("--compute", "bfloat16")))
    np.testing.assert_allclose(half[0], whole[0], rtol=0.01, atol=0)
    assert half[0] != whole[0]
    saved = sx.checkpoint.views(tmp_path / "latest.safetensors")
    assert {x.dtype for x in saved.values() if x.ndim > 1} == {np.dtype(np.float32)}
    moved = []
    for more in ([], ["--compute", "bfloat16"]):
        gradient = sx.value_and_grad(train.objective(CONFIG, train.arguments(more)))
        shapes, tokens = train.parameters(CONFIG), np.zeros((2, CONFIG.length + 1), np.int64)
        moved.append(plans.plan("zero3").estimate(gradient, shapes, tokens, mesh={"data": 2}).bytes)
    assert moved[1] == moved[0] / 2


def test_what_cannot_be_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(sx.errors.CheckpointError, match="there is no file"):
        run(tmp_path, "dp", {"data": 1}, "--resume")
    run(tmp_path, "dp", {"data": 1})
    with pytest.raises(SystemExit, match=r"has taken 6 steps.\n  Write --steps 12"):
        train.start(train.arguments(["--steps", "6", "--checkpoint", str(tmp_path), "--resume"]), begin)
    with pytest.raises(SystemExit):
        train.arguments(["--resume"])
    assert "--checkpoint FOLDER --resume" in capsys.readouterr().err


def begin() -> Any:
    with plans.plan("dp").on(sx.make_mesh({"data": 1}, device="sim")):
        optimizer = optim.chain(optim.clip_by_global_norm(1.0), optim.adamw(1e-3))
        params = train.nn.init(train.parameters(CONFIG), sx.random.key(0), dtype=np.float32)
        return params, optimizer.init(params)
