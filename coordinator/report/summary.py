"""The summary of a run: summary.json, version 1."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from coordinator.record import figures
from coordinator.record.metrics import PREFIXES, TARGETS, Point, to_target
from coordinator.record.result import VERDICTS, DeviceResult, Result, RoundResult, spread
from edge_sdk.methods.contract.requests import MeasuredModel

SUMMARY_VERSION = 1


def summary(result: Result) -> dict[str, Any]:
    """The contents of summary.json, version 1.  An unknown figure is absent, never null or NaN."""
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
        **({"stopped": result.stopped} if result.stopped else {}),
        "accuracy": _accuracy(result.devices) | _known([("gm", result.gm_of(_newest(result, "global_accuracy")))]),
        **_since_joining(result.devices),
        "models": list(result.models),
        "one_model": result.one_model,
        "own_task": result.own_task(_newest(result, "local_accuracy")),
        **{f"{model}_model": _model(result, model) for model in result.models if model != "personal"},
        "metrics": _known(result.metrics.items()),
        "bytes": _bytes(result.devices),
        "scalars": {f"{way}_total": result.scalars.get(way, 0) for way in ("up", "down")},
        "work": _work(result),
        "to_target": _to_target(result.points()),
        **({"global_to_target": _to_target(result.points("global"))} if "global" in result.models else {}),
        "exchange": _exchange(result.history),
        "time": _known(result.time.items()),
        "memory": _known(result.memory.items()),
        **({"resumed": _known(result.resumed.items())} if result.resumed else {}),
        "transport": result.transport,
        "encoding": dict(result.encoding),
        "updates": {key: result.updates.get(key, 0) for key in VERDICTS},
        **({"declined": result.declined()} if result.declined() else {}),
        "refused_frames": {sender: dict(kinds) for sender, kinds in sorted(result.refused_frames.items())},
        **(
            {"refused_by_devices": {device: dict(kinds) for device, kinds in result.refused_by_devices.items()}}
            if result.refused_by_devices
            else {}
        ),
        "refused_devices": [dict(refusal) for refusal in result.refused_devices],
        "warnings": list(result.warnings),
        **({"privacy": dict(result.privacy)} if result.privacy else {}),
        "per_device": [figures.entries(device) for device in result.devices],
        **({"class_names": list(result.class_names)} if result.class_names else {}),
        "data": dict(result.data),
        **({"card": dict(result.card)} if result.card else {}),
        "versions": dict(result.versions),
    }


def without_times(whole: Mapping[str, Any]) -> dict[str, Any]:
    """The summary without what depends on the clock or the machine: equal for two runs with the same seed."""
    kept = {key: value for key, value in whole.items() if key not in {"time", "memory", "resumed", "versions"}}
    kept["per_device"] = [
        {key: value for key, value in device.items() if key != "waited_s"} for device in kept["per_device"]
    ]
    return kept | {"metrics": {name: value for name, value in whole["metrics"].items() if not name.endswith("_s")}}


def _known(pairs: Iterable[tuple[str, float | None]]) -> dict[str, float]:
    return {key: value for key, value in pairs if value is not None and math.isfinite(value)}


def _accuracy(devices: Sequence[DeviceResult]) -> dict[str, float]:
    """Means over devices that learn and were evaluated; `standalone_mean` over those of them that also ran alone."""
    federated = _known((device.id, device.accuracy) for device in devices if device.learns)
    alone = _known((device.id, device.standalone_accuracy) for device in devices if device.id in federated)
    baseline = {"standalone_mean": statistics.fmean(alone.values())} if alone else {}
    return baseline | spread(list(federated.values()))


def _since_joining(devices: Sequence[DeviceResult]) -> dict[str, Any]:
    """What the devices' own models could do before they joined, and now; nothing where no device told it."""
    pairs = [device.since_joining for device in devices if device.learns and device.since_joining is not None]
    if not pairs:
        return {}
    before, now = zip(*pairs, strict=True)
    figures = {
        "devices": len(pairs),
        "before_mean": statistics.fmean(before),
        "now_mean": statistics.fmean(now),
        "better": sum(after > earlier for earlier, after in pairs),
        "worse": sum(after < earlier for earlier, after in pairs),
    }
    return {"since_joining": figures}


def _bytes(devices: Sequence[DeviceResult]) -> dict[str, float]:
    up, down = sum(d.bytes_up for d in devices), sum(d.bytes_down for d in devices)
    device_rounds = sum(d.rounds_done for d in devices)
    totals: dict[str, float] = {"up_total": up, "down_total": down}
    if not device_rounds:
        return totals
    return totals | {"up_per_device_round": up / device_rounds, "down_per_device_round": down / device_rounds}


def _model(result: Result, model: MeasuredModel) -> dict[str, Any]:
    """Figures of a shared model over the devices that learn, on the shared test and on their own tasks."""
    found = _newest(result, f"{PREFIXES[model]}accuracy")
    return {
        "accuracy": spread([*result.learned(found).values()]) | _known([("gm", result.gm_of(found))]),
        "own_task": result.own_task(_newest(result, f"{PREFIXES[model]}local_accuracy")),
    }


def _newest(result: Result, name: str) -> dict[str, float]:
    """The newest figure of each device that has one."""
    return _known((device.id, device.metrics.get(name)) for device in result.devices)


def _work(result: Result) -> dict[str, float]:
    """What all devices together spent: over the run, and in its rounds on average; nothing where nobody metered it."""
    found = {}
    for key, (total, in_rounds) in result.work().items():
        found[f"device_{key}_total"] = total
        found[f"device_{key}_per_round"] = in_rounds / max(1, len(result.history))
    learning = [device.steps for device in result.devices if device.learns and device.joined]
    found["device_steps_mean"] = statistics.fmean(learning) if learning else 0.0
    return {name: value for name, value in found.items() if value}


def _to_target(points: Sequence[Point]) -> dict[str, dict[str, float]]:
    """Return the round and the known costs so far for each target of mean accuracy that was reached."""
    reached = {f"{target:g}": to_target(points, target) for target in TARGETS}
    return {
        target: {key: value for key, value in point._asdict().items() if value or not key.startswith("device_")}
        for target, point in reached.items()
        if point is not None
    }


def _exchange(history: Sequence[RoundResult]) -> dict[str, int]:
    """Exchanges of knowledge: over the run, and in a round (constant by the method's contract)."""
    counts = [entry.exchanges for entry in history]
    return {"total": sum(counts), "per_round": max(counts, default=0)}
