"""Which combinations of the inputs' placements are tried: all of them, or so many that every pair is among them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

from spmdx.spec import Spec

Each = Sequence[Sequence[Spec]]  # for every input, the placements it may have
Chosen = tuple[Spec, ...]


def tried(each: Each, whole: int, paired: Each | None = None) -> list[Chosen]:
    """The whole product of the placements if it has no more than ``whole`` combinations. Otherwise all pairs: for any
    two inputs every placement of one with every placement of the other, of those in ``paired`` (default: of all); and
    every placement of every input at least once."""
    if math.prod(map(len, each)) <= whole:
        return list(product(*each))
    paired = each if paired is None else paired
    rows = pairwise([len(options) for options in paired])
    found = dict.fromkeys(tuple(options[k] for options, k in zip(paired, row)) for row in rows)
    rest = [[spec for spec in options if spec not in some] for options, some in zip(each, paired)]
    return list(found | dict.fromkeys(each_once(each, rest)))


def each_once(each: Each, wanted: Each | None = None, seed: int = 0) -> Iterator[Chosen]:
    """Combinations in which every placement of every input (or of those wanted) comes at least once, the others drawn
    anew for each."""
    draw = np.random.default_rng(seed)
    wanted = each if wanted is None else wanted
    orders = [draw.permutation(len(some)) for some in wanted]
    for i in range(max(map(len, wanted), default=0)):
        yield tuple(
            some[order[i]] if i < len(some) else options[draw.integers(len(options))]
            for options, some, order in zip(each, wanted, orders)
        )


def pairwise(counts: Sequence[int], seed: int = 0) -> list[tuple[int, ...]]:
    """Rows of numbers below ``counts`` in which any two columns hold every pair: close to as few as there can be.

    Column by column, the longest first: each row gets the number with which it makes the most new pairs, then rows are
    added for the pairs that are left (Lei and Tai, In-Parameter-Order, 1998). Ties by lot.
    """
    draw = np.random.default_rng(seed)
    order = sorted(range(len(counts)), key=lambda i: -counts[i])
    rows = [list(row) for row in product(*(range(counts[i]) for i in order[:2]))]
    for k in range(2, len(order)):
        missing = [np.ones((counts[order[j]], counts[order[k]]), bool) for j in range(k)]
        for row in rows:
            gain: Any = draw.random(counts[order[k]]) + sum(missing[j][row[j]] for j in range(k))
            row.append(int(gain.argmax()))
            for j in range(k):
                missing[j][row[j], row[k]] = False
        for j in range(k):
            for a, b in np.argwhere(missing[j]).tolist():
                if missing[j][a, b]:
                    added = [int(draw.integers(counts[order[i]])) for i in range(k)] + [b]
                    for i in range(k):  # where a number is free, one that makes another pair
                        if missing[i][:, b].any():
                            added[i] = int(missing[i][:, b].argmax())
                    added[j] = a
                    rows.append(added)
                    for i in range(k):
                        missing[i][added[i], b] = False
    places = [order.index(i) for i in range(len(counts))]
    return [tuple(row[p] for p in places) for row in rows]
