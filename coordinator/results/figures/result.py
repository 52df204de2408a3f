"""The result of a run as plain values: the run, its devices and its rounds."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from coordinator.record.round_result import Missed, RoundResult
from coordinator.results.figures.insight import Insight
from coordinator.results.figures.metrics import Point, deviation, global_model, over_devices
from edge_sdk.methods.contract.requests import MeasuredModel

VERDICTS = ("accepted", "duplicate", "stale", "refused", "withheld")
"""The verdicts on uploads."""
ON_BOARDS = "boards"
"""The first word of `Result.transport` of a run on the boards of a lab."""
METERED = {"flops": "flops", "s": "busy_s", "j": "energy_j"}
"""Metered quantities: the key names a total over all devices, as in `device_flops`; the value is the field of a
DeviceResult."""
JOINING = ("accuracy", "local_accuracy", "validation_accuracy")
"""The metrics for comparing a device's model with the one that it joined with.  The first available one is used."""
MOST_NAMED = 10
"""Maximum number of devices that a remark names one by one."""
WORST_SHARE = 0.1
"""The share of devices whose mean accuracy is reported as `worst`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceResult:
    """One device at the end of a run.  Accuracies are fractions in [0, 1], or None if not measured.

    device_figures.py beside this file, and docs/reference/figures.md, say what each field is.
    """

    id: str
    number: int
    board: str = ""
    link: str = ""
    model: str = ""
    runtime: str = ""
    note: str = ""
    learns: bool = True
    """False for a device that can only teach; no mean includes it."""
    joined: bool = True
    """False for a simulated device that never joined or was refused.  Then it is unknown whether it learns."""
    samples: int = 0
    test_samples: int = 0
    """Samples of its own test part, or 0 if it has none or did not report it."""
    class_counts: tuple[int, ...] = ()
    """Samples per class; empty if the owner withholds them."""
    accuracy: float | None = None
    standalone_accuracy: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    """All other values of its newest evaluations, by name; those of the global model begin with `global_`."""
    bytes_up: int = 0
    bytes_down: int = 0
    rounds_done: int = 0
    waited_s: float = 0.0
    """Seconds for which exchanges stayed open because of this device (coordinator/record/round_result.py)."""
    busy_s: float = 0.0
    """Seconds of computing: in a simulation by its board, over a broker as it measured them; 0 if unmeasured."""
    energy_j: float = 0.0
    """Joules that it drew, or 0 if it is not metered.  In a simulation they cover the whole run, by its board's
    profile.  Over a broker they cover its training, as it reported them."""
    joules_source: str = ""
    """Where the joules are from: `measured`, or its board's `profile`; empty without joules."""
    flops: int = 0
    """Floating-point operations, evaluations included; 0 if it is not metered."""
    steps: int = 0
    standalone_steps: int = 0
    joining: Mapping[str, float] = field(default_factory=dict)
    """The figures of its own model before its first round, by the names of `metrics` and `accuracy`; may be empty."""
    declined: Mapping[str, int] = field(default_factory=dict)
    silent: int = 0
    sums: Mapping[str, float] = field(default_factory=dict)
    """Further figures that the record summed, by name, where they are not 0."""

    @property
    def since_joining(self) -> tuple[float, float] | None:
        """Accuracies of its own model before its first round and now, on the same samples, or None if one is unknown.

        They are on `test` if the device has one, or else on its own test part, or else on its validation part.
        """
        for name, after in self._measured_now:
            before = self.joining.get(name)
            if before is not None:
                return before, after
        return None

    @property
    def accuracy_now(self) -> float | None:
        """Accuracy of its own model now, on the first of the same parts that it has, or None."""
        return next((after for _, after in self._measured_now), None)

    @property
    def _measured_now(self) -> list[tuple[str, float]]:
        now = {**self.metrics, "accuracy": self.accuracy}
        return [(name, after) for name in JOINING if (after := now.get(name)) is not None]

    @property
    def classes(self) -> tuple[int, ...]:
        """The classes of which it has samples."""
        return tuple(index for index, count in enumerate(self.class_counts) if count)


@dataclass(frozen=True, kw_only=True, repr=False)
class Result:
    """A whole run, finished or not."""

    federation: str
    method: str
    seed: int
    rounds: int
    """The number of rounds that were configured."""
    completed: bool
    rounds_done: int
    devices: tuple[DeviceResult, ...]
    history: tuple[RoundResult, ...] = ()
    standalone_history: tuple[RoundResult, ...] = ()
    updates: Mapping[str, int] = field(default_factory=dict)
    """Uploads by verdict: accepted, duplicate, stale, refused, withheld."""
    refused_frames: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Frames that broke the protocol: sender -> kind -> count."""
    refused_by_devices: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Frames that devices refused, as they report: device -> kind -> count."""
    refused_devices: tuple[Mapping[str, str], ...] = ()
    """Devices that were refused; each entry has the keys device, reason, message, remedy."""
    warnings: tuple[str, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    scalars: Mapping[str, int] = field(default_factory=dict)
    """Numbers of knowledge that travelled in the whole run, `up` and `down`."""
    time: Mapping[str, float] = field(default_factory=dict)
    """Times in seconds by name: wall_s, virtual_s, start_s (since 1970)."""
    memory: Mapping[str, float] = field(default_factory=dict)
    """The key peak_mib is the largest resident memory of a simulation in MiB, worker processes included."""
    resumed: Mapping[str, float] = field(default_factory=dict)
    """Extra cost of resuming a simulation after interrupts: times, bytes_up, bytes_down, virtual_s, joules.  Other
    figures exclude it.  Empty without an interrupt."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """The name and sha256 of the data set, and how its samples are normalised and augmented, if they are."""
    encoding: Mapping[str, str] = field(default_factory=dict)
    """The encoding of each payload kind that the method sends: tag -> encoding."""
    versions: Mapping[str, str] = field(default_factory=dict)
    transport: str = "memory"
    one_model: bool = False
    """Whether the global model is the same on all devices.  A GM exists only then, and only if all values agree."""
    models: tuple[MeasuredModel, ...] = ("personal",)
    """The models that were measured."""
    reason: str = ""
    """Why the run ended early; empty if it did not."""
    stopped: str = ""
    """Why the run was complete before its last round: a budget is spent, or a target reached; otherwise empty."""
    privacy: Mapping[str, Any] = field(default_factory=dict)
    """The promise about one training record, in methods that release sums with noise: mode, promise, and, if it holds
    for all devices, epsilon, delta, unit and neighbours.  Empty for other methods, which promise nothing."""
    uplift: Mapping[str, Any] = field(default_factory=dict)
    """The federation's gain over its control group, as in `figures/uplift.py`, or empty without a group."""
    kinds: Mapping[str, Any] = field(default_factory=dict)
    """In rounds without an end, the devices by board, model, month of joining and class, as in `figures/kinds.py`."""
    missed: tuple[Missed, ...] = ()
    """Which device missed which exchange: the first MAX_MISSED cases, in the order in which exchanges closed."""
    card: Mapping[str, Any] = field(default_factory=dict)
    """The data set's card: source, classes, shape, type and number of samples, and how they were divided.  Empty if
    devices brought their own data."""
    class_names: tuple[str, ...] = ()
    """The names of the classes in their order, or empty if they have none."""
    insight: Insight | None = field(default=None, compare=False)
    """Arrays about the models at the end, for plots."""

    def __repr__(self) -> str:
        values = [device.accuracy for device in self.devices if device.learns and device.accuracy is not None]
        accuracy = f", accuracy {100 * statistics.fmean(values):.1f} %" if values else ""
        rounds = f"{self.rounds_done} of {self.rounds} rounds"
        return f"<{self.method} on {self.federation}: {rounds}, {len(self.devices)} devices{accuracy}>"

    @cached_property
    def learners(self) -> frozenset[str]:
        """Ids of the devices that joined and learn: means are taken over these."""
        return frozenset(device.id for device in self.devices if device.joined and device.learns)

    @property
    def on_boards(self) -> bool:
        """Whether this was a run on the boards of a lab, which measured its seconds of training and its joules."""
        return self.transport.startswith(ON_BOARDS)

    @property
    def metered(self) -> frozenset[str]:
        """The keys of METERED with a known total; none over a broker, where devices are not metered."""
        return frozenset(key for key, (total, _) in self.work().items() if total)

    def work(self) -> dict[str, tuple[float, float]]:
        """The total over all devices for each key of METERED: (over the run, in its rounds)."""
        found = {}
        for key, name in METERED.items():
            in_rounds = sum(getattr(entry, f"device_{key}") for entry in self.history)
            # older run directories have no FLOPs per device
            found[key] = (sum(getattr(device, name) for device in self.devices) or in_rounds, in_rounds)
        return found

    def declined(self) -> dict[str, int]:
        """The exchanges that devices declined, by the word of the reason, sorted by it."""
        total: Counter[str] = Counter()
        for device in self.devices:
            total.update(device.declined)
        return dict(sorted(total.items()))

    def learned(self, accuracy: Mapping[str, float]) -> dict[str, float]:
        """The entries of `accuracy` (by device id) whose devices learn."""
        learners = self.learners
        return {device: value for device, value in accuracy.items() if device in learners}

    def of_last_version(self, model: MeasuredModel, name: str = "accuracy") -> Mapping[str, float]:
        """Accuracies by device id of a model that all devices share, in the last round that measured it, or empty.

        Where few of many devices measure in a round, the newest figure of most is of a model that is long gone.
        """
        of_rounds = (entry.of(model, name) for entry in reversed(self.history) if self.one_model)
        return next((found for found in of_rounds if self.learned(found)), {})

    def own_task(self, accuracy: Mapping[str, float] | None = None) -> dict[str, float]:
        """AMP, FM, WLP and quantiles over the learning devices; FM and WLP only if all of them were measured.

        accuracy: by device id; default: the newest of each device's own model on its own task.
        """
        if accuracy is None:
            name = "local_accuracy"
            accuracy = {device.id: device.metrics[name] for device in self.devices if name in device.metrics}
        weights = {device.id: device.test_samples or device.samples for device in self.devices}
        found = self.learned(accuracy)
        return over_devices(found, weights, every=len(found) == len(self.learners))

    def gm_of(self, accuracy: Mapping[str, float]) -> float | None:
        """FedNH's GM from accuracies by device id, or None if the devices did not measure one model."""
        return global_model(self.learned(accuracy)) if self.one_model else None

    def points(self, model: MeasuredModel = "personal") -> list[Point]:
        """One Point for each round with accuracies of a model: their mean, and what was spent by its end."""
        found, spent_bytes, time_s, flops, device_s, device_j = [], 0, 0.0, 0, 0.0, 0.0
        for entry in self.history:
            spent_bytes += entry.bytes_up + entry.bytes_down
            time_s += entry.virtual_s or entry.wall_s
            flops += entry.device_flops
            device_s += entry.device_s
            device_j += entry.device_j
            learned = self.learned(entry.of(model))
            if learned:
                mean = statistics.fmean(learned.values())
                per_device = spent_bytes / max(1, len(self.devices))
                found.append(Point(entry.round, mean, per_device, time_s, flops, device_s, device_j))
        return found


def spread(values: Sequence[float]) -> dict[str, float]:
    """The mean, min, max, std (population) and worst of the values; empty without any.

    `worst` is the mean of the lowest tenth, rounded down, but at least of one value.
    """
    if not values:
        return {}
    lowest = sorted(values)[: max(1, int(len(values) * WORST_SHARE))]
    return {
        "mean": statistics.fmean(values),
        "min": min(values),
        "max": max(values),
        "std": deviation(values),
        "worst": statistics.fmean(lowest),
    }


def unmeasured(result: Result) -> tuple[str, ...]:
    """A remark on devices that a mean accuracy leaves out, and one on those that it takes from an earlier round.

    A run's accuracy is the mean over each device's newest evaluation.  Empty if all devices were measured
    after the same round, or none was measured.
    """
    expected = [device for device in result.devices if device.learns and not device.sums.get("alone")]
    if "measured" in result.card:  # a sample of the devices is measured
        expected = [device for device in expected if device.accuracy is not None]
    never = [device.id for device in expected if device.accuracy is None]
    if len(never) == len(expected):
        return ()
    found = {entry.round: result.learned(entry.accuracy) for entry in result.history}
    last = max((number for number, measured in found.items() if measured), default=0)
    early = [d.id for d in expected if d.accuracy is not None and last and d.id not in found[last]]
    cases = (
        (never, "never reported an accuracy and count in no mean"),
        (early, f"were not measured after round {last} and count with an earlier accuracy"),
    )
    return tuple(f"{len(who)} of {len(expected)} devices {what}: {_named(who)}" for who, what in cases if who)


def _named(devices: Sequence[str]) -> str:
    more = len(devices) - MOST_NAMED
    return ", ".join(devices[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
