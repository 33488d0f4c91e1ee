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
from typing import Any

import numpy as np

from spmdx.dtypes import bfloat16, checked
from spmdx.errors import CheckpointError

LONGEST_HEADER = 100_000_000  # bytes, as in the format's own library
LARGEST_WRITE = 1 << 30
META = "__metadata__"  # the format's own entry of texts
NAMES = {
    "BOOL": "bool",
    **{f"{letter}{8 * n}": f"{kind}{8 * n}" for letter, kind in (("I", "int"), ("U", "uint")) for n in (1, 2, 4, 8)},
    **{f"F{8 * n}": f"float{8 * n}" for n in (2, 4, 8)},
}
DTYPES: dict[str, np.dtype[Any]] = {"BF16": bfloat16, **{name: np.dtype(kind) for name, kind in NAMES.items()}}
WORDS = {dtype: name for name, dtype in DTYPES.items()}
PARTS: dict[np.dtype[Any], np.dtype[Any]] = {np.dtype(f"complex{2 * n}"): np.dtype(f"float{n}") for n in (32, 64)}

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
    """The layout of a file for arrays of these shapes and dtypes, in alphabetical order."""
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
    head = len(text).to_bytes(8, "little") + text
    return Layout({n: Tensor(*arrays[n], len(head) + s) for n, s in starts.items()}, entries[META], head)


def read_layout(path: str) -> Layout:
    """The layout of a file.

    Raises:
        CheckpointError: a file that is cut short, or no safetensors file.
    """
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, LONGEST_HEADER):
            raise CheckpointError(f"{path} is no safetensors file, or cut short: it has {size} bytes.", "another path")
        try:
            entries = json.loads(file.read(length))
            texts = entries.pop(META, {})
            pairs = set(json.loads(texts.get("complex", "[]")))
            tensors = {name: _tensor(entry, 8 + length, name in pairs) for name, entry in entries.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path} is no safetensors file: its header has {error!r}.", "another path") from None
    found = Layout(tensors, texts, b"\0" * (8 + length))
    if found.size > size:
        raise CheckpointError(f"{path} is cut short: {size} bytes of {found.size}.", "an earlier checkpoint's path")
    return found


def _tensor(entry: Mapping[str, Any], base: int, pair: bool) -> Tensor:
    dtype, shape = DTYPES[entry["dtype"]], tuple(int(n) for n in entry["shape"])
    start, stop = (int(n) for n in entry["data_offsets"])
    if min(shape, default=0) < 0 or start < 0 or stop - start != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{entry['data_offsets']} for {entry['dtype']} {list(shape)}")
    if pair:
        return Tensor(shape[:-1], next(whole for whole, part in PARTS.items() if part == dtype), base + start)
    return Tensor(shape, checked(dtype), base + start)


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
            offset = int(np.ravel_multi_index(first, tensor.shape)) if tensor.shape else 0
            _put(fd, piece[index].reshape(-1).view(np.uint8), tensor.start + offset * tensor.dtype.itemsize)


def _put(fd: int, run: Any, at: int) -> None:
    done = 0
    while done < len(run):
        done += os.pwrite(fd, run[done : done + LARGEST_WRITE], at + done)


def read(path: str, tensor: Tensor, pieces: Pieces) -> Any:
    """A block of a tensor: no more of the file is read than it holds."""
    out = np.empty([sum(b - a for a, b in intervals) for intervals in pieces], tensor.dtype)
    if out.size:
        whole_array = view(path, tensor)
        for local, whole in boxes(pieces):
            out[local] = whole_array[whole]
    return out


def view(path: str, tensor: Tensor) -> Any:
    """A tensor as a read-only array in the file: what nobody looks at is not read."""
    if not tensor.nbytes:
        return np.empty(tensor.shape, tensor.dtype)
    stored = np.memmap(path, np.uint8, "r", tensor.start, (tensor.nbytes,))
    return np.asarray(stored).view(tensor.dtype).reshape(tensor.shape)
