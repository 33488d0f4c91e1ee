"""The short way of a call: what it takes, what it leaves to Python, and that it keeps and loses no reference."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

import numpy as np
import pytest

import spmdx as sx
from spmdx.array import Array
from spmdx.op import registry
from spmdx.runtime import kernels

add = registry["add"]


def counts(*objects: Any) -> list[int]:
    return [sys.getrefcount(x) for x in objects]


def asked(operation: Any, operands: Any, static: Any, names: Any) -> Any:
    return "asked", operands, static, names


def test_what_is_not_in_the_memo_is_asked_for() -> None:
    x = sx.asarray(np.ones(3))
    way = kernels.short_way(None, {}, 2, ("axis",), asked)
    assert way(x, 2.0, 5) == ("asked", (x, 2.0), (5,), ("axis",))
    assert way(1, 2, 5) == ("asked", (1, 2), (5,), ("axis",))  # no array at all
    assert way(x, 2.0, [5]) == ("asked", (x, 2.0), ([5],), ("axis",))  # it does not hash


def test_a_call_is_known_by_specs_types_of_numbers_and_static_arguments() -> None:
    x = sx.asarray(np.ones(3))
    memo = {(x.spec, float, 5): (lambda block, number: block + number, x.spec, {})}
    way = kernels.short_way(None, memo, 2, ("axis",), asked)
    made = way(x, 2.0, 5)
    assert type(made) is Array and made.spec is x.spec
    assert np.array_equal(made.numpy(), [3.0, 3.0, 3.0])
    assert way(x, 2, 5)[0] == way(x, 2.0, 6)[0] == way(x, x, 5)[0] == "asked"
    one = kernels.short_way(None, {x.spec: (np.negative, x.spec, {})}, 1, (), asked)
    assert np.array_equal(one(x).numpy(), [-1.0, -1.0, -1.0])


def test_errors_of_a_body_pass_but_for_numbers_out_of_range() -> None:
    def fails(error: Exception) -> Any:
        def body(*blocks: Any) -> Any:
            raise error

        return body

    x = sx.asarray(np.ones(3))
    memo: dict[Any, Any] = {}
    way = kernels.short_way(None, memo, 2, (), asked)
    for error in (ValueError("no"), OverflowError("no")):
        memo[x.spec, x.spec] = memo[x.spec, int] = (fails(error), x.spec, {})
        with pytest.raises(type(error), match="no"):
            way(x, x)
    assert way(x, 10**400)[0] == "asked"  # the long way says which number, and what to write


def test_arguments_are_all_by_position() -> None:
    x = sx.asarray(np.ones(3))
    way = kernels.short_way(None, {}, 2, ("axis",), asked)
    for call in (lambda: way(x), lambda: way(x, x), lambda: way(x, x, 0, 0), lambda: way(x, x, axis=0)):
        with pytest.raises(TypeError, match="by position"):
            call()
    with pytest.raises(TypeError):
        type(way)()  # made by short_way alone


def test_an_operation_may_have_nine_operands() -> None:
    @sx.op(", ".join(["..."] * 9) + " -> ...", linear="together")
    def nine(xp: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any, i: Any, by: Any = 1) -> Any:
        return (a + b + c + d + e + f + g + h + i) * by

    x = sx.asarray(np.arange(3.0))
    for _ in range(2):
        assert np.array_equal(nine(*[x] * 8, 2.0, by=3).numpy(), [6.0, 30.0, 54.0])


def test_an_array_without_a_block_is_left_to_python() -> None:
    x = Array.__new__(Array)
    way = kernels.short_way(None, {}, 1, (), asked)
    assert way(x)[0] == "asked"


def test_recorded_where_something_watches() -> None:
    seen = []

    def loss(w: Any) -> Any:
        y = sx.add(w, 2.0)
        seen.append(y)
        return (y * y).sum()

    w = sx.asarray(np.arange(3.0))
    for _ in range(2):  # the second time by the short way
        g = sx.grad(loss)(w)
        assert np.array_equal(g.numpy(), [4.0, 6.0, 8.0])
    first, second = seen
    assert type(second) is type(first) and second.rule is first.rule is add
    assert second.static == first.static and second.inputs[1] == 2.0
    assert second.order > first.order
    assert type(sx.add(second, 2.0)) is Array  # no gradient is being taken


def test_no_reference_is_kept_or_lost() -> None:
    x, y = sx.asarray(np.ones((3, 4))), sx.asarray(np.ones((3, 4)))
    calls = [
        lambda: x + y,
        lambda: x * 1000.5,
        lambda: sx.exp(x),
        lambda: sx.sum(x, axis=0),
        lambda: sx.grad(lambda w: (w * y).sum())(x),
        lambda: x.redistribute(world=sx.Replicate()),
    ]
    key, entry = next(iter(add.memo.items()), (None, None))
    for call in calls:
        call(), call()
        gc.collect()
        held = (x, y, x.spec, x._block, y._block, add, add.memo, add.names, key, entry, None, Array)
        before = counts(*held)
        for _ in range(100):
            call()
        gc.collect()
        grown = np.subtract(counts(*held), before)
        assert np.abs(grown).max() < 50, grown  # the interpreter's own caches hold a few


def test_no_reference_is_kept_by_a_body_that_fails() -> None:
    def body(block: Any) -> Any:
        raise ValueError("no")

    x = sx.asarray(np.ones(3))
    way = kernels.short_way(None, {x.spec: (body, x.spec, {})}, 1, (), asked)
    before = counts(x, x.spec, x._block, body)
    for _ in range(100):
        with pytest.raises(ValueError, match="no"):
            way(x)
    gc.collect()
    assert np.abs(np.subtract(counts(x, x.spec, x._block, body), before)).max() < 10


def test_a_short_way_and_what_it_holds_are_collected() -> None:
    class Long:
        def __call__(self, *args: Any) -> Any:
            return args

    long = Long()
    gone = weakref.ref(long)
    long.way = kernels.short_way(None, {}, 1, (), long)  # type: ignore[attr-defined]  # a ring
    del long
    gc.collect()
    assert gone() is None
