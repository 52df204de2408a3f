"""The load that other processes put on the processor, from the counters of the kernel.

The load average would count the training itself, and is a mean over a minute.
"""

from __future__ import annotations

import os
from pathlib import Path

WINDOW_S = 0.5
"""The least time in seconds over which the load is a mean; the counters advance by a hundredth of a second."""
_IDLE, _IOWAIT, _STEAL = 3, 4, 7
_UTIME, _STIME = 11, 12
"""Columns of /proc/self/stat after the name of the program: ticks in user and in kernel mode."""


class CpuLoad:
    """The share of all cores that processes other than this one use."""

    def __init__(self, proc: Path) -> None:
        """proc: the folder /proc, or one that a test laid out."""
        self._proc = proc
        self._last: tuple[int, int, int] | None = self._counters()
        self._share: float | None = None

    def others(self) -> float | None:
        """Return the share in [0, 1] over the time since an earlier call; None: the kernel does not tell.

        Until half a second has passed since the first call, it is the load average of the last minute.
        """
        now = self._counters()
        if now is None or self._last is None:
            self._last = now
            return None
        busy, total, own = (new - old for new, old in zip(now, self._last, strict=True))
        if total >= WINDOW_S * _ticks_per_s() * self._cores():
            self._last, self._share = now, min(1.0, max(0.0, (busy - own) / total))
        return self._average() if self._share is None else self._share

    def _counters(self) -> tuple[int, int, int] | None:
        """Return ticks: of all cores while they were busy, of all cores, and of this process."""
        try:
            first = (self._proc / "stat").read_text(encoding="ascii").splitlines()[0]
            ticks = [int(each) for each in first.split()[1:9]]
            own = (self._proc / "self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            total = sum(ticks) - ticks[_STEAL]
            return total - ticks[_IDLE] - ticks[_IOWAIT], total, int(own[_UTIME]) + int(own[_STIME])
        except (OSError, ValueError, IndexError):
            return None

    def _average(self) -> float | None:
        try:
            return min(1.0, float((self._proc / "loadavg").read_text(encoding="ascii").split()[0]) / self._cores())
        except (OSError, ValueError, IndexError):
            return None

    def _cores(self) -> int:
        return os.cpu_count() or 1


def _ticks_per_s() -> int:
    return os.sysconf("SC_CLK_TCK")
