"""The status of another process, as the kernel reports it (Linux)."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ProcessStatus:
    """Memory in MiB, and whether torch's library is mapped."""

    resident_mib: float
    peak_mib: float
    has_torch: bool


def process_status(pid: int) -> ProcessStatus:
    """Return the status of a running process."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    sizes = dict(re.findall(r"^(Vm\w+):\s+(\d+) kB", status, re.MULTILINE))
    mapped = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")
    return ProcessStatus(int(sizes["VmRSS"]) / 1024, int(sizes["VmHWM"]) / 1024, "libtorch" in mapped)


def children(pid: int) -> dict[int, list[str]]:
    """Return the processes that a process has started, those of its threads included, with their command lines."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text(encoding="utf-8").split()):
            words = Path(f"/proc/{child}/cmdline").read_text(encoding="utf-8").split("\0")
            found[child] = words
    return found


def cpu_s(pid: int) -> float:
    """Return the processor time that a process has used so far in s, that of its threads included."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
