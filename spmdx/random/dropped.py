"""The operation behind nn.dropout: a mask that depends on the global element index, applied and scaled at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from spmdx.decide import Bounds
from spmdx.op import op
from spmdx.random import threefry
from spmdx.runtime import kernels


def _whole(x: tuple[int, ...], *_: tuple[int, ...], **more: Any) -> dict[str, Any]:
    return {"shape": x}


@op("..., [words], -> ...", bounds=True, prepare=_whole)
def dropped(xp: Any, at: Bounds, x: Any, words: Any, rate: Any, shape: Any = None) -> Any:
    """``x / (1 - rate)`` where ``bernoulli(key, x.shape, 1 - rate)`` of the key with these words is true, 0 elsewhere.

    The mask lives as long as the call: the gradient is the same operation on g, which draws it again.
    """
    kept = 1.0 - float(rate)
    source: Any = kernels if len(words) == 4 else threefry
    mask = source.bernoulli(tuple(words.tolist()), shape, at.output, kept)
    wide = x.astype(np.float32) if x.itemsize == 2 else x  # float16 and bfloat16 are rounded once
    scale = 1 / kept if kept else 1.0  # nothing is kept
    out = xp.asarray(wide * wide.real.dtype.type(scale)).astype(x.dtype, copy=False)
    bits = out.view(f"u{min(8, out.itemsize)}") if out.ndim else out.reshape(1).view(f"u{min(8, out.itemsize)}")
    bits *= mask if out.itemsize <= 8 else xp.repeat(mask.reshape(*mask.shape, 1), 2, -1).reshape(bits.shape)
    return out


dropped.vjp(
    lambda g, out, x, words, rate, shape: dropped(g, words, rate),
    lambda g, out, x, words, rate, shape: None,
    lambda g, out, x, words, rate, shape: None,
)
