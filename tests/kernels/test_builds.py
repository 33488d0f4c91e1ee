"""Exact: the kernels give the same bits from every instruction set that a compiler here makes and a processor runs.

What this processor does not have is emulated where an emulator is installed (aarch64: g++-aarch64-linux-gnu and
qemu-user); else it is compiled only.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FLAGS = ["-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-Wall", "-Wextra", "-Werror", "-static"]
AVX2 = ["-mavx2", "-mfma", "-mbmi2"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512cd", "-mavx512dq", "-mavx512vl"]
X86 = platform.machine() in ("x86_64", "AMD64")
NATIVE = AVX2 if X86 else []
BUILDS = {
    "avx512": ("g++", AVX512, []),
    "aarch64": ("aarch64-linux-gnu-g++", [], ["qemu-aarch64"]),
}


def has(feature: str) -> bool:
    cpu = Path("/proc/cpuinfo")
    return cpu.exists() and feature in cpu.read_text().split()


def printed(compiler: str, flags: list[str], emulator: list[str], place: Path) -> str | None:
    """What the kernels give, by their checksums; None where nothing here runs it."""
    program = place / "values"
    source = ROOT / "tests" / "kernels" / "print_values.cpp"
    include = [f"-I{ROOT}", f"-I{ROOT / 'cuda'}"]
    subprocess.run([compiler, *FLAGS, *flags, *include, source, "-o", program], check=True, timeout=600)
    if (emulator and not shutil.which(emulator[0])) or (flags == AVX512 and not has("avx512vl")):
        return None
    return subprocess.run([*emulator, program], check=True, capture_output=True, text=True, timeout=300).stdout


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> str:
    if not shutil.which("g++") or (X86 and not has("avx2")):
        pytest.skip("no g++ here, or no AVX2 to compare with")
    found = printed("g++", NATIVE, [], tmp_path_factory.mktemp("native"))
    assert found and len(found.splitlines()) > 100
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILDS)
def test_the_same_bits(name: str, native: str, tmp_path: Path) -> None:
    compiler, flags, emulator = BUILDS[name]
    if not shutil.which(compiler) or (name == "avx512" and not X86):
        pytest.skip(f"no {compiler} for {name} here")
    found = printed(compiler, flags, emulator, tmp_path)
    assert found is None or found == native
