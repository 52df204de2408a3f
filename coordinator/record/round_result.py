"""The open exchange, a completed round, and what the method noted in it, as plain values.

The open exchange also tells how long it waited for which device; a completed round, who missed its exchanges.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from edge_sdk.methods.contract.requests import MeasuredModel


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


COORDINATOR = ""
"""The source of an instrument that the coordinator measured; others are device ids."""
LEAST_SHARE = 0.01
"""The share of the gradient below which a loss term counts as without effect (W19)."""

ByName: TypeAlias = dict[str, dict[str, float]]
"""Name -> source -> value."""


class InstrumentPoint(NamedTuple):
    """One instrument in one round: the mean, least and most over its sources."""

    round: int
    instrument: str
    sources: int
    """The number of devices, or 0 if the coordinator measured it."""
    mean: float
    low: float
    high: float


def instrument_points(history: Sequence[RoundResult]) -> list[InstrumentPoint]:
    """Return a point for each round and instrument, by round, then by name."""
    found = []
    for entry in history:
        for name, by_source in sorted(entry.instruments.items()):
            values = list(by_source.values())
            devices = sum(source != COORDINATOR for source in by_source)
            found.append(
                InstrumentPoint(entry.round, name, devices, statistics.fmean(values), min(values), max(values))
            )
    return found


def newest(instruments: Mapping[int, Mapping[str, Mapping[str, float]]]) -> dict[str, float]:
    """Return the mean over its sources of each instrument in the newest round that has it; instruments: by round."""
    found: dict[str, float] = {}
    for number in sorted(instruments):
        found |= {name: statistics.fmean(values.values()) for name, values in sorted(instruments[number].items())}
    return found


def idle_terms(newest_shares: Mapping[str, float]) -> Collection[str]:
    """Return the names of loss terms whose share of the gradient is below LEAST_SHARE."""
    return [name for name, share in newest_shares.items() if name.startswith("share.") and share < LEAST_SHARE]


PREFIXES: Mapping[MeasuredModel, str] = {"personal": "", "global": "global_", "active": "active_"}
"""The prefix of the names of a model's figures."""
CURVES = (
    "accuracy",
    "local_accuracy",
    "pm_v",
    "pm_l",
    "global_accuracy",
    "global_local_accuracy",
    "active_accuracy",
    "active_local_accuracy",
)
"""Accuracies kept for every device and round: of its personal model, of the global model, and of the mean over the
round's devices where the global model is a mean over all cached ones.  On the shared test, on the device's own task;
`pm_v` and `pm_l` are FedNH's (edge_sdk.device.training.evaluation.personalised_accuracies)."""


class Missed(NamedTuple):
    """An exchange that closed without a device that was invited to it, or that would have been."""

    round: int
    """From 1, like `exchange`."""
    exchange: int
    device: str
    reason: str
    """Why, in the words of a report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """One completed round.  Seconds, bytes and work are those of this round alone.

    coordinator/results/figures/round_figures.py, and docs/reference/figures.md, say what each field is.
    """

    round: int
    """The number of the round, 1 for the first; rounds are completed in this order."""
    accuracy: Mapping[str, float] = field(default_factory=dict)
    """Accuracies of personal models by device id; only devices that were evaluated after this round."""
    local_accuracy: Mapping[str, float] = field(default_factory=dict)
    """Accuracies on each device's own task: its own test part, or the test samples of the classes that it holds."""
    pm_v: Mapping[str, float] = field(default_factory=dict)
    """FedNH's PM(V) by device id, for devices whose owners disclose their classes."""
    pm_l: Mapping[str, float] = field(default_factory=dict)
    """FedNH's PM(L), for the same devices."""
    global_accuracy: Mapping[str, float] = field(default_factory=dict)
    """Accuracies of the global model by device id, where the method has one."""
    global_local_accuracy: Mapping[str, float] = field(default_factory=dict)
    """The same on each device's own task."""
    active_accuracy: Mapping[str, float] = field(default_factory=dict)
    """Accuracies of the mean over the round's devices, where the global model is the mean over all cached ones."""
    active_local_accuracy: Mapping[str, float] = field(default_factory=dict)
    """The same on each device's own task."""
    instruments: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """The method's own figures: name -> device id, or "" for the coordinator -> value."""
    contributors: int = 0
    wall_s: float = 0.0
    virtual_s: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    scalars_up: int = 0
    scalars_down: int = 0
    exchanges: int = 0
    device_flops: int = 0
    """FLOPs, total over all devices, evaluations included; 0 if they are not metered, as over a broker."""
    device_s: float = 0.0
    """Seconds of computing, total over all devices; 0 if they are not metered."""
    device_j: float = 0.0
    """Joules, total over all devices, in a simulation with waiting and communication; 0 if they are not metered."""
    waited_for: str = ""
    waited_s: float = 0.0
    declined: Mapping[str, int] = field(default_factory=dict)
    silent: int = 0
    sums: Mapping[str, float] = field(default_factory=dict)
    """Sums over the devices of further figures (`Figure.by_round`), by name, where they are not 0."""

    def of(self, model: MeasuredModel, name: str = "accuracy") -> Mapping[str, float]:
        """Return accuracies of a model by device id; name: one without the model's prefix."""
        found: Mapping[str, float] = getattr(self, PREFIXES[model] + name)
        return found
