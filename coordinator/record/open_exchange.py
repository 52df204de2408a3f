"""The exchange that is open: its state for observers of a run, and how long it waited for which device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenExchange:
    """The open exchange of a run: which devices have answered, and which ones hold it up."""

    line: str
    """One line about it all."""
    doing: str
    phase: str
    round: int
    """From 1."""
    exchange: int
    """From 1."""
    exchanges: int
    """How many there are in a round."""
    closing: bool
    expected: int
    here: int
    invited: int
    answered: int
    needed: int
    """The number of uploads that it needs to close: the quorum."""
    awaited: tuple[str, ...]
    held: tuple[str, ...]
    """Invited devices that declined, or that withheld their upload."""
    due_s: float | None
    """The deadline, on the coordinator's clock, or None if none is set."""
    misses: int
    patience: int


class Waiting:
    """The waits of one run: the seconds for which exchanges stayed open because of one device, or of a few.

    The time from one answer to the next is a wait for the device that gives the next one; so the wait between the last
    two answers is for the last device alone.  If a deadline closes an exchange, the rest of the time is a wait for the
    devices that did not answer, in equal parts.
    """

    def __init__(self) -> None:
        self.total_s: Counter[str] = Counter()
        """By device, the waits of the whole run in seconds."""
        self._round_s: Counter[str] = Counter()
        self._last_s: float | None = None
        """When a device last answered the open exchange (s), or None if none has."""

    def answered(self, device: str, now_s: float) -> None:
        """Note that a device answered."""
        if self._last_s is not None:
            self._note(device, now_s - self._last_s)
        self._last_s = now_s

    def closed(self, silent: Collection[str], now_s: float) -> None:
        """Note that the exchange is closed without the devices that did not answer."""
        if self._last_s is not None:
            for device in sorted(silent):
                self._note(device, (now_s - self._last_s) / len(silent))
        self._last_s = None

    def round_done(self) -> tuple[str, float]:
        """The device that this round waited for longest, and the seconds; ("", 0.0) if there was no wait."""
        waits_s, self._round_s = self._round_s, Counter()
        if not waits_s:
            return "", 0.0
        device = min(waits_s, key=lambda name: (-waits_s[name], name))
        return device, waits_s[device]

    def to_json(self) -> dict[str, Any]:
        """The waits as plain values, without the present one: no device causes a restart."""
        return {"total_s": dict(self.total_s), "round_s": dict(self._round_s)}

    def restore(self, plain: Mapping[str, Any]) -> None:
        """Restore what `to_json` returned."""
        self.total_s, self._round_s = Counter(plain["total_s"]), Counter(plain["round_s"])

    def _note(self, device: str, waited_s: float) -> None:
        if waited_s > 0:
            self.total_s[device] += waited_s  # type: ignore[assignment]  # a Counter of seconds
            self._round_s[device] += waited_s  # type: ignore[assignment]
