"""The GPU's kernels compiled by the C++ compiler, with emulated.h in CUDA's place: real values without a GPU."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from spmdx.runtime import nvrtc

HERE = Path(__file__).parent
FLAGS = ["-std=c++17", "-O1", "-fno-strict-aliasing", "-ffp-contract=off", "-fPIC", "-shared", "-w", "-D__CUDACC__"]


def kernels(source: str) -> list[str]:
    """The names of all kernels, as the preprocessor writes them out."""
    return re.findall(r"extern \"C\"\s+void\s+(\w+)\(", source)


@cache
def library(module: str) -> ctypes.PyDLL:
    """A module of the GPU's kernels as a library of this machine; built once, and kept in a temporary folder."""
    text = nvrtc.source_of(module).read_text()
    text = re.sub(r"extern __shared__ .*? (\w+)\[\];", r"unsigned char* const \1 = emulated::memory;", text)
    defines = [o.replace("--define-macro=", "-D") for o in nvrtc.MODULES[module] if o.startswith("--define-macro")]
    headers = sorted([*nvrtc.folder().glob("*.h"), *HERE.glob("*.h")])
    key = hashlib.sha256(
        "".join([text, *defines, *FLAGS, *(h.read_text() for h in headers), Path(__file__).read_text()]).encode()
    )
    path = Path(tempfile.gettempdir()) / f"spmdx-emulated-{module}-{key.hexdigest()[:20]}.so"
    if not path.exists():
        build(text, defines, path)
    return ctypes.PyDLL(str(path))  # holds the lock of the interpreter: its fibers are one set


def build(text: str, defines: list[str], path: Path) -> None:
    compiler = [os.environ.get("CXX", "c++"), *FLAGS, *defines, f"-I{HERE}", f"-I{nvrtc.folder()}"]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "module.cpp"
        source.write_text(f'#include "emulated.h"\n{text}')
        seen = subprocess.run([*compiler, "-E", "-P", str(source)], capture_output=True, text=True, check=True).stdout
        names = kernels(seen)
        rows = ",\n".join(f'{{"{n}", emulated::Of<&{n}>::run, emulated::Of<&{n}>::arguments}}' for n in names)
        source.write_text(
            f'#include "emulated.h"\n{text}\nstatic const emulated::Kernel table[] = {{\n{rows}}};\n'
            'extern "C" int emulate(const char* name, unsigned gx, unsigned gy, unsigned bx, unsigned by,'
            " unsigned count, void** given) {\n"
            "    for (const emulated::Kernel& each : table) {\n"
            "        if (std::strcmp(each.name, name)) continue;\n"
            "        if (each.arguments != count) return int(each.arguments);\n"
            "        emulated::body = each.run, emulated::arguments = given;\n"
            "        gridDim = {gx, gy, 1}, blockDim = {bx, by, 1};\n"
            "        for (unsigned y = 0; y < gy; ++y)\n"
            "            for (unsigned x = 0; x < gx; ++x) {\n"
            "                blockIdx = {x, y, 0};\n"
            "                if (!emulated::run_block()) return -2;\n"
            "            }\n"
            "        return -1;\n"
            "    }\n"
            "    return -3;\n"
            "}\n"
        )
        made = Path(folder) / "module.so"
        subprocess.run([*compiler, str(source), "-o", str(made)], check=True)
        os.replace(made, path) if made.stat().st_dev == path.parent.stat().st_dev else path.write_bytes(
            made.read_bytes()
        )


def launch(module: str, name: str, grid: Sequence[int], block: Sequence[int], pointers: Sequence[int]) -> None:
    """Run a kernel; ``pointers``: where each argument lies."""
    given = (ctypes.c_void_p * len(pointers))(*pointers)
    (gx, gy), (bx, by) = ((*grid, 1)[:2], (*block, 1)[:2])
    found = library(module).emulate(name.encode(), gx, gy, bx, by, len(pointers), given)
    assert found != -2, f"{name}: threads of a block wait at different barriers"
    assert found != -3, f"{module} has no kernel {name}"
    assert found == -1, f"{name} takes {found} arguments, and is given {len(pointers)}"
