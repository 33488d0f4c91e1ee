"""JAX's numbers from Threefry, a second time: in NumPy, of any flat indices. Exact."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
MANTISSA = {np.dtype(t): n for t, n in ((np.float16, 10), (ml_dtypes.bfloat16, 7), (np.float32, 23), (np.float64, 52))}
U32, U64 = np.uint32, np.uint64


def words(key: tuple[int, ...], index: Any) -> tuple[Any, Any]:
    """The two words of 64-bit counters, the high one first."""
    counter = np.atleast_1d(np.asarray(index, U64))  # of scalars, NumPy warns that they wrap
    k = [U32(key[0]), U32(key[1]), U32(key[0] ^ key[1] ^ 0x1BD11BDA)]
    x0, x1 = (counter >> U64(32)).astype(U32) + k[0], counter.astype(U32) + k[1]
    for group in range(5):
        for r in ROTATIONS[group % 2]:
            x0 = x0 + x1
            x1 = (x1 << U32(r) | x1 >> U32(32 - r)) ^ x0
        x0, x1 = x0 + k[(group + 1) % 3], x1 + k[(group + 2) % 3] + U32(group + 1)
    return x0, x1


def bits(key: tuple[int, ...], index: Any, width: int) -> Any:
    """Both words in 64 bits, the low bits of their exclusive or in fewer."""
    a, b = words(key, index)
    return a.astype(U64) << U64(32) | b if width == 64 else (a ^ b).astype(f"u{width // 8}")


def uniform(key: tuple[int, ...], index: Any, dtype: np.dtype[Any]) -> Any:
    """As many random bits as the mantissa has, of bits as wide as the dtype (bfloat16: 8), below a one; less one."""
    mantissa, unsigned = MANTISSA[dtype], np.dtype(f"u{dtype.itemsize}")
    drawn = 8 if mantissa < 8 else 8 * dtype.itemsize
    one = np.ones((), dtype)
    word = bits(key, index, drawn).astype(unsigned) >> unsigned.type(drawn - mantissa)
    return (word | one.view(unsigned)).view(dtype) - one


def randint(key: tuple[int, ...], index: Any, dtype: np.dtype[Any], low: int, high: int) -> Any:
    """The remainder of a number twice as wide as the dtype (or as 32 bits), one half from each key of a split."""
    width = max(32, 8 * dtype.itemsize)
    unsigned, span = np.dtype(f"u{width // 8}"), (high - low) % 2**width
    above, below = (bits(tuple(int(w[0]) for w in words(key, j)), index, width) for j in range(2))
    if span:
        times = (2 ** (width // 2) % span) ** 2 % 2**width % span
        over = unsigned.type(span)
        below = (above % over * unsigned.type(times) + below % over) % over
    return (below + unsigned.type(low % 2**width)).astype(f"u{dtype.itemsize}").view(dtype)
