"""``import spmdx`` is light: four packages, no MPI, under a quarter of a second."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

# Prints the top-level names that the import added to sys.modules and that are not Python's own.
ADDED = """
import json, sys
before = set(sys.modules)
import spmdx
added = {name.partition(".")[0] for name in set(sys.modules) - before}
print(json.dumps(sorted(added - sys.stdlib_module_names)))
"""
DEPENDENCIES = {"numpy", "optree", "ml_dtypes", "opt_einsum"}
BROUGHT_BY_THEM = {"typing_extensions"}  # optree's own
PYTHONS = {"_interpreters", "_xxsubinterpreters"}  # which some versions do not count among their own
LIMIT_S = 0.25
DEPENDENCIES_S = 0.15  # of it, what NumPy, optree and ml_dtypes take on the processor that the limit is for


def python(code: str) -> str:
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}  # as it is once installed
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environ)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_import_brings_only_the_dependencies() -> None:
    added = set(json.loads(python(ADDED)))
    extra = {
        name for name in added - DEPENDENCIES - BROUGHT_BY_THEM - PYTHONS if not name.startswith(("spmdx", "_spmdx"))
    }
    assert "spmdx" in added
    assert not extra, f"import spmdx also imports {sorted(extra)}"


def test_import_needs_no_other_package_at_all() -> None:
    python(
        "import sys\nfor name in ('mpi4py', 'scipy', 'cupy', 'threadpoolctl'): sys.modules[name] = None\nimport spmdx"
    )


# pytest's own clock for a stuck run is looser than this needs.
@pytest.mark.timeout(100)
def test_import_is_quick() -> None:
    """In seconds of the processor, which are those of the clock where nothing else runs."""

    def best(code: str) -> float:
        return min(float(python(f"import time; {code}; print(time.process_time())")) for _ in range(7))

    start = best("pass")
    took, dependencies = best("import spmdx") - start, best("import numpy, optree, ml_dtypes") - start
    limit = LIMIT_S * max(1.0, dependencies / DEPENDENCIES_S)  # a slower processor is seen by what is not ours
    assert took < limit, f"import spmdx takes {took:.3f} s beside the interpreter's own start, limit {limit:.3f}"


def test_another_interpreter_of_the_process_is_told() -> None:
    """Beside one that has imported spmdx: it would wait for ever."""
    said = python("""
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
import spmdx
try:
    print(interpreters.run_string(interpreters.create(), "import spmdx"))
except Exception as error:
    print(error)
assert spmdx.runtime.pages.is_main()
""")
    assert "main interpreter of a process alone" in said
