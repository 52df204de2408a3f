"""The figures of a device, each declared once: record, summary.json, devices.csv, tables, report, page and docs follow.

A new figure is an entry of DEVICE_FIGURES and the line that measures it: `RunRecord.add(name, device, amount)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeAlias

from coordinator.record.units import by_reason
from coordinator.results.figures.columns import ColumnPlace, Declared, FigureColumn, measure, shown, text_column, whole
from coordinator.results.figures.result import DeviceResult

Group: TypeAlias = Literal["who", "holds", "traffic", "missed", "cost", "source", "steps", "note"]
GROUPS: tuple[Group, ...] = ("who", "holds", "traffic", "missed", "cost", "source", "steps", "note")
"""The order of devices.csv; within a group it is that of DEVICE_FIGURES, which is the order of summary.json."""


@dataclass(frozen=True, slots=True)
class Figure(Declared[DeviceResult]):
    """A figure of a device."""

    group: Group
    by: Literal["owner", "device", "coordinator", "simulation"] = field(kw_only=True)
    """Who measures it."""
    summed: bool = field(default=False, kw_only=True)
    """The record adds it up by device, over rounds and restarts."""
    by_round: bool = field(default=False, kw_only=True)
    """rounds.csv, the page and writers have the sum over devices of each round."""
    files: Literal["both", "summary", "csv", "neither"] = field(default="both", kw_only=True)
    sparse: bool = field(default=False, kw_only=True)
    """summary.json leaves it out where it is 0 or empty."""
    blank: bool = field(default=False, kw_only=True)
    """Its cell in devices.csv is empty where it is 0."""
    entry: Callable[[DeviceResult], Any] | None = field(default=None, kw_only=True)
    """Makes its entry in summary.json where that is not the value itself.  None is left out."""
    cell: Callable[[Any], object] | None = field(default=None, kw_only=True)
    """Makes its cell in devices.csv where that is not the value itself."""


FIELDS = frozenset(DeviceResult.__dataclass_fields__)
"""The figures that the code computes with; `DeviceResult.sums` holds the others that the record summed."""


def _listed(values: Sequence[int]) -> str:
    return " ".join(map(str, values))


def _since_joining(place: int) -> Callable[[DeviceResult], float | None]:
    return lambda device: None if device.since_joining is None else device.since_joining[place]


def _missed(device: DeviceResult) -> int:
    return device.silent + sum(device.declined.values())


_owner, _device, _coordinator, _simulation = (
    partial(Figure, by=who) for who in ("owner", "device", "coordinator", "simulation")
)

DEVICE_FIGURES: tuple[Figure, ...] = (
    _owner("id", "Its name in the federation.", "who", column=text_column("device", 1)),
    _coordinator("number", "Its index in the sorted roster, or the number with which it enrolled.", "who"),
    _device("board", "The profile of its hardware.", "who", column=text_column("board", 2, optional=2), page="Board"),
    _simulation("link", "The profile of its link.", "who", page="Link"),
    _device("model", "The family of its model.", "who", column=text_column("model", 3, optional=7), page="Model"),
    _device(
        "runtime", "What its model computes with.", "who", column=text_column("runtime", 4, optional=1), page="Runtime"
    ),
    _device("note", "A note on its model, such as the origin of a frozen extractor.", "note", page="Note"),
    _coordinator("learns", "Whether it trains; devices that only teach are left out of means.", "holds"),
    _coordinator("joined", "Whether it joined; false if it never came or was refused.", "holds"),
    _device(
        "samples",
        "Samples that it trains on.",
        "holds",
        column=FigureColumn("samples", 6, whole, optional=3),
        page="Samples",
    ),
    _device("test_samples", "Samples of its own test part.", "holds", sparse=True, blank=True),
    _device(
        "classes",
        "The classes that it holds samples of; in `summary.json` how many they are.",
        "holds",
        entry=lambda device: len(device.classes) if device.class_counts else None,
        cell=_listed,
        column=text_column("classes", 5, _listed, optional=6),
    ),
    _device(
        "class_counts",
        "Samples of each class, where its owner discloses them.",
        "holds",
        entry=lambda device: [*device.class_counts] or None,
        cell=_listed,
    ),
    _device(
        "accuracy",
        "The newest accuracy of its own, personal model on the test that all share.",
        "holds",
        unit="share",
        column=FigureColumn("federated", 10),
    ),
    _simulation(
        "standalone_accuracy",
        "The accuracy after the same training on its own data alone.",
        "holds",
        unit="share",
        column=FigureColumn("alone", 9),
    ),
    _coordinator(
        "gain",
        "The difference of both, in points.",
        "holds",
        value=lambda _device: None,
        files="neither",
        column=FigureColumn("gain", 11, signed=True),
    ),
    _device(
        "before_accuracy",
        "Of its own model before its first round, as in `since_joining`.",
        "holds",
        unit="share",
        value=_since_joining(0),
        files="csv",
    ),
    _device(
        "now_accuracy",
        "Of its own model now, on the same samples.",
        "holds",
        unit="share",
        value=_since_joining(1),
        files="csv",
    ),
    _device(
        "global_accuracy",
        "The newest accuracy of the global model on the test that all share.",
        "holds",
        unit="share",
        value=lambda device: device.metrics.get("global_accuracy"),
        files="csv",
        column=FigureColumn("global", 12, optional=8),
    ),
    _device("metrics", "All other values of its newest evaluations, by name.", "holds", files="summary"),
    _coordinator(
        "bytes_up",
        "Whole frames that it sent, joining and sending again included.",
        "traffic",
        unit="bytes",
        column=FigureColumn("sent", 13, optional=5),
        page="Sent",
    ),
    _coordinator(
        "bytes_down",
        "Whole frames that were sent to it.",
        "traffic",
        unit="bytes",
        column=FigureColumn("received", 14, optional=4),
        page="Received",
    ),
    _coordinator("rounds_done", "Rounds whose last upload of it counted.", "traffic", unit="rounds"),
    _coordinator(
        "waited_s",
        "How long exchanges stayed open because of this device.",
        "cost",
        unit="s",
        sparse=True,
        column=measure("waited for", 17, "report"),
        page="The run waited for it",
    ),
    _simulation("flops", "Floating-point operations, evaluations included.", "cost", unit="FLOP", sparse=True),
    _device(
        "busy_s",
        "Computing: in a simulation by its board's profile, over a broker as it measured its training.",
        "cost",
        unit="s",
        summed=True,
        sparse=True,
        column=measure("computed for", 15, "report"),
        page="Computing",
    ),
    _device(
        "energy_j",
        "What it drew: in a simulation in the whole run, over a broker while it trained.",
        "cost",
        unit="J",
        summed=True,
        sparse=True,
        column=measure("drew", 16, "report"),
        page="Energy",
    ),
    _simulation(
        "steps",
        "Optimiser steps on private and public samples.",
        "steps",
        sparse=True,
        blank=True,
        column=FigureColumn("steps", 8, whole, optional=10),
    ),
    _simulation(
        "standalone_steps",
        "Those of the same device alone.",
        "steps",
        sparse=True,
        blank=True,
        column=FigureColumn("alone steps", 7, whole, optional=9),
    ),
    _device("joules_source", "Where its joules are from: `measured` or `profile`.", "source", sparse=True),
    _coordinator(
        "alone",
        "Rounds in which it trained alone, in the control group.",
        "missed",
        unit="rounds",
        summed=True,
        sparse=True,
        files="summary",
    ),
    _device(
        "withheld",
        "Uploads without knowledge, because its training diverged or failed.",
        "missed",
        unit="uploads",
        summed=True,
    ),
    _device(
        "joining",
        "The figures of its own model before its first round, by name.",
        "missed",
        files="summary",
        sparse=True,
    ),
    _device(
        "not_served",
        "Rounds whose model its app does not predict with, because it is worse on held-out samples.",
        "missed",
        unit="rounds",
        summed=True,
        sparse=True,
    ),
    _device(
        "declined", "Exchanges that its owner's policy declined, by reason.", "missed", unit="exchanges", sparse=True
    ),
    _coordinator(
        "silent",
        "Exchanges whose deadline passed without an answer.",
        "missed",
        unit="exchanges",
        summed=True,
        sparse=True,
    ),
    _coordinator(
        "missed",
        "Exchanges that it declined or left without an answer.",
        "missed",
        value=_missed,
        files="neither",
        column=FigureColumn("missed", 18, where="report"),
    ),
)


def summed() -> tuple[str, ...]:
    """The names of the figures that a record adds up by device."""
    return tuple(figure.name for figure in DEVICE_FIGURES if figure.summed)


def by_round() -> tuple[str, ...]:
    """The names of those whose sums over devices are figures of a round."""
    return tuple(figure.name for figure in DEVICE_FIGURES if figure.by_round)


def csv_figures() -> tuple[Figure, ...]:
    """The columns of devices.csv, in their order."""
    in_file = [figure for figure in DEVICE_FIGURES if figure.files in {"both", "csv"}]
    return tuple(sorted(in_file, key=lambda figure: GROUPS.index(figure.group)))


def shown_figures(where: ColumnPlace = "table") -> tuple[tuple[Figure, FigureColumn], ...]:
    """The figures with a column in tables of devices, from left to right."""
    return shown(DEVICE_FIGURES, where)


def page_figures() -> tuple[Figure, ...]:
    """The figures that the live page shows of a device."""
    return tuple(figure for figure in DEVICE_FIGURES if figure.page)


def known(values: Mapping[str, float | None]) -> dict[str, float]:
    """The values that are known and finite."""
    return {name: value for name, value in values.items() if value is not None and math.isfinite(value)}


def entries(device: DeviceResult) -> dict[str, Any]:
    """A device in summary.json: an unknown figure is absent, never null or NaN."""
    found: dict[str, Any] = {}
    for figure in DEVICE_FIGURES:
        if figure.files not in {"both", "summary"}:
            continue
        value = figure.of(device) if figure.entry is None else figure.entry(device)
        if value is None or (isinstance(value, float) and not math.isfinite(value)) or (figure.sparse and not value):
            continue
        found[figure.name] = known(value) if isinstance(value, Mapping) else value
    return found


def cells(device: DeviceResult) -> dict[str, object]:
    """A device in devices.csv, by column: None is an empty cell."""
    found: dict[str, object] = {}
    for figure in csv_figures():
        value = figure.of(device)
        if figure.cell is not None:
            value = figure.cell(value)
        elif isinstance(value, Mapping):
            value = by_reason(value)
        found[figure.name] = int(value) if isinstance(value, bool) else (value or None) if figure.blank else value
    return found
