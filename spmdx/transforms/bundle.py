"""Several arrays recorded at once, with one rule for all of their gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from spmdx import context
from spmdx.array import Array
from spmdx.ops.reduce import sum as total
from spmdx.tape import Bundle, Rule, Watched, plain
from spmdx.transforms.batched import Level, level_of


class _Rule(Rule):
    """The gradient rule of a bundle: what stands in for an operation where several outputs are recorded at once."""

    def __init__(self, name: str, gradients: Callable[[Any], list[Any]], last: int) -> None:
        self.name, self.gradients, self.last = name, gradients, last  # the last operand that a walk may ask about
        self._found: tuple[Any, list[Any]] | None = None

    def gradient(self, i: int, g: Any, out: Any, inputs: tuple[Any, ...], static: Any) -> Any:
        if self._found is None or self._found[0] is not g:
            self._found = g, self.gradients(g)
        found = self._found[1][i]
        if i == self.last:
            self._found = None  # the record lives on until the walk ends, these need not
        return found


class _Pick(Rule):
    """The rule of one output of a bundle: its cotangent is one entry of the bundle's list."""

    name = "pick"

    def __init__(self, i: int, n: int) -> None:
        self.i, self.n = i, n

    def gradient(self, _: int, g: Any, out: Any, inputs: Any, static: Any) -> Any:
        return [g if k == self.i else None for k in range(self.n)]


def bundled(outputs: Sequence[Any], inputs: list[Any], name: str, gradients: Callable[[Any], list[Any]]) -> list[Any]:
    """Arrays recorded as the outputs of one rule with these inputs. Inside vmap: of one example's."""
    if context.get().batch and (level := level_of([*outputs, *inputs])) is not None:
        return _bundled_batches(level, outputs, inputs, name, gradients)
    if not any(type(x) is Watched for x in inputs) or not context.get().depth:
        return [plain(x) for x in outputs]
    last = max((i for i, x in enumerate(inputs) if type(x) is Watched and x.dtype.kind in "fcV"), default=-1)
    bundle, n = Bundle(_Rule(name, gradients, last), tuple(inputs), {}), len(outputs)
    return [
        Watched(x._block, x.spec, _Pick(i, n), (bundle,), {}) if isinstance(x, Array) else x
        for i, x in enumerate(outputs)
    ]


def _bundled_batches(
    level: Level, outputs: Sequence[Any], inputs: list[Any], name: str, gradients: Callable[[Any], list[Any]]
) -> list[Any]:
    """The same with whole batches; what all examples share gets the sum of its gradients."""
    made, given = ([level.within(x) for x in some] for some in (outputs, inputs))

    def of_batches(g: list[Any]) -> list[Any]:
        with level.on():
            found = gradients([level.up(x) if flag else x for x, flag in zip(g, made)])
            slopes = [level.down(x, always=flag) for x, flag in zip(found, given)]
        return [total(x, 0) if level.within(f) and not flag else x for x, f, flag in zip(slopes, found, given)]

    with level.off():
        whole = bundled(
            [level.down(x, always=False) for x in outputs],
            [level.down(x, always=False) for x in inputs],
            name,
            of_batches,
        )
    return [level.up(x) if flag else x for x, flag in zip(whole, made)]


__all__ = ["bundled"]
