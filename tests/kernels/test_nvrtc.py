"""The GPU kernels compile to machine code for each architecture, by NVRTC through ctypes: no GPU is needed.

With each kernel the assembler says how many registers it takes, and what of them it spills to memory: bounded here.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest

from spmdx.runtime import nvrtc

ARCHITECTURES = {12: (70, 75, 80, 90, 100), 13: (75, 80, 90, 100)}
# Bytes of registers that a kernel may spill to memory; which of them do, and how much, differs between architectures.
SPILLS = {r"(attention|tensor)-.*": 64, r"(neural|residual)-.*": 32, r".*": 0}
# Registers of a thread, where blocks of so many threads are launched (65,536 for a block).
MOST = {r"(norm|add_norm|softmax|sum_exp|cross_back)\w*_(held|long|any)|norm_moments": 128, r".*": 255}


class Use(NamedTuple):
    """What the assembler says of one kernel."""

    registers: int
    spilled: int  # bytes, stored


def usage(log: str) -> dict[str, Use]:
    """Of every kernel, from the log of ``--ptxas-options=-v``."""
    found = {}
    for part in re.split(r"Compiling entry function ", log)[1:]:
        name = part[1 : part.index("'", 1)]
        spilled, registers = re.search(r"(\d+) bytes spill stores", part), re.search(r"Used (\d+) registers", part)
        assert spilled and registers, part
        found[name] = Use(int(registers[1]), int(spilled[1]))
    return found


def check(module: str, version: int, architecture: int) -> dict[str, Use]:
    try:
        nvrtc.library(version)
    except nvrtc.CompileError as error:
        pytest.skip(str(error))
    code, log = nvrtc.compiled(module, version, architecture, "--ptxas-options=-v")
    assert code.startswith(b"\x7fELF")
    said = [line for line in log.splitlines() if "warning" in line and "are deprecated and may be removed" not in line]
    assert not said, said  # of sm_70 NVRTC says that it is deprecated
    text, found = nvrtc.source_of(module).read_text(), usage(log)
    entries = set(re.findall(r"\.text\.(\w+)", code.decode("latin1")))
    assert entries >= found.keys() and found, module
    if module == "kernels":
        names = re.findall(r"^SPMDX_(?:FILL|DROP)\((\w+)", text, re.MULTILINE)
        assert len(names) > 50 and found.keys() >= set(names), set(names) - found.keys()
    for name, use in found.items():
        spills = next(n for pattern, n in SPILLS.items() if re.fullmatch(pattern, f"{module}: {name}"))
        most = next(n for pattern, n in MOST.items() if re.fullmatch(pattern, name))
        assert use.spilled <= spills, f"{module}: {name} spills {use.spilled} bytes on sm_{architecture}"
        assert use.registers <= most, f"{module}: {name} takes {use.registers} registers on sm_{architecture}"
    return found


def test_compiles() -> None:
    for module in ("pack", "neural-bf16"):
        check(module, 13, 90)


def test_usage_is_read() -> None:
    log = (
        "Compiling entry function 'a' for 'sm_90'\n 0 bytes stack frame, 8 bytes spill stores\nUsed 40 registers, used"
    )
    assert usage(log) == {"a": Use(40, 8)}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("module", nvrtc.MODULES)
@pytest.mark.parametrize(("version", "architecture"), [(v, a) for v, each in ARCHITECTURES.items() for a in each])
def test_compiles_for(version: int, architecture: int, module: str) -> None:
    found = check(module, version, architecture)
    print(f"\n{module} sm_{architecture} NVRTC {version}: registers, bytes spilled")
    for name, use in sorted(found.items()):
        print(f"  {name:28} {use.registers:4} {use.spilled:5}")
