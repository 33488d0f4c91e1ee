"""Keys: small values that every rank makes for itself, so that they never communicate.

A philox4x32 key has 128 bits, a threefry2x32 key (JAX's) 64. Salmon, Moraes, Dror and Shaw, "Parallel random numbers:
as easy as 1, 2, 3", 2011.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spmdx import check, context, tree
from spmdx.array import Array
from spmdx.errors import ArgumentError, DtypeError, KeyReuseError, ShapeError
from spmdx.ops.place import held
from spmdx.runtime.kernels import philox, threefry

PHILOX, THREEFRY = "philox4x32", "threefry2x32"
IMPLS = {PHILOX: 4, THREEFRY: 2}  # generators, and the words of their keys
MASK = 2**32 - 1
RESERVED = 2**63  # numbers from here on are not the user's: fold_in(key, RESERVED) is what split splits


@tree.static
@dataclass(frozen=True, slots=True)
class Key:
    """What random values are a function of. Make one with :func:`key`; equal words give equal values everywhere.

    In a pytree it is a node without leaves: it is carried along, and never differentiated.

    Attributes:
        words: 32 bits each: the Philox key (k0, k1) and the stream (s0, s1); or the two words of a Threefry key.
        impl: the generator's name.
    """

    words: Any  # a tuple of ints
    impl: str = PHILOX

    def __repr__(self) -> str:
        words = self.words if self.impl == THREEFRY else reversed(self.words)
        return f"Key({''.join(f'{word:08x}' for word in words)}, {self.impl!r})"


def checked(key: Any, *impls: str, once: bool = True) -> Key:
    """``key``, if it is one, of a generator that the caller draws from (any unless told), and not used up.

    Raises:
        DtypeError: anything else, such as a bare seed.
        ArgumentError: a key of another generator.
        KeyReuseError: inside ``debug.check_keys()`` a key that was drawn from before; under SPMDX_CHECK=1, one that
            was given to :func:`consume`.
    """
    if not isinstance(key, Key):
        hint = f"sx.random.key({key})" if isinstance(key, int) else "sx.random.key(0)"
        raise DtypeError(f"random values are drawn with a key; got {type(key).__name__} {key!r}.", hint)
    if key.impl not in (impls or IMPLS):
        raise ArgumentError(
            f"{key!r} cannot be drawn from here, which takes {' and '.join(impls or IMPLS)} keys.",
            f'sx.random.key(seed, impl="{(impls or tuple(IMPLS))[0]}")',
        )
    if once and (context.get().check_keys or check.on()):
        _use(key, context.get().check_keys)
    return key


def _integer(value: Any, what: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise DtypeError(f"{what} is an integer; got {type(value).__name__} {value!r}.", f"{what}=0") from None


def _known(impl: str) -> str:
    if impl not in IMPLS:
        raise ArgumentError(f"there is no generator {impl!r}.", " or ".join(f'impl="{name}"' for name in IMPLS))
    return impl


def key(seed: int, impl: str = PHILOX) -> Key:
    """The key of a seed.

    Args:
        seed: any integer from -2**63 to 2**64 - 1; negative ones modulo 2**64.
        impl: "philox4x32", or "threefry2x32" for the numbers that JAX draws.

    Raises:
        ArgumentError: a seed of more than 64 bits, or an unknown ``impl``.
    """
    number = _integer(seed, "seed")
    if not -(2**63) <= number < 2**64:
        raise ArgumentError(f"a seed has at most 64 bits; got {number}.", f"sx.random.key({number % 2**64})")
    low, high = number & MASK, number >> 32 & MASK
    return Key((high, low) if _known(impl) == THREEFRY else (low, high, 0, 0), impl)


def _fold(key: Key, number: int) -> Key:
    if key.impl == THREEFRY:
        return Key(threefry(number, key.words), THREEFRY)
    k0, k1, s0, s1 = key.words
    return Key(philox((number & MASK, number >> 32, s0 ^ MASK, s1 ^ MASK), (k0, k1)), key.impl)


def fold_in(key: Key, number: int) -> Key:
    """A new key of an old one and a number: a step, a layer, a rank. Different numbers give unrelated keys.

    Args:
        number: from 0 to 2**63 - 1; to 2**32 - 1 for a threefry2x32 key.
    """
    old, n = checked(key, once=False), _integer(number, "number")
    bits = 32 if old.impl == THREEFRY else 63
    if not 0 <= n < 2**bits:
        raise ArgumentError(
            f"fold_in takes numbers from 0 to 2**{bits} - 1 ({old.impl}); got {n}.", f"fold_in(key, {n % 2**bits})"
        )
    return _fold(old, n)


def split(key: Key, count: int = 2) -> tuple[Key, ...]:
    """``count`` new keys of an old one, which should not be used again: ``first, second = split(key)``."""
    m = _integer(count, "count")
    if m < 0:
        raise ArgumentError(f"there is no split into {m} keys.", "split(key, 2)")
    old = checked(key)
    parent = old if old.impl == THREEFRY else _fold(old, RESERVED)  # JAX's split is its fold_in
    return tuple(_fold(parent, j) for j in range(m))


# Keys as data


def key_data(key: Key | Sequence[Key]) -> Any:
    """The words of a key, a uint32 NumPy vector to be saved; of a sequence of keys, one row each."""
    if isinstance(key, Key):
        return np.array(key.words, np.uint32)
    keys = [checked(k, once=False) for k in key]
    if len({k.impl for k in keys}) > 1:
        raise ArgumentError("keys of two generators have different numbers of words.", "key_data of each kind")
    return np.array([k.words for k in keys], np.uint32).reshape(len(keys), IMPLS[keys[0].impl] if keys else 4)


def wrap_key_data(data: Any, *, impl: str = PHILOX) -> Any:
    """The key whose words ``data`` holds; of a matrix, a tuple of keys, one for each row.

    Args:
        data: uint32 words, as NumPy has them or as a replicated Array.
        impl: the generator, as :func:`key`'s.
    """
    words, width = (
        np.asarray(held(data) if isinstance(data, Array) and data.spec.replicated else data),
        IMPLS[_known(impl)],
    )
    if words.dtype != np.uint32:
        raise DtypeError(f"key data are uint32 words, not {words.dtype}.", "np.array(words, np.uint32)")
    if words.ndim not in (1, 2) or words.shape[-1] != width:
        raise ShapeError(
            f"a {impl} key has {width} words; the data have shape {words.shape}.",
            f"an array of shape ({width},) or (n, {width}), or another impl",
        )
    keys = tuple(Key(tuple(row), impl) for row in words.reshape(-1, width).tolist())
    return keys[0] if words.ndim == 1 else keys


# Keys that are used once


def consume(key: Key) -> Key:
    """Mark a key as used up, and return it: whatever draws from it or splits it afterwards raises, in debug mode.

    Debug mode is ``with sx.debug.check_keys():``, where every draw and split uses its key up by itself, and
    SPMDX_CHECK=1. Elsewhere nothing is marked. Keys are told apart by their words; :func:`fold_in` never uses one up.
    """
    found = checked(key, once=False)
    if context.get().check_keys or check.on():
        _use(found, True)
    return found


def clone(key: Key) -> Key:
    """The same key, meant to be drawn from once more: debug mode forgets that it was used."""
    found = checked(key, once=False)
    context.get().used_keys.discard(found)
    return found


def _use(key: Key, mark: bool) -> None:
    if context.get().dry is not None:
        return  # nothing is drawn
    used = context.get().used_keys
    if key in used:
        raise KeyReuseError(
            f"{key!r} is used up: what is drawn from it again are the same values, not new ones.",
            "first, second = sx.random.split(key), or fold_in(key, step); sx.random.clone(key) if the same are meant",
        )
    if mark:
        used.add(key)
