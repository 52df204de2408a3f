"""Reads the memory, cores and clock of the machine, and measures the speed of its disk."""

from __future__ import annotations

import os
import re
import tempfile
import time
from pathlib import Path

from edge_sdk.errors import StoreError

CPU_INFO = Path("/proc/cpuinfo")
MAX_FREQUENCY = Path("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")
"""A file with the highest clock rate in kHz."""
_BLOCK_BYTES, BLOCKS = 2**20, 16


def ram_bytes() -> int:
    """Return the physical memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def busy_share() -> float:
    """Return the load average of the last minute divided by the number of cores, or 0 if unknown."""
    try:
        return os.getloadavg()[0] / cores()
    except OSError:
        return 0.0


def cpu_hz(max_frequency: Path = MAX_FREQUENCY, cpu_info: Path = CPU_INFO) -> int:
    """Return the highest clock rate of the processor in Hz, or 0 if unknown."""
    try:
        return 1000 * int(max_frequency.read_text(encoding="ascii"))
    except (OSError, ValueError):
        pass
    try:
        found = re.findall(r"^cpu MHz\s*:\s*([\d.]+)", cpu_info.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        return 0
    return round(1e6 * max(map(float, found), default=0.0))


def disk_bytes_per_s(folder: Path, blocks: int = BLOCKS) -> float:
    """Measure the speed of the disk in bytes a second: write blocks of 1 MiB to a temporary file, each with a sync.

    blocks: how many are written, which wears a card by as much.  Raises StoreError if the folder cannot be written.
    """
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            begun_s = time.perf_counter()
            for _ in range(blocks):
                os.write(file.fileno(), os.urandom(_BLOCK_BYTES))
                os.fsync(file.fileno())
            return blocks * _BLOCK_BYTES / (time.perf_counter() - begun_s)
    except OSError as error:
        raise StoreError(
            f"{folder}: its speed cannot be measured ({error.strerror}); give --state a folder to write in"
        ) from error
