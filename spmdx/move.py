"""Moving blocks: runs the steps of plans with a communicator.

Several arrays that have the same next step share one collective and one buffer. The plan says what happens and
geometry says which part goes where; here bytes travel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from spmdx import check, context
from spmdx.array import Array
from spmdx.geometry import local_parts, route
from spmdx.mesh import Coordinate, Mesh
from spmdx.plan import LOCAL, Step
from spmdx.runtime import memory, simulate
from spmdx.runtime.message import Message
from spmdx.runtime.message import pack as pack
from spmdx.runtime.message import unpack as unpack
from spmdx.runtime.pending import Coming, Halves, Pending
from spmdx.spec import Spec

PARTS = 2**17  # what the messages that are remembered may list, all together
Block = Any  # an ndarray of the mesh's device; on a simulated mesh a tuple of them, one for each rank


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
                [block] = _collective((step,), [block])
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


def begin(
    plans: Sequence[tuple[Step, ...]], blocks: Sequence[Block], cause: str, halves: list[Halves] | None = None
) -> list[Block | Coming]:
    """As `move`, but that what a block's last collective brings is not waited for, where the transport can do so. With
    a list for ``halves`` that holds for all-reduces too: they are added to it, and whoever gave it calls ``gather`` of
    each later, at the same line on every rank."""
    blocks, left = list(blocks), [list(steps) for steps in plans]

    def local(steps: list[Step], block: Block) -> Block:
        while steps and steps[0].verb in LOCAL:
            block = _local(steps.pop(0), block)
        return block

    for i, own in enumerate(left):
        blocks[i] = local(own, blocks[i])
    for together, steps in _rounds(left, cause):
        given, mesh = [blocks[i] for i in together], steps[0].source.mesh
        last = mesh.device != "sim" and not any(s.verb not in LOCAL for i in together for s in left[i])
        pending: Pending | Halves | None = None
        if last:
            comm = context.world().comm(mesh)
            group, message = comm.group(steps[0].axes), _message(steps, comm.coordinate)
            pending = group.begin(message, given)
            if pending is None and halves is not None and (half := group.half(message, given)) is not None:
                pending = half
                halves.append(half)
        if pending is None:
            for i, block in zip(together, _collective(steps, given)):
                blocks[i] = local(left[i], block)
        else:
            for k, i in enumerate(together):
                blocks[i] = Coming(pending, k, partial(local, left[i]))
                left[i] = []
    return blocks


def begins(plans: Sequence[tuple[Step, ...]]) -> bool:
    """True if to `begin` these moves may be better than to make them where they are needed."""
    first = next((step for steps in plans for step in steps if step.verb not in LOCAL), None)
    if first is None or first.source.mesh.device == "sim" or context.get().dry or check.on():
        return False
    return bool(context.world().comm(first.source.mesh).group(first.axes).begins)


def count(plans: Sequence[tuple[Step, ...]], cause: str) -> None:
    """Tell the open trace what `move` would do with these plans: a dry run, on a rank that has no blocks."""
    for _ in _rounds([[step for step in steps if step.verb not in LOCAL] for steps in plans], cause):
        pass


def _rounds(left: list[list[Step]], cause: str) -> Iterator[tuple[list[int], tuple[Step, ...]]]:
    """Collective by collective: the plans whose next steps share it, and these steps, recorded and taken away."""
    while waiting := [i for i, steps in enumerate(left) if steps]:
        first = left[waiting[0]][0]
        together = [i for i in waiting if _alike(first, left[i][0])]
        steps = tuple(left[i].pop(0) for i in together)
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
    xp = memory.of(block)
    new = xp.empty(shape, block.dtype) if step.verb == "slice" else None
    out = memory.filled(shape, block.dtype, step.target.op, xp) if new is None else new
    for from_box, to_box in zip(source.boxes, target.boxes):
        out[to_box] = block[from_box]
    return out


def record(verb: str, axes: tuple[str, ...], sent: int, cause: str) -> None:
    """Tell the open trace, if there is one, of a collective."""
    trace = context.get().trace
    if trace is not None:
        trace.append(Record(verb, axes, sent, cause, memory.users_line()))


class _Made(dict[tuple[tuple[Step, ...], Coordinate], Message]):
    """Messages by their steps and the rank that they are for, and how many parts they list: on many ranks a message
    has many, of 1 KiB each."""

    parts = 0


_messages = _Made()


def _message(steps: tuple[Step, ...], coordinate: Coordinate) -> Message:
    """What the rank at ``coordinate`` carries in the one collective of these steps."""
    found = _messages.get((steps, coordinate))
    if found is None:
        first, routes = steps[0], [route(step, coordinate) for step in steps]
        parts = sum(len(r.send) + len(r.receive) for r in routes)
        if _messages.parts + parts > PARTS:  # bounded: messages can be made again
            _messages.clear()
            _messages.parts = 0
        _messages.parts += parts
        found = _messages[steps, coordinate] = Message(first.verb, first.source.op, first.source.dtype, routes)
    return found


def _collective(steps: tuple[Step, ...], blocks: list[Block]) -> list[Block]:
    """One collective for several arrays."""
    mesh = steps[0].source.mesh
    if mesh.device == "sim":
        return _simulated(mesh, steps, blocks)
    if len(steps) == 1:
        carrier, _ = context.world().carriers.get(steps[0]) or remember(steps[0], steps[0])
        return [carrier(blocks[0])]
    comm = context.world().comm(mesh)
    carried: list[Block] = comm.group(steps[0].axes).carry(_message(steps, comm.coordinate), blocks)
    return carried


def remember(asked: Any, step: Step) -> tuple[Callable[[Block], Block], Spec]:
    """What makes a move of one collective, found in the world's ``carriers`` from now on: by its step, or by what the
    user wrote of which array. To plan it and to find its message takes longer than to send a short one."""
    world = context.world()
    comm = world.comm(step.source.mesh)
    message = _message((step,), comm.coordinate)
    found = world.carriers.get(step) or (comm.group(step.axes).carrier(message), step.target)
    if len(world.carriers) * (len(message.counts) + len(message.incoming)) > PARTS:  # bounded, as messages are
        world.carriers.clear()
    world.carriers[asked] = found
    return found


def again(x: Array, asked: Any) -> Array | None:
    """The array that a move brings which is remembered as ``asked``; None where it is not, or where others take part:
    traces, dry runs and batches."""
    state = context.get()
    if state.world is None or state.trace is not None or state.dry is not None or state.batch or x._block is None:
        return None
    try:
        found = state.world.carriers.get(asked)
    except TypeError:  # something that is no placement, as whoever plans the move will say
        return None
    return None if found is None else Array(found[0](x._block), found[1])


def _simulated(mesh: Mesh, steps: tuple[Step, ...], blocks: list[Block]) -> list[Block]:
    """The same, for all ranks of a simulated mesh at once: pack on every rank, exchange, unpack on every rank."""
    everyone = mesh.coordinates()
    out: list[list[Any]] = [[None] * len(everyone) for _ in steps]
    for members in simulate.groups(mesh, steps[0].axes):
        messages = [_message(steps, c) for c in members]
        own = [[b[everyone.index(c)] for b in blocks] for c in members]
        group = simulate.Group(len(members))
        sends = [message.packed(bs, group.buffer) for message, bs in zip(messages, own)]
        counts = [message.counts for message in messages]
        for k, (c, message) in enumerate(zip(members, messages)):
            for done, block in zip(out, message.sent(sends[k], group.turn(k, sends, counts))):
                done[everyone.index(c)] = block
    return [tuple(done) for done in out]
