"""Arrays whose blocks are still on their way."""

from __future__ import annotations

from typing import Any

from spmdx.array import Array
from spmdx.op import Operation, call
from spmdx.runtime.pending import Coming
from spmdx.spec import Spec

_slot: Any = Array.__dict__["_block"]


class Later(Array):
    """An array with a collective behind it that has begun. Whoever reads its block waits, and then it is an `Array`
    like any other: what is known of it before, its spec, is all that plans and rules need."""

    __slots__ = ()

    @property
    def _block(self) -> Any:
        block = _slot.__get__(self).wait()
        _slot.__set__(self, block)
        self.__class__ = Array  # type: ignore[assignment]  # the same slots
        return block

    @_block.setter
    def _block(self, coming: Any) -> None:
        _slot.__set__(self, coming)

    @staticmethod
    def interpret(operation: Operation, operands: Any, static: tuple[Any, ...], names: tuple[str, ...]) -> Array:
        """An operation needs the blocks."""
        arrive(operands)
        return call(operation, operands, static, names)


def made(block: Any, spec: Spec) -> Array:
    """An array of a block, or of one that is on its way."""
    return Later(block, spec) if type(block) is Coming else Array(block, spec)


def arrive(arrays: Any) -> None:
    """Wait for the blocks of those that are on their way."""
    for x in arrays:
        if type(x) is Later:
            x._block  # noqa: B018  # it waits
