"""Moving blocks: runs the steps of plans with a communicator. Packs, calls one verb, unpacks.

Several arrays that have the same next step share one collective and one buffer. The plan says what happens and
geometry says which part goes where; here bytes travel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from spmdx import context
from spmdx.geometry import Part, Route, local_parts, route
from spmdx.mesh import Coordinate, Mesh
from spmdx.plan import LOCAL, Step
from spmdx.runtime import memory, simulate
from spmdx.runtime.pool import take

Block = Any  # an ndarray of the mesh's device; on a simulated mesh a tuple of them, one for each rank
Group = Any


class Record(NamedTuple):
    """One collective that was made: what, over which axes, the bytes planned, for which operation and user's line."""

    verb: str
    axes: tuple[str, ...]
    bytes: int
    operation: str
    line: str


def move(plans: Sequence[tuple[Step, ...]], blocks: Sequence[Block], cause: str = "redistribute") -> list[Block]:
    """Take every block through its plan; steps that can share a collective do. Sources are never changed."""
    if len(plans) == 1:  # most calls: nothing to share, one step after another
        block = blocks[0]
        for step in plans[0]:
            if step.verb in LOCAL:
                block = _local(step, block)
            else:
                record(step.verb, step.axes, step.bytes, cause)
                [block] = _collective([step], [block])
        return [block]
    blocks = list(blocks)
    left = [list(steps) for steps in plans]

    def local(i: int) -> None:
        while left[i] and left[i][0].verb in LOCAL:
            blocks[i] = _local(left[i].pop(0), blocks[i])

    for i in range(len(left)):
        local(i)
    for together, steps in _rounds(left, cause):
        for i, block in zip(together, _collective(steps, [blocks[i] for i in together])):
            blocks[i] = block
            local(i)
    return blocks


def count(plans: Sequence[tuple[Step, ...]], cause: str) -> None:
    """Tell the open trace what `move` would do with these plans: a dry run, on a rank that has no blocks."""
    for _ in _rounds([[step for step in steps if step.verb not in LOCAL] for steps in plans], cause):
        pass


def _rounds(left: list[list[Step]], cause: str) -> Iterator[tuple[list[int], list[Step]]]:
    """Collective by collective: the plans whose next steps share it, and these steps, recorded and taken away."""
    while waiting := [i for i, steps in enumerate(left) if steps]:
        first = left[waiting[0]][0]
        together = [i for i in waiting if _alike(first, left[i][0])]
        steps = [left[i].pop(0) for i in together]
        record(first.verb, first.axes, sum(step.bytes for step in steps), cause)
        yield together, steps


def _alike(a: Step, b: Step) -> bool:
    """True if two steps can go in one message: same verb, axes, dtype, and reduction if there is one."""
    same = (a.verb, a.axes, a.source.mesh, a.source.dtype) == (b.verb, b.axes, b.source.mesh, b.source.dtype)
    return same and ("reduce" not in a.verb or a.source.op == b.source.op)


def _local(step: Step, block: Block) -> Block:
    mesh = step.source.mesh
    if mesh.device == "sim":
        each = block if isinstance(block, tuple) else (block,) * mesh.size  # a Python scalar is the same on every rank
        return tuple(_local_at(step, b, c) for b, c in zip(each, mesh.coordinates()))
    return _local_at(step, block, mesh.here())


def _local_at(step: Step, block: Any, coordinate: Coordinate) -> Any:
    if step.verb == "mask":
        at = step.source.mesh.axis_names
        first = all(coordinate[at.index(a)] == 0 for a in step.axes)
        return block if first else memory.filled_like(block, step.target.op)
    source, target = local_parts(step, coordinate)
    if step.verb == "slice" and len(source.boxes) == 1:
        return block[source.boxes[0]]
    shape = step.target.block_shape(coordinate)
    out = np.empty(shape, block.dtype) if step.verb == "slice" else memory.filled(shape, block.dtype, step.target.op)
    for from_box, to_box in zip(source.boxes, target.boxes):
        out[to_box] = block[from_box]
    return out


def record(verb: str, axes: tuple[str, ...], sent: int, cause: str) -> None:
    """Tell the open trace, if there is one, of a collective."""
    trace = context.get().trace
    if trace is not None:
        trace.append(Record(verb, axes, sent, cause, memory.users_line()))


def pack(part: Part, block: Any, flat: Any, at: int = 0) -> None:
    """Copy a part of a block into a flat message, from position ``at`` on."""
    for box, shape in zip(part.boxes, part.shapes):
        n = math.prod(shape)
        flat[at : at + n].reshape(shape)[...] = block[box]
        at += n


def unpack(part: Part, flat: Any, block: Any, at: int = 0) -> None:
    """Copy a flat message, from position ``at`` on, to a part of a block."""
    for box, shape in zip(part.boxes, part.shapes):
        n = math.prod(shape)
        block[box] = flat[at : at + n].reshape(shape)
        at += n


def _collective(steps: list[Step], blocks: list[Block]) -> list[Block]:
    """One collective for several arrays: pack all, call the verb, unpack all."""
    mesh = steps[0].source.mesh
    if mesh.device == "sim":
        return _simulated(mesh, steps, blocks)
    comm = context.world().comm(mesh)
    group = comm.group(steps[0].axes)
    routes = [route(step, comm.coordinate) for step in steps]
    counts = routes[0].counts if len(routes) == 1 else _added([r.counts for r in routes])
    send = _packed(routes, blocks, counts, group)
    return _receive(steps[0], routes, blocks, send, counts, group)


def _added(counts: list[tuple[int, ...]]) -> Sequence[int]:
    """Elements for or from every member, all arrays together."""
    return [sum(each) for each in zip(*counts)]


def _packed(routes: list[Route], blocks: list[Any], counts: Sequence[int], group: Group) -> Any:
    """One flat message: for every destination, the parts of every array. A view where a block already lies so."""
    if len(routes) == 1 and routes[0].whole and blocks[0].flags.c_contiguous:
        return blocks[0].reshape(-1)
    buffer = group.buffer(sum(counts), blocks[0].dtype)
    at = 0
    for j in range(len(counts)):
        for r, block in zip(routes, blocks):
            pack(r.send[j], block, buffer, at)
            at += r.counts[j]
    return buffer


def _receive(
    step: Step, routes: list[Route], blocks: list[Any], send: Any, counts: Sequence[int], group: Group
) -> list[Any]:
    dtype = blocks[0].dtype
    if step.verb in ("all_reduce", "reduce_scatter"):
        op = step.source.op
        flat = group.all_reduce(send, op) if step.verb == "all_reduce" else group.reduce_scatter(send, counts, op)
        return _split(routes, flat)
    alone = routes[0] if len(routes) == 1 else None
    incoming = alone.incoming if alone else _added([r.incoming for r in routes])
    out = take(sum(incoming), dtype) if alone and alone.direct else None
    if step.verb == "all_gather":
        arrived = group.all_gather(send, incoming, out)
    else:
        arrived = group.all_to_all(send, counts, incoming, out)
    return [out.reshape(alone.shape)] if alone and out is not None else _scattered(routes, arrived, dtype)


def _split(routes: list[Route], flat: Any) -> list[Any]:
    """A reduced message is the blocks one after another: views of it, for it is ours."""
    out, at = [], 0
    for r in routes:
        n = math.prod(r.shape)
        if r.direct:
            out.append(flat[at : at + n].reshape(r.shape))
        else:
            block = take(n, flat.dtype).reshape(r.shape)
            unpack(r.receive[0], flat, block, at)
            out.append(block)
        at += n
    return out


def _scattered(routes: list[Route], arrived: Sequence[Any], dtype: Any) -> list[Any]:
    out = [take(math.prod(r.shape), dtype).reshape(r.shape) for r in routes]
    for j, flat in enumerate(arrived):
        at = 0
        for r, block in zip(routes, out):
            unpack(r.receive[j], flat, block, at)
            at += r.incoming[j]
    return out


def _simulated(mesh: Mesh, steps: list[Step], blocks: list[Block]) -> list[Block]:
    """The same, for all ranks of a simulated mesh at once: pack on every rank, exchange, unpack on every rank."""
    everyone = mesh.coordinates()
    out: list[list[Any]] = [[None] * len(everyone) for _ in steps]
    for members in simulate.groups(mesh, steps[0].axes):
        routes = [[route(step, c) for step in steps] for c in members]
        own = [[b[everyone.index(c)] for b in blocks] for c in members]
        counts = [_added([r.counts for r in rs]) for rs in routes]
        group = simulate.Group(len(members))
        sends = [_packed(rs, bs, n, group) for rs, bs, n in zip(routes, own, counts)]
        for k, c in enumerate(members):
            turn = group.turn(k, sends, counts)
            for done, block in zip(out, _receive(steps[0], routes[k], own[k], sends[k], counts[k], turn)):
                done[everyone.index(c)] = block
    return [tuple(done) for done in out]
