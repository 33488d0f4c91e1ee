"""Checkpoints are a matter of all ranks: one state, one file, and one error, on every rank alike."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spmdx as sx
from spmdx import checkpoint
from spmdx.array import Array
from spmdx.errors import ArgumentError, CheckpointError, MeshError, RanksDisagree, SpmdxError
from spmdx.mesh import Mesh
from spmdx.spec import place


def rows() -> Any:
    return sx.asarray(np.arange(12.0), placement={"world": sx.Shard(0)})


def raised(kind: type[SpmdxError], path: Any, state: Any = None) -> str:
    """What save, or load without a state, says: the same kind of error on every rank."""
    with pytest.raises(kind) as error:
        _ = checkpoint.load(path) if state is None else checkpoint.save(path, state)
    return str(error.value)


def test_the_same_state_and_another(tmp_path: Path) -> None:
    """No rank writes before all agree, and every rank is told which leaf differs."""
    mesh, path = sx.make_mesh(), tmp_path / "x"
    alone, rank, last = mesh.size == 1, mesh.rank, mesh.rank == mesh.size - 1
    checkpoint.save(path, {"w": rows(), "loss": np.float32(2)})
    before = path.read_bytes()
    others: list[tuple[Any, str]] = [
        ({"w": rows(), "host": "node" + "0" * 9 * rank}, "host is 'node' on rank 0 and 'node00"),
        ({"w": rows(), "n": last, "step": last}, r"n is (True|False) on rank 0 and (True|False) on rank \d \(1 more"),
        ({"w": rows(), "loss": np.float32(rank)}, "loss is "),
        ({"w": rows(), **({"history": np.arange(5.0)} if last else {})}, r"history is missing .* NumPy's float64\[5\]"),
        ({"w": rows() if last else sx.ones(12)}, r"w is float64\[12\] on \(world=\d\): Replicate"),
        ({"w": sx.ones(3, mesh=Mesh(("a",), (1,), (rank,)))}, r"w is float64\[3\]"),
    ]
    for state, said in () if alone else others:
        assert re.search(said, text := raised(RanksDisagree, path, state)), text
    if not alone:
        assert "the path" in raised(RanksDisagree, tmp_path / f"x{rank}", {"w": rows()})
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_an_error_of_one_rank_is_an_error_of_all(tmp_path: Path) -> None:
    """Also where the others have nothing to complain of."""
    mesh, path = sx.make_mesh(), tmp_path / "x"
    last = mesh.rank == mesh.size - 1
    said = raised(CheckpointError, path, {"w": print if last else rows()})
    assert "w is a builtin" in said and (last or f"rank {mesh.size - 1}: " in said)
    checkpoint.save(path, {"w": rows()})
    assert "there is no file" in raised(CheckpointError, tmp_path / "y" if last else path)
    raised(ArgumentError if last else CheckpointError, 3 if last else path)
    with pytest.raises(CheckpointError, match="where the tree has"):
        checkpoint.load(path, {"w": rows() if not last else sx.ones(3)})
    assert np.array_equal(checkpoint.load(path)["w"].numpy(), np.arange(12.0))
    assert list(tmp_path.iterdir()) == [path]


def test_ranks_that_open_two_files_say_so(tmp_path: Path) -> None:
    """Even where their headers look alike: every save has a number of its own."""
    mesh = sx.make_mesh()
    for i in range(2):
        checkpoint.save(tmp_path / f"x{i}", {"w": rows()})
    path = tmp_path / f"x{int(mesh.rank == 0)}"
    assert mesh.size == 1 or "is not one file" in raised(CheckpointError, path)


def test_arrays_of_other_ranks(tmp_path: Path) -> None:
    """Of a world with more ranks, which has ended."""
    more = Mesh(("a",), (sx.make_mesh().size + 1,))
    x = Array(np.ones(1), place(more, (more.size,), "float64", {"a": sx.Shard(0)}))
    assert "w lies on Mesh(a=" in raised(MeshError, tmp_path / "x", {"w": x})
    checkpoint.save(tmp_path / "x", {"w": sx.ones(more.size)})
    with pytest.raises(MeshError, match="w lies on"):
        checkpoint.load(tmp_path / "x", {"w": x})


def test_reading_what_no_rank_is_to_hold(tmp_path: Path) -> None:
    """Exact. A block that is a strip of each row is read as rows, and sent; so is what is whole on all ranks."""
    mesh, path = sx.make_mesh(), tmp_path / "x"
    whole = np.arange(900 * 700, dtype=np.float32).reshape(900, 700)
    checkpoint.save(path, {"w": whole})
    for placement in ({"world": sx.Shard(1)}, {}, {"world": sx.Shard(0)}):
        spec = place(mesh, whole.shape, whole.dtype, placement)
        with sx.debug.trace() as trace:
            found = checkpoint.load(path, {"w": spec})["w"]
            turned = checkpoint.read(checkpoint.views(path)["w"].T, "float64", placement=placement)
        expected = (sx.asarray(whole, placement=placement), sx.asarray(whole.T.astype(float), placement=placement))
        for x, y in zip((found, turned), expected):
            assert x.spec is y.spec and x.block.flags.c_contiguous and np.array_equal(x.block, y.block)
        assert len(trace) == (0 if mesh.size == 1 else 1 if placement else 2)
