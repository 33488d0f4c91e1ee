"""The training program of the examples: its text, its command line, and that it learns."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

PROGRAM = Path(__file__).parents[2] / "examples" / "gpt" / "train.py"


def run(*words: str, folder: Path) -> str:
    command = [sys.executable, str(PROGRAM), *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_estimate(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra [examples] is not installed")
    shown = run("--mesh", "data=8,model=2", "--plan", "megatron+zero3", "--estimate", folder=tmp_path)
    assert "bytes sent" in shown and "all_gather" in shown


@pytest.mark.slow
def test_it_learns(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra [examples] is not installed")
    small = "--steps 30 --layers 1 --width 32 --heads 4 --length 32 --batch 8 --sample 4 --validate 15 --plot loss.png"
    shown = run(*small.split(), folder=tmp_path)
    loss = float(shown.partition("loss ")[2].partition(",")[0])
    assert loss < 0.9 * np.log(256)  # which is knowing nothing
    assert "def read(self, size=-1):" in shown
    assert (tmp_path / "loss.png").stat().st_size > 1000


def test_text() -> None:
    """Whole files go to one side or the other, about 9 to 1, and a batch is the same wherever it is drawn."""
    pytest.importorskip("matplotlib", reason="the extra [examples] is not installed")
    pytest.importorskip("tqdm", reason="the extra [examples] is not installed")
    sys.path.insert(0, str(PROGRAM.parent))
    import train

    text: Any = train.standard_library(most=10**9)
    assert 0.02 < len(text.held_out) / len(text.train) < 0.3
    first = train.batch(text.train, 3, 8, (0, 1))
    assert first.shape == (3, 9)
    np.testing.assert_array_equal(first, train.batch(text.train, 3, 8, (0, 1)))
