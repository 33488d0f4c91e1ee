"""NVRTC through ctypes: the sources of cuda/ as machine code for one architecture, on machines without a GPU too.

CuPy's own compiler is not used: it flushes subnormal numbers to zero, and the promise of equal bits forbids that.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

try:
    from spmdx.errors import SpmdxError
except ImportError:  # run by itself, to build ahead
    SpmdxError = type("SpmdxError", (Exception,), {})  # type: ignore[assignment, misc]

# What equal bits need: fused multiply-add only where it is written, and subnormal numbers kept (the default).
EXACT = ("--std=c++17", "--fmad=false")
CLOSE = ("--std=c++17",)  # attention, whose order of addition is its own in any case
TYPES = {"f16": "Half", "bf16": "BFloat16", "f32": "float", "f64": "double"}
TYPED = {t: f"--define-macro=SPMDX_TYPE={name}" for t, name in TYPES.items()}
# What is compiled at a time: a source, or a source for one type of elements.
MODULES = {
    "kernels": EXACT,
    "pack": EXACT,
    **{f"{source}-{t}": (*EXACT, of_type) for source in ("neural", "residual") for t, of_type in TYPED.items()},
    **{f"tensor-{t}": (*CLOSE, TYPED[t]) for t in ("f16", "bf16")},
    **{f"attention-{t}": (*CLOSE, of_type) for t, of_type in TYPED.items()},
}
WHEELS = {12: "cuda_nvrtc", 13: "cu13"}  # nvidia-cuda-nvrtc-cu12 and nvidia-cuda-nvrtc: where they put the library


class CompileError(SpmdxError, RuntimeError):
    """NVRTC is missing, or refuses a kernel."""


def folder() -> Path:
    """The sources of the kernels: beside the package in a clone, within it where it is installed."""
    places = [Path(__file__).parents[2] / "cuda", Path(__file__).parent / "cuda"]
    found = next((place for place in places if (place / "kernels.cu").exists()), None)
    if found is None:
        raise CompileError(f"the kernels' sources are in none of {', '.join(map(str, places))}.", "pip install spmdx")
    return found


@lru_cache(maxsize=8)
def library(version: int) -> ctypes.CDLL:
    """The library of a major version: of its wheel, or of the system."""
    names = [f"libnvrtc.so.{version}"]
    try:
        import nvidia

        names = [f"{place}/{WHEELS[version]}/lib/{names[0]}" for place in nvidia.__path__] + names
    except (ImportError, KeyError):
        pass
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    wheel = "nvidia-cuda-nvrtc-cu12" if version == 12 else "nvidia-cuda-nvrtc"
    raise CompileError(f"there is no NVRTC {version} here.", f"pip install {wheel}")


def source_of(name: str) -> Path:
    """The file that a module is compiled from."""
    return folder() / f"{name.partition('-')[0]}.cu"


def compiled(name: str, version: int, architecture: int, *more: str) -> tuple[bytes, str]:
    """The machine code of a module, and what the compiler said."""
    nvrtc, program = library(version), ctypes.c_void_p()
    source = source_of(name).read_bytes()
    given = (*MODULES[name], f"--include-path={folder()}", f"--gpu-architecture=sm_{architecture}", *more)
    if nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, f"{name}.cu".encode(), 0, None, None):
        raise CompileError(f"NVRTC {version} cannot begin with {name}.cu.", f"pip install nvidia-cuda-nvrtc=={version}")
    options = (ctypes.c_char_p * len(given))(*(option.encode() for option in given))
    failed = nvrtc.nvrtcCompileProgram(program, len(given), options)
    log = _got(nvrtc, "ProgramLog", program).decode(errors="replace").rstrip("\0")
    code = b"" if failed else _got(nvrtc, "CUBIN", program)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    if failed:
        raise CompileError(f"{name}.cu does not compile for sm_{architecture}:\n{log}", "a report with this message")
    return code, log


def _got(nvrtc: Any, what: str, program: Any) -> bytes:
    size = ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{what}")(program, text)
    return text.raw


def cached(name: str, version: int, architecture: int) -> Path:
    """A file with the machine code of a source, compiled if there is none of these very sources: SPMDX_CACHE, or
    ~/.cache/spmdx, holds it."""
    ahead = Path(__file__).parent / "cuda" / "built" / f"{name}-sm{architecture}.cubin"
    if ahead.exists() and folder() == ahead.parents[1]:  # built by nvcc, with the package and its sources
        return ahead
    place = Path(os.environ.get("SPMDX_CACHE") or Path.home() / ".cache" / "spmdx")
    key = hashlib.sha256(repr((MODULES[name], version, architecture)).encode())
    for source in [*sorted(folder().glob("*.h")), source_of(name)]:
        key.update(source.read_bytes())
    path = place / f"{name}-sm{architecture}-{key.hexdigest()[:24]}.cubin"
    if not path.exists():
        code, _ = compiled(name, version, architecture)
        try:
            place.mkdir(parents=True, exist_ok=True)
            file, temporary = tempfile.mkstemp(dir=place)
        except OSError:  # a home that cannot be written to: for this run alone
            file, temporary = tempfile.mkstemp(suffix=".cubin")
            path = Path(temporary)
        with os.fdopen(file, "wb") as out:
            out.write(code)
        os.replace(temporary, path)  # at once, for other ranks may read it
    return path


if __name__ == "__main__":  # what CMakeLists.txt builds with nvcc: a name, a source and options in each line
    for module, options in MODULES.items():
        print(module, f"{module.partition('-')[0]}.cu", *(o.replace("--define-macro=", "-D") for o in options))
