"""Keys: 128 bits each, small values that every rank makes for itself, so that they never communicate.

Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

from spmdx.errors import ArgumentError, DtypeError
from spmdx.runtime.kernels import Words, philox

IMPLS = ("philox4x32",)
MASK = 2**32 - 1
RESERVED = 2**63  # numbers from here on are not the user's: fold_in(key, RESERVED) is what split splits


@dataclass(frozen=True, slots=True)
class Key:
    """What random values are a function of. Make one with :func:`key`; equal words give equal values everywhere.

    Attributes:
        words: the Philox key (k0, k1) and the stream (s0, s1), 32 bits each.
        impl: the generator's name.
    """

    words: Words
    impl: str = "philox4x32"

    def __repr__(self) -> str:
        return f"Key({''.join(f'{word:08x}' for word in reversed(self.words))}, {self.impl!r})"


def checked(key: Any) -> Key:
    """``key``, if it is one.

    Raises:
        DtypeError: anything else, such as a bare seed.
    """
    if not isinstance(key, Key):
        hint = f"sx.random.key({key})" if isinstance(key, int) else "sx.random.key(0)"
        raise DtypeError(f"random values are drawn with a key; got {type(key).__name__} {key!r}.", hint)
    return key


def _integer(value: Any, what: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise DtypeError(f"{what} is an integer; got {type(value).__name__} {value!r}.", f"{what}=0") from None


def key(seed: int, impl: str = "philox4x32") -> Key:
    """The key of a seed.

    Args:
        seed: any integer from -2**63 to 2**64 - 1; negative ones modulo 2**64.
        impl: "philox4x32" is the only one yet.

    Raises:
        ArgumentError: a seed of more than 64 bits, or an unknown ``impl``.
    """
    number = _integer(seed, "seed")
    if not -(2**63) <= number < 2**64:
        raise ArgumentError(f"a seed has at most 64 bits; got {number}.", f"sx.random.key({number % 2**64})")
    if impl not in IMPLS:
        raise ArgumentError(f"there is no generator {impl!r}.", 'impl="philox4x32"')
    number %= 2**64
    return Key((number & MASK, number >> 32, 0, 0), impl)


def _fold(key: Key, number: int) -> Key:
    k0, k1, s0, s1 = key.words
    return Key(philox((number & MASK, number >> 32, s0 ^ MASK, s1 ^ MASK), (k0, k1)), key.impl)


def fold_in(key: Key, number: int) -> Key:
    """A new key of an old one and a number: a step, a layer, a rank. Different numbers give unrelated keys.

    Args:
        number: from 0 to 2**63 - 1.
    """
    n = _integer(number, "number")
    if not 0 <= n < RESERVED:
        raise ArgumentError(f"fold_in takes numbers from 0 to 2**63 - 1; got {n}.", f"fold_in(key, {n % RESERVED})")
    return _fold(checked(key), n)


def split(key: Key, count: int = 2) -> tuple[Key, ...]:
    """``count`` new keys of an old one, which should not be used again: ``first, second = split(key)``."""
    m = _integer(count, "count")
    if m < 0:
        raise ArgumentError(f"there is no split into {m} keys.", "split(key, 2)")
    parent = _fold(checked(key), RESERVED)
    return tuple(_fold(parent, j) for j in range(m))
