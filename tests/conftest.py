"""What all tests share: the same examples in every run and on every rank, and ranks that agree under mpiexec."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spmdx.runtime import world

try:
    import hypothesis
except ImportError:
    pass
else:
    hypothesis.settings.register_profile("ranks", derandomize=True, database=None, deadline=None)
    hypothesis.settings.load_profile("ranks")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "ranks(*sizes): run on these numbers of ranks only (tests/ranks)")
    said = world.launched()
    if said is not None and said.size > 1:
        world.process()  # before MPI is imported elsewhere: a launcher of another MPI is noticed here
        from agree import Agree

        config.pluginmanager.register(Agree(), "agree")


_states: dict[int, Any] = {}


@pytest.fixture(autouse=True)
def drawn_anew(request: pytest.FixtureRequest) -> None:
    """A module's generators begin each test where they began the first: no test's numbers depend on others."""
    for value in vars(getattr(request, "module", None) or object).values():
        if isinstance(value, np.random.Generator):
            state = value.bit_generator.state
            value.bit_generator.state = _states.setdefault(id(value), state)
