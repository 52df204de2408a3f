"""The figures of a whole run, each declared once: summary.json, what is read back from it, and docs follow.

A new figure is an entry of RUN_FIGURES, and a field of Result if the code computes with it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from coordinator.record.round_result import PREFIXES, RoundResult
from coordinator.results.figures.columns import Declared
from coordinator.results.figures.device_figures import entries, known
from coordinator.results.figures.intervals import sampling_error
from coordinator.results.figures.metrics import TARGETS, Point, to_target
from coordinator.results.figures.result import VERDICTS, DeviceResult, Result, spread
from edge_sdk.methods.contract.requests import MeasuredModel


@dataclass(frozen=True, slots=True)
class RunFigure(Declared[Result]):
    """An entry of summary.json: one value, or several by name.  None is left out."""

    sparse: bool = field(default=False, kw_only=True)
    """It is left out where it is 0 or empty."""
    read: Literal["", "always", "later"] = field(default="", kw_only=True)
    """The field of Result of this name is read back from it; `later`: older run folders do not have it."""

    def entry(self, result: Result) -> Any:
        """The value in summary.json.  None is left out."""
        found = _plain(self.of(result))
        return None if self.sparse and not found else found


def _plain(value: Any) -> Any:
    """A value for JSON: dicts and lists all the way down."""
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def _accuracy(result: Result) -> dict[str, float]:
    """Means over devices that learn and were evaluated; `standalone_mean` over those of them that also ran alone.

    Where a sample of the devices is measured, half the 95 % interval for all: `sampling_error` of the mean, and
    `gain_sampling_error` of the mean difference between a device's own model and the same device alone.
    """
    federated = known({device.id: device.accuracy for device in result.devices if device.learns})
    alone = known({each.id: each.standalone_accuracy for each in result.devices if each.id in federated})
    baseline = {"standalone_mean": statistics.fmean(alone.values())} if alone else {}
    gm = known({"gm": result.gm_of(_latest(result, "global", "accuracy"))})
    sampled = "measured" in result.card
    gains = [federated[name] - value for name, value in alone.items()]
    differ = {"sampling_error": federated.values(), "gain_sampling_error": gains} if sampled else {}
    error = known({name: sampling_error([*values], len(result.devices)) for name, values in differ.items()})
    return baseline | spread(list(federated.values())) | error | gm


def _since_joining(result: Result) -> dict[str, Any]:
    """The accuracies of the devices' own models before they joined, and now; empty if no device reported them."""
    pairs = [each.since_joining for each in result.devices if each.learns and each.since_joining is not None]
    if not pairs:
        return {}
    before, now = zip(*pairs, strict=True)
    return {
        "devices": len(pairs),
        "before_mean": statistics.fmean(before),
        "now_mean": statistics.fmean(now),
        "better": sum(after > earlier for earlier, after in pairs),
        "worse": sum(after < earlier for earlier, after in pairs),
    }


def _by(kind: Literal["board", "model"]) -> Callable[[Result], dict[str, dict[str, float]]]:
    """Return what finds, for each board or model, how its devices are; empty where all have the same."""

    def found(result: Result) -> dict[str, dict[str, float]]:
        groups: dict[str, list[DeviceResult]] = {}
        for device in result.devices:
            if device.learns and device.joined and (name := getattr(device, kind)):
                groups.setdefault(name, []).append(device)
        return {name: _levels(groups[name]) for name in sorted(groups)} if len(groups) > 1 else {}

    return found


def _levels(devices: Sequence[DeviceResult]) -> dict[str, float]:
    """How many devices there are, and their mean accuracies before they joined, alone and now.

    A mean of fewer devices than are measured now is left out, because it would not be compared with the same ones.
    """
    values = {
        "before": [each.since_joining[0] for each in devices if each.since_joining is not None],
        "alone": [each.standalone_accuracy for each in devices if each.standalone_accuracy is not None],
        "now": [each.accuracy_now for each in devices if each.accuracy_now is not None],
    }
    count = len(values["now"])
    means = {f"{name}_mean": statistics.fmean(each) for name, each in values.items() if len(each) == count > 0}
    return {"devices": len(devices), **known(means)}


def _bytes(result: Result) -> dict[str, float]:
    devices = result.devices
    up, down = sum(d.bytes_up for d in devices), sum(d.bytes_down for d in devices)
    device_rounds = sum(d.rounds_done for d in devices)
    totals: dict[str, float] = {"up_total": up, "down_total": down}
    if not device_rounds:
        return totals
    return totals | {"up_per_device_round": up / device_rounds, "down_per_device_round": down / device_rounds}


def _model(result: Result, model: MeasuredModel) -> dict[str, Any] | None:
    """Figures of a shared model over the devices that learn, on the shared test and on their own tasks."""
    if model not in result.models:
        return None
    found = _latest(result, model, "accuracy")
    return {
        "accuracy": spread([*result.learned(found).values()]) | known({"gm": result.gm_of(found)}),
        "own_task": result.own_task(_latest(result, model, "local_accuracy")),
    }


def _latest(result: Result, model: MeasuredModel, name: str) -> Mapping[str, float]:
    """Accuracies by device id of the last version of the one global model, or the newest of each device's own."""
    return result.of_last_version(model, name) or _newest(result, f"{PREFIXES[model]}{name}")


def _newest(result: Result, name: str) -> dict[str, float]:
    """The newest figure of each device that has one."""
    return known({device.id: device.metrics.get(name) for device in result.devices})


def _work(result: Result) -> dict[str, float]:
    """The total over all devices and its average by round; empty if unmeasured."""
    found = {}
    for key, (total, in_rounds) in result.work().items():
        found[f"device_{key}_total"] = total
        found[f"device_{key}_per_round"] = in_rounds / max(1, len(result.history))
    learning = [device.steps for device in result.devices if device.learns and device.joined]
    found["device_steps_mean"] = statistics.fmean(learning) if learning else 0.0
    return {name: value for name, value in found.items() if value}


def _to_target(points: Sequence[Point]) -> dict[str, dict[str, float]]:
    """The round and the known costs so far for each target of mean accuracy that was reached."""
    reached = {f"{target:g}": to_target(points, target) for target in TARGETS}
    return {
        target: {key: value for key, value in point._asdict().items() if value or not key.startswith("device_")}
        for target, point in reached.items()
        if point is not None
    }


def _exchange(history: Iterable[RoundResult]) -> dict[str, int]:
    """Exchanges of knowledge: over the run, and in a round (constant by the method's contract)."""
    counts = [entry.exchanges for entry in history]
    return {"total": sum(counts), "per_round": max(counts, default=0)}


def _per_device(devices: Sequence[DeviceResult]) -> list[dict[str, Any]]:
    return [entries(device) for device in devices]


RUN_FIGURES: tuple[RunFigure, ...] = (
    RunFigure("federation", "The name of the federation.", read="always"),
    RunFigure("method", "The name of the method.", read="always"),
    RunFigure("seed", "The seed of the run.", read="always"),
    RunFigure("rounds", "The rounds that were configured.", unit="rounds", read="always"),
    RunFigure("rounds_done", "The rounds that were completed.", unit="rounds", read="always"),
    RunFigure("devices", "How many devices there are.", unit="devices", value=lambda run: len(run.devices)),
    RunFigure("completed", "Whether the run came to its end.", read="always"),
    RunFigure("reason", "Why it ended early, or empty.", read="always"),
    RunFigure("stopped", "Why it was complete before its last round.", sparse=True, read="later"),
    RunFigure("accuracy", "Of personal models, and GM of the global one.", unit="share", value=_accuracy),
    RunFigure("since_joining", "Of a deployment: before and now.", sparse=True, value=_since_joining),
    RunFigure("by_board", "Means before, alone and now of each board.", unit="share", sparse=True, value=_by("board")),
    RunFigure("by_model", "The same of each model.", unit="share", sparse=True, value=_by("model")),
    RunFigure("uplift", "Federated minus control group, with its interval.", sparse=True, read="later"),
    RunFigure(
        "kinds", "Of a service, by board, month of joining and class: levels, uplift.", sparse=True, read="later"
    ),
    RunFigure("models", "The models that were measured.", read="later"),
    RunFigure("one_model", "Whether all devices have the same global model.", read="later"),
    RunFigure(
        "own_task",
        "Of personal models, on the devices' own tasks.",
        unit="share",
        value=lambda run: run.own_task(_newest(run, "local_accuracy")),
    ),
    RunFigure("global_model", "The same of the global model.", value=lambda run: _model(run, "global")),
    RunFigure("active_model", "The same of the mean over one round.", value=lambda run: _model(run, "active")),
    RunFigure("metrics", "Means of all other measures.", value=lambda run: known(run.metrics), read="always"),
    RunFigure("bytes", "Whole frames, joining and sending again included.", unit="bytes", value=_bytes),
    RunFigure(
        "scalars",
        "Numbers of knowledge that travelled.",
        value=lambda run: {f"{way}_total": run.scalars.get(way, 0) for way in ("up", "down")},
    ),
    RunFigure("work", "Computing, seconds and joules of all devices.", value=_work),
    RunFigure("to_target", "The costs until an accuracy was reached.", value=lambda run: _to_target(run.points())),
    RunFigure(
        "global_to_target",
        "The same of the global model.",
        value=lambda run: _to_target(run.points("global")) if "global" in run.models else None,
    ),
    RunFigure("exchange", "Exchanges of knowledge.", value=lambda run: _exchange(run.history)),
    RunFigure("time", "When it began; how long it took.", unit="s", value=lambda run: known(run.time), read="always"),
    RunFigure("memory", "The memory of a simulation.", unit="MiB", value=lambda run: known(run.memory), read="later"),
    RunFigure(
        "resumed",
        "The extra cost of resuming after interrupts.",
        sparse=True,
        value=lambda run: known(run.resumed),
        read="later",
    ),
    RunFigure("transport", "The broker, or `memory`.", read="always"),
    RunFigure("encoding", "The encoding of each payload kind.", read="later"),
    RunFigure(
        "updates",
        "Uploads by verdict.",
        unit="uploads",
        value=lambda run: {verdict: run.updates.get(verdict, 0) for verdict in VERDICTS},
        read="always",
    ),
    RunFigure("declined", "Exchanges that devices declined.", sparse=True, value=lambda run: run.declined()),
    RunFigure(
        "refused_frames",
        "Frames that broke the protocol, by sender and kind.",
        unit="frames",
        value=lambda run: dict(sorted(run.refused_frames.items())),
        read="always",
    ),
    RunFigure(
        "refused_by_devices",
        "Frames that devices refused, by device and kind.",
        unit="frames",
        sparse=True,
        read="later",
    ),
    RunFigure("refused_devices", "Devices that were refused, and what to do.", read="always"),
    RunFigure("warnings", "Warnings about the method, the devices and the course of the run.", read="always"),
    RunFigure("privacy", "What the method promises about one training record.", sparse=True, read="later"),
    RunFigure("per_device", "Each device.", value=lambda run: _per_device(run.devices)),
    RunFigure("class_names", "The names of the classes.", sparse=True, read="later"),
    RunFigure("data", "The data set, and how samples are prepared.", read="always"),
    RunFigure("card", "The data set's card.", sparse=True, read="later"),
    RunFigure("versions", "Versions of packages, Python and platform.", read="always"),
)


def run_entries(result: Result, without: Collection[str] = ()) -> dict[str, Any]:
    """A run in summary.json, `without` some entries: an unknown figure is absent, never null or NaN."""
    found = ((figure.name, figure.entry(result)) for figure in RUN_FIGURES if figure.name not in without)
    return {name: value for name, value in found if value is not None}


def fields_read(whole: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a Result that summary.json holds as they are.  Raises KeyError for one that every run has."""
    named = [each.name for each in RUN_FIGURES if each.read == "always" or (each.read and each.name in whole)]
    return {name: tuple(whole[name]) if isinstance(whole[name], list) else whole[name] for name in named}
