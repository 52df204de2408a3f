"""The control group of a federation: devices that train alone for a period, so that the others can be compared with it.

All devices report accuracies on their own held-out samples.  A period is a number of rounds.  When one ends, each
device that was alone in it or in the period before, but not in both, gives one paired difference: the change of its
accuracy, less the mean change of the devices that were in the federation in both periods.  So neither the difference
between devices nor the course of time counts as uplift.
"""

from __future__ import annotations

import hashlib
import math
import statistics
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edge_sdk.protocol.messages import OF_CLASS

MEASURES = ("local_accuracy", "validation_accuracy", "accuracy")
"""The accuracies that are compared: the first of them that a device has, so its own held-out samples come first."""

LATER = ("by_class", "last_alone")
"""The fields that are saved beside the group, because older coordinators cannot read a group that has them."""

MOST_NAMED = 10
"""The most devices of the group that a line names."""


@dataclass
class Compared:
    """A figure of the devices of both groups, in this period and in the one before."""

    now: dict[str, tuple[bool, float]] = field(default_factory=dict)
    """By device: whether it was alone, and its newest value in this period."""
    before: dict[str, tuple[bool, float]] = field(default_factory=dict)
    """The same at the end of the period before."""
    pairs: dict[str, float] = field(default_factory=dict)
    """By device that was in both groups: its newest difference, federated minus alone."""

    def end_period(self) -> None:
        """Take the differences of devices that changed their group."""
        self.pairs.update(_differences(self.before, self.now))
        self.before, self.now = self.now, {}

    def of(self, devices: Collection[str]) -> Compared:
        """Return the part about some devices.  Differences stay less the mean change of all devices."""
        rows = ({each: row for each, row in part.items() if each in devices} for part in (self.now, self.before))
        now, before = rows
        return Compared(now, before, {each: value for each, value in self.pairs.items() if each in devices})

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Compared:
        """Restore it from its fields as plain values."""
        now, before = (
            {device: (bool(alone), value) for device, (alone, value) in plain[name].items()}
            for name in ("now", "before")
        )
        return cls(now, before, dict(plain["pairs"]))


@dataclass
class ControlGroup:
    """Who trains alone now, and what both groups reached."""

    alone: frozenset[str] = frozenset()
    """The devices that train alone in this period."""
    alone_before: frozenset[str] = frozenset()
    """Those of the period before: where versions are aggregated from buffers, uploads of it may come in this one."""
    period: int = -1
    """The number of this period, from 0, or -1 before a group is drawn."""
    since: int = 0
    """The round in which this period began, from 0."""
    turns: Counter[str] = field(default_factory=Counter)
    """By device: the periods in which it was alone."""
    whole: Compared = field(default_factory=Compared)
    """The accuracy on all held-out samples."""
    by_class: dict[str, Compared] = field(default_factory=dict)
    """The accuracy on those of a class, by its number, of devices that report it.  Saved by a field of its own."""
    last_alone: dict[str, float] = field(default_factory=dict)
    """By device: its newest accuracy of the times when it was alone."""

    def due(self, round_: int, every: int) -> bool:
        """Whether a round, from 0, begins a period of `every` rounds."""
        return self.period < 0 or round_ >= self.since + every

    def was_alone(self, device: str, round_: int) -> bool:
        """Whether a device trained alone for a round of this period or the one before."""
        return device in (self.alone if round_ >= self.since else self.alone_before)

    def begin(self, alone: Collection[str], round_: int) -> None:
        """End the period, and begin another one with these devices alone."""
        for each in (self.whole, *self.by_class.values()):
            each.end_period()
        self.alone_before, self.alone = self.alone, frozenset(alone)
        self.since, self.period = round_, self.period + 1
        self.turns.update(self.alone)

    def measured(self, device: str, metrics: Mapping[str, float], *, alone: bool) -> None:
        """Note the figures of a device's own model; alone: whether it trained without the others' knowledge."""
        value = next((metrics[name] for name in MEASURES if name in metrics), None)
        if self.period < 0 or value is None or not math.isfinite(value):
            return
        self.whole.now[device] = alone, value
        if alone:
            self.last_alone[device] = value
        for number, of_class in by_class(metrics).items():
            self.by_class.setdefault(number, Compared()).now[device] = alone, of_class

    def groups(self, compared: Compared) -> tuple[list[float], list[float]]:
        """Return the values of devices that were alone and of the others, in the last whole period, or the first one.

        Later periods count once they are over: at its start a device alone is as good as the federation made it.
        """
        found = compared.now if self.period < 1 else compared.before
        return [value for alone, value in found.values() if alone], [v for alone, v in found.values() if not alone]

    def to_json(self) -> dict[str, Any]:
        """The group as plain values that older coordinators read, too: without what is known by class."""
        kept = {name: value for name, value in vars(self).items() if name not in ("whole", *LATER)}
        return {**kept, **vars(self.whole), "alone": sorted(self.alone), "alone_before": sorted(self.alone_before)}

    def later_to_json(self) -> dict[str, Any]:
        """What older coordinators do not know, as plain values."""
        return {
            "by_class": {number: vars(compared) for number, compared in self.by_class.items()},
            "last_alone": self.last_alone,
        }

    @classmethod
    def from_json(cls, plain: Mapping[str, Any], later: Mapping[str, Any]) -> ControlGroup:
        """Restore what `to_json` and `later_to_json` returned; later: empty from an older coordinator."""
        return cls(
            alone=frozenset(plain.get("alone", ())),
            alone_before=frozenset(plain.get("alone_before", ())),
            period=plain["period"],
            since=plain["since"],
            turns=Counter(plain["turns"]),
            whole=Compared.from_json(plain),
            by_class={number: Compared.from_json(each) for number, each in later.get("by_class", {}).items()},
            last_alone=dict(later.get("last_alone", {})),
        )


def by_class(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the accuracies of single classes among a device's figures, by the number of the class."""
    return {
        name.removeprefix(OF_CLASS): value
        for name, value in metrics.items()
        if name.startswith(OF_CLASS) and math.isfinite(value)
    }


def drawn(pool: Collection[str], share: float, group: ControlGroup, federation: str) -> tuple[str, ...]:
    """Draw the devices that train alone in the next period: at least one of `pool`, and never all of them.

    Those with the fewest turns come first, and among them a hash of federation, period and device decides.  So every
    device has its turn before any has a second one.
    """
    count = min(max(1, round(share * len(pool))), len(pool) - 1)

    def rank(device: str) -> tuple[int, bytes]:
        return group.turns[device], hashlib.sha256(f"{federation} {group.period + 1} {device}".encode()).digest()

    return tuple(sorted(sorted(pool, key=rank)[: max(0, count)]))


def drawn_line(alone: Sequence[str], of: int, round_: int, rounds: int) -> str:
    """Return the line about a new control group of `of` devices."""
    if not alone:
        return f"round {round_ + 1}: no control group: only {of} device{'s' * (of != 1)} can train alone"
    more = f" and {len(alone) - MOST_NAMED} more" if len(alone) > MOST_NAMED else ""
    return (
        f"round {round_ + 1}: {len(alone)} of {of} devices train alone for {rounds} rounds, to see whether the "
        f"federation helps: {', '.join(alone[:MOST_NAMED])}{more}"
    )


def _differences(before: Mapping[str, tuple[bool, float]], now: Mapping[str, tuple[bool, float]]) -> dict[str, float]:
    """Return the paired difference of each device that changed its group, or nothing without devices that did not."""
    both: Sequence[str] = [device for device in now if device in before]
    stayed = [now[each][1] - before[each][1] for each in both if not (now[each][0] or before[each][0])]
    if not stayed:
        return {}
    course, found = statistics.fmean(stayed), {}
    for device in both:
        (was_alone, then), (is_alone, value) = before[device], now[device]
        if was_alone != is_alone:
            change = value - then - course
            found[device] = change if was_alone else -change
    return found
