"""The parts of the transports that need no ranks: launchers, ordered reductions, the division of a heap."""

from __future__ import annotations

import threading
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from spmdx.errors import ArgumentError, DtypeError
from spmdx.runtime import reduction
from spmdx.runtime.comm import near_equal
from spmdx.runtime.world import launched


@pytest.mark.parametrize(
    ("environ", "want"),
    [
        ({}, None),
        ({"PMI_RANK": "1", "PMI_SIZE": "4"}, (1, 4, "PMI_SIZE")),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, (0, 2, "OMPI_COMM_WORLD_SIZE")),
        ({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8"}, (3, 8, "SLURM_STEP_NUM_TASKS")),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, None),  # plain python inside a job
        ({"PMIX_RANK": "2", "SLURM_STEP_NUM_TASKS": "4"}, (2, 4, "SLURM_STEP_NUM_TASKS")),
        ({"PMI_RANK": "x", "PMI_SIZE": "4"}, None),
    ],
)
def test_launched(environ: dict[str, str], want: tuple[int, int, str] | None) -> None:
    assert launched(environ) == want


def test_near_equal() -> None:
    assert near_equal(10, 4) == [3, 3, 2, 2]
    assert near_equal(2, 3) == [1, 1, 0]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=str)
def test_narrow_sums_round_once(dtype: object) -> None:
    """1 + 2**-9 four times: added in the narrow type itself, nothing of the small part would be left."""
    one, small = np.ones(100_000, dtype), np.full(100_000, 2.0**-12, dtype)
    total = reduction.reduce_ordered([one, *[small] * 64], "sum")
    assert total.dtype == np.dtype(dtype)
    assert (total.astype(np.float32) == np.float32(1 + 64 * 2.0**-12)).all()


def test_order_is_first_to_last() -> None:
    parts = [np.full(100_000, value) for value in (1e16, 1.0, -1e16)]
    assert (reduction.reduce_ordered(parts, "sum") == 0.0).all()
    assert (reduction.reduce_ordered([parts[0], parts[2], parts[1]], "sum") == 1.0).all()


def test_integers_wrap_without_a_word() -> None:
    assert reduction.reduce_ordered([np.array([127], np.int8)] * 2, "sum").tolist() == [-2]


@pytest.mark.filterwarnings("error")
def test_no_warning_on_the_one_rank_that_reduces() -> None:
    inf = np.array([np.inf, 1e308])
    assert np.isnan(reduction.reduce_ordered([inf, -inf], "sum")[0])
    assert np.isinf(reduction.reduce_ordered([inf, inf], "sum")).all()
    nan = np.array([np.nan], ml_dtypes.bfloat16)
    assert np.isnan(reduction.reduce_ordered([nan * 0 + 1, nan], "max")[0])


def test_unknown_reduction() -> None:
    with pytest.raises(ArgumentError, match='"sum", "prod", "min" or "max"'):
        reduction.reduce_ordered([np.ones(2)], "mean")
    with pytest.raises(DtypeError, match="no order"):
        reduction.reduce_ordered([np.ones(2, complex)], "max")


@pytest.mark.parametrize("sizes", [(2,), (2, 2), (1, 3), (2, 3, 4), (64,), (256,), (16, 16)])
@pytest.mark.parametrize("total", [2**28, 2**24, 2**20, 2**16])
def test_regions_of_a_heap_do_not_overlap(total: int, sizes: tuple[int, ...]) -> None:
    heap = pytest.importorskip("spmdx.runtime.heap", reason="the heap is MPI's", exc_type=ImportError)
    used = []
    for mask, region in heap.divide(total, sizes).items():
        p = int(np.prod([n for i, n in enumerate(sizes) if mask >> i & 1]))
        used.append((region.control, region.control + 64 * p + 16 * region.row))
        used += [(start, start + (p + 1) * region.piece) for start in region.stages]
        assert region.piece % 64 == 0 and region.row >= p + 3
    used.sort()
    assert all(start >= end for (_, end), (start, _) in pairwise(used))
    assert not used or used[-1][1] <= total
    assert used or total < 2**28


def test_a_node_of_many_ranks_shares_memory() -> None:
    """A region for 256 ranks takes no more of a heap than grows with their number; 72 use one (as threads)."""
    heap = pytest.importorskip("spmdx.runtime.heap", reason="the heap is MPI's", exc_type=ImportError)
    shared = pytest.importorskip("spmdx.runtime.shared", reason="the heap is MPI's", exc_type=ImportError)
    [region] = heap.divide(2**22, (256,)).values()
    assert region.stages[0] < 2**15
    p, total = 72, 2**20
    [region] = heap.divide(total, (p,)).values()
    starts = [(memory := np.zeros(total + 64, np.uint8), -memory.ctypes.data % 64) for _ in range(p)]
    views = {rank: memory[start : start + total] for rank, (memory, start) in enumerate(starts)}
    node = SimpleNamespace(views=views, crowded=True, processes={})
    got: dict[int, Any] = {}

    def work(rank: int) -> None:
        group = shared.SharedGroup(SimpleNamespace(rank=rank, size=p), node, region, list(range(p)), [])
        parts = group.all_to_all(np.arange(p, dtype=np.int16) + 100 * rank, [1] * p, [1] * p)
        total = group.all_reduce(np.full(3, rank), "sum")
        got[rank] = np.concatenate(parts).tolist(), total.tolist()

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(p)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert got == {r: ([100 * i + r for i in range(p)], [p * (p - 1) // 2] * 3) for r in range(p)}
