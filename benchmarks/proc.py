"""The status of another process, as the kernel reports it (Linux)."""

from __future__ import annotations

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
