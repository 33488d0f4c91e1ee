"""Tests of the CUDA path: on a GPU where SPMDX_GPU=1 says that there is one, else with a stand-in for CuPy."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
for _folder in (HERE, HERE.parent / "laws"):
    if str(_folder) not in sys.path:
        sys.path.insert(0, str(_folder))

from there import REAL  # noqa: E402


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """SPMDX_SHARD=1/4: the second quarter of the tests, for processes that share them."""
    part, _, parts = os.environ.get("SPMDX_SHARD", "").partition("/")
    if parts:
        items[:] = items[int(part) :: int(parts)]


@pytest.fixture(scope="module")
def device() -> Iterator[Any]:
    """What was done on the device, in order; None for a real one, which tells nothing."""
    from spmdx.runtime import gpu

    gpu.noted.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gpu.HostFallback)
        if REAL:
            yield None
            return
        import stand_in

        with stand_in.playing() as log:
            yield log
