"""``python -m spmdx`` prints what a bug report needs; a line that cannot be told says why."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Callable
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from spmdx.runtime.world import launched


def version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def python() -> str:
    return f"{platform.python_version()} ({sys.executable}), {platform.platform()}"


def mpi_library() -> str:
    if find_spec("mpi4py") is None:
        return "none: mpi4py is not installed (pip install 'spmdx[mpi]')"
    mpi: Any = import_module("mpi4py.MPI")
    standard = ".".join(map(str, mpi.Get_version()))
    return f"{' '.join(mpi.Get_library_version().splitlines()[0].split())}, MPI {standard}"


def ranks() -> str:
    said = launched()
    told = f"{said.size} by {said.by}" if said else "1, no launcher"
    mpi: Any = sys.modules.get("mpi4py.MPI")
    if mpi is None:
        return told
    world = mpi.COMM_WORLD.Get_size()
    return f"{told}; {world} by MPI" + ("" if world == (said.size if said else 1) else " (THESE DISAGREE)")


def devices() -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found = [f"cpu ({platform.machine()}, {cores} cores for this process)"]
    if find_spec("cupy") is not None:
        runtime: Any = import_module("cupy").cuda.runtime
        for i in range(runtime.getDeviceCount()):
            found.append(f"cuda:{i} ({runtime.getDeviceProperties(i)['name'].decode()})")
    return ", ".join(found)


def cupy() -> str:
    names = [name for name in ("cupy-cuda13x", "cupy-cuda12x", "cupy") if version(name) != "not installed"]
    return ", ".join(f"{version(name)} ({name})" for name in names) or "not installed"


def nccl() -> str:
    found = find_spec("nvidia.nccl") if find_spec("nvidia") else None
    folders = list(found.submodule_search_locations or ()) if found else []
    candidates = [str(Path(folder) / "lib" / "libnccl.so.2") for folder in folders] + ["libnccl.so.2"]
    for candidate in candidates:
        try:
            library = ctypes.CDLL(candidate)
        except OSError:
            continue
        code = ctypes.c_int()
        library.ncclGetVersion(ctypes.byref(code))
        return f"{code.value // 10000}.{code.value // 100 % 100}.{code.value % 100} ({candidate})"
    return "no library found"


def kernels() -> str:
    built: Any = import_module("spmdx._kernels")
    offered = ", ".join(built.instruction_sets())
    return f"instruction set {built.instruction_set()} (of {offered}), up to {built.threads()} threads"


def products() -> str:
    """Which library multiplies matrices."""
    of_numpy = import_module("numpy").show_config(mode="dicts")["Build Dependencies"]["blas"]
    found = import_module("spmdx.runtime.blas").mkl()
    return found or f"by NumPy: {of_numpy['name']} {of_numpy.get('version', '')}".rstrip()


# mpi comes before ranks, which looks whether MPI is loaded.
LINES: tuple[tuple[str, Callable[[], str]], ...] = (
    ("spmdx", lambda: version("spmdx")),
    ("python", python),
    *((name, lambda name=name: version(name)) for name in ("numpy", "optree", "ml_dtypes", "opt_einsum")),
    ("kernels", kernels),
    ("products", products),
    ("devices", devices),
    ("cupy", cupy),
    ("nccl", nccl),
    ("mpi4py", lambda: version("mpi4py")),
    ("mpi", mpi_library),
    ("ranks", ranks),
)


def line(label: str, tell: Callable[[], str]) -> str:
    """One line of the report; what goes wrong in ``tell`` becomes the line."""
    try:
        text = tell()
    except Exception as error:
        text = f"cannot be told: {type(error).__name__}: {' '.join(str(error).split())}"
    return f"{label:<12}{text}"


def main() -> None:
    said = launched()
    for label, tell in LINES:
        text = line(label, tell)  # on every rank: MPI's start and end are collective
        if said is None or said.rank == 0:
            print(text, flush=True)


if __name__ == "__main__":
    main()
