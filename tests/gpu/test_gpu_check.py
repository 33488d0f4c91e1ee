"""scripts/gpu_check without a GPU: every part says in a line what is missing, others run, and the table comes last."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

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


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script as a module, which writes into a folder of its own."""
    spec = spec_from_loader("gpu_check", SourceFileLoader("gpu_check", str(ROOT / "scripts" / "gpu_check")))
    assert spec is not None and spec.loader is not None
    found: Any = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu_check", found)
    spec.loader.exec_module(found)
    found.PLACE = tmp_path
    return found


def test_parts_take_what_was_built(script: Any) -> None:
    """Not the sources, which have no compiled modules: these are in no part's path."""
    say = "import sys; print([p for p in map(str, sys.path) if __import__('pathlib').Path(p or '.', 'spmdx').exists()])"
    part = script.Check(1).run(script.Part("where", [sys.executable, "-S", "-c", say], 20))
    assert (part.result, part.detail) == ("ok", "[]")


def test_a_part_that_takes_too_long_ends_with_all_it_started(script: Any) -> None:
    child = "import os, time; open('child', 'w').write(str(os.getpid())); time.sleep(60)"
    start = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    part = script.Check(1).run(script.Part("hangs", [sys.executable, "-c", start], 2))
    assert part.result == "too long" and part.seconds < 20
    number = int((script.PLACE / "child").read_text())
    for _ in range(50):
        try:
            os.kill(number, 0)
            gone = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except (ProcessLookupError, FileNotFoundError):
            gone = True
        if gone:
            return
        time.sleep(0.1)
    raise AssertionError("the child goes on")
