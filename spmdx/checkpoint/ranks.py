"""Ranks that work on one file: an error of one is raised on all, and what should be alike on all is compared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from spmdx import context
from spmdx.checkpoint.file import LONGEST
from spmdx.errors import CheckpointError, RanksDisagree
from spmdx.mesh import Mesh

T = TypeVar("T")


def together(what: str, run: Callable[[], T]) -> T:
    """Run this rank's part; where that of one rank raises, raise on every rank.

    Raises:
        CheckpointError: "``what``: the reason" for an error of the system; the message of another rank that failed.
    """
    result, error, said = None, None, b""
    try:
        result = run()
    except Exception as raised:  # told to the other ranks, then raised again
        error = raised
        if isinstance(raised, OSError):
            error = CheckpointError(
                f"{what}: {raised.strerror or raised}.", "a path that every rank may use, where there is room"
            )
            error.__cause__ = raised
        said = (str(error) or type(error).__name__).encode("utf-8", "surrogatepass")
    [lengths] = gathered(len(said)).T
    if lengths.any():
        texts = _group().all_gather(np.frombuffer(said, np.uint8), lengths.tolist())
        first = int(np.argmax(lengths > 0))
        text = texts[first].tobytes().decode("utf-8", "surrogatepass")
        raise error or CheckpointError(f"rank {first}: {text}")
    return result  # type: ignore[return-value]  # no error: run() gave it


def same(values: Mapping[str, str], *more: int) -> Any:
    """Compare values by their names; return every rank's row of ``more`` numbers, which may differ.

    Raises:
        RanksDisagree: on every rank, where a name or a value differs.
    """
    text = json.dumps(values, sort_keys=True).encode()
    rows = gathered(digest(text), len(text), *more)
    other = int(np.argmax(rows[:, 0] != rows[0, 0]))
    if other:
        lengths = [n if rank in (0, other) else 0 for rank, n in enumerate(rows[:, 1].tolist())]
        mine = np.frombuffer(text, np.uint8)[: lengths[context.rank()]]
        texts = [part.tobytes() for part in _group().all_gather(mine, lengths)]
        raise _different(json.loads(texts[0]), json.loads(texts[other]), other)
    return rows[:, 2:]


def digest(data: bytes) -> int:
    """A number that stands for these bytes."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little", signed=True)


def gathered(*numbers: int) -> Any:
    """A row of numbers from every rank."""
    group, row = _group(), np.array(numbers, np.int64)
    return np.stack(group.all_gather(row, [len(row)] * group.size))


def everyone() -> Mesh:
    """All ranks."""
    return Mesh(("world",), (context.world().size,))


def _group() -> Any:
    return context.world().comm(everyone()).group(("world",))


def _different(first: Mapping[str, str], second: Mapping[str, str], other: int) -> RanksDisagree:
    names = [n for n in sorted(first.keys() | second.keys()) if first.get(n) != second.get(n)]
    on_each = (
        f"{values.get(names[0], 'missing')[:LONGEST]} on rank {r}" for values, r in ((first, 0), (second, other))
    )
    more = f" ({len(names) - 1} more differ)" if len(names) > 1 else ""
    return RanksDisagree(
        f"every rank saves the same state, and {names[0]} is {' and '.join(on_each)}{more}.",
        'what is the same on every rank; sx.from_block(np.array([value]), {"world": sx.Shard(0)}) for a number of each',
    )
