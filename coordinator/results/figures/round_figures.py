"""The figures of a round, each declared once: record, rounds.csv, the report's table, page, writers and docs follow.

A new figure is an entry of ROUND_FIGURES with the cell "sum", and a call of `RunRecord.add_to_round` where it is
counted.  One that is a sum over devices is declared with them alone, with `by_round` (device_figures.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypeAlias

from coordinator.record.round_result import PREFIXES, RoundResult
from coordinator.record.units import by_reason
from coordinator.results.figures import device_figures
from coordinator.results.figures.columns import Declared, FigureColumn, measure, shown, text_column
from coordinator.results.figures.metrics import SHARES
from edge_sdk.methods.contract.requests import MeasuredModel

Cell: TypeAlias = Literal["whole", "number", "sum", "text", "reasons", "computed"]
"""The columns of rounds.csv, which are read back, except `computed`, which follows from other figures."""


@dataclass(frozen=True, slots=True)
class RoundFigure(Declared[RoundResult]):
    """A figure of a round."""

    cell: Cell = "computed"
    in_csv: bool = field(default=True, kw_only=True)
    later: bool = field(default=False, kw_only=True)
    """Older run directories do not have it."""
    metered: bool = field(default=False, kw_only=True)
    """If it was not measured, its cell is empty and writers leave it out."""
    writer: str = field(default="", kw_only=True)
    """Its name for TensorBoard, Prometheus and the like."""
    counter: bool = field(default=False, kw_only=True)
    """Prometheus adds it up."""


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
_spent = partial(RoundFigure, metered=True, counter=True)
_COUNTED: tuple[RoundFigure, ...] = (
    RoundFigure(
        "contributors",
        "Devices whose uploads counted.",
        "whole",
        column=FigureColumn("contributors", 4),
        page="Answers",
        writer="devices/contributors",
    ),
    RoundFigure("exchanges", "Exchanges of knowledge.", "whole"),
    RoundFigure(
        "bytes_up",
        "Whole frames that devices sent.",
        "whole",
        unit="bytes",
        column=measure("sent", 5),
        writer="bytes/up",
        counter=True,
    ),
    RoundFigure(
        "bytes_down",
        "Whole frames that were sent to devices.",
        "whole",
        unit="bytes",
        column=measure("received", 6),
        writer="bytes/down",
        counter=True,
    ),
    RoundFigure("scalars_up", "Numbers of knowledge in accepted uploads, in any encoding.", "whole"),
    RoundFigure("scalars_down", "Numbers of knowledge that were sent to devices.", "whole"),
    _spent(
        "device_flops",
        "What all devices computed, evaluations included.",
        "whole",
        unit="FLOP",
        writer="work/flops",
    ),
    RoundFigure("wall_s", "How long it took on this machine, over a broker.", "number", unit="s"),
    RoundFigure("virtual_s", "How long it took on the boards' clock, in memory.", "number", unit="s"),
    RoundFigure(
        "took_s",
        "`virtual_s` in memory, `wall_s` over a broker; not in `rounds.csv`.",
        unit="s",
        value=lambda entry: entry.virtual_s or entry.wall_s,
        in_csv=False,
        column=measure("took", 7),
        page="Took",
        writer="time/round_s",
    ),
    _spent(
        "device_s",
        "Computing of all devices.",
        "number",
        unit="s",
        column=measure("computing", 8),
        writer="work/computing_s",
    ),
    RoundFigure(
        "waited_s",
        "How long it waited for `waited_for`.",
        "number",
        unit="s",
        column=measure("for", 11),
        page="Waited",
        writer="time/waited_s",
    ),
    _spent("device_j", "What all devices drew.", "number", unit="J", column=measure("drawn", 9), writer="work/joules"),
    RoundFigure(
        "waited_for",
        "The device that it waited for longest.",
        "text",
        column=text_column("waited for", 10),
        page="Waited longest for",
    ),
    RoundFigure(
        "declined",
        "Exchanges that devices declined, by reason.",
        "reasons",
        later=True,
        column=text_column("declined", 12, by_reason),
        page="Declined",
        writer="devices/declined",
        counter=True,
    ),
    RoundFigure(
        "silent",
        "Exchanges whose deadline passed without an answer of a device.",
        "whole",
        later=True,
        column=FigureColumn("silent", 13),
        page="Missed the deadline",
        writer="devices/silent",
        counter=True,
    ),
)
ROUND_FIGURES: tuple[RoundFigure, ...] = (RoundFigure("round", "Its number, from 1."), *_ACCURACIES, *_COUNTED)


def figures_of_rounds() -> tuple[RoundFigure, ...]:
    """All figures of a round in the order of rounds.csv, with those that are sums over devices at the end."""
    sums = (
        RoundFigure(
            each.name,
            each.meaning,
            "sum",
            unit=each.unit,
            later=True,
            page=each.page,
            writer=f"devices/{each.name}",
            counter=True,
        )
        for each in device_figures.DEVICE_FIGURES
        if each.by_round
    )
    return (*ROUND_FIGURES, *sums)


def shown_of_round() -> tuple[tuple[RoundFigure, FigureColumn], ...]:
    """The figures with a column in the report's table of rounds, from left to right."""
    return shown(figures_of_rounds())


def page_figures_of_round() -> tuple[RoundFigure, ...]:
    """The figures that the live page is sent of a round, from left to right as in the report's table."""
    sent = [figure for figure in figures_of_rounds() if figure.page or figure.writer]
    return tuple(sorted(sent, key=lambda each: 100 if each.column is None else each.column.place))


def csv_columns(*, older: bool = False) -> tuple[str, ...]:
    """The columns of rounds.csv; older: those that every run directory has."""
    return tuple(each.name for each in figures_of_rounds() if each.in_csv and not (older and each.later))


def round_cells(entry: RoundResult) -> dict[str, object]:
    """The figures that a round counted, by column of rounds.csv."""
    counted = [each for each in figures_of_rounds() if each.cell != "computed"]
    return {each.name: by_reason(each.of(entry)) if each.cell == "reasons" else each.of(entry) for each in counted}


def written(entry: RoundResult) -> dict[str, float]:
    """The figures of a round for TensorBoard, Prometheus and the like, by their names there."""
    found: dict[str, float] = {}
    for figure in figures_of_rounds():
        value = figure.of(entry) if figure.writer else 0
        if figure.writer and (value or not figure.metered):
            found[figure.writer] = sum(value.values()) if isinstance(value, Mapping) else value
    return found


def counters() -> frozenset[str]:
    """The names for writers of the figures that are added up over rounds."""
    return frozenset(figure.writer for figure in figures_of_rounds() if figure.counter)
