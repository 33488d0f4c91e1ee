"""Thread ranks: results, errors, and no way to hang."""

from __future__ import annotations

import time
import traceback
from typing import Any

import numpy as np
import pytest

from spmdx import context
from spmdx.errors import RanksDisagree, WorldError
from spmdx.mesh import Mesh
from spmdx.runtime import world as worlds
from spmdx.testing import spmd


def group() -> Any:
    here = worlds.current()
    return here.comm(Mesh(("x",), (here.size,))).group(("x",))


def test_results_in_rank_order() -> None:
    assert spmd(4)(lambda base: base + worlds.current().rank)(10) == [10, 11, 12, 13]


def test_decorator() -> None:
    @spmd(2)
    def total(factor: float) -> float:
        return float(group().all_reduce(np.array([factor]), "sum")[0])

    assert total(1.5) == [3.0, 3.0]
    assert total.__name__ == "total"


def test_each_rank_has_its_own_record() -> None:
    def own() -> tuple[int, Any]:
        before = context.get().explicit
        with context.use(explicit=True):
            group().barrier()
        return context.rank(), before

    assert spmd(3)(own)() == [(0, False), (1, False), (2, False)]


def test_nested_runs() -> None:
    """A rank may itself run thread ranks: they are a world of their own."""
    assert spmd(2)(lambda: spmd(3)(lambda: worlds.current().size)())() == [[3, 3, 3]] * 2


def quickly(program: Any, n: int, error: type[BaseException], match: str) -> BaseException:
    start = time.monotonic()
    with pytest.raises(error, match=match) as caught:
        spmd(n)(program)()
    assert time.monotonic() - start < 5
    return caught.value


def test_error_keeps_its_traceback_and_names_the_rank() -> None:
    def program() -> None:
        if worlds.current().rank == 2:
            explode()
        group().barrier()

    def explode() -> None:
        raise KeyError("lost")

    error = quickly(program, 3, KeyError, "lost")
    assert "explode" in [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    if hasattr(error, "__notes__"):
        assert error.__notes__ == ["raised on rank 2 of 3"]


def test_first_rank_of_several_errors() -> None:
    def program() -> None:
        raise ValueError(f"from {worlds.current().rank}")

    quickly(program, 3, ValueError, "from 0")


def test_rank_that_returns_early() -> None:
    def program() -> None:
        if worlds.current().rank:
            group().all_reduce(np.ones(2), "sum")

    quickly(program, 3, RanksDisagree, r"(?s)rank [12] waits in all_reduce sum.*rank 0 has returned")


def test_rank_that_returns_while_one_receives() -> None:
    def program() -> None:
        if worlds.current().rank:
            group().recv(np.empty(2), 0)

    quickly(program, 2, RanksDisagree, r"(?s)waits in a message of float64 \[2\].*rank 0 has returned")


def test_ranks_that_wait_for_one_another() -> None:
    def program() -> None:
        here = worlds.current()
        comm = here.comm(Mesh(("a", "b"), (2, 2)))
        comm.group(("a",) if here.rank in (0, 3) else ("b",)).barrier()

    quickly(program, 4, RanksDisagree, "wait for one another for ever")


@pytest.mark.parametrize(
    ("others", "match"),
    [
        (lambda g: g.all_gather(np.ones(3), [3, 3]), r"(?s)rank 0: all_reduce sum.*rank 1: all_gather"),
        (lambda g: g.all_reduce(np.ones(4), "sum"), r"(?s)\[3, 3\].*\[4, 4\]"),
        (lambda g: g.all_reduce(np.ones(3), "max"), r"(?s)all_reduce sum.*all_reduce max"),
        (lambda g: g.all_reduce(np.ones(3, np.int32), "sum"), r"(?s)float64.*int32"),
        (lambda g: g.barrier(), r"(?s)rank 0: all_reduce.*rank 1: barrier"),
    ],
)
def test_calls_that_disagree(others: Any, match: str) -> None:
    told = []

    def program() -> None:
        here = group()
        try:
            others(here) if here.rank else here.all_reduce(np.ones(3), "sum")
        except RanksDisagree as error:
            told.append(str(error))
            raise

    quickly(program, 2, RanksDisagree, match)
    assert len(told) == 2, "every rank is told"


def test_exchange_counts_that_disagree() -> None:
    def program() -> None:
        here = group()
        here.all_to_all(np.ones(4), [2, 2], [2, 2 + here.rank])

    quickly(program, 2, RanksDisagree, r"rank 1 sends 2 elements to rank 1, which expects 3.\n  Write the same")


def test_messages_that_disagree() -> None:
    def program() -> None:
        here = group()
        here.recv(np.empty(3), 0) if here.rank else here.send(np.ones(2), 1)

    quickly(program, 2, RanksDisagree, r"(?s)rank 1 waits for .*\[3\], and rank 0 sent .*\[2\].\n  Write x.to\(mesh")


def test_a_busy_rank_does_not_hold_up_an_error() -> None:
    """One that computes for ever outside any collective is left behind."""
    stop = []

    def program() -> None:
        if worlds.current().rank == 0:
            raise ValueError("now")
        while not stop:
            time.sleep(0.01)

    start = time.monotonic()
    with pytest.raises(ValueError, match="now"):
        spmd(2)(program)()
    stop.append(True)
    assert time.monotonic() - start < 8


@pytest.mark.parametrize("n", [0, -1, 2.0])
def test_number_of_ranks(n: Any) -> None:
    with pytest.raises(ValueError, match="Write spmd"):
        spmd(n)


def test_alone_a_message_that_nobody_sends() -> None:
    here = worlds.SelfWorld().comm(Mesh(("x",), (1,))).group(("x",))
    with pytest.raises(WorldError, match=r"nobody sends.\n  Write send before recv"):
        here.recv(np.empty(1), 0)
