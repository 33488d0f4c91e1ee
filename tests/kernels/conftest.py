"""Tests may switch the instruction set and the threads: both are put back."""

from collections.abc import Iterator

import pytest

from spmdx.runtime import kernels


@pytest.fixture(autouse=True)
def _put_back() -> Iterator[None]:
    name, count = kernels.instruction_set(), kernels.threads()
    yield
    kernels.set_instruction_set(name)
    kernels.set_threads(count)
