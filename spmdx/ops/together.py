"""Several operations in one pass over their operands.

Each is an operation of its own, with its rule; calls that were seen before, and move nothing, are made together where
the blocks are plain ones. The bits are those of the separate calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spmdx import context
from spmdx.array import Array
from spmdx.later import arrive
from spmdx.ops.fit import fit
from spmdx.ops.neural import _bias_gelu_back, _norm_back, _norm_scale_back
from spmdx.ops.reduce import LEAST_ROW, SUMMED, sum
from spmdx.ops.update import _adam_step, _mix, _mix_square
from spmdx.runtime.kernels import HOST
from spmdx.spec import Spec
from spmdx.tape import Watched


def seen(function: Any, *args: Any) -> Any:
    """The spec of a call's result, if the call was seen before and moves nothing: then several calls may be made in one
    pass over their blocks. None if not. ``args`` are arrays or specs in their stead, and all static arguments."""
    operation = function.op
    count, known = operation.arrays or 0, (Array,) if context.get().depth else (Array, Watched)
    key = tuple([x.spec if type(x) in known else x if type(x) is Spec else type(x) for x in args[:count]])
    found = operation.memo.get(key[0] if len(args) == 1 else key + args[count:])
    return None if found is None else found[1]


def _plain(*arrays: Any) -> Any:
    """The blocks of arrays, if they are C-contiguous in memory of the host, of one dtype, that kernels know."""
    blocks = [x._block for x in arrays]
    for block in blocks:
        if type(block) is not np.ndarray or block.dtype != blocks[0].dtype or not block.flags.c_contiguous:
            return None
    return blocks if blocks[0].dtype in SUMMED else None


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
        made = [np.empty_like(blocks[1]), *(np.empty(x.shape[-1], blocks[0].dtype) for _ in specs[1:])]
        outs = iter(made[1:])
        to_scale, to_bias = (None if a is None else next(outs) for a in (scale, bias))
        HOST.build.norm_back(made[0], to_scale, to_bias, blocks[1], *(blocks[2:] or (None,)), blocks[0], eps, centered)
        found = [Array(block, spec) for block, spec in zip(made, specs)]
    rest = iter(found[1:])
    to_scale, to_bias = (None if a is None else next(rest).astype(a.dtype) for a in (scale, bias))
    return found[0], to_scale, to_bias


def bias_gelu_gradients(g: Array, x: Array, bias: Array) -> tuple[Array, Array]:
    """The gradients of _bias_gelu with respect to x and bias."""
    slope = seen(_bias_gelu_back, g, x, bias)
    if slope is not None and slope.shape == g.shape == x.shape and bias.shape == x.shape[-1:]:
        total = seen(sum, slope, tuple(range(x.ndim - 1)), None, False)
        blocks = None if total is None or total.shape[0] < LEAST_ROW else _plain(g, x, bias)
        if blocks is not None and blocks[0].shape == blocks[1].shape and blocks[0].size:
            out, to_bias = np.empty_like(blocks[1]), np.empty_like(blocks[2])
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
    passes: dict[Any, list[list[Any]]] = {}
    for i, ((g, m, v, p), given) in enumerate(zip(parameters, numbers)):
        arrive((g,))  # a gradient may be on its way still
        specs = _adam_specs(g, m, v, p, b1, b2, given)
        arrays = None if specs is None else _plain(g, m, v, *((p,) if isinstance(p, Array) else ()))
        if arrays is None or any(a.shape != arrays[0].shape for a in arrays):
            m, v = _mix(m, b1, g, 1 - b1), _mix_square(v, b2, g, 1 - b2)
            found[i] = _adam_step(m, v, p, *given), m, v
            continue
        outs = [np.empty_like(arrays[0]) for _ in range(3)]
        found[i] = tuple(Array(block, spec) for block, spec in zip((outs[2], *outs[:2]), specs))
        values = tuple(float(n._block) if isinstance(n, Array) else float(n) for n in given)
        decays = arrays[3:] if values[-1] else []
        passes.setdefault((arrays[0].dtype, values), []).append([*arrays[:3], *outs, *decays])
    for (_, values), some in passes.items():
        HOST.build.adam(some, (b1, 1 - b1, b2, 1 - b2, *values))
    return found


def _adam_specs(g: Array, m: Array, v: Array, p: Any, b1: float, b2: float, given: tuple[Any, ...]) -> Any:
    """The specs of the update and the next means, if these calls were seen before."""
    mean, square = seen(_mix, m, b1, g, 1 - b1), seen(_mix_square, v, b2, g, 1 - b2)
    step = None if mean is None or square is None else seen(_adam_step, mean, square, p, *given)
    return None if step is None else (step, mean, square)


__all__: list[str] = []
