"""The content of the page, as plain values for JSON; the same during a run and after it.

A state has `head` (the run in a few figures), `round` (the open exchange), `devices` (one list a device, in the order
of `device_columns`), `history` (one list a round, in the order of `round_columns`), `ledger` (totals, refusals,
warnings) and `missed` (round, exchange, device, why).  An unknown figure is None.

`device_facts` and `round_facts` say under which headings the declared figures are shown.
"""

from __future__ import annotations

import heapq
import itertools
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, TypeAlias

from coordinator.record.round_result import CURVES, Missed, RoundResult
from coordinator.record.run_record import KINDS
from coordinator.record.units import of_rounds
from coordinator.results.figures.device_figures import page_figures
from coordinator.results.figures.result import DeviceResult, Result, spread
from coordinator.results.figures.round_figures import RoundFigure, page_figures_of_round

PlainRow: TypeAlias = "list[Any]"

Measured: TypeAlias = "tuple[int, Mapping[str, float]]"
"""A round, and the accuracy of each device's own model after it."""
STATE_VERSION = 1
MOST_CURVES = 60
"""The most devices whose curves are drawn together."""
LIVE_COLUMNS = (
    "id",
    "state",
    "why",
    "round",
    "accuracy",
    "global",
    "temperature_c",
    "heat",
    "version",
    "seen_s",
    "air_s",
    "class_counts",
)
"""The keys of a device that the page's views show, beside the declared figures that have a heading there.

`seen_s`: when its last frame came, on the clock of the head's `now_s`.  Of a simulated board, `heat`: the share of that
at which it slows down, and `air_s`: seconds of sending and receiving."""
ACCURACY_COLUMNS = ("round", "mean", "worst", "best", "global", "alone", "own_task", "instruments")
"""The keys of a round that the page's views show, beside the declared figures: accuracies are shares."""
MOST_MISSED = 50
"""The most missed exchanges that the page lists."""
MOST_ON_PAGE = 1000
"""The most devices that the page lists one by one."""
PARTS = ("round", "ledger", "missed")
"""The parts that are sent as a whole once they change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageState:
    """One state of the page.  It is handed from thread to thread, and never changed."""

    head: Mapping[str, Any]
    round: Mapping[str, Any] = field(default_factory=dict)
    devices: Mapping[str, PlainRow] = field(default_factory=dict)
    """By id."""
    history: tuple[PlainRow, ...] = ()
    ledger: Mapping[str, Any] = field(default_factory=dict)
    missed: tuple[Missed, ...] = ()
    """Who missed which exchange, and why: the newest MOST_MISSED."""
    measured: tuple[Measured, ...] = ()
    """By round the accuracy of each device's own model: sent only to those who ask for curves."""

    def curves(self, wanted: Sequence[str] = ()) -> dict[str, Any]:
        """Return curves of accuracy against rounds: of these devices, or of the first MOST_CURVES; unknown is None."""
        every = sorted({device for _, found in self.measured for device in found})
        names = [device for device in wanted if device in set(every)] if wanted else every[:MOST_CURVES]
        return {
            "rounds": [number for number, _ in self.measured],
            "devices": {name: [found.get(name) for _, found in self.measured] for name in names},
            "of": len(every),
        }

    def plain(self) -> dict[str, Any]:
        """Return everything, for a browser that knows nothing yet."""
        return {
            "version": STATE_VERSION,
            "device_columns": device_columns(),
            "round_columns": round_columns(),
            "device_facts": [figure.fact for figure in page_figures()],
            "round_facts": [figure.fact for figure in _of_round() if figure.page],
            "head": self.head,
            "round": self.round,
            "devices": [*self.devices.values()],
            "history": self.history,
            "ledger": self.ledger,
            "missed": self.missed,
        }

    def since(self, old: PageState) -> dict[str, Any]:
        """Return what a browser that shows `old` lacks; `history` has rows by their place."""
        lines = enumerate(self.history)
        known = len(old.history)
        return {
            "head": self.head,
            **{name: getattr(self, name) for name in PARTS if getattr(self, name) != getattr(old, name)},
            "devices": [row for name, row in self.devices.items() if old.devices.get(name) != row],
            "gone": [name for name in old.devices if name not in self.devices],
            "history": {place: row for place, row in lines if place >= known or old.history[place] is not row},
        }


@cache
def device_columns() -> tuple[str, ...]:
    """The columns of `devices`."""
    return (*LIVE_COLUMNS, *(figure.name for figure in page_figures()))


@cache
def round_columns() -> tuple[str, ...]:
    """The columns of `history`; bytes, seconds and joules are those of a round alone."""
    return (*ACCURACY_COLUMNS, *(figure.name for figure in _of_round()))


@cache
def _of_round() -> tuple[RoundFigure, ...]:
    return page_figures_of_round()


def device_row(**values: Any) -> PlainRow:
    """Return a row of `devices`; missing values are None."""
    return [values.get(name) for name in device_columns()]


def on_page(names: Collection[str], size: Callable[[str], float], first: Collection[str] = ()) -> set[str]:
    """Return the devices that the page lists: of many, those of `first`, then those of the largest size."""
    if len(names) <= MOST_ON_PAGE:
        return {*names}
    return {*heapq.nlargest(MOST_ON_PAGE, names, key=lambda name: (name in first, size(name)))}


def classes_held(devices: Iterable[DeviceResult]) -> list[tuple[int, int]]:
    """Return, for each class, how many samples all devices have together, and how many devices hold some."""
    counts = [device.class_counts for device in devices if device.class_counts]
    columns = itertools.zip_longest(*counts, fillvalue=0)
    return [(sum(column), sum(count > 0 for count in column)) for column in columns]


def round_row(
    entry: RoundResult, *, alone: Mapping[str, float] | None = None, learners: Collection[str] | None = None
) -> PlainRow:
    """Return a row of `history`.

    alone: accuracies of the devices alone, by id.  learners: the devices that means are over, or None for all.
    """

    def of(found: Mapping[str, float]) -> list[float]:
        return [value for device, value in found.items() if learners is None or device in learners]

    personal = spread(of(entry.accuracy))
    values = {
        "round": entry.round,
        "mean": personal.get("mean"),
        "worst": personal.get("min"),
        "best": personal.get("max"),
        "global": _mean(of(entry.global_accuracy)),
        "alone": _mean(of(alone or {})),
        "own_task": _mean(of(entry.local_accuracy)),
        "instruments": {name: _mean(values.values()) for name, values in entry.instruments.items()},
        **{figure.name: _page_value(figure, entry) for figure in _of_round()},
    }
    return [values[name] for name in round_columns()]


def _page_value(figure: RoundFigure, entry: RoundResult) -> Any:
    """A declared figure of a round, or None if unmeasured."""
    value = figure.of(entry)
    return dict(value) if isinstance(value, Mapping) else (value or None) if figure.metered else value


def ledger_values(
    *,
    bytes_up: int,
    bytes_down: int,
    updates: Mapping[str, int],
    refused_frames: Mapping[str, Mapping[str, int]],
    refused_devices: Iterable[Mapping[str, str]],
    warnings: Iterable[str] = (),
    kind_bytes: Mapping[tuple[str, str], int] | None = None,
    months: Iterable[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return the `ledger` of a state; kind_bytes: by way and kind, where they are known; months: of a service."""
    kinds = kind_bytes or {}
    return {
        "bytes_up": bytes_up,
        "bytes_down": bytes_down,
        "updates": dict(updates),
        "refused_frames": [
            [sender, reason, count]
            for sender, kinds in sorted(refused_frames.items())
            for reason, count in sorted(kinds.items())
        ],
        "refused_devices": [dict(each) for each in refused_devices],
        "warnings": [*warnings],
        "kinds": [[kind, *(kinds.get((way, kind), 0) for way in ("up", "down"))] for kind in KINDS] if kinds else [],
        "months": [*months],
    }


def finished_state(result: Result, where: str) -> PageState:
    """Return the state of a run that is over; where: its folder."""
    alone = {entry.round: entry.accuracy for entry in result.standalone_history}
    learners = result.learners
    accuracy = spread([d.accuracy for d in result.devices if d.id in learners and d.accuracy is not None])
    up, down = (sum(getattr(device, name) for device in result.devices) for name in ("bytes_up", "bytes_down"))
    done = "finished" if result.completed else "failed"
    text = f"{result.method}: {done} after round {result.rounds_done} of {result.rounds}"
    head: dict[str, Any] = {
        "state": done,
        "text": f"{text}: {result.reason}" if result.reason else text,
        "uplift": result.uplift.get("text", ""),
        "federation": result.federation,
        "method": result.method,
        "seed": result.seed,
        "part": "",
        "where": where,
        "clock": "none",
        "now_s": 0.0,
        "round": result.rounds_done,
        "rounds": result.rounds,
        "here": sum(device.joined for device in result.devices),
        "expected": len(result.devices),
        "accuracy": accuracy.get("mean"),
        "accuracy_round": result.rounds_done,
        "bytes_up": up,
        "bytes_down": down,
    }
    if result.class_names:
        head["class_names"] = [*result.class_names]
    if result.insight is not None and result.insight.predictions is not None:
        head["class_right"] = result.insight.predictions.diagonal().tolist()
    if held := classes_held(result.devices):
        head["by_class"] = held
    refused = {each["device"]: each for each in result.refused_devices}
    bytes_of = {device.id: device.bytes_up + device.bytes_down for device in result.devices}
    listed = on_page(bytes_of, bytes_of.__getitem__, refused)
    head["unlisted"] = len(bytes_of) - len(listed)
    return PageState(
        head=head,
        devices={each.id: _finished_device(each, refused) for each in result.devices if each.id in listed},
        history=tuple(round_row(entry, alone=alone.get(entry.round), learners=learners) for entry in result.history),
        ledger=ledger_values(
            bytes_up=up,
            bytes_down=down,
            updates=result.updates,
            refused_frames=result.refused_frames,
            refused_devices=result.refused_devices,
            warnings=result.warnings,
        ),
        missed=result.missed[-MOST_MISSED:],
        measured=tuple((entry.round, entry.accuracy) for entry in result.history if entry.accuracy),
    )


def _finished_device(device: DeviceResult, refused: Mapping[str, Mapping[str, str]]) -> PlainRow:
    note = refused.get(device.id)
    state = "refused" if note else ("done" if device.joined else "never joined")
    why = f"{note['message']}; {note['remedy']}" if note else ""
    declared = [(figure, figure.of(device)) for figure in page_figures()]
    return device_row(
        **{"id": device.id, "accuracy": device.accuracy, "global": device.metrics.get("global_accuracy")},
        state=state,
        why=why,
        round=device.rounds_done,
        class_counts=[*device.class_counts] or None,
        **{figure.name: (value or None) if figure.sparse else value for figure, value in declared},
    )


def progress_state(found: Mapping[str, Any], where: str) -> PageState:
    """Return the state of a run that another process carries out, from its progress.json."""
    accuracy = found.get("accuracy", {})
    text = f"{found['method']}, round {of_rounds(found['round'], found['rounds'])}, as its progress.json shows"
    head = {
        **{name: found[name] for name in ("federation", "method", "seed", "round", "rounds", "expected")},
        "state": "followed",
        "text": text,
        "part": found.get("part", ""),
        "where": where,
        "clock": "none",
        "now_s": 0.0,
        "here": found["devices"],
        "accuracy": accuracy.get("mean"),
        "accuracy_round": accuracy.get("round"),
        "bytes_up": found["bytes"]["up_total"],
        "bytes_down": found["bytes"]["down_total"],
        "unlisted": max(0, found["devices"] - len(found["per_device"])),
    }
    devices = {
        each["id"]: device_row(
            **{name: each[name] for name in ("id", "bytes_up", "bytes_down")},
            state="joined",
            accuracy=each.get("accuracy"),
            round=each["rounds_done"],
        )
        for each in found["per_device"]
    }
    ledger = ledger_values(
        bytes_up=found["bytes"]["up_total"],
        bytes_down=found["bytes"]["down_total"],
        updates=found["updates"],
        refused_frames=found.get("refused_frames", {}),
        refused_devices=found["refused_devices"],
        months=found.get("months", ()),
    )
    return PageState(head=head, devices=devices, ledger=ledger)


SETTLED = 64
"""Rounds after which devices no longer measure a round."""


class HistoryRows:
    """The rows of `history` of a running run.

    One of the last SETTLED rows is made again where something was measured since; those before stay as they are.
    """

    def __init__(self) -> None:
        self._made: list[tuple[tuple[int, ...], PlainRow]] = []
        self._first = 1

    def rows(
        self, rounds: list[RoundResult], curves: Callable[[str], Mapping[int, Mapping[str, Any]]]
    ) -> tuple[PlainRow, ...]:
        """Return one row a round; curves: returns by round what was measured, by the name of a curve."""
        first = rounds[0].round if rounds else 1
        if len(rounds) < len(self._made) or first != self._first:  # another run, or the oldest rounds were forgotten
            self._made, self._first = [], first
        found: dict[str, Mapping[int, Any]] = {name: curves(name) for name in (*CURVES, "instruments")}
        begin = max(0, len(self._made) - SETTLED)
        for place, entry in enumerate(rounds[begin:], begin):
            measured: dict[str, Any] = {name: by_round.get(entry.round, {}) for name, by_round in found.items()}
            size = tuple(len(each) for each in measured.values())
            if place < len(self._made) and self._made[place][0] == size:
                continue
            row = round_row(replace(entry, **measured))
            self._made[place : place + 1] = [(size, row)]
        return tuple(row for _, row in self._made)


class MeasuredRounds:
    """The accuracies of all devices by round, copied as they come: other threads read them."""

    def __init__(self) -> None:
        self._copied: dict[int, Mapping[str, float]] = {}

    def rounds(self, found: Mapping[int, Mapping[str, float]]) -> tuple[Measured, ...]:
        """Return a copy of what was found; a round's is made again only where devices were measured since."""
        self._copied = {
            number: self._copied[number] if len(self._copied.get(number, ())) == len(values) else dict(values)
            for number, values in sorted(found.items())
        }
        return tuple(self._copied.items())


def _mean(values: Iterable[float]) -> float | None:
    found = [*values]
    return statistics.fmean(found) if found else None
