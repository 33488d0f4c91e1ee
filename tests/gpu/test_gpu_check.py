"""scripts/gpu_check without a GPU: every part says in a line what is missing, others run, and the table comes last."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from there import REAL

ROOT = Path(__file__).parents[2]
PARTS = ("environment", "compile", "device and graphs", "bench host", "bench gpt")


@pytest.mark.skipif(REAL, reason="it runs the whole check")
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="it writes into the clone's build folder")
def test_without_a_gpu(tmp_path: Path) -> None:
    report = tmp_path / "check.json"
    command = [sys.executable, ROOT / "scripts" / "gpu_check", "--no-build", "--minutes", "2", "--json", report]
    done = subprocess.run(
        [*command, "--only", ",".join(PARTS)], capture_output=True, text=True, timeout=200, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 1 and not done.stderr, done.stderr
    lines = done.stdout.splitlines()
    assert any(line.strip().startswith("missing: ") for line in lines)
    start = lines.index(next(line for line in lines if line.split() == ["part", "result", "s", "detail"]))
    table = lines[start + 1 :]
    assert sorted(line[:28].strip() for line in table if line[:28].strip()) == sorted(PARTS)
    said = {line[:28].strip(): line[28:].split(None, 2) for line in table}
    for name in PARTS:
        result, _, detail = said[name]
        assert result == "failed" and ("upy" in detail or "GPU" in detail or "missing" in detail), (name, said[name])
    written = json.loads(report.read_text())
    assert {part["name"] for part in written["parts"]} == set(PARTS) and written["benchmarks"] == []
