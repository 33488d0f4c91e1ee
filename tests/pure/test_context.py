"""Settings that end out of order, as `with` in generators lets them, are an error and do not stay."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import spmdx as sx
from spmdx import context
from spmdx.errors import ContextError

PLANS = [sx.Plan(names={"x": {"p": sx.Shard(0)}}) for _ in range(3)]
MESH = sx.make_mesh({"p": 2}, device="sim")


def under(plan: sx.Plan) -> Iterator[sx.Plan]:
    with plan.on(MESH):
        while True:
            yield context.get().plan.plan


def test_generators_closed_in_the_order_they_were_begun() -> None:
    before = context.get()
    first, second, third = map(under, PLANS)
    for generator in (first, second, third):
        next(generator)
    for generator in (first, second):
        with pytest.raises(ContextError, match=r"plan, mesh(.|\n)*close first the one begun last"):
            generator.close()
        assert next(third) is PLANS[2]  # whose block has not ended
    third.close()
    assert context.get().plan is None
    assert context.get().mesh is before.mesh


def test_in_order_all_is_well() -> None:
    first, second = map(under, PLANS[:2])
    next(first), next(second)
    second.close()
    assert next(first) is PLANS[0]
    first.close()
    assert context.get().plan is None


def test_a_generator_closed_in_another_thread() -> None:
    generator, raised = under(PLANS[0]), []
    next(generator)

    def close() -> None:
        try:
            generator.close()
        except ContextError as error:
            raised.append(str(error))

    thread = threading.Thread(target=close)
    thread.start()
    thread.join()
    assert "in another thread" in raised[0]
    assert context.get().plan is None
