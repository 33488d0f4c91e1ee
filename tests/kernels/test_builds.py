"""Exact: the kernels give the same bits from every instruction set that a compiler here makes and a processor runs.

What this processor does not have is compiled, and emulated where an emulator is installed (aarch64:
g++-aarch64-linux-gnu and qemu-user).
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from spmdx.runtime import kernels

ROOT = Path(__file__).parents[2]
FLAGS = ["-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-Wall", "-Wextra", "-Werror"]
AVX2 = ["-mavx2", "-mfma", "-mbmi2"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512cd", "-mavx512dq", "-mavx512vl"]
X86 = {"baseline": [], "avx2": AVX2, "avx512": AVX512}
HERE = X86 if platform.machine() in ("x86_64", "AMD64") else {"baseline": []}


def printed(compiler: str, builds: dict[str, list[str]], emulator: list[str], place: Path) -> dict[str, list[str]]:
    """Checksums of what the kernels give, from every one of these builds that the processor runs."""
    have = [f"-DSPMDX_HAVE_{name.upper()}=1" for name in builds if name != "baseline"]
    sources = {ROOT / "bindings" / f"kernels_{name}.cpp": flags for name, flags in builds.items()}
    sources[ROOT / "tests" / "kernels" / "print_values.cpp"] = []
    include = [f"-I{ROOT}", f"-I{ROOT / 'cuda'}"]
    compilers = [
        subprocess.Popen([compiler, *FLAGS, *flags, *have, *include, "-c", source, "-o", place / f"{source.stem}.o"])
        for source, flags in sources.items()
    ]
    assert [each.wait(timeout=600) for each in compilers] == [0] * len(compilers)
    program, objects = place / "values", sorted(place.glob("*.o"))
    subprocess.run([compiler, "-static", *objects, "-o", program], check=True, timeout=60)
    if emulator and not shutil.which(emulator[0]):
        pytest.skip(f"compiled, but no {emulator[0]} here to run it")
    said = subprocess.run([*emulator, program], check=True, capture_output=True, text=True, timeout=300).stdout
    found: dict[str, list[str]] = {}
    for line in said.splitlines():
        name, checksum = line.split(" ", 1)
        found.setdefault(name, []).append(checksum)
    return found


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    if not shutil.which("g++"):
        pytest.skip("no g++ here")
    return printed("g++", HERE, [], tmp_path_factory.mktemp("native"))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_same_bits(native: dict[str, list[str]]) -> None:
    """From all instruction sets here, which the program finds as the module does."""
    assert list(native) == kernels.instruction_sets()
    assert len(native["baseline"]) > 300
    for name, found in native.items():
        assert found == native["baseline"], name


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_same_bits_from_aarch64(native: dict[str, list[str]], tmp_path: Path) -> None:
    compiler = "aarch64-linux-gnu-g++"
    if not shutil.which(compiler):
        pytest.skip(f"no {compiler} here")
    assert printed(compiler, {"baseline": []}, ["qemu-aarch64"], tmp_path)["baseline"] == native["baseline"]
