"""What a coordinator notes while it runs, for progress and for the report.  Survives a restart as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from coordinator.report.result import RoundResult
from edge_sdk.protocol.knowledge import ClassRows, HyperKnowledge, Payload

MISSED_SHARE = 0.1
"""Share of missed exchanges above which a lock-step method is worth a warning (W5)."""


MAX_SENDERS = 10_000
"""Names that are kept of those who break rules or are refused: whoever invents a new one each time must not fill the
memory."""


@dataclass
class Record:
    """Counters and curves of one run."""

    accuracy: dict[int, dict[str, float]] = field(default_factory=dict)
    """By completed rounds, then device."""
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    """Everything else of a device's newest evaluation, by device, then name."""
    rounds: list[RoundResult] = field(default_factory=list)
    """Without accuracies, which may come a round later."""
    updates: Counter[str] = field(default_factory=Counter)
    refused_frames: dict[str, Counter[str]] = field(default_factory=dict)
    refused_devices: dict[str, dict[str, str]] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    """Devices that said goodbye before the end, and why."""
    bytes_up: Counter[str] = field(default_factory=Counter)
    bytes_down: Counter[str] = field(default_factory=Counter)
    contributed: Counter[str] = field(default_factory=Counter)
    """Exchanges by device that counted its upload."""
    rounds_done: Counter[str] = field(default_factory=Counter)
    holders: Counter[int] = field(default_factory=Counter)
    """Uploads of this round by class that they have a row for; not kept over a restart, which folds them again."""
    sharers: int = 0
    """Uploads of this round that have rows at all."""
    started_s: float | None = None
    """When the first exchange opened, on the server's clock; not kept over a restart."""
    _mark: tuple[int, int, float] = (0, 0, 0.0)

    def measured(self, device: str, rounds: int, metrics: Mapping[str, float]) -> None:
        """Note a device's own evaluation."""
        if "accuracy" in metrics and rounds > 0:
            self.accuracy.setdefault(rounds, {})[device] = metrics["accuracy"]
        if metrics and rounds > 0:
            self.metrics[device] = {name: value for name, value in metrics.items() if name != "accuracy"}

    def held(self, knowledge: Mapping[str, Payload]) -> None:
        """Note the classes that an upload has rows for."""
        classes = {
            int(each)
            for payload in knowledge.values()
            if isinstance(payload, (ClassRows, HyperKnowledge))
            for each in payload.classes
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

    def begun(self, now_s: float) -> None:
        """The first exchange is open."""
        if self.started_s is None:
            self.started_s = now_s
            self._mark = (self.bytes_up.total(), self.bytes_down.total(), now_s)

    def round_done(self, contributors: int, exchanges: int, now_s: float) -> RoundResult:
        """Close the books of a round."""
        up, down, then_s = self._mark
        result = RoundResult(
            round=len(self.rounds) + 1,
            contributors=contributors,
            wall_s=now_s - then_s,
            bytes_up=self.bytes_up.total() - up,
            bytes_down=self.bytes_down.total() - down,
            exchanges=exchanges,
        )
        self._mark = (self.bytes_up.total(), self.bytes_down.total(), now_s)
        self.rounds.append(result)
        self.holders, self.sharers = Counter(), 0
        return result

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
            "bytes_up",
            "bytes_down",
            "contributed",
            "rounds_done",
        )
        plain: dict[str, Any] = {name: getattr(self, name) for name in names}
        rounds = [(r.contributors, r.wall_s, r.bytes_up, r.bytes_down, r.exchanges) for r in self.rounds]
        return {**plain, "accuracy": self.accuracy, "metrics": self.metrics, "rounds": rounds}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Record:
        """What to_json gave."""
        return cls(
            accuracy={int(r): dict(found) for r, found in plain["accuracy"].items()},
            metrics={device: dict(found) for device, found in plain["metrics"].items()},
            rounds=[
                RoundResult(round=i + 1, contributors=c, wall_s=w, bytes_up=u, bytes_down=d, exchanges=e)
                for i, (c, w, u, d, e) in enumerate(plain["rounds"])
            ],
            updates=Counter(plain["updates"]),
            refused_frames={sender: Counter(kinds) for sender, kinds in plain["refused_frames"].items()},
            refused_devices=dict(plain["refused_devices"]),
            left=dict(plain["left"]),
            bytes_up=Counter(plain["bytes_up"]),
            bytes_down=Counter(plain["bytes_down"]),
            contributed=Counter(plain["contributed"]),
            rounds_done=Counter(plain["rounds_done"]),
        )
