"""How far a run is, as the small file progress.json in its run directory, for `edge-sdk report` and for scripts.

The ledger of a running coordinator is locked, so what others may know of the run stands here: replaced at once, at most
once a second.  summary.json takes its place when the run is over.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator.record import Record
from coordinator.report import text_files
from coordinator.report.result import RoundResult, spread

NAME = "progress.json"
PROGRESS_VERSION = 1
EVERY_S = 1.0
"""Least seconds between two writes."""
MOST_DEVICES = 256
"""Devices that are listed one by one, so that the file stays small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """Which run it is."""

    federation: str
    method: str
    seed: int
    rounds: int
    expected: int
    """Devices that it was made for."""
    part: str = ""
    """`alone` while the devices train on their own data for the comparison; empty for the run itself."""


def snapshot(about: About, record: Record, *, done: int, devices: int) -> dict[str, Any]:
    """What is known after `done` rounds, `devices` having joined.

    progress.json, version 1, less `resumed_at` (rounds that were done when this process took over), `elapsed_s` (since
    then, or since all had joined) and `updated_s` (seconds since 1970).  A figure that is not known is absent.
    """
    measured = max(record.accuracy, default=0)
    accuracies = list(record.accuracy.get(measured, {}).values())
    listed = sorted(record.bytes_down)[:MOST_DEVICES]
    return {
        "version": PROGRESS_VERSION,
        "federation": about.federation,
        "method": about.method,
        "seed": about.seed,
        "part": about.part,
        "round": done,
        "rounds": about.rounds,
        "devices": max(devices, len(record.bytes_down)),
        "expected": about.expected,
        "accuracy": {"round": measured, "devices": len(accuracies), **spread(accuracies)} if accuracies else {},
        "bytes": {"up_total": record.bytes_up.total(), "down_total": record.bytes_down.total()},
        "updates": dict(record.updates),
        "refused_devices": [record.refused_devices[name] for name in sorted(record.refused_devices)],
        "refused_frames": {sender: dict(kinds) for sender, kinds in sorted(record.refused_frames.items())},
        "per_device": [_device(record, name) for name in listed],
    }


def _device(record: Record, name: str) -> dict[str, Any]:
    accuracy = record.last_accuracy(name)
    return {
        "id": name,
        **({} if accuracy is None else {"accuracy": accuracy}),
        "rounds_done": record.rounds_done[name],
        "bytes_up": record.bytes_up[name],
        "bytes_down": record.bytes_down[name],
    }


class ProgressFile:
    """A Watcher that keeps progress.json up to date.

    A disk that will not have it ends no run: that is told once through `say`, and the file is left alone from then on.
    """

    def __init__(
        self,
        folder: Path,
        about: About,
        *,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path, self._about, self._say, self._clock = folder / NAME, about, say, clock
        self._record, self._done = Record(), 0
        self._resumed_at: int | None = None
        self._devices = 0
        self._begun_s = clock()
        self._next_s = -1.0
        self._broken = False

    def joined(self, device: str, count: int, expected: int) -> None:  # noqa: ARG002  # the protocol's
        """See Watcher."""
        self._devices = count
        if count == expected:
            self._begun_s = self._clock()
        self._write(now=count == expected)

    def turned_away(self, device: str, message: str) -> None:
        """See Watcher."""

    def round_done(self, result: RoundResult, of: int, record: Record) -> None:
        """See Watcher."""
        self._record, self._done = record, result.round
        if self._resumed_at is None:
            self._resumed_at = result.round - 1
        self._write(now=result.round == of)

    def noted(self, message: str) -> None:
        """See Watcher."""

    def _write(self, *, now: bool) -> None:
        """Unless the last time was less than a second ago; `now`: whatever comes next may be long in coming."""
        clock_s = self._clock()
        if self._broken or (clock_s < self._next_s and not now):
            return
        self._next_s = clock_s + EVERY_S
        whole: Mapping[str, Any] = snapshot(self._about, self._record, done=self._done, devices=self._devices)
        times = {
            "resumed_at": self._resumed_at or 0,
            "elapsed_s": clock_s - self._begun_s,
            "updated_s": time.time(),
        }
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            text_files.replace(self._path, json.dumps({**whole, **times}) + "\n")
        except OSError as error:
            self._broken = True
            self._say(
                f"{self._path}: cannot be written ({error.strerror}); the run goes on, `edge-sdk report` cannot follow"
            )
