"""A pytest plugin for runs under mpiexec: after each test the ranks compare its outcome.

Where they disagree, or some do not come within a time limit, the failing ranks' reports are printed and the whole run
ends: whatever the others wait for would never come. Only rank 0 prints otherwise.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest
from mpi4py import MPI

PATIENCE = 120.0  # seconds that a rank which has passed waits for the others
PATIENCE_FAILED = 5.0  # and one which has failed: most likely the others wait for it inside the test


class Agree:
    def __init__(self) -> None:
        self.comm = MPI.COMM_WORLD.Dup()
        self.reports: list[pytest.TestReport] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        reporter: Any = session.config.pluginmanager.getplugin("terminalreporter")
        if self.comm.rank and reporter:
            reporter._tw._file = open(os.devnull, "w")  # noqa: SIM115 - to the end of the process

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        names = "\n".join(item.nodeid for item in session.items)
        self.compare("the list of tests", hash_of(names), PATIENCE)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.reports = []
        result = yield
        outcomes = sorted({report.outcome for report in self.reports} - {"passed"})
        patience = PATIENCE_FAILED if "failed" in outcomes else PATIENCE
        self.compare(item.nodeid, hash_of("".join(outcomes)), patience)
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.reports.append(report)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.comm.rank:
            session.exitstatus = 0  # agreed with rank 0, whose status counts

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        self.compare("the end", 0, PATIENCE)  # nobody leaves while rank 0 still prints

    def compare(self, what: str, value: int, patience: float) -> None:
        """Return if every rank comes here with the same value in time; else end the run."""
        mine, all_of_them = [value], [0] * self.comm.size
        send, receive = bytearray(8), bytearray(8 * self.comm.size)
        send[:] = value.to_bytes(8, "little")
        request = self.comm.Iallgather([send, MPI.BYTE], [receive, MPI.BYTE])
        limit = time.monotonic() + patience
        naps = 0
        while not request.Test():
            if time.monotonic() > limit:
                self.end(f"{what}: not every rank came to its end within {patience:.0f} s of rank {self.comm.rank}")
            naps += 1
            time.sleep(0 if naps < 1000 else 0.001)
        all_of_them = [int.from_bytes(receive[i : i + 8], "little") for i in range(0, len(receive), 8)]
        if all_of_them != mine * self.comm.size:
            if not any(report.failed for report in self.reports):
                time.sleep(1.0)  # the failing ranks speak first
            self.end(f"{what}: the ranks do not agree on the outcome")

    def end(self, why: str) -> NoReturn:
        lines = [f"rank {self.comm.rank} of {self.comm.size}: {why}"]
        lines += [r.longreprtext for r in self.reports if r.failed]
        lines += [text for r in self.reports if r.failed for _, text in r.sections]
        print("\n" + "\n".join(lines), file=sys.__stderr__, flush=True)
        self.comm.Abort(1)
        raise SystemExit(1)  # not reached


def hash_of(text: str) -> int:
    import zlib

    return zlib.crc32(text.encode())
