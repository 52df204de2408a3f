"""The content of the HTML document on runs and comparisons: sections with facts and tables, as plain values.

A cell has the text that is shown and the value that a column is sorted by.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

from coordinator.record.round_result import RoundResult
from coordinator.record.run_record import MAX_MISSED
from coordinator.record.units import (
    human_bytes,
    human_flops,
    human_joules,
    human_seconds,
    percent,
    printable,
)
from coordinator.results.comparison.budgets import budget_table
from coordinator.results.comparison.compare import Comparison, Trial, setting_text
from coordinator.results.comparison.compare_files import SweptCondition
from coordinator.results.comparison.compare_table import compare_table
from coordinator.results.figures.columns import Declared
from coordinator.results.figures.device_figures import shown_figures
from coordinator.results.figures.metrics import quantiles
from coordinator.results.figures.result import DeviceResult, Result
from coordinator.results.figures.round_figures import shown_of_round
from coordinator.results.report.run_table import run_table
from coordinator.results.report.tables import UNKNOWN, Table
from edge_sdk.class_names import listed

SortKey: TypeAlias = "float | str"
MOST_DEVICES = 1000
"""The maximum number of rows in a table of devices; a larger fleet gets percentiles, and devices.csv has all."""
MOST_ROUNDS = 2000
"""The maximum number of rounds in a table; rounds.csv has all."""
MISSED_COLUMNS = (("round", True), ("exchange", True), ("device", False), ("why", False))


class DocumentCell(NamedTuple):
    """A cell of a table."""

    text: str
    sort: SortKey
    """The sort key of the column; an unknown number comes last."""


@dataclass(frozen=True)
class SortableTable:
    """A table whose columns can be sorted."""

    caption: str
    columns: tuple[tuple[str, bool], ...]
    """Heading, and whether the column holds numbers."""
    rows: tuple[tuple[DocumentCell, ...], ...]
    last: tuple[str, ...] = ()
    """A row that stays below the others, such as means."""


class InlinePicture(NamedTuple):
    """A picture in the document."""

    title: str
    subtitle: str
    """What the picture shows, without the words that all pictures of its section share; may be empty."""
    svg: str


@dataclass(frozen=True)
class DocumentSection:
    """A run or a comparison in the document."""

    anchor: str
    title: str
    headline: str
    facts: tuple[tuple[str, str], ...]
    alarms: tuple[str, ...]
    """Actual and possible faults."""
    notes: tuple[str, ...]
    tables: tuple[SortableTable, ...]
    toml: str
    versions: tuple[tuple[str, str], ...]
    card: tuple[tuple[str, str], ...]
    """The data set's card."""
    pictures: Sequence[InlinePicture] = ()
    no_pictures: str = ""
    """Why they are missing."""


def run_section(result: Result, name: str, toml: str, anchor: str) -> DocumentSection:
    """The section on a run.  name: the name of its folder."""
    table = run_table(result, MOST_DEVICES)
    alarms = [note for note in table.notes if note.startswith(("warning:", "ended early", "device ", "refused"))]
    return DocumentSection(
        anchor=anchor,
        title=f"{result.federation}: {result.method}, seed {result.seed} ({name})",
        headline=table.headline,
        facts=tuple(_run_facts(result)),
        alarms=tuple(alarms),
        notes=tuple(note for note in table.notes if note not in alarms),
        tables=(_devices(result), _round_table(result), _missed_table(result)),
        toml=toml,
        versions=tuple((name, str(version)) for name, version in sorted(result.versions.items())),
        card=tuple(_card(result)),
    )


def comparison_section(comparison: Comparison, name: str, toml: str, anchor: str) -> DocumentSection:
    """The sections on a comparison and its runs.  name: the name of its folder."""
    table, example = compare_table(comparison), comparison.example
    trials = [trial for line in comparison.lines for trial in line.trials]
    alarms = [note for note in table.notes if "ended early" in note]
    warnings = [f"{trial.folder}: {printable(each)}" for trial in trials for each in trial.result.warnings]
    return DocumentSection(
        anchor=anchor,
        title=f"{example.federation}: {len(comparison.methods)} methods compared ({name})",
        headline="",
        facts=(
            ("methods", ", ".join(comparison.methods)),
            ("seeds", ", ".join(map(str, comparison.seeds))),
            ("devices", str(len(example.devices))),
            ("rounds", str(example.rounds)),
        ),
        alarms=(*alarms, *warnings),
        notes=tuple(note for note in table.notes if note not in alarms),
        tables=(
            sortable(table, "Methods: means over the seeds"),
            sortable(budget_table(comparison), "Equal budget: accuracy by the time this much was spent"),
            _runs_table(trials),
            _missed_in_runs(trials),
        ),
        toml=toml,
        versions=tuple((name, str(version)) for name, version in sorted(example.versions.items())),
        card=tuple(_card(example)),
    )


def condition_section(condition: SweptCondition, name: str, toml: str, anchor: str) -> DocumentSection:
    """The section on a sweep under one condition.  name: the name of its folder."""
    found = comparison_section(condition.comparison, name, toml, anchor)
    under = f", {setting_text(condition.values)}" if condition.values else ""
    trials = [trial for tried in condition.tried for trial in tried.line.trials]
    methods, budgets, _, missed = found.tables
    return replace(
        found,
        title=f"{condition.comparison.example.federation}: sweep{under} ({name})",
        facts=(*found.facts, *chosen_settings(condition)),
        tables=(methods, _tried_table(condition), budgets, _runs_table(trials), missed),
    )


def chosen_settings(condition: SweptCondition) -> list[tuple[str, str]]:
    """The choices of each method that had some, in words."""
    found = []
    for each in condition.tried:
        if each.chosen and each.setting:
            tried = sum(other.line.method == each.line.method for other in condition.tried)
            known = "never measured" if each.validation is None else percent(each.validation)
            words = f"{setting_text(each.setting)} (validation {known}, best of {tried})"
            found.append((f"chosen by {each.line.method}", words))
    return found


def _tried_table(condition: SweptCondition) -> SortableTable:
    keys = list(dict.fromkeys(key for each in condition.tried for key in each.setting))
    heads = (("method", False), *((key, True) for key in keys), ("validation", True), ("chosen", False), ("runs", True))
    rows = tuple(
        (
            _text(each.line.method),
            *(_value(each.setting.get(key, "")) for key in keys),
            _measure(each.validation or 0.0, percent),
            _text("chosen" if each.chosen else ""),
            _count(len(each.line.trials)),
        )
        for each in condition.tried
    )
    return SortableTable("Settings that were tried, judged on the validation part", heads, rows)


def _value(value: object) -> DocumentCell:
    number = float(value) if isinstance(value, int | float) else math.inf
    return DocumentCell(printable(str(value)), number)


def _runs_table(trials: Sequence[Trial]) -> SortableTable:
    """A row for each run, and why it ended."""
    shown = overview(("", trial.folder, trial.result) for trial in trials)
    ends = [_text("as planned" if trial.result.completed else trial.result.reason) for trial in trials]
    rows = tuple((*row, end) for row, end in zip(shown.rows, ends, strict=True))
    return SortableTable(shown.caption, (*shown.columns, ("ended", False)), rows)


def _missed_in_runs(trials: Sequence[Trial]) -> SortableTable:
    """Who missed which deadline, in all runs; the first MAX_MISSED."""
    tables = [(trial, _missed_table(trial.result)) for trial in trials]
    rows = [(_text(trial.folder), *row) for trial, table in tables for row in table.rows]
    columns = (("run", False), *MISSED_COLUMNS)
    more = f" (the first {MAX_MISSED})" if len(rows) > MAX_MISSED else ""
    return SortableTable(f"Who missed which deadline, and why{more}", columns, tuple(rows[:MAX_MISSED]))


def _run_facts(result: Result) -> Iterator[tuple[str, str]]:
    yield "method", result.method
    yield "devices", str(len(result.devices))
    yield "rounds", f"{result.rounds_done} of {result.rounds}"
    yield "ended", "as planned" if result.completed else "early"
    yield "link", "simulated" if result.transport == "memory" else result.transport
    if "start_s" in result.time:
        yield (
            ("resumed" if result.resumed.get("times") else "begun"),
            time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(result.time["start_s"])),
        )
    if "wall_s" in result.time:
        yield ("since then" if result.resumed.get("times") else "took"), human_seconds(result.time["wall_s"])
    if result.time.get("virtual_s"):
        yield "on the boards", human_seconds(result.time["virtual_s"])
    yield "uploads", ", ".join(f"{count} {word}" for word, count in result.updates.items() if count) or "none"
    for key, say in (("flops", human_flops), ("j", human_joules)):
        total = result.work()[key][0]
        if total:
            yield {"flops": "computed", "j": "drawn"}[key], say(total)
    if result.privacy:
        yield "privacy", json.dumps(dict(result.privacy))


def _card(result: Result) -> Iterator[tuple[str, str]]:
    """The data set's card, and what of it was dealt out."""
    data, card = result.data, result.card
    if data.get("name"):
        yield "name", str(data["name"])
    if not card:
        held = [device.samples for device in result.devices]
        if held:
            yield "samples on devices", f"{sum(held)}, {min(held)} to {max(held)} each"
        return
    yield "samples", ", ".join(f"{count} {_PARTS.get(part, part)}" for part, count in card["samples"].items())
    yield "one sample", f"{card['type']} {tuple(card['shape'])}, values {card['range'][0]:g} to {card['range'][1]:g}"
    yield "scaled by", f"{card['scale']:.6g}" + (", then normalised" if "normalise" in data else "")
    yield "classes", ": ".join(filter(None, [str(card["classes"]), listed([*map(printable, result.class_names)])]))
    for part, counts in card["by_class"].items():
        low, high = min(counts), max(counts)
        yield f"{_PARTS.get(part, part)}, by class", f"{low} to {high}" if low != high else f"{low} each"
    if "users" in card:
        yield "recorded by", f"{card['users']} users"
    if "augment" in data:
        yield "augmented by", json.dumps(data["augment"])
    yield "drawn with seed", str(card["seed"])
    yield "SHA-256", str(data.get("sha256", UNKNOWN))


_PARTS = {"source": "in the source", "private": "for the devices", "test": "in the test", "public": "public"}


def _devices(result: Result) -> SortableTable:
    """A row for each device, or, of many devices, one for each of their figures."""
    return _device_table(result) if len(result.devices) <= MOST_DEVICES else _many_devices(result)


def _many_devices(result: Result) -> SortableTable:
    heads = ("known of", "least", "a tenth up to", "half up to", "a tenth from", "greatest")
    rows = []
    for figure, column in (*shown_figures(), *shown_figures("report")):
        values = [value for value in map(figure.of, result.devices) if isinstance(value, int | float)]
        if column.right and any(values):
            lie = quantiles(values)
            rows.append((_text(column.heading), _count(len(values)), *(_cell(figure, each) for each in lie)))
    caption = f"How the figures of {len(result.devices):,} devices lie (devices.csv has each device)"
    return SortableTable(caption, (("figure", False), *((head, True) for head in heads)), tuple(rows))


def _device_table(result: Result) -> SortableTable:
    table = run_table(result)
    devices = sorted(result.devices, key=lambda device: device.number)
    extra = shown_figures("report")
    shown = sortable(table, "Devices", [*map(_device_keys, devices)])
    rows = tuple(
        (*row, *(_cell(each, each.of(device)) for each, _ in extra))
        for row, device in zip(shown.rows, devices, strict=True)
    )
    columns = (*shown.columns, *((column.heading, column.right) for _, column in extra))
    return SortableTable(shown.caption, columns, rows, (*shown.last, *("" for _ in extra)) if shown.last else ())


def _cell(figure: Declared[Any], value: Any) -> DocumentCell:
    text = figure.said(value)
    if figure.column is not None and not figure.column.right:
        return _text(text)
    return DocumentCell(text, value) if text else DocumentCell(UNKNOWN, math.inf)


def _device_keys(device: DeviceResult) -> Mapping[str, SortKey]:
    return {
        "device": device.number,
        "sent": device.bytes_up,
        "received": device.bytes_down,
        "classes": len(device.classes),
    }


def _round_table(result: Result) -> SortableTable:
    measured = any(entry.global_accuracy for entry in result.history)
    heads = [("round", True), ("accuracy", True), *([("global model", True)] if measured else [])]
    heads += [(column.heading, column.right) for _, column in shown_of_round()]
    entries = result.history[:MOST_ROUNDS]
    rows = tuple(tuple(_round_cells(result, entry, measured=measured)) for entry in entries)
    more = f" (the first {MOST_ROUNDS}; rounds.csv has all)" if len(result.history) > MOST_ROUNDS else ""
    return SortableTable(f"Rounds{more}", tuple(heads), rows)


def _round_cells(result: Result, entry: RoundResult, *, measured: bool) -> Iterator[DocumentCell]:
    yield _count(entry.round)
    for model in ("personal", "global") if measured else ("personal",):
        values = [*result.learned(entry.of(model)).values()]
        yield _measure(math.fsum(values) / len(values) if values else 0.0, percent)
    yield from (_cell(figure, figure.of(entry)) for figure, _ in shown_of_round())


def _missed_table(result: Result) -> SortableTable:
    rows = tuple((_count(m.round), _count(m.exchange), _text(m.device), _text(m.reason)) for m in result.missed)
    counted = sum(device.silent + sum(device.declined.values()) for device in result.devices)
    more = f" (the first {len(rows)} of {counted})" if counted > len(rows) else ""
    return SortableTable(f"Who missed which deadline, and why{more}", MISSED_COLUMNS, rows)


def sortable(table: Table, caption: str, keys: Sequence[Mapping[str, SortKey]] = ()) -> SortableTable:
    """A table of text, whose numbers sort by their value; keys: by row, sort values of columns that have others."""
    known = keys or [{} for _ in table.rows]
    rows = tuple(
        tuple(
            DocumentCell(text, own.get(column.name, sort_number(text) if column.right else text))
            for text, column in zip(row, table.columns, strict=True)
        )
        for row, own in zip(table.rows, known, strict=True)
    )
    columns = tuple((column.name, column.right) for column in table.columns)
    return SortableTable(caption, columns, rows, table.last)


_TIMES = ("min", "h")
_STEPS: Mapping[str, float] = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_UNITS: Mapping[str, float] = {
    **{prefix + unit: value for prefix, value in _STEPS.items() for unit in ("B", "J", "FLOP")},
    "ms": 0.001,
    "s": 1.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}


def sort_number(text: str) -> float:
    """The number that a text begins with, in the base unit that follows it; infinity, which sorts last, if none."""
    words = text.replace("%", " ").split()
    try:
        value = float(words[0]) * (_UNITS.get(words[1], 1.0) if len(words) > 1 else 1.0)
        return value + (float(words[2]) * _UNITS[words[3]] if len(words) == 4 and words[1] in _TIMES else 0.0)
    except (IndexError, KeyError, ValueError):
        return math.inf


def _measure(value: float, say: Callable[[float], str]) -> DocumentCell:
    return DocumentCell(say(value), value) if value else DocumentCell(UNKNOWN, math.inf)


def _count(value: int) -> DocumentCell:
    return DocumentCell(str(value), value)


def _text(text: str) -> DocumentCell:
    clean = printable(text)
    return DocumentCell(clean or UNKNOWN, clean)


def overview(results: Iterable[tuple[str, str, Result]]) -> SortableTable:
    """A row for each of several runs: anchor, name of the folder and result."""
    heads: tuple[tuple[str, bool], ...] = (
        ("run", False),
        ("method", False),
        ("seed", True),
        ("devices", True),
        ("rounds", True),
    )
    heads += (("accuracy", True), ("sent", True), ("received", True), ("took", True), ("warnings", True))
    rows = []
    for _, name, result in results:
        values = [each.accuracy for each in result.devices if each.learns and each.accuracy is not None]
        rows.append(
            (
                _text(name),
                _text(result.method),
                _count(result.seed),
                _count(len(result.devices)),
                _count(result.rounds_done),
                _measure(math.fsum(values) / len(values) if values else 0.0, percent),
                _measure(sum(device.bytes_up for device in result.devices), human_bytes),
                _measure(sum(device.bytes_down for device in result.devices), human_bytes),
                _measure(result.time.get("virtual_s") or result.time.get("wall_s", 0.0), human_seconds),
                _count(len(result.warnings)),
            )
        )
    return SortableTable("Runs", heads, tuple(rows))
