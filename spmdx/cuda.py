"""CUDA graphs: a step captured once and launched again, with one launch in place of hundreds.

On a GPU of today a small operation takes the host longer to launch than the device to do. A graph is launched as one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from spmdx import context, tree
from spmdx.array import Array
from spmdx.errors import ArgumentError, MeshError, SpmdxError
from spmdx.runtime import pending
from spmdx.runtime.gpu import Capturing, Device, here


class GraphError(SpmdxError, RuntimeError):
    """A step that cannot be captured."""


def graph(step: Callable[..., Any]) -> Callable[..., Any]:
    """``step`` as one launch: a function of arrays on GPUs that may be called again and again.

    The first call with operands of some shapes, placements and other arguments runs the step as it is; the second
    captures it; from then on calls copy the operands in, launch, and copy the results out, so that arrays stay as
    immutable as they are. Every rank makes the same calls.

    Random values: in call number r, counted from 0, a draw with a key gives what it gives with ``fold_in(key, r)``. A
    step with another key is another step to be captured: draw with one key, and let the calls count.

    The step must not make the host wait: no ``float(loss)``, ``x.numpy()`` or ``if`` on a value inside; return it.

    Raises:
        GraphError: a step that does so.
        MeshError: operands that do not lie on GPUs.
    """
    captured: dict[Any, _Captured] = {}

    @wraps(step)
    def call(*args: Any) -> Any:
        leaves, form = tree.flatten(args)
        key = (form, *(x.spec if isinstance(x, Array) else _plain(x) for x in leaves))
        found = captured.get(key)
        if found is None:
            found = captured[key] = _Captured(step, leaves)
        return found(args)

    return call


def _plain(x: Any) -> Any:
    try:
        hash(x)
    except TypeError:
        raise ArgumentError(
            f"a graph is given arrays and constants; got a {type(x).__name__}.",
            "sx.asarray(x, mesh=mesh) before the call",
        ) from None
    return type(x), x


class _Captured:
    """One step for operands of one kind."""

    def __init__(self, step: Callable[..., Any], leaves: list[Any]) -> None:
        arrays = [x for x in leaves if isinstance(x, Array)]
        if not arrays or any(x.mesh.device != "cuda" for x in arrays):
            where = sorted({x.mesh.device for x in arrays}) or "nowhere"
            raise MeshError(f"a graph is of arrays on GPUs; these lie on {where}.", 'sx.make_mesh(device="cuda")')
        if context.world().kind == "threads" and context.world().size > 1:
            raise MeshError("ranks that are threads share a stream, and none can capture what it does.", "mpiexec -n 2")
        self.step, self.ran = step, False
        device = here()
        self.stream = device.cupy.cuda.Stream(non_blocking=True)
        self.pool = device.cupy.cuda.MemoryPool()  # of this graph alone: what it works in must stay where it is
        self.number = device.cupy.zeros(1, np.dtype(np.uint64))
        self.inputs: list[Array] = []
        self.output: Any = None
        self.graph: Any = None
        self.kept: Capturing | None = None

    def __call__(self, args: Any) -> Any:
        device = here()
        if device.capturing is not None:  # a part of another graph
            return self.step(*args)
        if not self.ran:
            found = self._run(device, args)
            self.ran = True
            return found
        if self.graph is None:
            self._capture(device, args)
        arrays = [x for x in tree.leaves(args) if isinstance(x, Array)]
        for x, held in zip(arrays, self.inputs):
            if x._block is not held._block:
                held._block[...] = x._block
        compute = device.cupy.cuda.get_current_stream()
        self.stream.wait_event(compute.record())
        self.graph.launch(self.stream)
        compute.wait_event(self.stream.record())
        return tree.map(lambda x: Array(x._block.copy(), x.spec) if isinstance(x, Array) else x, self.output)

    def _run(self, device: Device, args: Any) -> Any:
        """The step as it is, its draws counted."""
        before, device.counter = device.counter, self.number
        try:
            found = self.step(*args)
        finally:
            device.counter = before
        device.launch.next_replay(self.number)
        return found

    def _capture(self, device: Device, args: Any) -> None:
        """Enqueue the step on a stream that only writes down what it is given."""
        pending.settle()  # no graph may wait for what began before it
        held = tree.map(lambda x: Array(x._block.copy(), x.spec) if isinstance(x, Array) else x, args)
        inputs = [x for x in tree.leaves(held) if isinstance(x, Array)]
        cupy = device.cupy
        self.stream.wait_event(cupy.cuda.get_current_stream().record())
        self.kept = device.capturing = Capturing(cupy)
        with self.stream, cupy.cuda.using_allocator(self.pool.malloc):
            self.stream.begin_capture()
            try:
                self.output = self._run(device, held)
                pending.settle()  # nor leave what nobody waits for
                self.graph = self.stream.end_capture()
            except Exception as error:
                _end(self.stream)
                raise GraphError(
                    f"the step cannot be captured: {type(error).__name__}: {error}",
                    "the step without float(x), x.numpy(), `if` on values and fallbacks to the host; or no graph",
                ) from error
            finally:
                device.capturing = None
        self.inputs = inputs
        self.kept.settle()


def _end(stream: Any) -> None:
    try:
        stream.end_capture()
    except Exception:  # what was captured is thrown away, and the error that ended it is raised
        return


__all__ = ["GraphError", "graph"]
