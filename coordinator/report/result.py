"""What came of a run, as plain values, and its summary."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from coordinator.report.insight import Insight
from coordinator.report.metrics import TARGETS, Point, global_model, over_devices, to_target

SUMMARY_VERSION = 1
VERDICTS = ("accepted", "duplicate", "stale", "refused", "withheld")
"""What can become of an upload."""
SPENT = {"flops": "flops", "s": "busy_s", "j": "energy_j"}
"""What is metered of all devices together (`device_flops` and so on), and its name at each of them."""
WORST_SHARE = 0.1
"""The share of devices whose mean accuracy is reported as `worst`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceResult:
    """One device at the end of a run.  Accuracies are fractions in [0, 1]; None where nobody measured."""

    id: str
    number: int
    board: str = ""
    link: str = ""
    model: str = ""
    runtime: str = ""
    note: str = ""
    """What a reader should know of its model, such as where a frozen extractor comes from."""
    learns: bool = True
    """False for a device that can only teach: it counts in no mean."""
    joined: bool = True
    """False for a device of a simulation that never came or was not let in: whether it learns is not known then."""
    samples: int = 0
    class_counts: tuple[int, ...] = ()
    """Samples per class; empty where the owner withholds it."""
    accuracy: float | None = None
    standalone_accuracy: float | None = None
    """After the same training on its own data alone."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Everything else of its newest evaluation, by name."""
    bytes_up: int = 0
    bytes_down: int = 0
    rounds_done: int = 0
    waited_s: float = 0.0
    """Seconds in which exchanges were open for its sake: coordinator/waiting.py."""
    busy_s: float = 0.0
    """Seconds of computing, by its board's profile; 0 where nobody meters it, as over a broker."""
    energy_j: float = 0.0
    """What it drew from the beginning to the end of the run; 0 where nobody meters it."""
    flops: int = 0
    """What it computed, evaluations included; 0 where nobody meters it."""
    withheld: int = 0
    """Uploads that it withheld because what it learned diverged."""

    @property
    def classes(self) -> tuple[int, ...]:
        """The classes that it holds samples of."""
        return tuple(index for index, count in enumerate(self.class_counts) if count)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """One completed round; seconds and bytes are those of this round alone."""

    round: int
    """1 for the first: the number of rounds completed."""
    accuracy: Mapping[str, float] = field(default_factory=dict)
    """By device id; only devices that were evaluated after this round."""
    local_accuracy: Mapping[str, float] = field(default_factory=dict)
    """The same on each device's own task: its own test part, or the test's samples of the classes that it holds."""
    pm_v: Mapping[str, float] = field(default_factory=dict)
    """FedNH's PM(V) by device id; of devices whose owners disclose their classes."""
    pm_l: Mapping[str, float] = field(default_factory=dict)
    """FedNH's PM(L), likewise."""
    contributors: int = 0
    wall_s: float = 0.0
    virtual_s: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    scalars_up: int = 0
    """Numbers of knowledge in accepted uploads, however they were encoded; class ids and counts are not among them."""
    scalars_down: int = 0
    exchanges: int = 0
    device_flops: int = 0
    """Of all devices together, evaluations included; 0 where nobody meters them, as over a broker."""
    device_s: float = 0.0
    """Seconds of computing, of all devices together, by their boards' profiles; 0 where nobody meters them."""
    device_j: float = 0.0
    """Joules that all devices together drew, waiting and talking included; 0 where nobody meters them."""
    waited_for: str = ""
    """The device that this round waited for longest; empty: none."""
    waited_s: float = 0.0
    """How long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A whole run, finished or not."""

    federation: str
    method: str
    seed: int
    rounds: int
    """How many were asked for."""
    completed: bool
    rounds_done: int
    devices: tuple[DeviceResult, ...]
    history: tuple[RoundResult, ...] = ()
    standalone_history: tuple[RoundResult, ...] = ()
    updates: Mapping[str, int] = field(default_factory=dict)
    """Uploads by verdict: accepted, duplicate, stale, refused, withheld."""
    refused_frames: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Frames that broke the protocol: sender -> kind -> count."""
    refused_devices: tuple[Mapping[str, str], ...] = ()
    """Devices that were not let in: device, reason, message, remedy."""
    warnings: tuple[str, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    time: Mapping[str, float] = field(default_factory=dict)
    """wall_s, virtual_s, start_s (seconds since 1970)."""
    memory: Mapping[str, float] = field(default_factory=dict)
    """peak_mib: the most memory that a simulation had resident, worker processes included."""
    data: Mapping[str, str] = field(default_factory=dict)
    """name, sha256."""
    encoding: Mapping[str, str] = field(default_factory=dict)
    """How the payload kinds of the method travelled: tag -> encoding."""
    versions: Mapping[str, str] = field(default_factory=dict)
    transport: str = "memory"
    one_model: bool = False
    """Whether all devices may measure one averaged model: then, and if they found the same, there is a GM."""
    reason: str = ""
    """Why it ended early; empty where it did not."""
    insight: Insight | None = field(default=None, compare=False)
    """What its models held at the end, for pictures."""

    @property
    def learners(self) -> frozenset[str]:
        """Ids of the devices that joined and learn: the ones that means are taken over."""
        return frozenset(device.id for device in self.devices if device.joined and device.learns)

    @property
    def metered(self) -> frozenset[str]:
        """Which of SPENT somebody metered: nothing over a broker, where nobody knows what devices spend."""
        return frozenset(of for of in SPENT if f"device_{of}_total" in _work(self))

    def learned(self, accuracy: Mapping[str, float]) -> dict[str, float]:
        """Of the devices that learn, those that are known, by id."""
        learners = self.learners
        return {device: value for device, value in accuracy.items() if device in learners}

    def own_task(self, accuracy: Mapping[str, float]) -> dict[str, float]:
        """AMP, FM, WLP and their like over the learning devices, of accuracies by device id."""
        return over_devices(self.learned(accuracy), {device.id: device.samples for device in self.devices})

    def gm(self, accuracy: Mapping[str, float]) -> float | None:
        """GM of accuracies by device id; None where there is no one model."""
        return global_model(self.learned(accuracy)) if self.one_model else None

    def points(self) -> list[Point]:
        """Round by round where accuracy was measured: its mean, and what had been spent by then."""
        found, spent, time_s, flops, device_s, device_j = [], 0, 0.0, 0, 0.0, 0.0
        for entry in self.history:
            spent += entry.bytes_up + entry.bytes_down
            time_s += entry.virtual_s or entry.wall_s
            flops += entry.device_flops
            device_s += entry.device_s
            device_j += entry.device_j
            learned = self.learned(entry.accuracy)
            if learned:
                mean = statistics.fmean(learned.values())
                per_device = spent / max(1, len(self.devices))
                found.append(Point(entry.round, mean, per_device, time_s, flops, device_s, device_j))
        return found


def spread(values: Sequence[float]) -> dict[str, float]:
    """The mean, min, max, std (population) and worst of some values; nothing of none.

    `worst` is the mean of the lowest tenth, rounded down, but of one value at least.
    """
    if not values:
        return {}
    lowest = sorted(values)[: max(1, int(len(values) * WORST_SHARE))]
    return {
        "mean": statistics.fmean(values),
        "min": min(values),
        "max": max(values),
        "std": statistics.pstdev(values),
        "worst": statistics.fmean(lowest),
    }


def summary(result: Result) -> dict[str, Any]:
    """What stands in summary.json, version 1.  A figure that is not known is absent, never null or NaN."""
    return {
        "version": SUMMARY_VERSION,
        "federation": result.federation,
        "method": result.method,
        "seed": result.seed,
        "rounds": result.rounds,
        "rounds_done": result.rounds_done,
        "devices": len(result.devices),
        "completed": result.completed,
        "reason": result.reason,
        "accuracy": _accuracy(result.devices)
        | _known([("gm", result.gm(_known((d.id, d.accuracy) for d in result.devices)))]),
        "one_model": result.one_model,
        "own_task": result.own_task(_own_accuracies(result.devices)),
        "metrics": _known(result.metrics.items()),
        "bytes": _bytes(result.devices),
        "scalars": {
            f"{way}_total": sum(getattr(r, f"scalars_{way}") for r in result.history) for way in ("up", "down")
        },
        "work": _work(result),
        "to_target": _to_target(result.points()),
        "exchange": _exchange(result.history),
        "time": _known(result.time.items()),
        "memory": _known(result.memory.items()),
        "transport": result.transport,
        "encoding": dict(result.encoding),
        "updates": {key: result.updates.get(key, 0) for key in VERDICTS},
        "refused_frames": {sender: dict(kinds) for sender, kinds in sorted(result.refused_frames.items())},
        "refused_devices": [dict(refusal) for refusal in result.refused_devices],
        "warnings": list(result.warnings),
        "per_device": [_device(device) for device in result.devices],
        "data": dict(result.data),
        "versions": dict(result.versions),
    }


def without_times(whole: Mapping[str, Any]) -> dict[str, Any]:
    """A summary less what depends on the clock or the machine: the same seed twice gives the same."""
    kept = {key: value for key, value in whole.items() if key not in {"time", "memory", "versions"}}
    kept["per_device"] = [
        {key: value for key, value in device.items() if key != "waited_s"} for device in kept["per_device"]
    ]
    return kept | {"metrics": {name: value for name, value in whole["metrics"].items() if not name.endswith("_s")}}


def _known(pairs: Iterable[tuple[str, float | None]]) -> dict[str, float]:
    return {key: value for key, value in pairs if value is not None and math.isfinite(value)}


def _accuracy(devices: Sequence[DeviceResult]) -> dict[str, float]:
    """Over devices that learn and were evaluated; `standalone_mean` over those of them that also ran alone."""
    federated = _known((device.id, device.accuracy) for device in devices if device.learns)
    alone = _known((device.id, device.standalone_accuracy) for device in devices if device.id in federated)
    baseline = {"standalone_mean": statistics.fmean(alone.values())} if alone else {}
    return baseline | spread(list(federated.values()))


def _bytes(devices: Sequence[DeviceResult]) -> dict[str, float]:
    up, down = sum(d.bytes_up for d in devices), sum(d.bytes_down for d in devices)
    device_rounds = sum(d.rounds_done for d in devices)
    totals: dict[str, float] = {"up_total": up, "down_total": down}
    if not device_rounds:
        return totals
    return totals | {"up_per_device_round": up / device_rounds, "down_per_device_round": down / device_rounds}


def _own_accuracies(devices: Sequence[DeviceResult]) -> dict[str, float]:
    return _known((device.id, device.metrics.get("local_accuracy")) for device in devices)


def _work(result: Result) -> dict[str, float]:
    """What all devices together spent: over the run, and in its rounds on average; nothing where nobody metered it."""
    found = {}
    for of, name in SPENT.items():
        in_rounds = sum(getattr(entry, f"device_{of}") for entry in result.history)
        # the devices of runs of before they kept their FLOPs know none
        found[f"device_{of}_total"] = sum(getattr(device, name) for device in result.devices) or in_rounds
        found[f"device_{of}_per_round"] = in_rounds / max(1, len(result.history))
    return {name: value for name, value in found.items() if value}


def _to_target(points: Sequence[Point]) -> dict[str, dict[str, float]]:
    """By mean accuracy, for the targets that were reached: the round, and what was spent until then and is known."""
    reached = {f"{target:g}": to_target(points, target) for target in TARGETS}
    return {
        target: {key: value for key, value in point._asdict().items() if value or not key.startswith("device_")}
        for target, point in reached.items()
        if point is not None
    }


def _exchange(history: Sequence[RoundResult]) -> dict[str, int]:
    """How often knowledge travelled: over the run, and in a round (a method's contract keeps that constant)."""
    counts = [entry.exchanges for entry in history]
    return {"total": sum(counts), "per_round": max(counts, default=0)}


def _device(device: DeviceResult) -> dict[str, Any]:
    counts = {"classes": len(device.classes), "class_counts": list(device.class_counts)} if device.class_counts else {}
    measured = _known((("accuracy", device.accuracy), ("standalone_accuracy", device.standalone_accuracy)))
    return {
        "id": device.id,
        "number": device.number,
        "board": device.board,
        "link": device.link,
        "model": device.model,
        "runtime": device.runtime,
        "note": device.note,
        "learns": device.learns,
        "joined": device.joined,
        "samples": device.samples,
        **counts,
        **measured,
        "metrics": _known(device.metrics.items()),
        "bytes_up": device.bytes_up,
        "bytes_down": device.bytes_down,
        "rounds_done": device.rounds_done,
        **{name: value for name in ("waited_s", *SPENT.values()) if (value := getattr(device, name))},
        "withheld": device.withheld,
    }
