"""What a run and all its descendants use, and what everybody else takes of the machine meanwhile (Linux).

Descendants are known by a variable of their environment, so that daemons that left the family are counted as well.
"""

from __future__ import annotations

import os
import re
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
MARK = "EDGE_PEERS_RUN"
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
INTERVAL_S, PSS_INTERVAL_S = 0.2, 1.0


def busy_ticks(stat: str) -> int:
    """Return the busy ticks of all cores, stolen time included.  stat: the text of /proc/stat."""
    user, nice, system, _idle, _wait, irq, softirq, steal = map(int, stat.split("\n", 1)[0].split()[1:9])
    return user + nice + system + irq + softirq + steal


def own_ticks(stat: str) -> tuple[int, int]:
    """Return a process's start and computing time in ticks, from the text of /proc/PID/stat."""
    fields = stat.rpartition(")")[2].split()
    return int(fields[19]), int(fields[11]) + int(fields[12])


def at(times_s: Sequence[float], values: Sequence[float], when_s: float) -> float:
    """The value at a time, on straight lines between samples; the first or the last one outside them."""
    later = bisect_right(times_s, when_s)
    if later in (0, len(times_s)):
        return values[min(later, len(times_s) - 1)]
    t0, t1 = times_s[later - 1 : later + 1]
    v0, v1 = values[later - 1 : later + 1]
    return v0 + (v1 - v0) * (when_s - t0) / (t1 - t0)


@dataclass
class Use:
    """The use of the machine by one run, summed over all its processes."""

    rss_mib: float = 0.0
    """Peak of the sum; pages shared by processes count in each."""
    pss_mib: float = 0.0
    """Peak of the sum; shared pages count once."""
    processes: int = 0
    times_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    """Computed until each of times_s, monotonic clock."""
    others_cpu: float = 0.0
    """Share of the machine that all other processes took, 0..1."""


class Watch(threading.Thread):
    """Samples until stopped; `use` is whole after stop()."""

    def __init__(self, token: str) -> None:
        super().__init__(daemon=True)
        self.use = Use()
        self._token = f"{MARK}={token}".encode()
        self._known: dict[int, bool] = {}
        self._ticks: dict[tuple[int, int], int] = {}
        self._done = threading.Event()
        self._began_s, self._busy = time.monotonic(), _busy()
        self._pss_due_s = self._began_s

    def run(self) -> None:
        """Take samples until `stop` is called."""
        while not self._done.wait(INTERVAL_S):
            self.sample()

    def stop(self) -> Use:
        """Stop the thread and return the use."""
        self._done.set()
        self.join()
        wall_ticks = (time.monotonic() - self._began_s) * TICKS_PER_S * (os.cpu_count() or 1)
        self.use.others_cpu = max(0.0, (_busy() - self._busy - sum(self._ticks.values())) / wall_ticks)
        return self.use

    def sample(self) -> None:
        """Look at every process of the run once."""
        pids = self.alive()
        for pid in pids:
            began, ticks = _ask(pid, "stat", own_ticks, (0, 0))
            self._ticks[pid, began] = ticks
        use = self.use
        use.times_s.append(time.monotonic())
        use.cpu_s.append(sum(self._ticks.values()) / TICKS_PER_S)
        use.processes = max(use.processes, len(pids))
        use.rss_mib = max(use.rss_mib, sum(_ask(pid, "status", _rss_mib, 0.0) for pid in pids))
        if time.monotonic() >= self._pss_due_s:
            self._pss_due_s = time.monotonic() + PSS_INTERVAL_S
            use.pss_mib = max(use.pss_mib, sum(_ask(pid, "smaps_rollup", _pss_mib, 0.0) for pid in pids))

    def alive(self) -> list[int]:
        """Processes of the run that have not ended."""
        return [pid for pid in (int(own.name) for own in Path("/proc").glob("[0-9]*")) if self._ours(pid)]

    def _ours(self, pid: int) -> bool:
        """Whether a process belongs to the run.  It is asked once per process: a fork inherits the mark at once."""
        if pid not in self._known:
            try:
                self._known[pid] = self._token in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            except OSError:
                return False
        return self._known[pid]


def _busy() -> int:
    return busy_ticks(Path("/proc/stat").read_text())


def _ask(pid: int, file: str, read: Callable[[str], T], gone: T) -> T:
    try:
        return read(Path(f"/proc/{pid}/{file}").read_text())
    except (OSError, IndexError):
        return gone


def _rss_mib(status: str) -> float:
    return _kib(status, "VmRSS") / 1024


def _pss_mib(rollup: str) -> float:
    return _kib(rollup, "Pss") / 1024


def _kib(text: str, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) if found else 0
