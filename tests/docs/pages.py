"""The code blocks of a page of the documentation: read, run as a reader would, and their outputs compared.

A page says in a comment, ``.. ranks: 4``, on how many thread ranks its Python blocks run: all of them one after
another, in one namespace per rank. A block of text that follows directly is what rank 0 prints; a block that
prints, or raises, and shows nothing is a mistake. A Python block with a caption is a file. The lines after ``$``
of a console block are run in the folder of these files, and what follows a line is what it prints.

    python tests/docs/pages.py docs/tutorial/*.rst      rewrites the outputs of these pages with what comes now
"""

from __future__ import annotations

import contextvars
import doctest
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO, TextIOBase
from pathlib import Path
from typing import Any

from spmdx.op import registry
from spmdx.testing import spmd

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
START = re.compile(r"( *)\.\. code-block:: *(\w+)$")
FENCE = re.compile(r"```(\w+)$")
OPTION = re.compile(r" +:(\w+): *(.*)$")
RANKS = re.compile(r"^\.\. ranks: (\d+)$", re.MULTILINE)
SHOWS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass
class Block:
    """One code block; ``start`` and ``stop`` are the numbers, from 0, of its first line and of the one after it."""

    language: str
    caption: str
    text: str
    start: int
    stop: int
    indent: int


def pages() -> list[Path]:
    """Every page that may have code."""
    return sorted(p for p in DOCS.rglob("*.rst") if "_build" not in p.parts)


def ranks(text: str) -> int:
    """The number of thread ranks that a page asks for."""
    found = RANKS.search(text)
    return int(found.group(1)) if found else 1


def blocks(text: str) -> list[Block]:
    """The code blocks of a page in reStructuredText."""
    lines, found, i = text.splitlines(), [], 0
    while i < len(lines):
        head = START.match(lines[i])
        i += 1
        if head is None:
            continue
        caption = ""
        while i < len(lines) and (option := OPTION.match(lines[i])):
            caption = option.group(2) if option.group(1) == "caption" else caption
            i += 1
        while i < len(lines) and not lines[i].strip():
            i += 1
        start, depth = i, len(lines[i]) - len(lines[i].lstrip())
        while i < len(lines) and (not lines[i].strip() or lines[i].startswith(" " * depth)):
            i += 1
        stop = i
        while stop > start and not lines[stop - 1].strip():
            stop -= 1
        body = "\n".join(line[depth:] for line in lines[start:stop])
        found.append(Block(head.group(2), caption, body + "\n", start, stop, depth))
    return found


def fenced(text: str) -> list[Block]:
    """The code blocks of a page in Markdown."""
    found: list[Block] = []
    start, language = None, ""
    for i, line in enumerate(text.splitlines()):
        if start is not None and line == "```":
            body = "\n".join(text.splitlines()[start:i])
            found.append(Block(language, "", body + "\n", start, i, 0))
            start = None
        elif start is None and line.startswith("```"):
            head = FENCE.match(line)
            language, start = head.group(1) if head else "text", i + 1
    return found


def with_outputs(text: str) -> list[tuple[Block, Block | None]]:
    """The Python blocks that run in the page, each with the block that shows its output, if there is one."""
    lines, all_blocks = text.splitlines(), blocks(text)
    found: list[tuple[Block, Block | None]] = []
    for block, then in zip(all_blocks, [*all_blocks[1:], None]):
        if block.language != "python" or block.caption:
            continue
        between = lines[block.stop : then.start] if then is not None else ["no output"]
        follows = then is not None and then.language == "text" and sum(bool(line.strip()) for line in between) == 1
        found.append((block, then if follows else None))
    return found


class PerThread(TextIOBase):
    """A stream that keeps apart what different threads write."""

    def __init__(self) -> None:
        self.of: dict[int, StringIO] = {}

    def write(self, text: str) -> int:
        return self.of.setdefault(threading.get_ident(), StringIO()).write(text)

    def take(self) -> str:
        """What this thread has written since it last asked."""
        stream = self.of.pop(threading.get_ident(), None)
        return "" if stream is None else stream.getvalue()


@contextmanager
def printed() -> Iterator[PerThread]:
    """Standard output, kept for each thread."""
    before, sys.stdout = sys.stdout, PerThread()
    try:
        yield sys.stdout
    finally:
        sys.stdout = before


def run(codes: list[str], n: int, name: str) -> list[str]:
    """What rank 0 shows for each of these blocks, run one after another on n thread ranks (1: in this thread)."""
    known = set(registry)

    def rank() -> list[str]:
        namespace: dict[str, Any] = {"__name__": "__main__"}
        shown, line = [], 0
        for code in codes:
            stream.take()
            try:
                exec(compile("\n" * line + code, name, "exec", dont_inherit=True), namespace)
                shown.append(stream.take())
            except Exception as error:
                shown.append(f"{stream.take()}{type(error).__name__}: {error}\n")
            line += code.count("\n") + 1
        return shown

    try:
        with printed() as stream:
            return spmd(n)(rank)()[0] if n > 1 else contextvars.copy_context().run(rank)
    finally:
        for made in set(registry) - known:  # a page's own operations
            del registry[made]


def check_page(page: Path) -> None:
    """Run a page's Python blocks and compare what they show."""
    text = page.read_text()
    pairs = with_outputs(text)
    outputs = run([code.text for code, _ in pairs], ranks(text), page.stem + ".py")
    for (code, shown), got in zip(pairs, outputs):
        want = shown.text if shown is not None else ""
        assert doctest.OutputChecker().check_output(want, got, SHOWS), (
            f"{page.relative_to(ROOT)}, line {code.start + 1}: the page shows\n{want}\nbut what comes is\n{got}"
        )


def commands(text: str) -> list[tuple[str, str, int]]:
    """The commands of a page's console blocks, each with what it prints and the number of its line."""
    found = []
    for block in blocks(text):
        if block.language == "console":
            for i, line in enumerate(block.text.splitlines()):
                if line.startswith("$ "):
                    found.append((line[2:], "", block.start + i + 1))
                else:
                    command, output, number = found.pop()
                    found.append((command, output + line + "\n", number))
    return found


def write_files(text: str, folder: Path) -> None:
    """Put the files that a page shows into a folder."""
    for block in blocks(text):
        if block.caption:
            (folder / block.caption).write_text(block.text)


def shell(command: str, folder: Path) -> str:
    """What a command prints, errors included; variables may be set before it."""
    words = shlex.split(command)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PMI", "OMPI", "SLURM", "SPMDX"))}
    env["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), env.get("PATH", "")])
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), env.get("PYTHONPATH", "")])
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        env[name] = value
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=100, check=False)
    return done.stdout + done.stderr


def update(page: Path) -> None:
    """Rewrite the outputs that a page shows with what its blocks print now."""
    text = page.read_text()
    pairs, lines = with_outputs(text), text.splitlines()
    outputs = run([code.text for code, _ in pairs], ranks(text), page.stem + ".py")
    for (code, shown), got in reversed(list(zip(pairs, outputs))):
        pad = " " * code.indent  # of a directive at the left edge
        new = [pad + line if line else "" for line in got.splitlines()]
        if shown is None and new:
            lines[code.stop : code.stop] = ["", ".. code-block:: text", "", *new]
        elif shown is not None and not doctest.OutputChecker().check_output(shown.text, got, SHOWS):
            lines[shown.start : shown.stop] = new
    page.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        update(Path(argument))
