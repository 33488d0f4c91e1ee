"""Files in the safetensors format, read and written in parts: a length, a JSON header, and every tensor's bytes.

The format is Hugging Face's (https://github.com/huggingface/safetensors): data and no code, so that a file from
anywhere may be read. Tensors are whole arrays in C order; ranks write and read pieces of them.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from reprlib import Repr
from typing import Any

import numpy as np

from spmdx.dtypes import bfloat16, checked
from spmdx.errors import CheckpointError
from spmdx.ops.mapped import copy_to

LONGEST_HEADER = 100_000_000  # bytes, as in the format's own library
LARGEST_WRITE = 1 << 30
LONGEST = 120  # letters of what a message shows
META = "__metadata__"  # the format's own entry of texts
NAMES = {
    "BOOL": "bool",
    **{f"{letter}{8 * n}": f"{kind}{8 * n}" for letter, kind in (("I", "int"), ("U", "uint")) for n in (1, 2, 4, 8)},
    **{f"F{8 * n}": f"float{8 * n}" for n in (2, 4, 8)},
}
DTYPES: dict[str, np.dtype[Any]] = {"BF16": bfloat16, **{name: np.dtype(kind) for name, kind in NAMES.items()}}
WORDS = {dtype: name for name, dtype in DTYPES.items()}
PARTS: dict[np.dtype[Any], np.dtype[Any]] = {np.dtype(f"complex{2 * n}"): np.dtype(f"float{n}") for n in (32, 64)}
COMPLEX = {part: whole for whole, part in PARTS.items()}

_repr = Repr()
_repr.maxstring = _repr.maxother = LONGEST
short = _repr.repr  # of what a file holds, in a message

Pieces = tuple[tuple[tuple[int, int], ...], ...]  # of every dimension, the intervals that a block holds


@dataclass(frozen=True)
class Tensor:
    """Where a tensor lies in a file. Complex numbers are stored as pairs, along one more dimension."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    start: int  # from the beginning of the file

    @property
    def nbytes(self) -> int:
        """Its length."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Layout:
    """What a file holds: its tensors by name, its texts, and the bytes before the tensors."""

    tensors: Mapping[str, Tensor]
    texts: Mapping[str, str] = field(default_factory=dict)
    head: bytes = b""

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return max([len(self.head), *(t.start + t.nbytes for t in self.tensors.values())])


def layout(arrays: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]], texts: Mapping[str, str]) -> Layout:
    """The layout of a file for arrays of these shapes and dtypes, in alphabetical order.

    Raises:
        CheckpointError: names and texts that are longer than the format allows.
    """
    entries: dict[str, Any] = {META: {**texts}}
    at, starts = 0, {}
    for name in sorted(arrays):
        shape, dtype = arrays[name]
        stored = (*shape, 2) if dtype in PARTS else shape
        n = math.prod(shape) * dtype.itemsize
        starts[name] = at
        word = WORDS[PARTS.get(dtype, dtype)]
        entries[name] = {"dtype": word, "shape": list(stored), "data_offsets": [at, at + n]}
        at += n
    pairs = [name for name, (_, dtype) in arrays.items() if dtype in PARTS]
    entries[META]["complex"] = json.dumps(sorted(pairs))
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > LONGEST_HEADER:
        raise CheckpointError(f"names and texts of {len(text)} bytes are more than a file describes.", "a uint8 array")
    head = len(text).to_bytes(8, "little") + text
    return Layout({n: Tensor(*arrays[n], len(head) + s) for n, s in starts.items()}, entries[META], head)


def opened(path: str) -> tuple[Layout, Any]:
    """What a file holds, and its bytes, of which none is read before somebody looks at it.

    Whatever lies at the path later, these are the bytes of the file that lay there now.

    Raises:
        CheckpointError: no such file, one that is cut short, or no safetensors file.
    """
    if not os.path.isfile(path):
        what = f"{path!r} is no file" if os.path.exists(path) else f"there is no file {path}"
        raise CheckpointError(f"{what}.", "checkpoint.save(path, state) before it")
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, LONGEST_HEADER):
            raise CheckpointError(f"{path} is no safetensors file, or cut short: it has {size} bytes.", "another path")
        data = np.memmap(file, np.uint8, "r")
    try:
        found = _layout(data[: 8 + length].tobytes())
    except (ValueError, OverflowError, RecursionError) as error:
        raise CheckpointError(
            f"{path} is no safetensors file: its header has {str(error)[:LONGEST]}.", "another path"
        ) from None
    if found.size > size:
        raise CheckpointError(f"{path} is cut short: {size} bytes of {found.size}.", "an earlier checkpoint's path")
    return found, data


def _layout(head: bytes) -> Layout:
    """What the bytes before the tensors say; a ValueError where they are not as the format has them."""
    entries = json.loads(head[8:], object_pairs_hook=_once)
    texts = entries.pop(META, {}) if isinstance(entries, dict) else None
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise ValueError(f"no dict of tensors and texts: {short(texts)}")
    pairs = json.loads(texts.get("complex", "[]"))
    if not isinstance(pairs, list) or not all(isinstance(name, str) for name in pairs):
        raise ValueError(f"complex: {short(pairs)}")
    pairs = set(pairs)
    tensors = {name: _tensor(entry, len(head), name in pairs) for name, entry in entries.items()}
    end = len(head)
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].nbytes)):
        if tensor.start < end:
            raise ValueError(f"{name}, which begins in another tensor")
        end = tensor.start + tensor.nbytes
    return Layout(tensors, texts, head)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"a name twice among {short([name for name, _ in pairs])}")
    return found


def _tensor(entry: Any, base: int, pair: bool) -> Tensor:
    match entry:
        case {"dtype": str(word), "shape": [*shape], "data_offsets": [int(start), int(stop)]} if word in DTYPES:
            dtype = DTYPES[word]
        case _:
            raise ValueError(short(entry))
    if not all(type(n) is int and n >= 0 for n in shape) or start < 0:
        raise ValueError(short(entry))
    np.broadcast_to(
        np.zeros((), dtype), shape[:-1] if pair else shape
    )  # a ValueError where no array has so many dimensions or elements
    if stop - start != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{[start, stop]} for {word} {shape}")
    if pair:
        whole = COMPLEX.get(dtype)
        if whole is None or shape[-1:] != [2]:
            raise ValueError(f"{word} {shape} for complex numbers")
        return Tensor(tuple(shape[:-1]), whole, base + start)
    return Tensor(tuple(shape), checked(dtype), base + start)


def boxes(pieces: Pieces) -> Iterator[tuple[tuple[slice, ...], tuple[slice, ...]]]:
    """A block's contiguous boxes: where each lies in the block and in the whole array."""
    spans = []
    for intervals in pieces:
        at, own = 0, []
        for a, b in intervals:
            own.append((slice(at, at + b - a), slice(a, b)))
            at += b - a
        spans.append(own)
    for box in product(*spans):
        yield tuple(local for local, _ in box), tuple(whole for _, whole in box)


def write(fd: int, tensor: Tensor, block: Any, pieces: Pieces) -> None:
    """Put a block where it belongs in the file, run by run: no other byte is touched."""
    for local, whole in boxes(pieces):
        piece = np.ascontiguousarray(block[local]).reshape(block[local].shape)
        if not piece.size:
            continue
        k = piece.ndim  # dimensions from k on are one run
        while k and (k == piece.ndim or piece.shape[k] == tensor.shape[k]):
            k -= 1
        for index in np.ndindex(piece.shape[:k]):
            first = [s.start + i for s, i in zip(whole, index)] + [s.start for s in whole[k:]]
            offset = 0
            for i, n in zip(first, tensor.shape):
                offset = offset * n + i
            _put(fd, piece[index].reshape(-1).view(np.uint8), tensor.start + offset * tensor.dtype.itemsize)


def _put(fd: int, run: Any, at: int) -> None:
    done = 0
    while done < len(run):
        done += os.pwrite(fd, run[done : done + LARGEST_WRITE], at + done)


def read(out: Any, whole_array: Any, pieces: Pieces) -> None:
    """Fill a block of an array in a file: no more of the file is read than it holds."""
    for local, whole in boxes(pieces):
        here, there = (..., *local), (..., *whole)  # arrays, also where there is no dimension
        copy_to(out[here], whole_array[there])


def view(data: Any, tensor: Tensor) -> Any:
    """A tensor as a read-only array in the file: what nobody looks at is not read."""
    stored = np.asarray(data)[tensor.start : tensor.start + tensor.nbytes]
    return stored.view(tensor.dtype).reshape(tensor.shape)
