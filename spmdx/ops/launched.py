"""Several operations as one kernel on the GPU: the functions that the CPU's compiled module has for them, with the same
arguments, over the launches of runtime/launch.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spmdx.runtime import kernels

F64, I64, I32 = np.float64, np.int64, np.int32
# As cuda/residual.cu has them.
DROPPING = np.dtype(
    [
        ("words", "u8"),
        ("replay", "u8"),
        ("place", "u8", (3,)),
        ("scale", "f8"),
        ("kept", "f4"),
        ("threefry", "i4"),
    ]
)
SUMS = np.dtype([("of", "u8", (3,))])
# As cuda/neural.cu has them: arrays of Adam, the elements, and the blocks of the launch that are theirs.
MOST = 40
PART = np.dtype([("arrays", "u8", (7,)), ("count", "u8"), ("first", "u8"), ("blocks", "u8")])
PARTS = np.dtype([("of", PART, (MOST,))])
ADAM_NUMBERS = np.dtype([("means", "f8", (4,)), ("given", "V16", (4,))])


def _at(x: Any) -> int:
    """Where an array lies on the device; 0 if there is none."""
    return 0 if x is None else x.data.ptr


class Launched:
    """The kernels of a device."""

    def __init__(self, launch: Any) -> None:
        self.launch = launch

    def _dropping(self, dropped: tuple[Any, ...] | None) -> Any:
        """Dropout as an argument; the words of its key are an array of the device, for which nothing waits."""
        found = np.zeros(1, DROPPING)
        if dropped is not None:
            words, shape, intervals, kept, scale = dropped
            place = self.launch.place(shape, intervals)[0]
            counter = self.launch.device.counter
            found[0] = (_at(words), _at(counter), tuple(place[0]), scale, kept, words.size == 2)
        return found

    def add_norm(
        self,
        stream: Any,
        out: Any,
        x: Any,
        added: Any,
        residual: Any,
        scale: Any,
        bias: Any,
        eps: float,
        centered: bool,
        dropped: Any,
    ) -> None:
        """stream = residual + dropout of (x + added); out = its norm. The last dimension is not divided."""
        drop, arrays = self._dropping(dropped), (x, added, residual, scale, bias, stream, out)
        self.launch.device.seen(arrays)
        given: Any = (F64(eps), I32(centered), drop, *arrays)
        self.launch.rows("add_norm", x, arrays, given, True, "residual")

    def add_norm_back(
        self,
        out: Any,
        to_x: Any,
        vectors: Sequence[Any],
        stream: Any,
        scale: Any,
        g_stream: Any,
        g: Any,
        eps: float,
        centered: bool,
        dropped: Any,
    ) -> None:
        """The gradients of add_norm with respect to residual and x, and to scale, bias and added: those that are given.

        One pass over rows, and, where vectors are given, one over columns."""
        self.launch.device.seen((stream, scale, g_stream, g))
        n, empty = stream.shape[-1], self.launch.cupy.empty
        rows, wide = stream.size // max(1, n), np.dtype(F64 if stream.itemsize == 8 else np.float32)
        moments = empty(2 * rows, wide) if vectors[0] is not None else None
        arrays = (stream, scale, g_stream, g, out, to_x)
        given: Any = (F64(eps), I32(centered), self._dropping(dropped), *arrays, moments)
        self.launch.rows("add_norm_back", stream, arrays, given, True, "residual")
        if all(v is None for v in vectors) or not n:
            return
        module, columns = f"residual-{kernels.FLOATS[stream.dtype]}", -(-n // 32)
        chunks, chunk = self.launch.chunks(rows, columns)
        parts = [None if v is None else empty(chunks * n, wide) for v in vectors]
        sums = np.zeros(1, SUMS)
        sums["of"][0] = [_at(part) for part in parts]
        args: Any = (I64(n), I64(rows), I64(chunk), stream, g, out if to_x is None else to_x, moments, sums)
        self.launch.kernel(module, "add_norm_sums")((columns, chunks), (32, 8), args)
        self.launch.flat(module, "add_norm_sum_parts", n, (I64(n), I64(chunks), sums, *vectors))

    def adam(self, some: Sequence[Sequence[Any]], numbers: Sequence[Any]) -> None:
        """Adam for many parameters: of each g, m, v, the next m and v, the step, and p where it decays. All but g and p
        are of the dtype that is computed in."""
        given, _held = self.launch.numbers(numbers[4:])
        argument = np.zeros(1, ADAM_NUMBERS)
        argument["means"][0], argument["given"][0] = numbers[:4], given.view("V16")
        full = [arrays for arrays in some if arrays[0].size]
        for arrays in (*full, numbers):
            self.launch.device.seen(arrays)
        for at in range(0, len(full), MOST):
            self._adam(full[at : at + MOST], argument)

    def _adam(self, some: Sequence[Sequence[Any]], numbers: Any) -> None:
        parts, first = np.zeros(1, PARTS), 0
        for i, (arrays, blocks) in enumerate(zip(some, self.launch.shares([a[1].nbytes for a in some]))):
            g, m, v, mean, square, step, p = (*arrays, None)[:7]
            parts["of"][0, i] = tuple(map(_at, (g, m, v, p, mean, square, step))), g.size, first, blocks
            first += blocks
        kernel = self.launch.kernel(f"neural-{kernels.FLOATS[some[0][0].dtype]}", "adam_parts")
        kernel((first,), (256,), (I32(len(some)), parts, numbers))


__all__: list[str] = []
