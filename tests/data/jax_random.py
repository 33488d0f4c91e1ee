"""Writes jax_random.json: what JAX draws, for tests/random/test_threefry.py. Run where JAX is installed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

SEEDS = (0, 1, 42, 2**32 + 7, 2**63 - 1, -1, -(2**63))
NUMBERS = (0, 1, 7, 2**31, 2**32 - 1)
SHAPES = ((), (0,), (1,), (7,), (3, 5), (2, 3, 4))
UNSIGNED, FLOATS = ("uint8", "uint16", "uint32", "uint64"), ("float16", "bfloat16", "float32", "float64")
RANGES = {
    "int8": ((0, 10), (-128, 128), (-5, 97)),
    "uint8": ((0, 256), (3, 200)),
    "int16": ((-3, 1000), (-(2**15), 2**15)),
    "uint16": ((0, 2**16), (5, 6)),
    "int32": ((0, 3), (-(2**31), 2**31), (-10, 2**31 - 1)),
    "uint32": ((0, 2**32), (0, 1_000_003)),
    "int64": ((0, 10), (-(2**63), 2**63), (-(2**40), 2**62)),
    "uint64": ((0, 2**64), (5, 2**63)),
}


def words(values: Any) -> list[str]:
    """Bit patterns in hexadecimal: exact for every dtype."""
    flat = np.atleast_1d(np.asarray(values)).reshape(-1)
    return [f"{v:x}" for v in flat.view(f"u{flat.itemsize}").tolist()]


def data(key: Any) -> list[str]:
    return words(jax.random.key_data(key))


def bound(value: int) -> Any:
    """A bound as JAX takes it: an array where it is beyond int64."""
    return jnp.uint64(value) if value >= 2**63 else value


def answers() -> dict[str, Any]:
    """Everything that is compared."""
    out: dict[str, Any] = {"key": {}, "split": {}, "fold_in": {}, "bits": {}, "uniform": {}, "randint": {}}
    for seed in SEEDS:
        key = jax.random.key(seed, impl="threefry2x32")
        out["key"][str(seed)] = data(key)
        out["split"][str(seed)] = data(jax.random.split(key, 5))
        for n in NUMBERS:
            out["fold_in"][f"{seed} {n}"] = data(jax.random.fold_in(key, n))
    key = jax.random.key(2026, impl="threefry2x32")
    for shape in SHAPES:
        for dtype in UNSIGNED:
            out["bits"][f"{dtype} {shape}"] = words(jax.random.bits(key, shape, dtype))
        for dtype in FLOATS:
            out["uniform"][f"{dtype} {shape}"] = words(jax.random.uniform(key, shape, dtype))
        for dtype, ranges in RANGES.items():
            for low, high in ranges:
                if high == 2**64:
                    continue  # no dtype of JAX holds this bound
                drawn = jax.random.randint(key, shape, bound(low), bound(high), dtype)
                out["randint"][f"{dtype} {low} {high} {shape}"] = words(drawn)
    return out


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    text = {"made with": f"jax {jax.__version__}", "seed": 2026, **answers()}
    path = Path(__file__).with_suffix(".json")
    path.write_text(json.dumps(text, indent=0))
    print(path, math.ceil(path.stat().st_size / 1024), "KiB")
