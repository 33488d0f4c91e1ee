"""The operation behind nn.dropout: a mask that depends on the global element index, applied and scaled at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from spmdx.decide import Bounds
from spmdx.op import op
from spmdx.runtime import kernels


def _whole(x: tuple[int, ...], *_: tuple[int, ...], **more: Any) -> dict[str, Any]:
    return {"shape": x}


@op("..., [words], -> ...", bounds=True, prepare=_whole)
def dropped(xp: Any, at: Bounds, x: Any, words: Any, rate: Any, shape: Any = None) -> Any:
    """``x / (1 - rate)`` where ``bernoulli(key, x.shape, 1 - rate)`` of the key with these words is true, 0 elsewhere.

    One kernel, which draws the mask piece by piece: the gradient is the same operation on g, which draws it again.
    """
    own = tuple(words.tolist()) if xp is np else words  # on a GPU read there
    return kernels.of(xp).dropout(own, shape, at.output, x, 1.0 - float(rate))


dropped.vjp(
    lambda g, out, x, words, rate, shape: dropped(g, words, rate),
    lambda g, out, x, words, rate, shape: None,
    lambda g, out, x, words, rate, shape: None,
)
