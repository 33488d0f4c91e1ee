"""Dropout: elements set to 0 at random, the same ones wherever the pieces lie."""

from __future__ import annotations

from typing import Any

import numpy as np

from spmdx.array import Array
from spmdx.errors import ArgumentError, DtypeError
from spmdx.op import constant
from spmdx.ops.place import asarray
from spmdx.ops.together import Drop
from spmdx.random.dropped import dropped
from spmdx.random.key import Key, checked, key_data


def dropout(key: Key, x: Any, rate: Any) -> Array:
    """x with each element set to 0 with probability ``rate``, and the others multiplied by 1 / (1 - rate).

    What is kept is ``sx.random.bernoulli(key, x.shape, 1 - rate)``: a function of the key and the global element
    index, so it is the same for every placement, and for every dtype. One pass over the block; the mask is not kept
    for the gradient but drawn again. Communicates only to finish a Partial x. Give every layer and step a key of its
    own, by ``fold_in``; a rate of 0 returns x.

    Hinton, Srivastava, Krizhevsky, Sutskever and Salakhutdinov, "Improving neural networks by preventing co-adaptation
    of feature detectors", 2012.

    Raises:
        ArgumentError: a rate outside [0, 1].
    """
    given: Array = x if isinstance(x, Array) else asarray(x)
    drop = prepared(key, given, rate)
    return given if drop is None else drop(given)


def prepared(key: Any, x: Array, rate: Any) -> Drop | None:
    """Dropout of arrays like x, with the checks of its arguments made; None if nothing is dropped, and drawn."""
    if not isinstance(rate, (int, float, np.number)) or not 0 <= rate <= 1:
        raise ArgumentError(f"the rate of dropout is a number between 0 and 1; got {rate!r}.", "dropout(key, x, 0.1)")
    found = checked(key, once=bool(rate > 0))
    if x.dtype.kind not in "fcV":
        raise DtypeError(f"dropout scales what it keeps, and {x.dtype.name} cannot be scaled.", "x.astype(float)")
    return Drop(dropped, constant(key_data(found), x.mesh), float(rate)) if rate else None


__all__ = ["dropout"]
