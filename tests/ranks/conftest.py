"""Tests here are written for one rank and run on several: on 1 to 4 threads, or on the ranks of mpiexec.

A test takes no care of that: `sx.make_mesh()` and everything after it works on whatever ranks there are. The fixture
`world` is the running rank's; the marker `@pytest.mark.ranks(2, 4)` restricts the number of ranks. Some files run on
7 and 8 threads as well: more ranks than most dimensions are long.
"""

from __future__ import annotations

import contextvars
from pathlib import Path
from typing import Any

import pytest

from spmdx.runtime import world as worlds
from spmdx.testing import spmd

SIZES = (1, 2, 3, 4)
MANY = (7, 8)
FILES_FOR_MANY = {"test_peers.py", "test_values.py", "test_bad_input.py", "test_moved.py", "test_masks.py"}
LAUNCHED = worlds.launched()


def sizes(item: Any) -> tuple[int, ...]:
    marker = item.get_closest_marker("ranks")
    if marker:
        return marker.args
    return (*SIZES, *MANY) if LAUNCHED or item.path.name in FILES_FOR_MANY else SIZES


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    wanted = (LAUNCHED.size,) if LAUNCHED else sizes(metafunc.definition)
    metafunc.parametrize("ranks", wanted, indirect=True, ids=lambda n: f"{n}ranks")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if LAUNCHED:
        here = Path(__file__).parent
        left = [i for i in items if here in i.path.parents and LAUNCHED.size not in sizes(i)]
        config.hook.pytest_deselected(items=left)
        items[:] = [i for i in items if i not in left]


@pytest.fixture(autouse=True)
def ranks(request: pytest.FixtureRequest) -> int:
    """The number of ranks."""
    return request.param


@pytest.fixture
def world() -> Any:
    """The running rank's world: rank, size, kind, comm(mesh)."""
    return worlds.process() if LAUNCHED else None  # on threads each rank is given its own


@pytest.fixture
def tmp_path(tmp_path: Path) -> Path:
    """An empty folder, the same one on every rank."""
    if LAUNCHED and LAUNCHED.size > 1:
        from mpi4py import MPI

        return MPI.COMM_WORLD.bcast(tmp_path)
    return tmp_path


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool:
    names = pyfuncitem._fixtureinfo.argnames
    given = {name: pyfuncitem.funcargs[name] for name in names}

    def on_this_rank() -> None:
        mine = given | ({"world": worlds.current()} if "world" in given else {})
        pyfuncitem.obj(**mine)

    if LAUNCHED:
        contextvars.copy_context().run(on_this_rank)
    else:
        spmd(pyfuncitem.callspec.params["ranks"])(on_this_rank)()
    return True
