"""What a coordinator notes while it runs, for progress and for the report.  Survives a restart as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np

from coordinator.report.metrics import CURVES
from coordinator.report.result import RoundResult
from coordinator.waiting import Waiting
from edge_sdk.protocol.knowledge import ByClass, Payload

MISSED_SHARE = 0.1
"""Share of missed exchanges above which a lock-step method is worth a warning (W5)."""


MAX_SENDERS = 10_000
"""Names that are kept of those who break rules or are refused: whoever invents a new one each time must not fill the
memory."""


KEPT = ("contributors", "exchanges", "waited_for", "waited_s")
BOOKS = ("wall_s", "bytes_up", "bytes_down", "scalars_up", "scalars_down", "device_flops", "device_s", "device_j")
"""Of a round: what is counted from the beginning of the run, and closed as a difference."""


def _scalars(payload: Payload) -> int:
    arrays = (getattr(payload, each.name) for each in fields(payload))
    return sum(array.size for array in arrays if isinstance(array, np.ndarray) and array.dtype.kind == "f")


class Work(NamedTuple):
    """What all devices together have computed."""

    flops: int = 0
    busy_s: float = 0.0
    used_j: float = 0.0


NO_WORK = Work()
"""Where nobody meters the devices."""


class _Totals(NamedTuple):
    """Everything since the run began; the names are BOOKS."""

    wall_s: float = 0.0
    """Since the first exchange opened."""
    bytes_up: int = 0
    bytes_down: int = 0
    scalars_up: int = 0
    scalars_down: int = 0
    device_flops: int = 0
    device_s: float = 0.0
    device_j: float = 0.0


@dataclass
class Record:
    """Counters and curves of one run."""

    accuracy: dict[int, dict[str, float]] = field(default_factory=dict)
    """By completed rounds, then device."""
    local_accuracy: dict[int, dict[str, float]] = field(default_factory=dict)
    """The same on each device's own task."""
    pm_v: dict[int, dict[str, float]] = field(default_factory=dict)
    """FedNH's PM(V), and PM(L)."""
    pm_l: dict[int, dict[str, float]] = field(default_factory=dict)
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    """Everything else of a device's newest evaluation, by device, then name."""
    rounds: list[RoundResult] = field(default_factory=list)
    """Without accuracies, which may come a round later."""
    updates: Counter[str] = field(default_factory=Counter)
    refused_frames: dict[str, Counter[str]] = field(default_factory=dict)
    refused_devices: dict[str, dict[str, str]] = field(default_factory=dict)
    withheld: Counter[str] = field(default_factory=Counter)
    """Exchanges by device that it had nothing to give to, because what it learned diverged."""
    why_withheld: dict[str, str] = field(default_factory=dict)
    """The newest reason, by device."""
    outliers: dict[str, tuple[int, float]] = field(default_factory=dict)
    """By device: how many of its updates were far larger than the others', and the most times the median."""
    left: dict[str, str] = field(default_factory=dict)
    """Devices that said goodbye before the end, and why."""
    bytes_up: Counter[str] = field(default_factory=Counter)
    bytes_down: Counter[str] = field(default_factory=Counter)
    scalars: Counter[str] = field(default_factory=Counter)
    """Numbers of knowledge that travelled, `up` in accepted uploads and `down` in what was sent."""
    contributed: Counter[str] = field(default_factory=Counter)
    """Exchanges by device that counted its upload."""
    rounds_done: Counter[str] = field(default_factory=Counter)
    holders: Counter[int] = field(default_factory=Counter)
    """Uploads of this round by class that they have a row for; not kept over a restart, which folds them again."""
    sharers: int = 0
    """Uploads of this round that have rows at all."""
    asked: int = 0
    """Devices of which is known whether they answered, each round anew: see RoundState."""
    answered: int = 0
    """How many of them did."""
    started_s: float | None = None
    """When the first exchange opened, on the server's clock.

    After a restart whoever knows says so; else the clock is taken to have stood still since the last round ended.
    """
    waiting: Waiting = field(default_factory=Waiting)
    """Begins anew after a restart, unless somebody remembers."""
    _closed: _Totals = field(default_factory=_Totals)
    """What all rounds so far add up to."""

    def __post_init__(self) -> None:
        self._closed = _Totals(**{name: sum(getattr(entry, name) for entry in self.rounds) for name in BOOKS})

    def measured(self, device: str, rounds: int, metrics: Mapping[str, float]) -> None:
        """Note a device's own evaluation."""
        for name in CURVES:
            if name in metrics and rounds > 0:
                getattr(self, name).setdefault(rounds, {})[device] = metrics[name]
        if metrics and rounds > 0:
            self.metrics[device] = {name: value for name, value in metrics.items() if name != "accuracy"}

    def held(self, knowledge: Mapping[str, Payload]) -> None:
        """Note the classes that an upload has rows for."""
        classes = {
            int(each) for payload in knowledge.values() if isinstance(payload, ByClass) for each in payload.classes
        }
        self.holders.update(classes)
        self.sharers += bool(classes)

    def refused_frame(self, sender: str, kind: str) -> None:
        """Count a frame that broke the protocol; beyond MAX_SENDERS, senders share one entry."""
        if len(self.refused_frames) >= MAX_SENDERS and sender not in self.refused_frames:
            sender = "others"
        self.refused_frames.setdefault(sender, Counter())[kind] += 1

    def refused_device(self, device: str, note: dict[str, str]) -> None:
        """Note who was not let in; strangers beyond MAX_SENDERS are not remembered by name."""
        if device in self.refused_devices or len(self.refused_devices) < MAX_SENDERS:
            self.refused_devices[device] = note

    def admitted(self, device: str, frame_bytes: int) -> None:
        """Note a device that may take part, whatever was noted of it before."""
        self.refused_devices.pop(device, None)
        self.left.pop(device, None)
        self.bytes_up[device] += frame_bytes

    def diverged(self, device: str, reason: str) -> None:
        """Note an upload that was withheld."""
        self.withheld[device] += 1
        self.why_withheld[device] = reason

    def outlier(self, device: str, times: float) -> None:
        """Note an update whose norm was so many times the median."""
        count, most = self.outliers.get(device, (0, 0.0))
        self.outliers[device] = count + 1, max(most, times)

    def travelled(self, way: str, knowledge: Mapping[str, Payload]) -> None:
        """Count the numbers of an upload (`up`), or of what one device is sent (`down`)."""
        self.scalars[way] += sum(_scalars(payload) for payload in knowledge.values())

    def sent(self, device: str, frame_bytes: int) -> None:
        """Count a frame to a device."""
        self.bytes_down[device] += frame_bytes

    def begun(self, now_s: float) -> None:
        """The first exchange since the start or a restart is open."""
        if self.started_s is None:
            self.started_s = now_s - self._closed.wall_s

    def round_done(self, contributors: int, exchanges: int, now_s: float, work: Work = NO_WORK) -> RoundResult:
        """Close the books of a round; `work` is all that the devices have done since the run began.

        What came before the first round, such as joining, counts as the first round's; only its time does not.
        """
        then, now = self._closed, self._totals(now_s, work)
        waited_for, waited_s = self.waiting.round_done()
        result = RoundResult(
            round=len(self.rounds) + 1,
            contributors=contributors,
            exchanges=exchanges,
            waited_for=waited_for,
            waited_s=waited_s,
            **{name: getattr(now, name) - getattr(then, name) for name in BOOKS},
        )
        self._closed = now
        self.rounds.append(result)
        self.holders, self.sharers = Counter(), 0
        return result

    def _totals(self, now_s: float, work: Work) -> _Totals:
        return _Totals(
            wall_s=now_s - (now_s if self.started_s is None else self.started_s),
            bytes_up=self.bytes_up.total(),
            bytes_down=self.bytes_down.total(),
            scalars_up=self.scalars["up"],
            scalars_down=self.scalars["down"],
            device_flops=work.flops,
            device_s=work.busy_s,
            device_j=work.used_j,
        )

    def unclosed(self) -> dict[str, Any]:
        """What a restart forgets, for its round is not over: plain values, for whoever outlives a coordinator."""
        return {
            "bytes_up": dict(self.bytes_up),
            "bytes_down": dict(self.bytes_down),
            "scalars_down": self.scalars["down"],
            "waiting": self.waiting.to_json(),
        }

    def remember(self, unclosed: Mapping[str, Any]) -> None:
        """What `unclosed` gave: counted on from there."""
        self.bytes_up, self.bytes_down = Counter(unclosed["bytes_up"]), Counter(unclosed["bytes_down"])
        self.scalars["down"] = unclosed["scalars_down"]
        self.waiting.restore(unclosed["waiting"])

    def laggards(self) -> tuple[str, ...]:
        """Devices that missed more than a tenth of the exchanges since the run began."""
        closed = sum(result.exchanges for result in self.rounds)
        return tuple(sorted(name for name, count in self.contributed.items() if count < (1 - MISSED_SHARE) * closed))

    def last_accuracy(self, device: str) -> float | None:
        """The newest evaluation of a device."""
        rounds = [r for r, found in self.accuracy.items() if device in found]
        return self.accuracy[max(rounds)][device] if rounds else None

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        names = (
            "updates",
            "refused_frames",
            "refused_devices",
            "left",
            "withheld",
            "why_withheld",
            "outliers",
            "bytes_up",
            "bytes_down",
            "scalars",
            "contributed",
            "rounds_done",
            *CURVES,
            "metrics",
            "asked",
            "answered",
        )
        plain: dict[str, Any] = {name: getattr(self, name) for name in names}
        rounds = [{name: getattr(r, name) for name in (*KEPT, *BOOKS)} for r in self.rounds]
        return {**plain, "rounds": rounds}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Record:
        """What to_json gave."""
        curves: dict[str, Any] = {name: {int(r): dict(found) for r, found in plain[name].items()} for name in CURVES}
        return cls(
            **curves,
            metrics={device: dict(found) for device, found in plain["metrics"].items()},
            rounds=[RoundResult(round=i, **books) for i, books in enumerate(plain["rounds"], 1)],
            updates=Counter(plain["updates"]),
            refused_frames={sender: Counter(kinds) for sender, kinds in plain["refused_frames"].items()},
            refused_devices=dict(plain["refused_devices"]),
            left=dict(plain["left"]),
            withheld=Counter(plain["withheld"]),
            why_withheld=dict(plain["why_withheld"]),
            outliers={device: (count, most) for device, (count, most) in plain["outliers"].items()},
            bytes_up=Counter(plain["bytes_up"]),
            bytes_down=Counter(plain["bytes_down"]),
            scalars=Counter(plain["scalars"]),
            contributed=Counter(plain["contributed"]),
            rounds_done=Counter(plain["rounds_done"]),
            asked=plain["asked"],
            answered=plain["answered"],
        )
