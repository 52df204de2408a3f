"""The history of rounds without an end, rolled up: rounds into hours and days, of each a bounded number.

An entry of an hour or day sums up its rounds.  Newer rounds are also kept one by one (`RunRecord.rounds`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timezone
from typing import Any, NamedTuple, TypeAlias

from coordinator.record.round_result import RoundResult

Kind: TypeAlias = str
"""`hour` or `day`."""
KEPT: Mapping[Kind, int] = {"hour": 14 * 24, "day": 3660}
"""The number of hours and days that are kept: two weeks, and ten years."""
HOUR_S = 3600
SUMMED = ("contributors", "bytes_up", "bytes_down", "wall_s", "device_s", "device_j")
"""The fields of its rounds that a period sums up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """A summary of the rounds of an hour or a day."""

    first: int
    """The first round that was complete in it, counted from 1."""
    rounds: int = 0
    skipped: int = 0
    """Attempts at a round that were skipped."""
    contributors: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    wall_s: float = 0.0
    device_s: float = 0.0
    device_j: float = 0.0
    accuracy: float | None = None
    """The newest mean accuracy at its end, or None if nothing was measured."""

    def with_round(self, result: RoundResult, skipped: int, accuracy: float | None) -> Period:
        """The period with one more round."""
        sums = {name: getattr(self, name) + getattr(result, name) for name in SUMMED}
        newest = self.accuracy if accuracy is None else accuracy
        return replace(self, rounds=self.rounds + 1, skipped=self.skipped + skipped, accuracy=newest, **sums)

    def with_later(self, later: Period) -> Period:
        """The period with one more that follows it."""
        sums = {name: getattr(self, name) + getattr(later, name) for name in ("rounds", "skipped", *SUMMED)}
        return replace(self, accuracy=self.accuracy if later.accuracy is None else later.accuracy, **sums)

    def to_json(self) -> dict[str, Any]:
        """The fields as plain values."""
        return {name: getattr(self, name) for name in _FIELDS}


_FIELDS = tuple(Period.__dataclass_fields__)


class PeriodKey(NamedTuple):
    """Which period it is."""

    kind: Kind
    number: int
    """Of an hour: since 1970, in UTC.  Of a day: `date.toordinal` of its date in the federation's time zone."""

    def __str__(self) -> str:
        if self.kind == "day":
            return date.fromordinal(self.number).isoformat()
        return datetime.fromtimestamp(self.number * HOUR_S, timezone.utc).strftime("%Y-%m-%d %H:00 UTC")


@dataclass
class Periods:
    """The hours and days of a run, oldest first."""

    kept: dict[PeriodKey, Period] = field(default_factory=dict)
    unsaved: set[PeriodKey] = field(default_factory=set)

    def add(self, result: RoundResult, now_s: float, day: date, *, skipped: int, accuracy: float | None) -> None:
        """Add a round that was complete at `now_s` (s since 1970), on this day, after `skipped` skipped attempts."""
        for key in (PeriodKey("hour", int(now_s // HOUR_S)), PeriodKey("day", day.toordinal())):
            before = self.kept.get(key) or Period(first=result.round)
            self.kept[key] = before.with_round(result, skipped, accuracy)
            self.unsaved.add(key)
            self._trim(key.kind)

    def _trim(self, kind: Kind) -> None:
        found = [key for key in self.kept if key.kind == kind]
        for key in found[: -KEPT[kind]]:
            del self.kept[key]
            self.unsaved.discard(key)

    def newest(self, kind: Kind, most: int) -> dict[PeriodKey, Period]:
        """The newest periods of a kind, oldest first."""
        found = [key for key in self.kept if key.kind == kind]
        return {key: self.kept[key] for key in found[-most:]}

    def months(self) -> dict[str, Period]:
        """The days that are kept, summed up by month, as 2026-03, oldest first."""
        found: dict[str, Period] = {}
        for key, day in self.newest("day", KEPT["day"]).items():
            month = f"{date.fromordinal(key.number):%Y-%m}"
            found[month] = found[month].with_later(day) if month in found else day
        return found

    def oldest(self) -> dict[Kind, int]:
        """The number of the oldest period that is kept, by kind; 0 before the first."""
        return {kind: next((key.number for key in self.kept if key.kind == kind), 0) for kind in KEPT}

    @classmethod
    def restored(cls, rows: Iterable[tuple[str, int, Mapping[str, Any]]]) -> Periods:
        """The periods from (kind, number, plain values), in any order."""
        found = sorted((number, kind, plain) for kind, number, plain in rows if kind in KEPT)
        known = {
            PeriodKey(kind, number): Period(**{name: plain[name] for name in _FIELDS if name in plain})
            for number, kind, plain in found
        }
        return cls(kept=known)
