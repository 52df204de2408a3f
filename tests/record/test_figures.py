"""A figure of a device is declared once, and shows wherever figures show."""

from __future__ import annotations

import dataclasses
import json
import re
import runpy
from pathlib import Path

import pytest
import synthetic

from coordinator.record import saved_record
from coordinator.record.round_result import CURVES, RoundResult
from coordinator.record.run_record import RunRecord
from coordinator.results.document.values import run_section
from coordinator.results.figures import device_figures as figures
from coordinator.results.figures import round_figures as round_figures_module
from coordinator.results.figures import run_figures
from coordinator.results.figures.columns import FigureColumn
from coordinator.results.figures.compared_figures import COMPARED_ACCURACIES, COMPARED_COSTS
from coordinator.results.figures.device_figures import Figure
from coordinator.results.figures.result import DeviceResult, Result
from coordinator.results.figures.round_figures import ROUND_FIGURES, RoundFigure, counters
from coordinator.results.figures.run_figures import RunFigure
from coordinator.results.page import values
from coordinator.results.report.run_files import read_run, run_tables, write_run
from coordinator.results.report.run_table import run_table
from coordinator.results.report.tables import plain_text
from coordinator.results.writers.opening import round_figures

DOCS = Path(__file__).parents[2] / "docs"
SPINS = Figure(
    "spins",
    "How often its fan turned.",
    "cost",
    by="device",
    unit="turns",
    summed=True,
    by_round=True,
    sparse=True,
    column=FigureColumn("fan", say="{:.0f} turns".format),
    page="Fan",
)


def test_a_figure_that_is_declared_once_shows_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "DEVICE_FIGURES", (*figures.DEVICE_FIGURES, SPINS))
    record = RunRecord()
    record.add("spins", "device-0", 3)  # where it is measured
    record.add("spins", "device-0", 4)
    record.round_done(contributors=2, exchanges=1, now_s=1.0)
    history = {int(number): noted for number, noted in json.loads(json.dumps(saved_record.new_history(record))).items()}
    again = saved_record.from_json(json.loads(json.dumps(saved_record.to_json(record))), history)
    again.add("spins", "device-1", 5)
    again.round_done(contributors=2, exchanges=1, now_s=2.0)
    assert again.sums["spins"] == {"device-0": 7, "device-1": 5}
    assert [entry.sums for entry in again.rounds] == [{"spins": 7}, {"spins": 5}]

    whole = synthetic.result(count=2, rounds=1)
    first = dataclasses.replace(whole.devices[0], sums={"spins": again.sums["spins"]["device-0"]})
    entry = dataclasses.replace(whole.history[0], sums=again.rounds[0].sums)
    whole = dataclasses.replace(whole, devices=(first, whole.devices[1]), history=(entry,))
    write_run(whole, "", tmp_path)
    devices = json.loads((tmp_path / "summary.json").read_text())["per_device"]
    assert [device.get("spins") for device in devices] == [7, None]
    heads, *rows = (line.split(",") for line in (tmp_path / "devices.csv").read_text().splitlines())
    assert [row[heads.index("spins")] for row in rows] == ["7", "0"]
    assert (tmp_path / "rounds.csv").read_text().splitlines()[0].endswith(",spins")
    found = read_run(tmp_path)
    assert (found.devices[0].sums, found.history[0].sums) == ({"spins": 7}, {"spins": 7})
    assert round_figures(found.history[0], record)["devices/spins"] == 7
    assert "devices/spins" in counters()

    assert all("spins" in run_tables(whole)[name][0] for name in ("rounds", "devices"))  # the notebook's frames

    table = plain_text(run_table(whole)).splitlines()
    assert table[0].endswith("fan")
    assert [line.rsplit("  ", 1)[-1] for line in (*table[2:4], table[5])] == ["7 turns", "0 turns", "4 turns"]
    shown = run_section(whole, "run", "", "a").tables[0]
    assert [row[shown.columns.index(("fan", True))].text for row in shown.rows] == ["7 turns", "0 turns"]
    for columns in (values.device_columns, values.round_columns, values._of_round):  # made once in a process
        monkeypatch.setattr(values, columns.__name__, columns.__wrapped__)
    state = values.finished_state(whole, "run").plain()
    assert ("spins", "Fan", "turns", False, True) in state["device_facts"]
    assert ("spins", "Fan", "turns", False, True) in state["round_facts"]
    place, place_of_round = state["device_columns"].index("spins"), state["round_columns"].index("spins")
    assert [row[place] for row in state["devices"]] == [7, None]
    assert [row[place_of_round] for row in state["history"]] == [7]
    page = runpy.run_path(str(DOCS / "gen_figures.py"))["page"]()
    assert "| `spins` * | turns | device | both | fan | How often its fan turned. |" in page
    assert "| `spins` | turns | `devices/spins` + |  | How often its fan turned. |" in page


def test_a_figure_of_a_round_that_is_declared_once_shows_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bursts = RoundFigure(
        "bursts", "Bursts of frames.", "sum", later=True, column=FigureColumn("bursts"), page="Bursts", writer="bursts"
    )
    monkeypatch.setattr(round_figures_module, "ROUND_FIGURES", (*ROUND_FIGURES, bursts))
    record = RunRecord()
    record.add_to_round("bursts", 2)  # where it is counted
    record.add_to_round("bursts", 1)
    record.round_done(contributors=2, exchanges=1, now_s=1.0)
    record.round_done(contributors=2, exchanges=1, now_s=2.0)
    assert [entry.sums for entry in record.rounds] == [{"bursts": 3}, {}]
    whole = synthetic.result(count=2, rounds=1)
    entry = dataclasses.replace(whole.history[0], sums=record.rounds[0].sums)
    write_run(dataclasses.replace(whole, history=(entry,)), "", tmp_path)
    found = read_run(tmp_path)
    assert found.history[0].sums == {"bursts": 3}
    assert round_figures(found.history[0], record)["bursts"] == 3
    monkeypatch.setattr(values, "round_columns", values.round_columns.__wrapped__)
    monkeypatch.setattr(values, "_of_round", values._of_round.__wrapped__)
    state = values.finished_state(found, "run").plain()
    assert [row[state["round_columns"].index("bursts")] for row in state["history"]] == [3]
    page = runpy.run_path(str(DOCS / "gen_figures.py"))["page"]()
    assert "| `bursts` |  | `bursts` | bursts | Bursts of frames. |" in page


def test_what_runs_are_compared_by_stands_in_their_summaries() -> None:
    compared = (*COMPARED_ACCURACIES, *COMPARED_COSTS)
    assert len({each.name for each in compared}) == len(compared)
    entries = {each.name for each in run_figures.RUN_FIGURES}
    assert {each.place.partition(".")[0] for each in compared} <= entries


def test_a_figure_of_a_run_that_is_declared_once_is_in_its_summary_and_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = RunFigure(
        "best", "The best device.", value=lambda run: max(device.id for device in run.devices), sparse=True
    )
    monkeypatch.setattr(run_figures, "RUN_FIGURES", (*run_figures.RUN_FIGURES, best))
    whole = synthetic.result(count=2, rounds=1)
    write_run(whole, "", tmp_path)
    assert json.loads((tmp_path / "summary.json").read_text())["best"] == "device-1"
    assert read_run(tmp_path).method == whole.method
    assert "| `best` * |  | The best device. |" in runpy.run_path(str(DOCS / "gen_figures.py"))["page"]()


def test_what_is_read_back_from_a_summary_is_a_field_of_the_result() -> None:
    fields = {field.name for field in dataclasses.fields(Result)}
    assert {each.name for each in run_figures.RUN_FIGURES if each.read} <= fields


def test_every_field_is_a_figure() -> None:
    of_devices, of_rounds = ([each.name for each in table] for table in (figures.DEVICE_FIGURES, ROUND_FIGURES))
    assert len(set(of_devices)) == len(of_devices)
    assert len(set(of_rounds)) == len(of_rounds)
    assert {field.name for field in dataclasses.fields(DeviceResult)} - {"sums"} <= set(of_devices)
    elsewhere = {"sums", "instruments", *CURVES}  # instruments.csv and accuracy.csv have them
    assert {field.name for field in dataclasses.fields(RoundResult)} - elsewhere <= set(of_rounds)


def test_a_summed_figure_of_a_restart_starts_where_it_was() -> None:
    older = {name: value for name, value in saved_record.to_json(RunRecord()).items() if name not in figures.summed()}
    record = saved_record.from_json({**older, "withheld": {"a": 2}}, {})  # a ledger from before there were more
    record.diverged("a", "the loss was nan")
    record.diverged("b", "the loss was nan")
    assert record.sums["withheld"] == {"a": 3, "b": 1}
    assert not record.sums["silent"]


def test_what_the_coordinator_adds_up_is_declared() -> None:
    """The record takes any name: one that nobody declares would be counted and never shown."""
    sources = [path.read_text(encoding="utf-8") for path in (DOCS.parent / "coordinator").rglob("*.py")]
    added = {name for source in sources for name in re.findall(r"(?:record|self)\.add\(\"(\w+)\"", source)}
    assert "not_served" in added
    assert added <= set(figures.summed())
