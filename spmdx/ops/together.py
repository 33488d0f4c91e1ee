"""Several operations in one pass over their operands.

Each is an operation of its own, with its rule; calls that were seen before, and move nothing, are made together where
the blocks are plain ones. On a CPU the bits are those of the separate calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from spmdx import check, context
from spmdx.array import Array
from spmdx.dtypes import NARROW
from spmdx.later import arrive
from spmdx.ops.elementwise import add
from spmdx.ops.fit import fit
from spmdx.ops.launched import Launched
from spmdx.ops.neural import _bias_gelu_back, _norm, _norm_back, _norm_scale_back
from spmdx.ops.reduce import LEAST_ROW, SUMMED, sum
from spmdx.ops.update import _adam_step, _mix, _mix_square
from spmdx.runtime import memory
from spmdx.runtime.kernels import FLOATS, HOST, kept_numbers
from spmdx.spec import Spec
from spmdx.tape import Watched


def seen(function: Any, *args: Any) -> Any:
    """The spec of a call's result, if the call was seen before and moves nothing: then several calls may be made in one
    pass over their blocks. None if not. ``args`` are arrays or specs in their stead, and all static arguments."""
    operation = function.op
    count, known = operation.arrays or 0, (Array,) if context.get().depth else (Array, Watched)
    key = tuple([x.spec if type(x) in known else x if type(x) is Spec else type(x) for x in args[:count]])
    found = operation.memo.get(key[0] if len(args) == 1 else key + args[count:])
    if found is not None:
        return found[1]
    entry = operation.planned.get(key + args[count:]) if context.get().plan is not None else None  # stays for the plan
    if entry is None or entry.plans is not None or not entry.spec.mesh.contains_me() or check.on():
        return None
    return entry.spec


def _plain(*arrays: Any) -> Any:
    """The blocks of arrays, if they are C-contiguous in memory of the host, of one dtype, that kernels know."""
    blocks = [x._block for x in arrays]
    for block in blocks:
        if type(block) is not np.ndarray or block.dtype != blocks[0].dtype or not block.flags.c_contiguous:
            return None
    return blocks if blocks[0].dtype in SUMMED else None


def _ready(*arrays: Any) -> Any:
    """The kernels for the blocks of arrays, what makes a new block beside them, and the blocks; None if they are not
    C-contiguous and of one dtype that these kernels know."""
    blocks = _plain(*arrays)
    if blocks is not None:
        return HOST.build, memory.empty, blocks
    if arrays[0].spec.mesh.device != "cuda":
        return None
    device, blocks = memory.gpu(), [x._block for x in arrays]
    for block in blocks:
        if type(block) is not device.cupy.ndarray or block.dtype != blocks[0].dtype or not block.flags.c_contiguous:
            return None
    return (Launched(device.launch), device.cupy.empty, blocks) if blocks[0].dtype in FLOATS else None


def norm_gradients(
    g: Array, x: Array, scale: Any, bias: Any, eps: float, centered: bool
) -> tuple[Array, Array | None, Array | None]:
    """The gradients of a norm with respect to x, scale and bias (None: there is none)."""
    by, rows = 1.0 if scale is None else scale, tuple(range(g.ndim - 1))
    calls: list[tuple[Any, ...]] = [(_norm_back, g, x, by, eps, centered)]
    if scale is not None:
        calls.append((_norm_scale_back, g, x, eps, centered))
    if bias is not None:
        calls.append((sum, g, rows, None, False))
    specs = [seen(*call) for call in calls]
    blocks = None if None in specs else _plain(g, x, *(() if scale is None else (scale,)))
    if blocks is None or not blocks[0].size or x.shape[-1] < LEAST_ROW or blocks[0].shape != blocks[1].shape:
        found = [function(*args) for function, *args in calls]
    else:
        made = [
            memory.empty(blocks[1].shape, blocks[1].dtype),
            *(np.empty(x.shape[-1], blocks[0].dtype) for _ in specs[1:]),
        ]
        outs = iter(made[1:])
        to_scale, to_bias = (None if a is None else next(outs) for a in (scale, bias))
        HOST.build.norm_back(made[0], to_scale, to_bias, blocks[1], *(blocks[2:] or (None,)), blocks[0], eps, centered)
        found = [Array(block, spec) for block, spec in zip(made, specs)]
    rest = iter(found[1:])
    to_scale, to_bias = (None if a is None else next(rest).astype(a.dtype) for a in (scale, bias))
    return found[0], to_scale, to_bias


class Drop(NamedTuple):
    """Dropout that is to come: the operation, which this floor does not know, the words of the key, and the rate."""

    operation: Any
    words: Array
    rate: float

    def __call__(self, x: Array) -> Array:
        found: Array = self.operation(x, self.words, self.rate)
        return found

    def seen(self, spec: Spec) -> bool:
        """True if dropout of such an array was seen before, and moves nothing."""
        return seen(self.operation, spec, self.words.spec, self.rate, None) is spec

    def numbers(self, spec: Spec) -> tuple[Any, ...]:
        """What the kernel asks to draw the mask of this rank's block."""
        here = spec.mesh.here()
        pieces = [spec.pieces(d, here) for d in range(len(spec.shape))]
        words = self.words._block
        own = words if memory.on_device(words) else words.tolist()  # on a GPU read there
        return own, spec.shape, pieces, *kept_numbers(1.0 - self.rate, spec.dtype.itemsize == 8)


class AddNorm(NamedTuple):
    """``residual + drop(x + added)`` and the norm of it: all but the arrays."""

    drop: Drop | None
    eps: float
    centered: bool

    def numbers(self, spec: Spec) -> tuple[Any, ...]:
        """The last arguments of the kernels."""
        return self.eps, self.centered, None if self.drop is None else self.drop.numbers(spec)


def add_norm(how: AddNorm, x: Array, residual: Array, scale: Any, bias: Any, added: Any) -> tuple[Array, Array] | None:
    """The stream and its norm in one pass, not recorded; None if the calls for them are to be made one by one."""
    given, spec = [a for a in (x, residual, scale, bias, added) if a is not None], residual.spec
    if any(type(a) not in (Array, Watched) for a in given) or x.spec is not spec or context.get().saving is not None:
        return None
    of_scale, of_bias = 1.0 if scale is None else scale.spec, 0.0 if bias is None else bias.spec
    found = [seen(add, spec, spec), seen(_norm, spec, of_scale, of_bias, how.eps, how.centered)]
    if added is not None:
        found.append(seen(add, spec, added.spec))
    if any(each is not spec for each in found) or not (how.drop is None or how.drop.seen(spec)):
        return None
    ready = _ready(*given)
    if ready is None or not ready[2][0].size:
        return None
    build, empty, blocks = ready
    stream, out = (empty(blocks[0].shape, blocks[0].dtype) for _ in range(2))
    rest = iter(blocks[2:])
    of_scale, of_bias, of_added = (None if a is None else next(rest) for a in (scale, bias, added))
    build.add_norm(stream, out, blocks[0], of_added, blocks[1], of_scale, of_bias, *how.numbers(spec))
    return Array(stream, spec), Array(out, spec)


def add_norm_gradients(
    how: AddNorm, g_stream: Array | None, g: Array | None, stream: Array, scale: Any, bias: Any, added: Any
) -> tuple[Any, ...]:
    """The gradients of :func:`add_norm` with respect to x, residual, scale, bias and added, of those of the stream and
    of its norm (one may be None: nothing depends on it)."""
    found = None if g is None else _add_norm_back(how, g_stream, g, stream, scale, bias, added)
    if found is not None:
        return found
    whole: Any = g_stream
    to_scale = to_bias = None
    if g is not None:
        back, to_scale, to_bias = norm_gradients(g, stream, scale, bias, how.eps, how.centered)
        whole = back if g_stream is None else add(g_stream, back)
    to_x = whole if how.drop is None else how.drop(whole)
    return to_x, whole, to_scale, to_bias, None if added is None else fit(to_x, added)


def _add_norm_back(
    how: AddNorm, g_stream: Array | None, g: Array, stream: Array, scale: Any, bias: Any, added: Any
) -> tuple[Any, ...] | None:
    """The same in one pass, or None."""
    spec, rows = stream.spec, tuple(range(stream.ndim - 1))
    if g.spec is not spec or spec.shape[-1] < LEAST_ROW or not (how.drop is None or how.drop.seen(spec)):
        return None
    whole = [seen(_norm_back, g, stream, 1.0 if scale is None else scale, how.eps, how.centered)]
    if g_stream is not None:
        whole.append(seen(add, g_stream, spec))
    sums: list[Any] = []  # what is wanted of them: the spec, and the dtype of the vector
    if scale is not None:
        sums.append((seen(_norm_scale_back, g, stream, how.eps, how.centered), scale.dtype))
    sums += [(seen(sum, spec, rows, None, False), a.dtype) for a in (bias, added) if a is not None]
    if any(each is not spec for each in whole) or any(found is None for found, _ in sums):
        return None
    ready = _ready(stream, g, *(a for a in (scale, g_stream) if a is not None))
    if ready is None or not ready[2][0].size:
        return None
    build, empty, blocks = ready
    rest = iter(blocks[2:])
    of_scale, of_stream = (None if a is None else next(rest) for a in (scale, g_stream))
    out, to_x = (empty(blocks[0].shape, spec.dtype) if made else None for made in (True, how.drop is not None))
    made = [empty(spec.shape[-1:], spec.dtype) for _ in sums]
    each = iter(made)
    to_vectors = [None if a is None else next(each) for a in (scale, bias, added)]
    build.add_norm_back(out, to_x, to_vectors, blocks[0], of_scale, of_stream, blocks[1], *how.numbers(spec))
    vectors = iter([Array(block, found).astype(dtype) for block, (found, dtype) in zip(made, sums)])
    to_residual = Array(out, spec)
    return (
        to_residual if to_x is None else Array(to_x, spec),
        to_residual,
        *(None if a is None else next(vectors) for a in (scale, bias, added)),
    )


def bias_gelu_gradients(g: Array, x: Array, bias: Array) -> tuple[Array, Array]:
    """The gradients of _bias_gelu with respect to x and bias."""
    slope = seen(_bias_gelu_back, g, x, bias)
    if slope is not None and slope.shape == g.shape == x.shape and bias.shape == x.shape[-1:]:
        total = seen(sum, slope, tuple(range(x.ndim - 1)), None, False)
        blocks = None if total is None or total.shape[0] < LEAST_ROW else _plain(g, x, bias)
        if blocks is not None and blocks[0].shape == blocks[1].shape and blocks[0].size:
            out, to_bias = (memory.empty(b.shape, b.dtype) for b in blocks[1:])
            HOST.build.bias_gelu(out, blocks[1], blocks[2], blocks[0], to_bias)
            return Array(out, slope), Array(to_bias, total)
    back = _bias_gelu_back(g, x, bias)
    return fit(back, x), fit(back, bias)


Parameter = tuple[Array, Array, Array, Any]  # the gradient, its running mean and that of its square, what decays


def adam(
    parameters: Sequence[Parameter], b1: float, b2: float, numbers: Sequence[tuple[Any, ...]]
) -> list[tuple[Array, Array, Array]]:
    """The updates of Adam, and the next means, for each parameter (or 0.0, where it does not decay).

    Args:
        numbers: for each parameter what :func:`_adam_step` takes: rate, root, eps and decay.
    """
    found: list[Any] = [None] * len(parameters)
    passes: dict[Any, tuple[Any, list[Any], list[list[Any]]]] = {}
    known: dict[Any, Any] = {}  # many parameters lie alike
    read: dict[int, Any] = {}  # and take the same numbers
    for i, ((g, m, v, p), given) in enumerate(zip(parameters, numbers)):
        arrive((g,))  # a gradient may be on its way still
        alike = g.spec, m.spec, v.spec, p.spec if isinstance(p, Array) else type(p), id(given)
        if alike not in known:
            known[alike] = _adam_specs(g, m, v, p, b1, b2, given)
        specs = known[alike]
        ready = None if specs is None else _adam_ready(g, m, v, p)
        if ready is None:
            m, v = _mix(m, b1, g, 1 - b1), _mix_square(v, b2, g, 1 - b2)
            found[i] = _adam_step(m, v, p, *given), m, v
            continue
        build, empty, arrays = ready
        outs = [empty(arrays[1].shape, arrays[1].dtype) for _ in range(3)]
        found[i] = tuple(Array(block, spec) for block, spec in zip((outs[2], *outs[:2]), specs))
        if id(given) not in read:
            read[id(given)] = _as_read(given)
        values, told = read[id(given)]
        key = type(arrays[0]), arrays[0].dtype, told
        passes.setdefault(key, (build, values, []))[2].append([*arrays[:3], *outs, *(arrays[3:] if told[-1] else ())])
    for build, values, some in passes.values():
        build.adam(some, (b1, 1 - b1, b2, 1 - b2, *values))
    return found


def _as_read(given: tuple[Any, ...]) -> tuple[list[Any], tuple[Any, ...]]:
    """Numbers as kernels take them, those of a GPU to be read there; and what tells them from others."""
    values = [n._block if isinstance(n, Array) else n for n in given]
    values = [n if memory.on_device(n) else float(n) for n in values]
    return values, tuple(id(n) if memory.on_device(n) else n for n in values)


def _adam_ready(g: Array, m: Array, v: Array, p: Any) -> Any:
    """What :func:`_ready` gives for them, if they have one shape; the means lie in the dtype that is computed in."""
    means, given = _ready(m, v), _ready(g, *((p,) if isinstance(p, Array) else ()))
    if means is None or given is None:
        return None
    (build, empty, (m, v)), (g, *rest) = means, given[2]
    if m.dtype != (np.float32 if g.dtype in NARROW else g.dtype) or any(a.shape != g.shape for a in (m, v, *rest)):
        return None
    return build, empty, [g, m, v, *rest]


def _adam_specs(g: Array, m: Array, v: Array, p: Any, b1: float, b2: float, given: tuple[Any, ...]) -> Any:
    """The specs of the update and the next means, if these calls were seen before."""
    mean, square = seen(_mix, m, b1, g, 1 - b1), seen(_mix_square, v, b2, g, 1 - b2)
    step = None if mean is None or square is None else seen(_adam_step, mean, square, p, *given)
    return None if step is None else (step, mean, square)


__all__: list[str] = []
