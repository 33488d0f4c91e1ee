"""What lies at the path of a checkpoint: links, modes, folders, the files of others, and those of killed saves."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spmdx as sx
from spmdx import checkpoint, nn
from spmdx.errors import ArgumentError, CheckpointError
from spmdx.testing import spmd

W = {"w": np.arange(6.0)}


def names(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()}


# What a save replaces


def test_the_mode_of_a_file_is_kept_and_a_link_followed(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    real, link = tmp_path / "far" / "real", tmp_path / "link"
    link.symlink_to(real)
    for mode in (None, 0o600, 0o644, 0o444):
        if mode is not None:
            real.chmod(mode)
        checkpoint.save(link, W)
        assert link.is_symlink() and names(tmp_path / "far") == {"real"}
        assert mode is None or stat.S_IMODE(real.stat().st_mode) == mode
        assert np.array_equal(checkpoint.load(link, W)["w"], W["w"])


def test_a_folder_that_is_neither_listed_nor_synchronized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A save that has replaced the file does not say that it failed."""

    def refused(*args: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    fsync = os.fsync
    monkeypatch.setattr(os, "scandir", refused)
    monkeypatch.setattr(os, "fsync", lambda fd: refused() if stat.S_ISDIR(os.fstat(fd).st_mode) else fsync(fd))
    checkpoint.save(tmp_path / "x", W)
    monkeypatch.undo()
    assert names(tmp_path) == {"x"} and np.array_equal(checkpoint.views(tmp_path / "x")["w"], W["w"])


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path, said in {
        tmp_path: "is a folder",
        f"{tmp_path}/new/": "is a folder",
        "": "is a folder",
        tmp_path / "pipe": "is no regular file",
        tmp_path / "no" / "x": "there is no folder",
        tmp_path / "loop": "cannot be written: Too many levels",
        tmp_path / ("a" * 300): "cannot be written: File name too long",
    }.items():
        with pytest.raises(CheckpointError, match=said):
            checkpoint.save(path, W)
        with pytest.raises(CheckpointError, match="no file"):
            checkpoint.load(path)
    assert names(tmp_path) == {"pipe", "loop"}


def test_what_is_no_path(tmp_path: Path) -> None:
    for path in (3, None, "a\0b", b"a\0b", ["x"]):
        for call in (lambda path=path: checkpoint.save(path, W), checkpoint.load, checkpoint.views):
            with pytest.raises(ArgumentError, match="is no path"):
                call(path) if call in (checkpoint.load, checkpoint.views) else call()
    for name in (b"x", b"\xff", b"a" * 255):
        path = os.fsencode(tmp_path) + b"/" + name
        checkpoint.save(path, W)
        assert np.array_equal(checkpoint.load(path)["w"].numpy(), W["w"]) and "w" in checkpoint.views(path)
    assert len(names(tmp_path)) == 3


def test_partial_files(tmp_path: Path) -> None:
    """Every save has one of its own, beside a user's; what killed saves have left is gone an hour later."""
    path, token = tmp_path / "x", "0123456789abcdef"
    (tmp_path / "x.partial").write_text("a user's")
    theirs = {"x.partial", f".y.{token}.partial", f".x.{token[1:]}.partial", f".x.{token}.partial.txt"}
    now, left = f".x.{token}.partial", f".x.{token[::-1]}.partial"
    for name in theirs | {now, left}:
        (tmp_path / name).touch()
        if name != now:
            os.utime(tmp_path / name, (0, 0))
    checkpoint.save(path, W)
    assert names(tmp_path) == theirs | {now, "x"}
    assert (tmp_path / "x.partial").read_text() == "a user's"


def test_a_file_that_is_replaced_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All is read from the file that was opened, on every rank from the same one."""
    path, opened = tmp_path / "x", checkpoint.files.opened
    replaced: list[int] = []

    def opening(file: str) -> Any:
        found = opened(file)
        rank = sx.make_mesh().rank
        if rank == 1 or not replaced:
            replaced.append(rank)
        if rank == 0 and replaced == [0]:  # rank 1 may open either; it may be too late for the first time
            os.rename(tmp_path / "second", path)
        return found

    def both(**values: int) -> None:
        for name, value in values.items():
            checkpoint.save(tmp_path / name, {f"w{i}": np.full(3, value) for i in range(3)})

    both(x=1, second=2)
    monkeypatch.setattr(checkpoint.files, "opened", opening)
    for n in (1, 2):
        monkeypatch.undo()
        both(x=1, second=2)
        replaced.clear()
        monkeypatch.setattr(checkpoint.files, "opened", opening)
        seen = spmd(n)(lambda: [int(x.numpy()[0]) for x in checkpoint.load(path).values()])()
        assert seen in ([[1] * 3] * n, [[2] * 3] * n)


# What a load finds


def test_kinds_of_leaves(tmp_path: Path) -> None:
    path = tmp_path / "x"
    state = {"n": 3, "x": 0.5, "on": True, "s": "text", "k": sx.random.key(1), "big": 10**400, "inf": float("-inf")}
    checkpoint.save(path, state)
    assert checkpoint.load(path, {**state, "n": 0, "s": "", "k": sx.random.key(0)}) == state
    for name, others in {
        "n": (3.0, True, "3", np.int64(3), sx.ones(()), nn.Param((2,)), sx.random.key(3)),
        "x": (1, np.float64(1)),
        "on": (1, "on"),
        "s": (b"text", 3),
        "k": (sx.random.key(1, impl="threefry2x32"), 1, np.zeros(4, np.uint32)),
    }.items():
        for like in others:
            with pytest.raises(CheckpointError, match=f" at {name}, where the tree has"):
                checkpoint.load(path, {**state, name: like})
    for wrong in ({"mesh": 3}, {"plan": 3}, {"plan": sx.ones(3)}):
        with pytest.raises(ArgumentError, match=r"is no (mesh|plan)"):
            checkpoint.load(path, state, **wrong)


def test_many_dimensions(tmp_path: Path) -> None:
    """As many as NumPy has, also where numbers are stored in pairs."""
    state = {"a": np.ones((1,) * 62 + (2, 3)), "c": np.full((1,) * 64, 1j)}
    checkpoint.save(tmp_path / "x", state)
    found = checkpoint.load(tmp_path / "x", state)
    assert all(np.array_equal(found[n], x) for n, x in state.items())


def test_states_that_no_file_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endless: list[Any] = []
    endless.append(endless)
    for state, said in ((endless, "too deep"), ({"n": 10**9999}, "n is a number of")):
        with pytest.raises(CheckpointError, match=said):
            checkpoint.save(tmp_path / "x", state)
    with pytest.raises(ArgumentError, match="no values to save"):
        sx.eval_shape(lambda x: checkpoint.save(tmp_path / "x", x + 1), sx.ones(3))
    monkeypatch.setattr(checkpoint.files, "LONGEST_HEADER", 1000)
    with pytest.raises(CheckpointError, match="more than a file describes"):
        checkpoint.save(tmp_path / "x", {"s": "s" * 1000})
    assert not names(tmp_path)


def entry(dtype: str = "I8", shape: Any = (2,), at: Any = (0, 2), **other: Any) -> dict[str, Any]:
    return {"a": {"dtype": dtype, "shape": shape, "data_offsets": at}, **other}


def texts(**texts: Any) -> dict[str, Any]:
    return {"__metadata__": texts}


HEADERS: dict[str, Any] = {
    "bytes": b"\xff\xfe",
    "depth": b"[" * 200_000,
    "a name twice": b'{"a": 1, "a": 2}',
    "a long number": b'{"a": ' + b"9" * 5000 + b"}",
    "no dict": [1],
    "no entry": {"a": 3},
    "no shape": {"a": {"dtype": "I8", "data_offsets": [0, 2]}},
    "dtype": entry("F8_E4M3"),
    "a dtype that is a list": entry([]),  # type: ignore[arg-type]
    "a fraction": entry(shape=[2.5]),
    "infinity": entry(shape=[float("inf")]),
    "a bool": entry("I8", [True], [0, 1]),
    "a long shape": entry(shape=[10**30, 0], at=[0, 0]),
    "many dimensions": entry(shape=[1] * 99, at=[0, 1]),
    "offsets": entry(at=[0, 2, 4]),
    "text offsets": entry(at="02"),
    "overlap": entry(b=entry(at=[1, 3])["a"]),
    "texts are a list": {"__metadata__": [1]},
    "texts are null": {"__metadata__": None},
    "a text is a number": texts(spmdx=1),
    "complex bytes": entry(**texts(complex='["a"]')),
    "complex scalar": entry("F32", [], [0, 4], **texts(complex='["a"]')),
    "complex in threes": entry("F32", [3], [0, 12], **texts(complex='["a"]')),
    "complex number": entry(**texts(complex="1")),
    "complex lists": entry(**texts(complex="[[1]]")),
    "complex without JSON": entry(**texts(complex="a")),
    "another's text": texts(spmdx="1.0"),
    "no JSON": texts(spmdx="zz"),
    "depth of texts": texts(spmdx="[" * 200_000),
    "a leaf that is a number": texts(spmdx='{"b": 3}'),
    "an empty leaf": texts(spmdx='{"b": {}}'),
    "a list as value": texts(spmdx='{"b": {"value": [1]}}'),
    "a key of no kind": texts(spmdx='{"b": {"key": [1], "impl": "q"}}'),
    "a short key": texts(spmdx='{"b": {"key": [1], "impl": "philox4x32"}}'),
    "a key of fractions": texts(spmdx='{"b": {"key": [1.5, 2], "impl": "threefry2x32"}}'),
    "a key with no kind": texts(spmdx='{"b": {"key": [1, 2]}}'),
    "no float": texts(spmdx='{"b": {"float": "zz"}}'),
    "a large float": texts(spmdx='{"b": {"float": "0x1p99999"}}'),
    "two leaves": entry(**texts(spmdx='{"a": {"value": 1}}')),
}


@pytest.mark.parametrize("case", HEADERS)
def test_files_that_no_save_has_written(case: str, tmp_path: Path) -> None:
    """They are told apart by name, whatever is wrong with them, and never by an error of Python's own."""
    header, path = HEADERS[case], tmp_path / "theirs"
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head + bytes(64))
    with pytest.raises(CheckpointError, match=r"theirs (is no safetensors file|was not saved by spmdx)"):
        checkpoint.load(path)
