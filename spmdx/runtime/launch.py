"""Launching kernels on the GPU: the same functions, with the same arguments, as the CPU's compiled module has.

Arguments are checked by those who call; here they are brought into the form of cuda/*.cu, with shapes of launches from
what the device says of itself. Kernels are compiled when first used, and kept on disk.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from spmdx.runtime import boxes, draws, nvrtc

TYPES = {
    np.dtype(np.float16): "f16",
    np.dtype(ml_dtypes.bfloat16): "bf16",
    np.dtype(np.float32): "f32",
    np.dtype(np.float64): "f64",
}
THREADS = 256  # of a block, for elementwise kernels
WAVES = 32  # blocks for each multiprocessor: more only take turns
MOST_ROWS = 2**20  # blocks of kernels that take a row at a time
MOST_ALONG = 65535  # blocks along the second dimension of a grid
TEAM = 512  # threads that share a row at most
HELD = 4  # packs of a row that a thread keeps in registers
WIDTHS = (64, 128, 256)  # elements of a row, in attention's kernels
ATTENTION_TILE, ATTENTION_WARPS = 32, 8
TENSOR_WIDTHS, TENSOR_TILE = (64, 128), 64  # the same on tensor cores

VIEW = np.dtype([("data", "u8"), ("lead", "i8", (3,)), ("head", "i8"), ("row", "i8"), ("step", "i8")])
GIVEN = np.dtype([("value", "f8"), ("data", "u8")])
SIZES = ("heads", "rows", "columns", "inner", "outer")
SHAPE = np.dtype([("lead", "i8", (3,)), *((name, "i8") for name in SIZES), ("scale", "f8")])
U64, I64, F64, I32, F32 = np.uint64, np.int64, np.float64, np.int32, np.float32
Shape = Sequence[int]


class Attention(NamedTuple):
    """Which kernels attention takes, and the shapes of their launches."""

    module: str
    width: int
    tile: int  # rows, or columns, of a block of threads
    warps: int
    shared: dict[str, int]  # bytes


class Launcher:
    """The kernels of one device."""

    def __init__(self, device: Any) -> None:
        self.device, self.cupy = device, device.cupy
        self._kernels: dict[tuple[str, str], Any] = {}
        self._places: dict[Any, Any] = {}
        self._words: dict[Any, Any] = {}

    def kernel(self, module: str, name: str) -> Any:
        """One kernel, compiled with its module when that is first asked for."""
        found = self._kernels.get((module, name))
        if found is None:
            path = nvrtc.cached(module, self._version(), self.device.architecture)
            found = self._kernels[module, name] = self.cupy.RawModule(path=str(path)).get_function(name)
        return found

    def _version(self) -> int:
        """The NVRTC to compile with: CuPy's own version, else one that the driver is new enough for."""
        runtime = self.cupy.cuda.runtime
        wanted, most = runtime.runtimeGetVersion() // 1000, runtime.driverGetVersion() // 1000
        for version in (wanted, *range(most, 11, -1)):
            try:
                nvrtc.library(version)
            except nvrtc.CompileError:
                continue
            return int(version)
        return int(wanted)  # whose error says what is missing

    def flat(self, module: str, name: str, count: int, args: Sequence[Any], each: int = 1) -> None:
        """A kernel that goes over ``count`` elements, ``each`` at a time."""
        blocks = min(-(-count // (THREADS * each)), WAVES * self.device.multiprocessors)
        if count:
            self.kernel(module, name)((blocks,), (THREADS,), tuple(args))

    # Random values

    def place(self, shape: Shape, intervals: Any) -> tuple[Any, Any, Any, int]:
        """Where a block's elements lie, as an argument; rows, the longest run, and what keeps the table alive."""
        key = (tuple(shape), tuple(tuple(map(tuple, pieces)) for pieces in intervals))
        found = self._places.get(key)
        if found is None:
            if len(self._places) >= 1024:  # bounded: cheap to make again
                self._places.clear()
            first, count, rows, longest, numbers = draws.place(*key)
            table = None if numbers is None else self.cupy.asarray(np.array(numbers, U64))
            argument = np.zeros(1, draws.PLACE)
            argument[0] = (0 if table is None else table.data.ptr, first, count)
            found = self._places[key] = argument, table, rows, longest
        self.device.held(found[1])
        return found

    def _over_place(self, name: str, place: Any, each: int, args: Sequence[Any]) -> None:
        _, _, rows, longest = place
        if not rows or not longest:
            return
        wide = -(-longest // each) + 1  # a run may begin and end within what is drawn at once
        x = min(THREADS, 1 << max(0, wide - 1).bit_length())
        blocks, y = WAVES * self.device.multiprocessors, THREADS // x if rows > 1 else 1
        columns = min(-(-wide // x), blocks)
        grid = (columns, min(-(-rows // y), max(1, blocks // columns), MOST_ALONG))
        self.kernel("kernels", name)(grid, (x, y), tuple(args))

    def fill(
        self,
        out: Any,
        kind: str,
        element: str,
        words: Any,
        shape: Shape,
        intervals: Any,
        real: tuple[float, ...] = (0.0, 0.0, 0.0),
        low: int = 0,
        span: int = 0,
    ) -> None:
        """Random values of a distribution into a block."""
        name, argument, each = draws.distribution(kind, element, len(words) == 2, tuple(real), low, span)
        place = self.place(shape, intervals)
        self._over_place(name, place, each, (argument, draws.key(tuple(words)), self.device.counter, place[0], out))

    def fill_streams(
        self, out: Any, kind: str, words: Any, shape: Shape, intervals: Any, inputs: Sequence[Any]
    ) -> None:
        """Random values that each draw from a stream of their own."""
        place, steps = self.place(shape, intervals), _with_steps(inputs, 2)
        self._over_place(
            f"stream_{kind}", place, 1, (draws.key(tuple(words)), self.device.counter, place[0], *steps, out)
        )

    def drop(
        self, out: Any, x: Any, element: str, words: Any, shape: Shape, intervals: Any, kept: float, scale: float
    ) -> None:
        """x scaled where it is kept, 0 elsewhere. ``words`` may be an array of the device: nothing waits for them."""
        if isinstance(words, tuple):
            if words not in self._words:
                self._words.clear()
                self._words[words] = self.cupy.asarray(np.array(words, np.uint32))
            words = self.device.held(self._words[words])
        place = self.place(shape, intervals)
        real = F64 if element in ("f64", "c128") else F32
        args = (F32(kept), real(scale), words, I32(len(words) == 2), self.device.counter, place[0], x, out)
        self._over_place(f"drop_{element}", place, 4, args)

    # Elementwise

    def map(self, out: Any, name: str, inputs: Sequence[Any]) -> None:
        """A function of cuda/map.h."""
        self.flat("kernels", f"map_{name}", out.size, (U64(out.size), out, *_with_steps(inputs, 4)))

    def activate(self, out: Any, name: str, inputs: Sequence[Any], numbers: Sequence[Any] = ()) -> None:
        """A function of cuda/neural.h, in the dtype of ``out``."""
        x, y, z = (inputs[min(i, len(inputs) - 1)] for i in range(3))
        given, _held = self.numbers(numbers)
        args = (U64(out.size), out, x, y, z, *np.split(given, 4))
        self.flat(f"neural-{TYPES[out.dtype]}", f"each_{name}", out.size, args, 16 // out.itemsize)

    @staticmethod
    def numbers(numbers: Sequence[Any]) -> tuple[Any, list[Any]]:
        """Up to four numbers as arguments: by value, or where they lie on the device, in float64, so that nothing waits
        for them; and what keeps them there."""
        given, held = np.zeros(4, GIVEN), list[Any]()
        for i, n in enumerate(numbers):
            held.append(n if isinstance(n, float) else n.astype(F64, copy=False))
            given[i] = (n, 0) if isinstance(n, float) else (0, held[-1].data.ptr)
        return given, held

    def shares(self, nbytes: Sequence[int]) -> list[int]:
        """Blocks of one launch for each of several arrays of so many bytes: none more than it has use for."""
        most = WAVES * self.device.multiprocessors
        return [min(-(-n // (16 * THREADS)), -(-most * n // sum(nbytes))) for n in nbytes]

    # Rows

    def rows(self, name: str, x: Any, others: Sequence[Any], given: Any, held: bool, module: str = "neural") -> None:
        """A kernel over the rows of x, the way that their length allows. It takes their length and number, and what is
        given."""
        n = x.shape[-1]
        count, pack = x.size // max(1, n), 16 // x.itemsize
        whole = n % pack == 0 and all(a.data.ptr % 16 == 0 for a in (x, *others) if a is not None)
        packs = n // pack if whole else n
        held = held and whole and packs <= TEAM * HELD
        threads = 32
        while threads < TEAM and threads * HELD < packs:
            threads *= 2
        way = "held" if held else "long" if whole else "any"
        teams = max(1, 256 // threads) if threads == 32 else 1
        if count and n:
            grid, block = (min(-(-count // teams), MOST_ROWS),), (threads, teams)
            self.kernel(f"{module}-{TYPES[x.dtype]}", f"{name}_{way}")(grid, block, (I64(n), I64(count), *given))

    def norm(self, out: Any, x: Any, scale: Any, bias: Any, eps: float, centered: bool) -> None:
        """Layer or RMS norm of rows."""
        self.rows("norm", x, (scale, bias, out), (F64(eps), I32(centered), x, scale, bias, out), True)

    def norm_back(
        self, out: Any, to_scale: Any, to_bias: Any, x: Any, scale: Any, g: Any, eps: float, centered: bool
    ) -> None:
        """Its gradients with respect to x, scale and bias: those that are given."""
        if out is not None:
            self.rows("norm_back", x, (scale, g, out), (F64(eps), I32(centered), x, scale, g, out), True)
        if to_scale is not None:
            self.sum_rows(to_scale, x, g, (F64(eps), I32(centered)))
        if to_bias is not None:
            self.sum_rows(to_bias, g)

    def sum_rows(self, out: Any, x: Any, g: Any = None, norm: Any = None) -> None:
        """The sum over all dimensions but the last; of g times x as the norm makes it, where these are given."""
        n, module = x.shape[-1], f"neural-{TYPES[x.dtype]}"
        rows, columns = x.size // max(1, n), -(-n // 32)
        wide = np.dtype(F64) if x.dtype.itemsize == 8 else np.dtype(F32)
        moments = None if norm is None else self.cupy.empty(2 * rows, wide)
        if norm is not None:
            args: Any = (I64(n), I64(rows), *norm, x, moments)
            self.kernel(module, "norm_moments")((min(-(-rows // 8), MOST_ROWS),), (32, 8), args)
        chunks, chunk = self.chunks(rows, columns)
        parts = self.cupy.empty(chunks * n, wide)
        args = (I64(n), I64(rows), I64(chunk), x, x if g is None else g, moments, parts)
        self.kernel(module, "norm_scale_back")((columns, chunks), (32, 8), args)
        self.flat(module, "norm_sum_parts", n, (I64(n), I64(chunks), parts, out))

    def chunks(self, rows: int, columns: int) -> tuple[int, int]:
        """How many chunks of rows sums over them are made of, beside so many blocks of columns; and their length."""
        found = max(1, min(-(-rows // 64), -(-8 * self.device.multiprocessors // columns), MOST_ALONG))
        return found, -(-rows // found)

    def bias_gelu(self, out: Any, x: Any, bias: Any, g: Any, total: Any) -> None:
        """GELU of x + bias; with g the gradient with respect to x, and its sum over rows."""
        name, slope = ("bias_gelu", ()) if g is None else ("bias_gelu_back", (g,))
        args = (U64(x.size), U64(bias.size), out, x, bias, *slope)
        self.flat(f"neural-{TYPES[x.dtype]}", name, x.size, args, 16 // x.itemsize)
        if total is not None:
            self.sum_rows(total, out)

    def softmax(self, out: Any, x: Any, logarithm: bool) -> None:
        """Softmax of rows, or its logarithm."""
        self.rows("softmax", x, (out,), (I32(logarithm), x, out), True)

    def softmax_back(self, out: Any, y: Any, g: Any, logarithm: bool) -> None:
        """Its gradient, from what it has given."""
        self.rows("softmax_back", y, (g, out), (I32(logarithm), y, g, out), True)

    def sum_exp(self, out: Any, x: Any, tops: Any) -> None:
        """The sum of exp(x - top) of every row."""
        self.rows("sum_exp", x, (), (x, tops, out), False)

    def cross_back(self, out: Any, x: Any, tops: Any, parts: Any, g: Any, labels: Any, even: Any, share: Any) -> None:
        """g (part exp(x - top) - even - share at the label)."""
        self.rows("cross_back", x, (out,), (F64(even), F64(share), x, tops, parts, g, labels, out), False)

    def rotate(self, out: Any, x: Any, cos: Any, sin: Any, neighbours: bool) -> None:
        """Pairs along the last dimension of x [..., t, heads, d] turned by angles [..., t, d / 2]."""
        heads, half = x.shape[-2], x.shape[-1] // 2
        angles = cos.size // max(1, half)
        args = (U64(x.size // 2), I64(heads), I64(half), I64(max(1, angles)), I32(neighbours), x, cos, sin, out)
        self.flat(f"neural-{TYPES[x.dtype]}", "rotate_pairs", x.size // 2, args)

    # Attention

    def attend(
        self,
        q: Any,
        k: Any,
        v: Any,
        mask: Any,
        limits: Any,
        scale: float,
        g: Any,
        out: Any,
        to_q: Any,
        to_k: Any,
        to_v: Any,
    ) -> None:
        """Attention into out; with g the gradients, into whichever of the last three are given."""
        if q.ndim > 6:
            raise NotImplementedError("attention over more than three leading dimensions")
        shape = np.zeros(1, SHAPE)
        lead = (*[1] * (6 - q.ndim), *q.shape[:-3])
        shape[0] = (lead, q.shape[-3], q.shape[-2], k.shape[-2], q.shape[-1], v.shape[-1], scale)
        pairs, rows, columns = math.prod(lead) * q.shape[-3], q.shape[-2], k.shape[-2]
        if not pairs or not rows:
            return None
        element, inner, outer = TYPES[q.dtype], q.shape[-1], v.shape[-1]
        wide = np.dtype(F64) if q.dtype.itemsize == 8 else np.dtype(F32)
        plan = self._attention(element, inner, outer, wide.itemsize)

        def run(name: str, grid: tuple[int, int], args: Sequence[Any]) -> None:
            kernel, nbytes = self.kernel(plan.module, f"{name}_{plan.width}"), plan.shared[name]
            if grid[1] > MOST_ALONG:
                raise NotImplementedError(f"attention over {max(rows, columns):,} rows")
            if nbytes > self.device.shared_memory:
                raise NotImplementedError(f"attention of rows of {inner} and {outer} elements of {q.dtype}")
            kernel.max_dynamic_shared_size_bytes = max(nbytes, 48 * 1024)
            kernel(grid, (32, plan.warps), tuple(args), shared_mem=nbytes)

        views = [_view(q), _view(k, heads=False), _view(v, heads=False)]
        seen: Any = (_view(mask, step=True), limits)
        grid = pairs, -(-rows // plan.tile)
        if g is None:
            return run("attend", grid, (shape, *views, _view(out), *seen, None))
        logs, along = (self.cupy.empty(pairs * rows, wide) for _ in range(2))
        slope = _view(g)
        run("attend", grid, (shape, *views, _view(None), *seen, logs))
        each = self.kernel(f"attention-{element}", "attend_along")
        blocks = min(-(-rows // ATTENTION_WARPS), MOST_ALONG)
        each((pairs, blocks), (32, ATTENTION_WARPS), (shape, slope, _view(out), along))
        every: Any = (shape, *views, slope, *seen, logs, along)
        if to_q is not None:
            run("attend_rows", grid, (*every, _view(to_q)))
        if to_k is not None and columns:
            slopes = _view(to_k, heads=False), _view(to_v, heads=False)
            run("attend_columns", (math.prod(lead), -(-columns // plan.tile)), (*every, *slopes))
        return None

    def _attention(self, element: str, inner: int, outer: int, itemsize: int) -> Attention:
        """The kernels for rows of so many elements: on tensor cores where they take the type."""
        most = max(inner, outer)
        if element in ("f16", "bf16") and self.device.architecture >= 80 and most <= TENSOR_WIDTHS[-1]:
            d = next(w for w in TENSOR_WIDTHS if w >= most)
            held, small = 2 * TENSOR_TILE * (d + 8), 2 * 32 * (d + 8)  # two operands of a block, and two of a step
            sizes = held + 72 * d, held + small + 40 * d, held + small + 80 * d
            shared = dict(zip(("attend", "attend_rows", "attend_columns"), (2 * n for n in sizes)))
            return Attention(f"tensor-{element}", d, TENSOR_TILE, 4, shared)
        width = next((w for w in WIDTHS if w >= most), None)
        if width is None:
            raise NotImplementedError(f"attention of rows of {most} elements")
        bytes_of_row = ATTENTION_TILE * itemsize
        back = bytes_of_row * (2 * (inner + outer) + 2)
        shared = {"attend": bytes_of_row * (2 * inner + 1 + outer), "attend_rows": back, "attend_columns": back}
        return Attention(f"attention-{element}", width, ATTENTION_TILE, ATTENTION_WARPS, shared)

    # Graphs

    def next_replay(self, number: Any) -> None:
        """One call of a graph more."""
        self.kernel("pack", "next_replay")((1,), (1,), (number,))

    # Messages

    def copy(self, plan: boxes.Plan, blocks: Sequence[Any], flat: Any, pack: bool) -> None:
        """The boxes of a message from its blocks into a flat array, or back."""
        self.device.seen((*blocks, flat))
        for group in range(len(plan.boxes)):
            bases = np.zeros(1, boxes.BASES)
            pointers = [b.data.ptr for b in blocks[group * boxes.MOST : (group + 1) * boxes.MOST]]
            bases["at"][0, : len(pointers)] = pointers
            unit = plan.unit(group, [*pointers, flat.data.ptr])
            table, units = plan.table(group, unit, self.cupy.asarray)
            if units:
                self.device.held(table)
                name = f"{'pack' if pack else 'unpack'}_{unit}"
                self.flat("pack", name, units, (U64(units), U64(len(table) // boxes.WORDS), table, bases, flat))


def _with_steps(inputs: Sequence[Any], count: int) -> list[Any]:
    """Operands and their steps: 0 for one that stands for all; the last again for those that there are not."""
    found: list[Any] = []
    for i in range(count):
        x = inputs[min(i, len(inputs) - 1)]
        found += [x, U64(x.size != 1)]
    return found


def _view(x: Any, heads: bool = True, step: bool = False) -> Any:
    """An operand of attention as an argument: leading dimensions, heads if it has them, rows, elements."""
    view = np.zeros(1, VIEW)
    if x is not None:
        strides = [s // x.itemsize for s in x.strides]
        lead, last = strides[: x.ndim - 2 - heads], strides[x.ndim - 2 - heads :]
        before = [*[0] * (3 - len(lead)), *lead]
        view[0] = x.data.ptr, before, last[0] if heads else 0, last[-2], last[-1] if step else 1
    return view
