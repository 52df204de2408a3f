"""The table of a run: a row for each device, the means, and the lines below them."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from coordinator.record import remarks
from coordinator.record.round_result import RoundResult
from coordinator.record.units import by_reason, human_bytes, human_joules, human_seconds, percent, printable
from coordinator.results.figures.columns import FigureColumn
from coordinator.results.figures.device_figures import shown_figures
from coordinator.results.figures.kinds import kind_lines
from coordinator.results.figures.metrics import quantiles
from coordinator.results.figures.result import DeviceResult, Result
from coordinator.results.figures.run_figures import run_entries
from coordinator.results.report.tables import UNKNOWN, Column, Table
from edge_sdk.class_names import name_of
from edge_sdk.reductions.shift import FEATURES, LABELS

SINCE_JOINING = {"alone": "as shipped", "federated": "now", "gain": "change"}
"""The names of columns where models are compared with those that devices joined with."""
MOST_CLASSES = 10
"""The most class numbers that are written out; more are counted."""
MOST_ROWS = 100
"""The most devices that a terminal shows in rows."""
WORTH_TELLING_S = 1.0
"""Shorter waits are not reported."""
MOST_KINDS = 8
"""The most boards or models that a line lists."""
_LEVELS = ("before_mean", "alone_mean", "now_mean")
_JOULES_FROM = {"measured": ", measured", "profile": ", by the boards' profiles"}
"""The words about joules with one source."""
MOST_SHIFTED = 10
"""The most devices that the line names."""
_SHIFTS = (("drift.labels", LABELS, "shares of the classes"), ("drift.features", FEATURES, "inputs"))


def run_table(result: Result, most_rows: int | None = None) -> Table:
    """A row for each device in the order of their numbers, a row of means, and below it all that a reader must know.

    most_rows: with more devices than these, percentiles of their accuracies stand in place of the rows.

    The columns `alone`, `federated` and `gain` are about each device's own, personal model.  Where no device was
    trained alone, as in a deployment, models are compared with those that apps shipped: `as shipped`, `now`, `change`.
    """
    devices = sorted(result.devices, key=lambda device: device.number)
    compared, own = _is_compared(result), _on_own_samples(result)
    many = most_rows is not None and len(devices) > most_rows
    unknown = {
        "global": "global" not in result.models,
        **{column.heading: not any(map(figure.of, devices)) for figure, column in shown_figures() if figure.sparse},
        "alone steps": not any(device.steps and device.standalone_steps for device in devices),
    }
    whole = run_entries(result, without=("per_device",))
    table = Table(
        columns=tuple(_column(column, compared=compared) for _, column in shown_figures()),
        rows=()
        if many
        else tuple(
            _row(device, result.class_names, *_pair(device, compared=compared, own=compared or own))
            for device in devices
        ),
        last=_mean_row(result, whole),
        headline=_verdict(result, whole),
        notes=(*(_percentiles(result) if many else ()), *_notes(result, whole)),
        everything="devices.csv",
    )
    return table.without([name for name, absent in unknown.items() if absent])


def _percentiles(result: Result) -> list[str]:
    """How the accuracies of the devices' own models lie, in a line, and where each device's figures are."""
    known = [device.accuracy for device in result.devices if device.accuracy is not None]
    if not known:
        return ["the figures of each device are in devices.csv"]
    worst, low, middle, high, best = quantiles(known)
    spread = f"{percent(worst)} the worst, a tenth up to {percent(low)}, half up to {percent(middle)}"
    spread += f", a tenth from {percent(high)}, {percent(best)} the best"
    return [f"own models of {len(known):,} devices: {spread}; each device is in devices.csv"]


def _is_compared(result: Result) -> bool:
    """Whether models are compared with those that devices joined with, because no device trained alone."""
    compared = any(device.learns and device.since_joining is not None for device in result.devices)
    return compared and all(device.standalone_accuracy is None for device in result.devices)


def _column(shown: FigureColumn, *, compared: bool) -> Column:
    name = SINCE_JOINING.get(shown.heading, shown.heading) if compared else shown.heading
    return Column(name, right=shown.right, signed=shown.signed, optional=shown.optional)


def _on_own_samples(result: Result) -> bool:
    """Whether no device was measured on `test`: then they are on held-out samples of their own."""
    return all(device.accuracy is None for device in result.devices)


def _pair(device: DeviceResult, *, compared: bool, own: bool) -> tuple[float | None, float | None]:
    """The accuracy that a device's own model is compared with, and its own; own: on samples of its own, if need be."""
    if compared and device.since_joining is not None:
        return device.since_joining
    return device.standalone_accuracy, device.accuracy_now if own and device.learns else device.accuracy


def _notes(result: Result, whole: Mapping[str, Any]) -> list[str]:
    lines = [printable(result.uplift["text"])] if result.uplift else []
    lines += [drift] if (drift := drift_line(result.history)) else []
    lines += [
        *kind_lines(result.kinds),
        *_kinds(whole, without=result.kinds),
        *_cause(result),
        *_local(result),
        *_own_task(result, whole),
        *_costs(result),
    ]
    lines += [*_declines(result), *_encodings(result)]
    if result.stopped:
        planned = f" of {result.rounds}" if result.rounds > result.rounds_done else ""  # forever has no number
        lines.append(f"stopped after {result.rounds_done}{planned} rounds: {result.stopped}")
    if not result.completed:
        reason = printable(result.reason) or "no reason was given"
        lines.append(f"ended early after {result.rounds_done} of {result.rounds} rounds: {reason}")
    lines += [_refusal(refusal) for refusal in result.refused_devices]
    lines += remarks.refused_frames(result.refused_frames)
    lines += remarks.refused_by_devices(result.refused_by_devices)
    lines += [f"warning: {printable(warning)}" for warning in result.warnings]
    return lines + [f"note on {', '.join(ids)}: {note}" for note, ids in _device_notes(result.devices).items()]


def _kinds(whole: Mapping[str, Any], without: Collection[str]) -> list[str]:
    """The mean accuracies of each board and of each model, where there are several."""
    lines: list[str] = []
    for kind in (each for each in ("board", "model") if each not in without):
        groups = [
            f"{printable(name)} ({means['devices']}) "
            + " -> ".join(f"{percent(means[key])} {key[:-5]}" for key in _LEVELS if key in means)
            for name, means in whole.get(f"by_{kind}", {}).items()
            if "now_mean" in means
        ]
        more = [f"and {len(groups) - MOST_KINDS} more in summary.json"] if len(groups) > MOST_KINDS else []
        lines += [f"by {kind}: {'; '.join([*groups[:MOST_KINDS], *more])}"] if groups else []
    return lines


def _cause(result: Result) -> list[str]:
    """The causes of the change since joining."""
    if not _is_compared(result):
        return []
    change = "by the devices' own training and the federation together, on each device's held-out samples"
    if result.uplift:
        return [f"change: {change}"]
    return [f"change: {change}; only a simulation of the same data shows what training alone gives"]


def _costs(result: Result) -> list[str]:
    """The joules and where they are from, and the device that the others waited for longest."""
    used_j = sum(device.energy_j for device in result.devices)
    sources = {device.joules_source for device in result.devices if device.energy_j}
    source = _JOULES_FROM.get(next(iter(sources)), "") if len(sources) == 1 else ", some measured, some by profiles"
    parts = [f"energy: {human_joules(used_j)} drawn by all devices{source}"] if used_j else []
    slowest = max(result.devices, key=lambda device: device.waited_s, default=None)
    if slowest is not None and slowest.waited_s > WORTH_TELLING_S:
        kind = ", ".join(printable(word) for word in (slowest.board, slowest.link) if word)
        who = printable(slowest.id) + (f" ({kind})" if kind else "")
        parts.append(f"the others waited longest for {who}: {human_seconds(slowest.waited_s)}")
    return ["; ".join(parts)] if parts else []


def _declines(result: Result) -> list[str]:
    """The exchanges that devices declined, by reason, beside those that they left unanswered."""
    if not result.declined():
        return []
    silent = sum(device.silent for device in result.devices)
    return [f"exchanges declined by devices: {printable(by_reason(result.declined()))}; left unanswered: {silent}"]


def _encodings(result: Result) -> list[str]:
    """The payload kinds that were not sent as f32."""
    chosen = [f"{kind} in {name}" for kind, name in sorted(result.encoding.items()) if name != "f32"]
    return [f"encoding: {', '.join(chosen)}"] if chosen else []


def _row(device: DeviceResult, names: Sequence[str], alone: float | None, federated: float | None) -> tuple[str, ...]:
    own = {"runtime": _runtime(device), "classes": _classes(device, names), **_compared(alone, federated)}
    return tuple(
        own[figure.name] if figure.name in own else figure.said(figure.of(device)) or UNKNOWN
        for figure, _ in shown_figures()
    )


def _compared(alone: float | None, federated: float | None) -> dict[str, str]:
    """The cells of the columns that compare models."""
    return {
        "standalone_accuracy": _percent(alone),
        "accuracy": _percent(federated),
        "gain": _gain(alone, federated),
    }


def _runtime(device: DeviceResult) -> str:
    if not device.joined:
        return "never joined"
    return (printable(device.runtime) or UNKNOWN) + ("" if device.learns else " (teaches)")


def _mean_row(result: Result, whole: Mapping[str, Any]) -> tuple[str, ...]:
    own = {"id": "mean", **_compared(*_means(result, whole)), "global_accuracy": _percent(_global_mean(whole))}
    found = []
    for figure, column in shown_figures():
        if figure.name in own or not column.right:
            found.append(own.get(figure.name, ""))
        else:
            # those that trained alone, for the other devices of a fleet have no steps to count
            only = [each for each in result.devices if each.standalone_accuracy is not None]
            devices = only if figure.name == "standalone_steps" else result.devices
            values = [value for value in map(figure.of, devices) if value is not None]
            found.append(figure.said(statistics.fmean(values) if values else 0.0))
    return tuple(found)


def _classes(device: DeviceResult, names: Sequence[str]) -> str:
    if not device.class_counts:
        return "withheld"
    if len(device.classes) > MOST_CLASSES:
        return f"{len(device.classes)} of {len(device.class_counts)}"
    return (", " if names else " ").join(printable(name_of(each, names)) for each in device.classes) or "none"


def _percent(fraction: float | None) -> str:
    return UNKNOWN if fraction is None else percent(fraction)


def _gain(alone: float | None, federated: float | None) -> str:
    return UNKNOWN if alone is None or federated is None else f"{100 * (federated - alone):+.1f}"


def _means(result: Result, whole: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """The mean accuracy that the devices' own models are compared with, and their own."""
    if _is_compared(result):
        return whole["since_joining"]["before_mean"], whole["since_joining"]["now_mean"]
    if not _on_own_samples(result):
        return whole["accuracy"].get("standalone_mean"), whole["accuracy"].get("mean")
    own = [each for device in result.devices if device.learns and (each := device.accuracy_now) is not None]
    return None, statistics.fmean(own) if own else None


def _verdict(result: Result, whole: Mapping[str, Any]) -> str:
    alone, federated = _means(result, whole)
    if federated is None:
        accuracy = "no device's own model was evaluated" if "global" in result.models else "no device was evaluated"
    elif alone is None:
        sample = _of_sample(result, whole, "sampling_error")
        accuracy = f"mean accuracy {percent(federated)} of the devices' own models"
        accuracy += f" ({sample})" if sample else ""
        accuracy += ", each on held-out samples of its own" if _on_own_samples(result) else ""
    else:
        first, then = ("as shipped", "now") if _is_compared(result) else ("alone", "federated")
        accuracy = f"mean accuracy of the devices' own models {percent(alone)} {first} -> {percent(federated)} {then}"
        sample = _of_sample(result, whole, "gain_sampling_error")
        accuracy += f" ({_gain(alone, federated)} points{_of_how_many(result, whole)}{'; ' if sample else ''}{sample})"
    common = _global_mean(whole)
    if common is not None:
        accuracy += f"; global model {percent(common)}"
    sent, received = (human_bytes(whole["bytes"][f"{way}_total"]) for way in ("up", "down"))
    parts = [accuracy, f"{sent} sent, {received} received", *_times(result)]
    refused = [f"{count} {verdict}" for verdict, count in whole["updates"].items() if verdict != "accepted" and count]
    return "; ".join(parts + ([f"uploads not taken: {', '.join(refused)}"] if refused else []))


def _of_sample(result: Result, whole: Mapping[str, Any], which: str) -> str:
    """How many devices were measured, and the 95 % interval for all, if a sample was.  which: the interval's name."""
    error = whole["accuracy"].get(which)
    if error is None:
        return ""
    active = sum(device.accuracy is not None and device.rounds_done > 0 for device in result.devices)
    took = "none of which" if not active else f"{active} of which"
    sample = f"a sample of {result.card['measured']} of {len(result.devices):,}, {took} took part"
    return f"{sample}: ± {100 * error:.1f} points, 95 %"


def _of_how_many(result: Result, whole: Mapping[str, Any]) -> str:
    """How many devices are compared with the models that they joined with, if they are not all that were measured."""
    if not _is_compared(result):
        return ""
    measured = sum(device.learns and device.accuracy_now is not None for device in result.devices)
    compared = whole["since_joining"]["devices"]
    return "" if compared == measured else f", {compared} of {measured} devices"


def _global_mean(whole: Mapping[str, Any]) -> float | None:
    """The mean accuracy of the global model over the devices that measured it, or None without a global model."""
    found: float | None = whole.get("global_model", {}).get("accuracy", {}).get("mean")
    return found


def _local(result: Result) -> list[str]:
    """Mean accuracy on the classes that each device holds, the measure of personalised methods."""
    federated, alone = (result.metrics.get(f"{run}local_accuracy_mean") for run in ("", "standalone_"))
    if federated is None:
        return []
    before = "" if alone is None else f"{percent(alone)} alone -> "
    after = "" if alone is None else f" federated ({_gain(alone, federated)} points)"
    return [f"on the classes that each device holds: {before}{percent(federated)}{after}"]


def _own_task(result: Result, whole: Mapping[str, Any]) -> list[str]:
    """The measures of FedKF for each model, and those of FedNH where devices disclose their class counts."""
    personal = (("every class alike", "PM(V)", "pm_v_mean"), ("by its samples", "PM(L)", "pm_l_mean"))
    words = _measures(whole["own_task"])
    words += [
        f"{percent(result.metrics[key])} {said} ({name})" for said, name, key in personal if key in result.metrics
    ]
    rows = [("own models", words)]
    for model, name in (("global", "global model"), ("active", "mean of the last round's devices (ACA)")):
        found = whole.get(f"{model}_model", {"own_task": {}, "accuracy": {}})
        gm = found["accuracy"].get("gm")
        shared = [f"{percent(gm)} on the test that all share (GM)"] if gm is not None else []
        rows.append((name, _measures(found["own_task"]) + shared))
    return [f"{name} on each device's own task: {', '.join(words)}" for name, words in rows if words]


def _measures(own_task: Mapping[str, float]) -> list[str]:
    """AMP, WLP and FM as far as they are known, in words first."""
    ways = (
        ("amp", "{} on average (AMP)", percent),
        ("wlp", "{} the worst device (WLP)", percent),
        ("fm", "{} the variance between devices (FM)", "{:.4f}".format),
    )
    return [said.format(say(own_task[key])) for key, said, say in ways if key in own_task]


def _times(result: Result) -> list[str]:
    time, since = result.time, " since it was resumed" if result.resumed.get("times") else ""
    virtual = [f"{human_seconds(time['virtual_s'])} on the boards' clock"] if time.get("virtual_s") else []
    wall = [human_seconds(time["wall_s"]) + (" here" if virtual else "") + since] if "wall_s" in time else []
    return [", ".join(wall + virtual)] if wall or virtual else []


def _refusal(refusal: Mapping[str, str]) -> str:
    why = ": ".join(refusal[key] for key in ("reason", "message") if refusal.get(key))
    line = f"device {refusal.get('device', '?')} was not let in" + (f" ({why})" if why else "")
    return printable(f"{line}; {refusal['remedy']}" if refusal.get("remedy") else line)


def _device_notes(devices: Iterable[DeviceResult]) -> dict[str, list[str]]:
    """Note -> ids of the devices that have it."""
    found: dict[str, list[str]] = {}
    for device in devices:
        if device.note:
            found.setdefault(printable(device.note), []).append(printable(device.id))
    return found


def drift_line(history: Sequence[RoundResult]) -> str:
    """Return which devices' samples have shifted, by the newest figures that each of them sent; empty if none have."""
    parts = []
    for name, least, words in _SHIFTS:
        newest: dict[str, float] = {}
        for entry in history:
            newest.update(entry.instruments.get(name, {}))
        who = sorted((device for device, value in newest.items() if value >= least), key=lambda one: -newest[one])
        named = ", ".join(printable(each) for each in who[:MOST_SHIFTED])
        more = f" and {len(who) - MOST_SHIFTED} more" if len(who) > MOST_SHIFTED else ""
        parts += [f"{words} of {len(who)} of {len(newest)} devices have shifted ({named}{more})"] if who else []
    return f"drift since they joined: {'; '.join(parts)}" if parts else ""
