"""The GPU kernels compile to machine code for each architecture, by NVRTC through ctypes: no GPU is needed."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "cuda"
KERNELS = SOURCES / "kernels.cu"
OPTIONS = ["--std=c++17", "--fmad=false", f"--include-path={SOURCES}"]
ARCHITECTURES = {12: (70, 75, 80, 90, 100), 13: (75, 80, 90, 100)}
WHEELS = {12: "cuda_nvrtc", 13: "cu13"}  # nvidia-cuda-nvrtc-cu12 and nvidia-cuda-nvrtc: where they put the library


def nvrtc(version: int) -> ctypes.CDLL:
    """The library of a version, from its wheel or the system."""
    names = [f"libnvrtc.so.{version}"]
    try:
        import nvidia

        names = [f"{place}/{WHEELS[version]}/lib/libnvrtc.so.{version}" for place in nvidia.__path__] + names
    except ImportError:
        pass
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    pytest.skip(f"no NVRTC {version} here: pip install 'spmdx[test]' brings it on Linux")


def compiled(library: ctypes.CDLL, architecture: int) -> bytes:
    program = ctypes.c_void_p()
    source = KERNELS.read_bytes()
    assert library.nvrtcCreateProgram(ctypes.byref(program), source, b"kernels.cu", 0, None, None) == 0
    options = [o.encode() for o in [*OPTIONS, f"--gpu-architecture=sm_{architecture}"]]
    failed = library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    log = got(library, "ProgramLog", program)
    assert not failed, log.decode()
    old = b"are deprecated and may be removed"  # NVRTC says so of sm_70
    assert not [line for line in log.splitlines() if b"warning" in line and old not in line], log.decode()
    code = got(library, "CUBIN", program)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return code


def got(library: ctypes.CDLL, what: str, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    assert getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)) == 0
    text = ctypes.create_string_buffer(size.value)
    assert getattr(library, f"nvrtcGet{what}")(program, text) == 0
    return text.raw


def check(version: int, architecture: int) -> None:
    code = compiled(nvrtc(version), architecture)
    assert code.startswith(b"\x7fELF")
    text = KERNELS.read_text()
    names = re.findall(r"^SPMDX_(?:FILL|DROP|MAP|STREAM)\((\w+)", text, re.MULTILINE)
    assert len(names) > 40
    for name in names:
        assert b".text." + name.encode() + b"\0" in code, name


def test_compiles() -> None:
    check(13, 80)


@pytest.mark.slow
@pytest.mark.parametrize(("version", "architecture"), [(v, a) for v, each in ARCHITECTURES.items() for a in each])
def test_compiles_for(version: int, architecture: int) -> None:
    check(version, architecture)
