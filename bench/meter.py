"""What bench/gpu.py measures with: the device, its peers, and the rows of its table."""
# ruff: noqa: E731 - a lambda says it shorter

from __future__ import annotations

import statistics
import traceback
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

import spmdx as sx

BF16 = np.dtype(ml_dtypes.bfloat16)
F32 = np.dtype(np.float32)
GIB = 2**30
TIMES = 20


class Bench:
    """The device, its peers, and what was measured."""

    def __init__(self) -> None:
        import cupy

        self.cupy, self.rows = cupy, []
        self.mesh = sx.make_mesh({"gpu": 1}, device="cuda")
        try:
            import torch

            self.torch: Any = torch if torch.cuda.is_available() else None
        except Exception as error:
            print(f"no torch to compare with: {error}")
            self.torch = None
        x, y = (cupy.zeros(GIB // 4, np.float32) for _ in range(2))
        self.write = GIB / self.time(lambda: x.fill(1.0))
        self.copy = 2 * GIB / self.time(lambda: cupy.copyto(y, x))
        print(f"write {self.write / 1e12:.2f} TB/s, copy {self.copy / 1e12:.2f} TB/s", flush=True)

    def time(self, call: Callable[[], Any], times: int = TIMES) -> float:
        """Seconds of a call on the device."""
        for _ in range(3):
            call()
        events = [(self.cupy.cuda.Event(), self.cupy.cuda.Event()) for _ in range(times)]
        for first, last in events:
            first.record()
            call()
            last.record()
        events[-1][1].synchronize()
        return statistics.median(self.cupy.cuda.get_elapsed_time(*pair) for pair in events) / 1000

    def time_torch(self, call: Callable[[], Any], times: int = TIMES) -> float:
        """The same of torch, on its own stream."""
        event = lambda: self.torch.cuda.Event(enable_timing=True)
        for _ in range(3):
            call()
        pairs = [(event(), event()) for _ in range(times)]
        for first, last in pairs:
            first.record()
            call()
            last.record()
        self.torch.cuda.synchronize()
        return statistics.median(first.elapsed_time(last) for first, last in pairs) / 1000

    def row(
        self,
        name: str,
        ours: Callable[[], Any],
        peers: dict[str, Callable[[], Any]],
        moved: float = 0.0,
        write: bool = False,
        bar: float = 0.8,
        peer_bar: float = 1.0,
    ) -> None:
        """One comparison: ``moved`` bytes against what a copy (or a fill) moves, and the peers' time."""
        try:
            seconds = self.time(ours)
        except Exception as error:
            self.failed(name, error)
            return
        found: dict[str, Any] = {"name": name, "us": seconds * 1e6, "met": True}
        if moved:
            found["of_bandwidth"] = moved / seconds / (self.write if write else self.copy)
            found["met"] = found["of_bandwidth"] >= bar
        for peer, call in peers.items():
            if peer == "torch" and self.torch is None:
                continue
            try:
                other = self.time_torch(call) if peer == "torch" else self.time(call)
            except Exception as error:
                found[f"{peer} failed"] = str(error)[:200]
                continue
            found[peer] = other / seconds
            found["met"] = found["met"] and found[peer] >= peer_bar * 0.97  # a repeat differs by so much
        self.add(found)

    def failed(self, name: str, error: Exception) -> None:
        traceback.print_exc()
        self.add({"name": name, "met": False, "error": f"{type(error).__name__}: {error}"[:300]})

    def add(self, found: dict[str, Any]) -> None:
        self.rows.append(found)
        shown = {k: f"{v:.3g}" if isinstance(v, float) else v for k, v in found.items() if k != "name"}
        numbers = ", ".join(f"{k} {v}" for k, v in shown.items())
        print(f"{found['name']:34} {numbers}", flush=True)

    def array(self, *shape: int, dtype: Any = F32, seed: int = 0) -> Any:
        """Normals, the same for ours and torch's."""
        return sx.random.normal(sx.random.key(seed), shape, dtype=dtype, mesh=self.mesh)

    def twin(self, x: Any, grad: bool = False) -> Any:
        """torch's tensor of the same memory (none without torch)."""
        if self.torch is None:
            return None
        made = self.torch.from_dlpack(x._block).clone()
        return made.requires_grad_() if grad else made
