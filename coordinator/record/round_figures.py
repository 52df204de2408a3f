"""The figures of a round, each declared once: record, rounds.csv, the report's table, writers and docs follow.

A new figure is an entry of ROUND_FIGURES and a field of RoundResult; one that is a sum over devices is declared with
them alone, with `by_round` (coordinator/record/figures.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from coordinator.record import figures
from coordinator.record.figures import FigureColumn
from coordinator.record.metrics import PREFIXES, SHARES
from coordinator.record.result import RoundResult
from coordinator.record.units import by_reason, human_bytes, human_joules, human_seconds, printable
from edge_sdk.methods.contract.requests import MeasuredModel

Cell: TypeAlias = Literal["whole", "number", "sum", "text", "reasons", "computed"]
"""What rounds.csv holds, and is read back; `computed` follows from other figures, and is not read."""


@dataclass(frozen=True, slots=True)
class RoundFigure:
    """A figure of a round: what it is, how the record comes to it, and where it shows."""

    name: str
    meaning: str
    cell: Cell = "computed"
    unit: str = ""
    value: Callable[[RoundResult], Any] | None = None
    """How it follows from the round; None: it is the field of this name, or a sum over devices."""
    record: Literal["", "noted", "total"] = ""
    """The record notes it in each round, or counts since the run began and keeps the difference."""
    in_csv: bool = True
    later: bool = False
    """Older run directories do not have it."""
    metered: bool = False
    """Its cell is empty, and no writer has it, where nobody metered it."""
    column: FigureColumn | None = None
    """The column of the report's table of rounds."""
    writer: str = ""
    """Its name for TensorBoard, Prometheus and the like."""
    counter: bool = False
    """Prometheus adds it up."""

    def of(self, entry: RoundResult) -> Any:
        """The figure of a round."""
        if self.value is not None:
            return self.value(entry)
        return getattr(entry, self.name) if self.name in FIELDS else entry.sums.get(self.name, 0)


FIELDS = frozenset(RoundResult.__dataclass_fields__)
SHARED: tuple[MeasuredModel, ...] = ("global", "active")
"""The models that devices share; their columns have the model's prefix."""
OWN_TASK: Mapping[str, str] = {
    "amp": "local accuracies, weighted by test samples",
    "fm": "the variance of local accuracies over all devices",
    "wlp": "the lowest local accuracy of all devices",
}
"""Measures over the devices' own tasks."""
SHARED_FIGURES: Mapping[str, str] = {
    "gm": "the accuracy that all devices found alike",
    "mean": "the mean accuracy",
    "measured": "the devices that it is over",
    **OWN_TASK,
}
"""Figures of a shared model: `gm` where all devices measured one model, means, and measures of its own tasks."""
SHARED_COLUMNS: Mapping[MeasuredModel, Mapping[str, str]] = {
    model: {name: "gm" if (model, name) == ("global", "gm") else PREFIXES[model] + name for name in SHARED_FIGURES}
    for model in SHARED
}
"""The column of each figure."""
MODEL_WORDS: Mapping[MeasuredModel, str] = {"global": "the global model", "active": "ACA"}
_OF_ALL: Mapping[str, str] = {
    **OWN_TASK,
    "sd": "the deviation of local accuracies",
    **{f"q{round(100 * share)}": f"the quantile of local accuracies at {share:g}" for share in SHARES},
}
OWN_TASK_COLUMNS = tuple(_OF_ALL)
PERSONAL = ("pm_v", "pm_l")
"""FedNH's measures, whose columns are means over the learning devices."""


def _took(entry: RoundResult) -> float:
    return entry.virtual_s or entry.wall_s


def _measure(heading: str, place: int, say: Callable[[Any], str]) -> FigureColumn:
    """A measure, unknown where it is 0."""
    return FigureColumn(heading, place, lambda value: say(value) if value else "")


_ACCURACIES: tuple[RoundFigure, ...] = (
    RoundFigure("accuracy_mean", "The mean accuracy of personal models.", unit="share"),
    RoundFigure("accuracy_min", "The lowest.", unit="share"),
    RoundFigure("accuracy_max", "The highest.", unit="share"),
    RoundFigure("accuracy_std", "The deviation over the devices.", unit="share"),
    RoundFigure("measured", "The devices that these are over.", unit="devices"),
    RoundFigure("standalone_mean", "The mean accuracy of the devices alone.", unit="share"),
    *(RoundFigure(name, f"Of personal models: {words}.") for name, words in _OF_ALL.items()),
    RoundFigure("pm_v_mean", "FedNH's PM(V): every class that a device holds weighs alike.", unit="share"),
    RoundFigure("pm_l_mean", "FedNH's PM(L): every class weighs as its share of samples.", unit="share"),
    *(
        RoundFigure(column, f"Of {MODEL_WORDS[model]}: {SHARED_FIGURES[name]}.")
        for model in SHARED
        for name, column in SHARED_COLUMNS[model].items()
    ),
)
_COUNTED: tuple[RoundFigure, ...] = (
    RoundFigure(
        "contributors",
        "Devices whose uploads counted.",
        "whole",
        record="noted",
        column=FigureColumn("contributors", 4),
        writer="devices/contributors",
    ),
    RoundFigure("exchanges", "Exchanges of knowledge.", "whole", record="noted"),
    RoundFigure(
        "bytes_up",
        "Whole frames that devices sent.",
        "whole",
        unit="bytes",
        record="total",
        column=_measure("sent", 5, human_bytes),
        writer="bytes/up",
        counter=True,
    ),
    RoundFigure(
        "bytes_down",
        "Whole frames that were sent to devices.",
        "whole",
        unit="bytes",
        record="total",
        column=_measure("received", 6, human_bytes),
        writer="bytes/down",
        counter=True,
    ),
    RoundFigure("scalars_up", "Numbers of knowledge in accepted uploads, in any encoding.", "whole", record="total"),
    RoundFigure("scalars_down", "Numbers of knowledge that were sent to devices.", "whole", record="total"),
    RoundFigure(
        "device_flops",
        "What all devices computed, evaluations included.",
        "whole",
        unit="FLOP",
        record="total",
        metered=True,
        writer="work/flops",
        counter=True,
    ),
    RoundFigure("wall_s", "How long it took on this machine, over a broker.", "number", unit="s", record="total"),
    RoundFigure("virtual_s", "How long it took on the boards' clock, in memory.", "number", unit="s"),
    RoundFigure(
        "took_s",
        "`virtual_s` in memory, `wall_s` over a broker; not in `rounds.csv`.",
        unit="s",
        value=_took,
        in_csv=False,
        column=_measure("took", 7, human_seconds),
        writer="time/round_s",
    ),
    RoundFigure(
        "device_s",
        "Computing of all devices.",
        "number",
        unit="s",
        record="total",
        metered=True,
        column=_measure("computing", 8, human_seconds),
        writer="work/computing_s",
        counter=True,
    ),
    RoundFigure(
        "waited_s",
        "How long it waited for `waited_for`.",
        "number",
        unit="s",
        record="noted",
        column=_measure("for", 11, human_seconds),
        writer="time/waited_s",
    ),
    RoundFigure(
        "device_j",
        "What all devices drew.",
        "number",
        unit="J",
        record="total",
        metered=True,
        column=_measure("drawn", 9, human_joules),
        writer="work/joules",
        counter=True,
    ),
    RoundFigure(
        "waited_for",
        "The device that it waited for longest.",
        "text",
        record="noted",
        column=FigureColumn("waited for", 10, printable, right=False),
    ),
    RoundFigure(
        "declined",
        "Exchanges that devices declined, by reason.",
        "reasons",
        record="noted",
        later=True,
        column=FigureColumn("declined", 12, by_reason, right=False),
        writer="devices/declined",
        counter=True,
    ),
    RoundFigure(
        "silent",
        "Exchanges whose deadline passed without an answer of a device.",
        "whole",
        record="noted",
        later=True,
        column=FigureColumn("silent", 13),
        writer="devices/silent",
        counter=True,
    ),
)
ROUND_FIGURES: tuple[RoundFigure, ...] = (RoundFigure("round", "Its number, from 1."), *_ACCURACIES, *_COUNTED)


def figures_of_rounds() -> tuple[RoundFigure, ...]:
    """All figures of a round in the order of rounds.csv, with those that are sums over devices at the end."""
    sums = (
        RoundFigure(
            each.name, each.meaning, "sum", unit=each.unit, later=True, writer=f"devices/{each.name}", counter=True
        )
        for each in figures.DEVICE_FIGURES
        if each.by_round
    )
    return (*ROUND_FIGURES, *sums)


def of_record(kind: Literal["noted", "total"]) -> tuple[str, ...]:
    """The names of the figures that the record notes per round, or keeps as differences of totals."""
    return tuple(figure.name for figure in ROUND_FIGURES if figure.record == kind)


def csv_columns(*, older: bool = False) -> tuple[str, ...]:
    """The columns of rounds.csv; older: those that every run directory has."""
    return tuple(each.name for each in figures_of_rounds() if each.in_csv and not (older and each.later))


def round_cells(entry: RoundResult) -> dict[str, object]:
    """What a round counted, by column of rounds.csv."""
    counted = [each for each in figures_of_rounds() if each.cell != "computed"]
    return {each.name: by_reason(each.of(entry)) if each.cell == "reasons" else each.of(entry) for each in counted}


def shown_of_round() -> tuple[tuple[RoundFigure, FigureColumn], ...]:
    """The figures with a column in the report's table of rounds, from left to right."""
    columns = [(figure, figure.column) for figure in figures_of_rounds() if figure.column is not None]
    return tuple(sorted(columns, key=lambda each: each[1].place))


def written(entry: RoundResult) -> dict[str, float]:
    """The figures of a round for TensorBoard, Prometheus and the like, by their names there."""
    found: dict[str, float] = {}
    for figure in figures_of_rounds():
        value = figure.of(entry) if figure.writer else 0
        if figure.writer and (value or not figure.metered):
            found[figure.writer] = sum(value.values()) if isinstance(value, Mapping) else value
    return found


def counters() -> frozenset[str]:
    """The names for writers of the figures that go on over rounds."""
    return frozenset(figure.writer for figure in figures_of_rounds() if figure.counter)
