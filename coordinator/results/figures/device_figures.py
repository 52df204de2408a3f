"""The figures of a device, each declared once: record, summary.json, devices.csv, tables, report and docs follow.

A new figure is an entry of DEVICE_FIGURES and the line that measures it: `RunRecord.add(name, device, amount)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from coordinator.record.units import by_reason, human_bytes, human_joules, human_seconds, percent, printable
from coordinator.results.figures.result import DeviceResult

Group: TypeAlias = Literal["who", "holds", "traffic", "missed", "cost", "source", "steps", "note"]
GROUPS: tuple[Group, ...] = ("who", "holds", "traffic", "missed", "cost", "source", "steps", "note")
"""The order of devices.csv; within a group it is that of DEVICE_FIGURES, which is the order of summary.json."""


@dataclass(frozen=True, slots=True)
class FigureColumn:
    """The column that shows a figure to people."""

    heading: str
    place: int = 100
    """Columns stand from left to right in this order."""
    say: Callable[[Any], str] = str
    """The text of a value, and of the mean of numbers."""
    right: bool = True
    """It holds numbers: they are aligned to the right, and the last row has their mean."""
    signed: bool = False
    optional: int = 0
    """A narrow terminal leaves out columns, 1 first; 0: never this one."""
    where: Literal["everywhere", "report"] = "everywhere"
    """A column of the report alone is not in the table on a terminal."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a device: what it is, who measures it, and where it shows."""

    name: str
    meaning: str
    """One sentence for the reference page."""
    by: Literal["owner", "device", "coordinator", "simulation"]
    """Who measures it."""
    group: Group
    unit: str = ""
    value: Callable[[DeviceResult], Any] | None = None
    """How it follows from the result; None: the field of this name, or else what the record summed."""
    summed: bool = False
    """The record adds it up by device, over rounds and restarts."""
    by_round: bool = False
    """rounds.csv and writers have the sum over devices of each round."""
    files: Literal["both", "summary", "csv", "neither"] = "both"
    sparse: bool = False
    """summary.json leaves it out where it is 0 or empty."""
    blank: bool = False
    """Its cell in devices.csv is empty where it is 0."""
    entry: Callable[[DeviceResult], Any] | None = None
    """What stands in summary.json where it is not the value itself; None is left out."""
    cell: Callable[[Any], object] | None = None
    """What stands in devices.csv where it is not the value itself."""
    column: FigureColumn | None = None

    def of(self, device: DeviceResult) -> Any:
        """The figure of a device."""
        if self.value is not None:
            return self.value(device)
        return getattr(device, self.name) if self.name in FIELDS else device.sums.get(self.name, 0)


FIELDS = frozenset(DeviceResult.__dataclass_fields__)
"""The figures that the code computes with; `DeviceResult.sums` holds the others that the record summed."""


def _words(values: Sequence[int]) -> str:
    return " ".join(map(str, values))


def _since_joining(place: int) -> Callable[[DeviceResult], float | None]:
    return lambda device: None if device.since_joining is None else device.since_joining[place]


def _in_report(heading: str, place: int, say: Callable[[Any], str]) -> FigureColumn:
    """A measure of the report, unknown where it is 0."""
    return FigureColumn(heading, place, lambda value: say(value) if value else "", where="report")


_whole: Callable[[Any], str] = "{:.0f}".format

DEVICE_FIGURES: tuple[Figure, ...] = (
    Figure(
        "id", "Its name in the federation.", "owner", "who", column=FigureColumn("device", 1, printable, right=False)
    ),
    Figure("number", "Its index in the sorted roster, or the number with which it enrolled.", "coordinator", "who"),
    Figure(
        "board",
        "The profile of its hardware.",
        "device",
        "who",
        column=FigureColumn("board", 2, printable, right=False, optional=2),
    ),
    Figure("link", "The profile of its link.", "simulation", "who"),
    Figure(
        "model",
        "The family of its model.",
        "device",
        "who",
        column=FigureColumn("model", 3, printable, right=False, optional=7),
    ),
    Figure(
        "runtime",
        "What its model computes with.",
        "device",
        "who",
        column=FigureColumn("runtime", 4, printable, right=False, optional=1),
    ),
    Figure("note", "A note on its model, such as the origin of a frozen extractor.", "device", "note"),
    Figure("learns", "Whether it learns; else it can only teach, and counts in no mean.", "coordinator", "holds"),
    Figure("joined", "Whether it joined; else it never came or was not let in.", "coordinator", "holds"),
    Figure(
        "samples",
        "Samples that it trains on.",
        "device",
        "holds",
        column=FigureColumn("samples", 6, _whole, optional=3),
    ),
    Figure("test_samples", "Samples of its own test part.", "device", "holds", sparse=True, blank=True),
    Figure(
        "classes",
        "The classes that it holds samples of; in `summary.json` how many they are.",
        "device",
        "holds",
        entry=lambda device: len(device.classes) if device.class_counts else None,
        value=lambda device: device.classes,
        cell=_words,
        column=FigureColumn("classes", 5, _words, right=False, optional=6),
    ),
    Figure(
        "class_counts",
        "Samples of each class, where its owner discloses them.",
        "device",
        "holds",
        entry=lambda device: [*device.class_counts] or None,
        cell=_words,
    ),
    Figure(
        "accuracy",
        "The newest accuracy of its own, personal model on the test that all share.",
        "device",
        "holds",
        unit="share",
        column=FigureColumn("federated", 10, percent),
    ),
    Figure(
        "standalone_accuracy",
        "The accuracy after the same training on its own data alone.",
        "simulation",
        "holds",
        unit="share",
        column=FigureColumn("alone", 9, percent),
    ),
    Figure(
        "gain",
        "The difference of both, in points.",
        "coordinator",
        "holds",
        value=lambda _device: None,
        files="neither",
        column=FigureColumn("gain", 11, signed=True),
    ),
    Figure(
        "before_accuracy",
        "Of its own model before its first round, as in `since_joining`.",
        "device",
        "holds",
        unit="share",
        value=_since_joining(0),
        files="csv",
    ),
    Figure(
        "now_accuracy",
        "Of its own model now, on the same samples.",
        "device",
        "holds",
        unit="share",
        value=_since_joining(1),
        files="csv",
    ),
    Figure(
        "global_accuracy",
        "The newest accuracy of the global model on the test that all share.",
        "device",
        "holds",
        unit="share",
        value=lambda device: device.metrics.get("global_accuracy"),
        files="csv",
        column=FigureColumn("global", 12, percent, optional=8),
    ),
    Figure("metrics", "All other values of its newest evaluations, by name.", "device", "holds", files="summary"),
    Figure(
        "bytes_up",
        "Whole frames that it sent, joining and sending again included.",
        "coordinator",
        "traffic",
        unit="bytes",
        column=FigureColumn("sent", 13, human_bytes, optional=5),
    ),
    Figure(
        "bytes_down",
        "Whole frames that were sent to it.",
        "coordinator",
        "traffic",
        unit="bytes",
        column=FigureColumn("received", 14, human_bytes, optional=4),
    ),
    Figure("rounds_done", "Rounds whose last upload of it counted.", "coordinator", "traffic", unit="rounds"),
    Figure(
        "waited_s",
        "How long exchanges stayed open because of this device.",
        "coordinator",
        "cost",
        unit="s",
        sparse=True,
        column=_in_report("waited for", 17, human_seconds),
    ),
    Figure("flops", "Floating-point operations, evaluations included.", "simulation", "cost", unit="FLOP", sparse=True),
    Figure(
        "busy_s",
        "Computing: in a simulation by its board's profile, over a broker as it measured its training.",
        "device",
        "cost",
        unit="s",
        summed=True,
        sparse=True,
        column=_in_report("computed for", 15, human_seconds),
    ),
    Figure(
        "energy_j",
        "What it drew: in a simulation in the whole run, over a broker while it trained.",
        "device",
        "cost",
        unit="J",
        summed=True,
        sparse=True,
        column=_in_report("drew", 16, human_joules),
    ),
    Figure(
        "steps",
        "Optimiser steps on private and public samples.",
        "simulation",
        "steps",
        sparse=True,
        blank=True,
        column=FigureColumn("steps", 8, _whole, optional=10),
    ),
    Figure(
        "standalone_steps",
        "Those of the same device alone.",
        "simulation",
        "steps",
        sparse=True,
        blank=True,
        column=FigureColumn("alone steps", 7, _whole, optional=9),
    ),
    Figure("joules_source", "Where its joules are from: `measured` or `profile`.", "device", "source", sparse=True),
    Figure(
        "withheld",
        "Uploads without knowledge, because its training diverged or failed.",
        "device",
        "missed",
        unit="uploads",
        summed=True,
    ),
    Figure(
        "joining",
        "The figures of its own model before its first round, by name.",
        "device",
        "missed",
        files="summary",
        sparse=True,
    ),
    Figure(
        "not_served",
        "Rounds whose model its app does not predict with, because it is worse on held-out samples.",
        "device",
        "missed",
        unit="rounds",
        summed=True,
        sparse=True,
    ),
    Figure(
        "declined",
        "Exchanges that its owner's policy declined, by reason.",
        "device",
        "missed",
        unit="exchanges",
        sparse=True,
    ),
    Figure(
        "silent",
        "Exchanges whose deadline passed without an answer.",
        "coordinator",
        "missed",
        unit="exchanges",
        summed=True,
        sparse=True,
    ),
    Figure(
        "missed",
        "Exchanges that it declined or left without an answer.",
        "coordinator",
        "missed",
        value=lambda device: device.silent + sum(device.declined.values()),
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


def shown_figures(*, report: bool = False) -> tuple[tuple[Figure, FigureColumn], ...]:
    """The figures with a column in the table of a run, from left to right; report: those of the report alone."""
    columns = [(figure, figure.column) for figure in DEVICE_FIGURES if figure.column is not None]
    wanted = "report" if report else "everywhere"
    return tuple(sorted((each for each in columns if each[1].where == wanted), key=lambda each: each[1].place))


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
