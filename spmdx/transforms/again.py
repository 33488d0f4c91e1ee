"""A function that runs twice draws the same random values twice, also from generators, whose state moves on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from spmdx import context


class Draws:
    """The generators that the first run drew from, each in the state that it found it in."""

    def __init__(self) -> None:
        self.before: dict[Any, Any] = {}

    @contextmanager
    def first(self, **changes: Any) -> Iterator[None]:
        """The first run is inside; ``changes`` are of the context."""
        around = context.get().draws
        try:
            with context.use(draws=self.before, **changes):
                yield
        finally:
            if around is not None:  # a function around this one will run again as well
                for generator, state in self.before.items():
                    around.setdefault(generator, state)

    @contextmanager
    def second(self, **changes: Any) -> Iterator[None]:
        """A run that is to draw the same is inside. It uses up no keys, and leaves generators as it found them."""
        after = [(generator, generator.state) for generator in self.before]
        for generator, state in self.before.items():
            generator.state = state
        try:
            with context.use(check_keys=False, **changes):
                yield
        finally:
            for generator, state in after:
                generator.state = state


__all__ = ["Draws"]
