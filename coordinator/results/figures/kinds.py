"""How the devices of a service are by board, by model, by the month in which they joined, and by class.

Of each: how many devices, their mean accuracies before they joined, alone and now, and the uplift with its interval.
All are on the devices' own held-out samples, and read from the record alone, so that a running service has them.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from coordinator.record.control_group import MEASURES, by_class
from coordinator.record.run_record import RunRecord
from coordinator.record.units import percent, printable
from coordinator.results.figures.uplift import uplift
from edge_sdk.class_names import name_of

LEVELS = ("before", "alone", "now")
MOST_LISTED, MOST_NAMED = 64, 8
"""The most boards, models, months or classes that are listed, and that a line of text names."""


def by_kind(record: RunRecord, names: Sequence[str] = ()) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the levels and the uplift of the devices of each kind, as plain values; an unknown figure is absent.

    names: the classes' names.  `board`, `model` and `joined` are listed where devices differ in them.
    """
    found = {}
    for kind, kinds in sorted(record.kinds.items()):
        groups: dict[str, list[str]] = {}
        for device, name in kinds.items():
            if name:
                groups.setdefault(name, []).append(device)
        if len(groups) > 1:
            chosen = sorted(groups.items())[-MOST_LISTED:]
            found[kind] = {name: _of_devices(record, devices) for name, devices in chosen}
    if classes := dict(_of_classes(record, names)):
        found["class"] = classes
    return found


def kind_lines(kinds: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Iterator[str]:
    """Yield a line for each kind of what `by_kind` returned."""
    for kind, groups in kinds.items():
        parts = [f"{printable(name)} ({each['devices']}) {_words(each)}" for name, each in groups.items()]
        more = [f"and {len(parts) - MOST_NAMED} more"] if len(parts) > MOST_NAMED else []
        yield f"by {WORDS.get(kind, kind)}: {'; '.join([*parts[:MOST_NAMED], *more])}"


WORDS = {"joined": "month of joining"}


def _of_devices(record: RunRecord, devices: Collection[str]) -> dict[str, Any]:
    rows = [_levels(record, device) for device in devices]
    return {"devices": len(devices), **_means(rows), **_uplift(record, devices=devices)}


def _levels(record: RunRecord, device: str) -> dict[str, float]:
    """The accuracies of a device's own model on the samples that the control group is compared on."""
    figures = {**record.metrics.get(device, {}), "accuracy": record.last_accuracy(device)}
    metric = next((name for name in MEASURES if figures.get(name) is not None), "")
    before, alone = record.joining.get(device, {}).get(metric), record.control.last_alone.get(device)
    found = {"before": before, "alone": alone, "now": figures.get(metric)}
    return {name: value for name, value in found.items() if value is not None}


def _of_classes(record: RunRecord, names: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name of each class that devices report, and its figures."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for level, by_device in (("before", record.joining), ("now", record.metrics)):
        for device, figures in by_device.items():
            for number, value in by_class(figures).items():
                found.setdefault(number, {}).setdefault(device, {})[level] = value
    for number in sorted(found, key=int)[:MOST_LISTED]:
        compared, rows = record.control.by_class.get(number), list(found[number].values())
        lifted = _uplift(record, figure=compared) if compared else {}
        yield name_of(int(number), names), {"devices": len(rows), **_means(rows), **lifted}


def _means(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each level that is known of all devices that are measured now: fewer would not be the same ones."""
    measured = [row for row in rows if "now" in row]
    known = [name for name in LEVELS if measured and all(name in row for row in measured)]
    return {f"{name}_mean": statistics.fmean(row[name] for row in measured) for name in known}


def _uplift(record: RunRecord, **which: Any) -> dict[str, Any]:
    found = uplift(record.control, **which)
    return {} if found is None or found.mean is None else {"uplift": found.to_json()}


def _words(figures: Mapping[str, Any]) -> str:
    levels = [f"{percent(figures[f'{name}_mean'])} {name}" for name in LEVELS if f"{name}_mean" in figures]
    lifted = figures.get("uplift", {})
    if "low" in lifted:
        points = (f"{100 * lifted[end]:+.1f}" for end in ("mean", "low", "high"))
        levels.append("uplift {} ({} to {})".format(*points))
    return ", ".join(levels) or "not measured"
