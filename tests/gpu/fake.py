"""A library that plays NCCL's part (fake_nccl.cpp), built by the C++ compiler that is here."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("fake_nccl.cpp")


@cache
def library() -> Path:
    """The library's path."""
    compiler = next((c for c in (os.environ.get("CXX"), "c++", "g++", "clang++") if c and shutil.which(c)), None)
    if compiler is None:
        pytest.skip("no C++ compiler to build the stand-in for NCCL with")
    out = Path(tempfile.mkdtemp(prefix="spmdx-nccl-")) / "libfake_nccl.so"
    command = [compiler, "-std=c++17", "-O1", "-fPIC", "-shared", "-pthread", str(SOURCE), "-o", str(out)]
    subprocess.run(command, check=True)
    return out


def control() -> ctypes.CDLL:
    """The functions by which it is told what to do: fake_fail, fake_slow, fake_async, fake_version, fake_alive."""
    return ctypes.CDLL(str(library()))
