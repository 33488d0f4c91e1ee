"""Collectives that have begun: who waits, when, and in which order."""

from __future__ import annotations

import weakref
from time import sleep
from typing import Any

import numpy as np
import pytest

import spmdx as sx
from spmdx.array import Array
from spmdx.later import Later, arrive, made
from spmdx.mesh import Mesh
from spmdx.runtime import pending
from spmdx.runtime.message import flat_message
from spmdx.runtime.pending import Coming, Halves, Pending, progress
from spmdx.spec import place

FLOAT = np.dtype(np.float64)
HERE = Mesh(("x",), (1,))
log: list[str] = []


class Request:
    """One that is done after some looks, or when it is waited for."""

    def __init__(self, name: str, looks: int) -> None:
        self.name, self.looks = name, looks

    def test(self) -> bool:
        log.append(f"look {self.name}")
        self.looks -= 1
        return self.looks < 0

    def wait(self) -> None:
        log.append(f"wait {self.name}")


@pytest.fixture(autouse=True)
def fresh() -> None:
    log.clear()
    pending.here.going.clear()
    pending.here.looked = 0.0


def begun(name: str, verb: str, looks: int = 0) -> Pending:
    """A collective of two members, to which each brings three numbers for each."""
    op = "sum" if verb == "reduce_scatter" else None
    parts = [np.arange(3.0), np.arange(3.0) + 10]
    sent = np.arange(3.0 if verb == "all_gather" else 6.0)
    counts, incoming = ((len(sent),), (3, 3)) if verb == "all_gather" else ((3, 3), (3, 3))
    message = flat_message(verb, op, FLOAT, counts, (3,) if op else incoming, verb)
    return Pending(message, sent, parts, Request(name, looks))


@pytest.mark.parametrize(
    ("verb", "want"),
    [
        ("all_gather", [0, 1, 2, 10, 11, 12]),
        ("all_to_all", [0, 1, 2, 10, 11, 12]),
        ("reduce_scatter", [10, 12, 14]),
    ],
)
def test_what_arrives(verb: str, want: list[float]) -> None:
    """Exact."""
    [block] = begun("a", verb).wait()
    np.testing.assert_array_equal(block, want)


class Pair:
    """A group of two members of which this is the second; the first sends what is told."""

    rank, size = 1, 2

    def __init__(self, *theirs: list[Any]) -> None:
        self.theirs = iter(theirs)

    take = staticmethod(lambda count, dtype: np.empty(count, dtype))

    def begin(self, message: Any, blocks: Any) -> Pending:
        [mine], theirs = blocks, np.array(next(self.theirs))
        log.append(f"begin {message.verb} {message.op}")
        at = sum(message.counts[: self.rank])
        own = mine if message.verb == "all_gather" else mine[at : at + message.counts[self.rank]]
        return Pending(message, mine, [theirs, own], Request(message.verb, 0))


def test_an_all_reduce_in_two_halves() -> None:
    """Exact. The second begins where the program says, or where the result is wanted; once."""
    flat = np.arange(5.0)
    message = flat_message("all_reduce", "sum", FLOAT, (5,), (5,), "all_reduce sum")
    half = Halves(Pair([10.0, 20.0], [0.5, 1.5, 2.5]), message, flat, (3, 2))
    assert log == ["begin reduce_scatter sum"]
    half.gather()
    half.gather()
    assert log == ["begin reduce_scatter sum", "wait reduce_scatter", "begin all_gather None"]
    for _ in range(2):
        [block] = half.wait()
        np.testing.assert_array_equal(block, [0.5, 1.5, 2.5, 13, 24])
    assert log[3:] == ["wait all_gather"]
    log.clear()
    late = Halves(Pair([10.0, 20.0], [0.5, 1.5, 2.5]), message, flat, (3, 2))
    np.testing.assert_array_equal(late.wait()[0], [0.5, 1.5, 2.5, 13, 24])
    assert log == ["begin reduce_scatter sum", "wait reduce_scatter", "begin all_gather None", "wait all_gather"]


def test_they_end_in_the_order_in_which_they_began() -> None:
    a, b, c = (begun(name, "all_gather") for name in "abc")
    b.wait()
    assert log == ["wait a", "wait b"]
    a.wait()
    b.wait()
    assert log == ["wait a", "wait b"]
    c.wait()
    assert log == ["wait a", "wait b", "wait c"] and not pending.here.going


def test_progress_looks_at_most_every_100_microseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1.0]
    monkeypatch.setattr(pending, "perf_counter", lambda: now[0])
    progress()
    assert log == []  # nothing has begun
    first, _ = begun("a", "all_gather", looks=1), begun("b", "all_gather")
    progress()
    progress()
    now[0] += 0.5e-4
    progress()
    assert log == ["look a"]  # b comes when a is done
    now[0] += 1e-4
    progress()
    assert log == ["look a", "look a", "look b"]
    first.wait()


def test_what_is_done_and_wanted_by_nobody_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gradient that a program takes and does not look at: its message's memory, at the next look."""
    now = iter(range(1, 9))
    monkeypatch.setattr(pending, "perf_counter", lambda: next(now))
    dropped, kept, going = begun("a", "all_gather"), begun("b", "all_gather"), begun("c", "all_gather", looks=1)
    gone = weakref.ref(dropped)
    del dropped
    progress()
    assert gone() is None and list(pending.here.going) == [going]
    np.testing.assert_array_equal(kept.wait()[0], [0, 1, 2, 10, 11, 12])
    assert log == ["look a", "look b", "look c", "wait b"]


def test_the_end_waits_for_what_has_begun() -> None:
    begun("a", "all_gather", looks=1)
    begun("b", "reduce_scatter")
    pending.finish()
    assert log == ["look a", "look a", "look b"] and not pending.here.going


def test_the_end_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """And then frees nothing that may still be written to."""
    monkeypatch.setattr(pending, "AT_THE_END", 0.01)
    left = weakref.ref(begun("a", "all_gather", looks=10**9))
    pending.finish()
    pending.here.going.clear()
    assert left() is not None


def later() -> Array:
    coming = Coming(begun("a", "reduce_scatter"), 0, lambda block: block[:2])
    return made(coming, place(HERE, (2,), FLOAT))


# Whatever needs the block waits, and gives what it gives for an array.
READERS: dict[str, Any] = {
    "block": (lambda x: x.block, [10, 12]),
    "numpy": (lambda x: x.numpy(), [10, 12]),
    "operator": (lambda x: (x + 1).numpy(), [11, 13]),
    "operation of two": (lambda x: sx.add(sx.ones(2, mesh=HERE), x).numpy(), [11, 13]),
    "method": (lambda x: x.sum().numpy(), 22),
    "redistribute": (lambda x: x.redistribute(x=sx.Shard(0)).numpy(), [10, 12]),
    "index": (lambda x: x[1:].numpy(), [12]),
    "at": (lambda x: x.at[0].set(1.0).numpy(), [1, 12]),
    "stack": (lambda x: sx.stack([x, x]).numpy(), [[10, 12]] * 2),
    "gradient": (lambda x: sx.grad(lambda y: (y * y).sum())(x).numpy(), [20, 24]),
    "many at once": (lambda x: sx.redistribute([x, x], {"x": sx.Shard(0)})[1].numpy(), [10, 12]),
    "pickled tree": (lambda x: sx.vmap(lambda y: 2 * y)(x).numpy(), [20, 24]),
}


@pytest.mark.parametrize("way", READERS)
def test_an_array_on_its_way(way: str) -> None:
    """Exact; and what is known of it before costs no waiting."""
    read, want = READERS[way]
    x = later()
    assert type(x) is Later and isinstance(x, sx.Array)
    assert (x.shape, x.dtype, x.ndim, x.size, x.placement) == ((2,), FLOAT, 1, 2, {"x": sx.Replicate()})
    assert log == []
    np.testing.assert_array_equal(read(x), want)
    assert waits() == ["wait a"] and type(x) is Array
    np.testing.assert_array_equal(read(x), want)
    assert waits() == ["wait a"]


def waits() -> list[str]:
    return [said for said in log if said.startswith("wait")]


def test_operations_look_after_what_is_on_its_way() -> None:
    """Between nodes nothing else moves it: the calls of a forward pass do, at most once in a PAUSE."""
    x = sx.ones(2, mesh=HERE)
    first = begun("a", "all_gather", looks=2)
    for looks in (1, 2, 3):
        sleep(2 * pending.PAUSE)
        x = x + x
        assert log == ["look a"] * looks
    sleep(2 * pending.PAUSE)
    x = x + x
    assert log == ["look a"] * 3 and first._done and not pending.here.going


def test_arrive() -> None:
    x, y = later(), sx.ones(2, mesh=HERE)
    arrive([y, x, 3])
    assert log == ["wait a"] and type(x) is Array
