"""Makes the virtual environment that the benchmarks run in: spmdx from this checkout, and the libraries beside it.

    python bench/setup_peers.py [DIRECTORY]        default: bench/.venv-peers

Run it again after a change to the C++ sources: it then rebuilds spmdx only. A change to a Python file needs nothing.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TORCH = "torch==2.13.0"
PEERS = ["h5py", "jax", "mpi4py", "mpich", "numpy", "pillow", "scipy"]
# Without what it asks for: that would bring another torch, and a torchvision that the arrays never use.
HEAT = "heat>=1.8"
BUILD = ["cmake", "ninja", "pybind11", "scikit-build-core"]


def main() -> None:
    place = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "bench" / ".venv-peers"
    python = place / "bin" / "python"

    def pip(*words: str) -> None:
        subprocess.run([python, "-m", "pip", "install", "--quiet", *words], check=True)

    if not python.exists():
        venv.create(place, with_pip=True)
    pip("--upgrade", "pip")
    pip(TORCH)
    pip(*PEERS)
    pip("--no-deps", HEAT)
    pip(*BUILD)
    pip("--no-build-isolation", "--editable", f"{ROOT}[mpi,mkl]")
    shown = "import peers; print(*peers.versions_of_all(), sep='\\n')"
    subprocess.run([python, "-c", shown], check=True, cwd=Path(__file__).parent)


if __name__ == "__main__":
    main()
