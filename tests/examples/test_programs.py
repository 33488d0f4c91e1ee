"""The training programs of the vision and the diffusion transformer: command line, pictures, and that they learn."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tiny import EXAMPLES

SMALL = "--layers 1 --width 16 --batch 8"


@pytest.fixture(autouse=True)
def _extras() -> None:
    for name in ("matplotlib", "sklearn", "tqdm"):
        pytest.importorskip(name, reason="the extra [examples] is not installed")


def run(example: str, words: str, folder: Path) -> str:
    command = [sys.executable, str(EXAMPLES / example / "train.py"), *words.split()]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def number(shown: str, word: str) -> float:
    return float(shown.rpartition(f"{word} ")[2].split(",")[0])


@pytest.mark.parametrize("example", ["vit", pytest.param("dit", marks=pytest.mark.slow)])
def test_estimate(example: str, tmp_path: Path) -> None:
    shown = run(example, f"{SMALL} --mesh data=8,model=2 --plan megatron+sp+zero3 --estimate", tmp_path)
    assert "bytes sent" in shown
    assert "reduce_scatter" in shown


def test_it_draws(tmp_path: Path) -> None:
    shown = run("dit", f"{SMALL} --steps 2 --rows 1 --plot loss.png --drawn digits.png", tmp_path)
    assert 0.5 < number(shown, "loss") < 2
    assert (tmp_path / "loss.png").stat().st_size > 1000
    assert (tmp_path / "digits.png").stat().st_size > 300


@pytest.mark.slow
def test_it_reads(tmp_path: Path) -> None:
    shown = run("vit", "--plot loss.png", tmp_path)
    assert number(shown, "accuracy") >= 0.95
    assert (tmp_path / "loss.png").stat().st_size > 1000


@pytest.mark.slow
def test_it_finds_noise(tmp_path: Path) -> None:
    shown = run("dit", "--steps 300 --plot loss.png --drawn digits.png", tmp_path)
    assert number(shown, "loss") < 0.35  # knowing nothing gives 1
