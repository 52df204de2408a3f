"""When rounds open: applies the pace of a federation to its record, and counts skipped attempts."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from coordinator.ledger import Rolled
from coordinator.record.run_record import RunRecord
from coordinator.record.units import human_bytes, percent
from coordinator.rounds import Rested, RoundPolicy, Skip
from coordinator.rounds.pace import NO_LIMIT, DaySpent, Opening, RoundPace, next_opening

LONGEST_REST_S = 600.0
"""Maximum seconds until the pace is asked again, because this machine's clock may be set meanwhile."""
KEPT_ROUNDS = 1000
"""The rounds that a run without an end keeps one by one; older ones are cut when a tenth more has gathered."""
REASONS_SAID = 3
"""The number of declining devices for which a skipped round gives the reason."""
SAID_AGAIN_S = 86_400.0
"""Seconds after which a round that is still skipped is logged again, because operators may read only the newest
lines."""
LONGEST_WAIT_S = 3600.0
"""Longest pause in seconds between two attempts at a round, if the pace sets none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timetable:
    """The pace of a federation, and the clock that it follows."""

    pace: RoundPace = NO_LIMIT
    wall: Callable[[], float] = time.time
    """Returns seconds since 1970."""
    ends_s: float | None = None
    """When a simulation ends a run without an end, on that clock."""


AT_ONCE = Timetable()


class RoundPacing:
    """Answers whether a round may open now."""

    def __init__(
        self, timetable: Timetable, policy: RoundPolicy, record: RunRecord, joules: Callable[[], float]
    ) -> None:
        """joules: returns what all devices have spent so far."""
        self._pace, self._wall, self._ends_s = timetable.pace, timetable.wall, timetable.ends_s
        self._policy, self._record, self._joules = policy, record, joules
        self._skipped = 0
        """Attempts that were skipped since a round was last complete."""
        self._opened_before_s: float | None = None
        """When the round before the last one opened, in seconds since 1970."""
        self._said_s = -math.inf
        """When a skipped round was last logged, in seconds since 1970."""
        self._budget_said: set[bool] = set()
        """Which warnings about a budget were logged: spent after some of a day's rounds (True), or before the first
        (False)."""

    def asked(self, now_s: float, *, skipped: bool) -> Rested:
        """Answer whether the round may open.  skipped: it has just been skipped, so the next attempt comes later."""
        wall_s = self._wall()
        if self._ends_s is not None and wall_s >= self._ends_s:
            self._record.stopped = "the simulated time is over (scenario.until_days)"
            return Rested(now_s, None, enough=True)
        found = self._opening(wall_s, skipped=skipped)
        if found.at_s <= wall_s:
            self._opened_before_s = self._record.pace.get("opened_s")
            self._record.pace["opened_s"] = wall_s
            return Rested(now_s, None)
        until_s = found.at_s if self._ends_s is None else min(found.at_s, self._ends_s)
        longest_s = math.inf if self._ends_s is not None else LONGEST_REST_S  # a simulated clock is never set
        return Rested(now_s, now_s + min(until_s - wall_s, longest_s), found.why)

    def _opening(self, wall_s: float, *, skipped: bool) -> Opening:
        record, day = self._record, self._pace.day(wall_s).isoformat()
        count = record.bytes_up.total() + record.bytes_down.total()
        joules = self._joules()
        if record.pace.get("day") != day:
            record.pace |= {"day": day, "bytes": count, "joules": joules, "done": record.done}
        spent = DaySpent(count - record.pace["bytes"], joules - record.pace["joules"])
        found = next_opening(self._pace, wall_s, record.pace.get("opened_s"), spent)
        if skipped:
            again_s = wall_s + self._wait_s()
            if again_s > found.at_s:  # the hours apply to the later time, too
                found = next_opening(self._pace, again_s, None, DaySpent())
                return found if found.why else Opening(found.at_s, "the last attempt was skipped")
        return found

    def news(self) -> Iterator[str]:
        """Yield lines about a day's budget that is too small, each once a start, and about a change of the clocks."""
        yield from self._clock_change()
        pace, record = self._pace, self._record
        if "done" not in record.pace:  # the day began under an older edge-sdk, which did not count its rounds
            return
        done = record.done - record.pace["done"]
        count = record.bytes_up.total() + record.bytes_down.total() - record.pace["bytes"]
        joules = self._joules() - record.pace["joules"]
        for name, unit, spent, limit in (
            ("bytes_per_day", "bytes", float(count), float(pace.bytes_per_day)),
            ("joules_per_day", "J", joules, pace.joules_per_day),
        ):
            line = _short(f"federation.{name}", unit, spent, limit, done=done, wanted=pace.rounds_per_day)
            if line and bool(done) not in self._budget_said:
                self._budget_said.add(bool(done))
                yield line

    def _clock_change(self) -> Iterator[str]:
        hours, pace, now_s = self._pace.hours, self._record.pace, self._wall()
        offset_s = self._pace.offset_s(now_s)
        before_s = pace.get("offset_s", offset_s)
        pace["offset_s"] = offset_s
        if hours is not None and before_s != offset_s:
            yield (
                f"the clocks of {self._pace.zone} have changed: federation.window {hours} is {hours.earlier(offset_s)} "
                f"UTC from now on, before it was {hours.earlier(before_s)} UTC"
            )

    def _wait_s(self) -> float:
        """Seconds until a skipped round is tried again: they double up to `every`, or an hour without it."""
        most_s = self._pace.every_s or LONGEST_WAIT_S
        return float(min(most_s, self._policy.deadline_s * 2.0 ** min(self._skipped - 1, 30)))

    def skip(self, skip: Skip) -> str | None:
        """Count a skipped attempt; returns a line to log, or None if it was logged for this round within a day."""
        record, number = self._record, skip.place.round + 1
        if not skip.opened:
            record.pace["opened_s"] = self._opened_before_s
        reason = "; ".join([skip.reason, *self._why_declined()])
        self._skipped += 1
        record.skips += 1
        before, now_s = record.last_skip, self._wall()
        since_s = before["since_s"] if before.get("round") == number and "since_s" in before else now_s
        record.last_skip = {"round": number, "at_s": now_s, "since_s": since_s, "reason": reason}
        if self._skipped > 1 and 0.0 <= now_s - self._said_s < SAID_AGAIN_S:
            return None
        self._said_s = now_s
        waited = f" since {self._pace.says(since_s)}, {self._skipped} times" if self._skipped > 1 else ""
        return f"round {number} is skipped for now{waited}: {reason}"

    def _why_declined(self) -> Iterator[str]:
        """Why devices decline, for the first few of them."""
        declining = sorted(self._record.declining.items())
        for device, (word, why) in declining[:REASONS_SAID]:
            yield f"{device}: {why or word}"
        if len(declining) > REASONS_SAID:
            yield f"and {len(declining) - REASONS_SAID} more decline"

    def roll_up(self) -> None:
        """Add the round that was just closed to its hour and its day."""
        now_s = self._wall()
        keep = KEPT_ROUNDS if self._ends_s is None else None  # a simulation's results have every round
        self._record.roll_up(now_s, self._pace.day(now_s), keep=keep)

    def completed(self) -> Rolled:
        """Note that a round is complete; returns how the checkpoint changes the history."""
        self._skipped, periods = 0, self._record.periods
        written: dict[tuple[str, int], dict[str, Any]] = {
            (key.kind, key.number): periods.kept[key].to_json() for key in periods.unsaved
        }
        return Rolled(written, periods.oldest(), self._record.rolled + 1)


def _short(name: str, unit: str, spent: float, limit: float, *, done: int, wanted: float) -> str:
    """Return a line about a budget that ended a day after `done` of the `wanted` rounds; empty if probably intended."""
    if not 0 < limit <= spent:
        return ""
    if not done:
        return f"{name} was spent before the first round of the day, by {spent:.0f} {unit} outside of rounds: raise it"
    needed = spent / done * wanted
    if wanted <= done or needed <= limit:
        return ""
    return (
        f"{name} is spent after {done} of the {wanted:.0f} rounds that federation.every allows a day; all of them need "
        f"about {needed:.2g} {unit}: raise it, or make every longer"
    )


def why_stop(policy: RoundPolicy, record: RunRecord) -> str:
    """Why the run ends with the round whose exchanges are all closed, or empty if it continues.

    Bytes are those that all devices have sent and received so far, including joining.  The accuracy is the mean over
    the devices that were evaluated last: of the global model if the method has one, or else of their own models.
    """
    if policy.stop_at_bytes:
        spent = record.bytes_up.total() + record.bytes_down.total()
        if spent >= policy.stop_at_bytes:
            return f"{human_bytes(spent)} were spent, stop_at_bytes is {human_bytes(policy.stop_at_bytes)}"
    if policy.stop_at_accuracy:
        curves = record.global_accuracy or record.accuracy
        newest = curves.get(max(curves, default=0), {})
        mean = statistics.fmean(newest.values()) if newest else 0.0
        if mean >= policy.stop_at_accuracy:
            whose = "the global model" if record.global_accuracy else "the devices' own models"
            wanted = percent(policy.stop_at_accuracy)
            return f"the mean accuracy of {whose} is {percent(mean)}, stop_at_accuracy is {wanted}"
    return ""
