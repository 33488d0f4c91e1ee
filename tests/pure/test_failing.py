"""How a rank that fails says so."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os, sys, threading
from spmdx.runtime import failing

class Stream:
    def __init__(self):
        self.pieces = []
    def write(self, text):
        self.pieces.append(text)
    def flush(self):
        pass

sys.stderr = stream = Stream()
failing.HEARD = 0
failing.together(1, 2, lambda status: None, watch_exit=False)
def fail():
    raise ValueError("made up")
try:
    fail()
except ValueError as error:
    sys.excepthook(ValueError, error, error.__traceback__)
thread = threading.Thread(target=fail)
thread.start()
thread.join()
pieces = [piece for piece in stream.pieces if "made up" in piece]
whole = [p.count("in fail") == 1 and p.endswith("ValueError: made up\\n") for p in pieces]
assert whole == [True, True], stream.pieces
assert sum("rank 1 of 2 failed" in piece for piece in stream.pieces) == 2 and sys.stderr is stream
print("done")
"""


def test_a_traceback_is_written_in_one_piece() -> None:
    """Pieces of several ranks' would mix in the pipe that a launcher reads."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "done\n", done.stderr
