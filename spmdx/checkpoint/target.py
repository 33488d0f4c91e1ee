"""Where a save writes: a new file beside the old one, which it replaces when it is whole."""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from typing import Any

from spmdx.errors import ArgumentError, CheckpointError

STALE = 3600.0  # seconds for which nobody has written a partial file: the save has been killed
LONGEST_NAME = 200  # bytes of 255: what a partial file's name has more than the file's must fit


def path_of(path: Any) -> str:
    """A path as a text.

    Raises:
        ArgumentError: what is no path.
    """
    try:
        text = os.fsdecode(path)
        if b"\0" not in os.fsencode(text):
            return text
    except (TypeError, UnicodeError):
        pass
    raise ArgumentError(f"{path!r} is no path of a file.", '"folder/state.safetensors", or a pathlib.Path')


def check(path: str) -> None:
    """Raise CheckpointError, or the system's error, where no file can be written."""
    real = os.path.realpath(path)
    mode = _mode(real)
    if not os.path.basename(path) or (mode is not None and stat.S_ISDIR(mode)):
        raise CheckpointError(f"{path!r} is a folder, not a file.", 'os.path.join(folder, "state.safetensors")')
    if mode is not None and not stat.S_ISREG(mode):
        raise CheckpointError(f"{path} is no regular file: it is not replaced.", "the path of a file")
    folder = os.path.dirname(real)
    if not os.path.isdir(folder):
        raise CheckpointError(f"there is no folder {folder}.", f"os.makedirs({folder!r}, exist_ok=True) before it")


class Target:
    """A file that is to be written, and the partial one that all ranks write for it.

    A symbolic link stays, and the file that it leads to is replaced; the new file has the old one's mode. The partial
    file has a name of its own for every save: ``.name.token.partial``, in the same folder.
    """

    def __init__(self, path: str, token: int) -> None:
        self.path = os.path.realpath(path)
        self.folder, name = os.path.split(self.path)
        self.stem = "." + os.fsdecode(os.fsencode(name)[:LONGEST_NAME])
        self.partial = os.path.join(self.folder, f"{self.stem}.{token:016x}.partial")
        self.made = False

    def begin(self, head: bytes, size: int) -> None:
        """Make the partial file, for this user alone where one is replaced whose mode it does not have yet."""
        mode = 0o666 if _mode(self.path) is None else 0o600
        with open(os.open(self.partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            self.made = True
            file.write(head)
            file.truncate(size)
            self._sweep(os.fstat(file.fileno()).st_mtime)

    def end(self) -> None:
        """Put the partial file, which is whole now, in its place."""
        mode = _mode(self.path)
        if mode is not None and mode != os.stat(self.partial).st_mode:
            os.chmod(self.partial, stat.S_IMODE(mode))
        os.replace(self.partial, self.path)
        self.made = False
        with suppress(OSError):  # the file is replaced, also where a folder cannot be read or synchronized
            folder = os.open(self.folder, os.O_RDONLY)
            try:
                os.fsync(folder)  # the new name as well
            finally:
                os.close(folder)

    def drop(self) -> None:
        """Remove the partial file of a save that has failed."""
        if self.made:
            with suppress(OSError):
                os.remove(self.partial)

    def _sweep(self, now: float) -> None:
        """Remove what killed saves to this path have left: ``now`` is the time of the file system's own clock."""
        ours = re.compile(re.escape(self.stem) + r"\.[0-9a-f]{16}\.partial")
        with suppress(OSError), os.scandir(self.folder) as entries:  # a folder may be one to write in, not to list
            for entry in entries:
                with suppress(OSError):
                    if ours.fullmatch(entry.name) and now - entry.stat(follow_symlinks=False).st_mtime > STALE:
                        os.remove(entry.path)


def _mode(path: str) -> int | None:
    """The mode of what lies at a path, None where nothing does."""
    try:
        return os.stat(path).st_mode
    except FileNotFoundError:
        return None
