"""A run of many devices: pictures are histograms, the document has percentiles, and the summary a line a device."""

import csv
import json

import pytest
import synthetic

from coordinator.results.document import values
from coordinator.results.plots import fleet_plots, plots
from coordinator.results.report.run_files import read_run, write_run
from coordinator.results.report.summary import summary, summary_text

pytestmark = pytest.mark.draws

NAMES = tuple(fleet_plots.BY_DEVICE)


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def many():
    return synthetic.result(count=fleet_plots.MOST_LISTED + 1, rounds=2)


def test_pictures_of_many_devices_are_histograms_of_all_of_them(many, tmp_path):
    pytest.importorskip("matplotlib")
    paths = plots.draw_run(many, tmp_path, only=NAMES)
    assert [path.stem for path in paths] == [*NAMES]
    counted = {path.stem: rows(path.with_suffix(".csv")) for path in paths}
    for name in NAMES[:3]:
        for figure in {row["figure"] for row in counted[name]}:
            assert sum(int(row["devices"]) for row in counted[name] if row["figure"] == figure) == len(many.devices)
    held = [sum(device.class_counts[label] for device in many.devices) for label in range(synthetic.CLASSES)]
    assert [int(row["samples"]) for row in counted["samples_by_class"]] == held


def test_up_to_so_many_devices_have_a_row_each():
    few = synthetic.result(count=fleet_plots.MOST_LISTED, rounds=1)
    assert plots.run_drawings(few)["who_holds_what"].func is not fleet_plots.BY_DEVICE["who_holds_what"]


def test_pictures_of_many_devices_that_nobody_measured_and_that_withhold_their_classes(many, tmp_path):
    pytest.importorskip("matplotlib")
    bare = synthetic.result(
        devices=tuple(
            type(each)(id=each.id, number=each.number, board="", link="", model="", runtime="", note="", samples=3)
            for each in many.devices
        ),
        history=(),
        standalone_history=(),
    )
    assert len(plots.draw_run(bare, tmp_path, only=NAMES)) == len(NAMES)
    assert {row["devices"] for row in rows(tmp_path / "who_holds_what.csv")} == {"0", str(len(many.devices))}


def test_the_document_says_how_the_figures_of_many_devices_lie(many, monkeypatch):
    assert len(values.run_section(many, "r", "", "a").tables[0].rows) == len(many.devices)
    monkeypatch.setattr(values, "MOST_DEVICES", len(many.devices) - 1)
    table = values.run_section(many, "r", "", "a").tables[0]
    assert "devices.csv" in table.caption
    found = {row[0].text: [cell.sort for cell in row[1:]] for row in table.rows}
    accuracies = sorted(device.accuracy for device in many.devices)
    known, least, low, middle, high, greatest = found["federated"]
    assert (known, least, greatest) == (len(accuracies), accuracies[0], accuracies[-1])
    assert (low, middle, high) == pytest.approx((accuracies[10], accuracies[50], accuracies[90]))


def test_a_summary_has_a_line_for_each_device(many, tmp_path):
    whole = summary(many)
    text = summary_text(whole)
    assert json.loads(text) == whole
    assert sum('"id": "device-' in line for line in text.splitlines()) == len(many.devices)
    assert json.loads(summary_text(whole | {"per_device": []}))["per_device"] == []
    write_run(many, "", tmp_path)
    assert read_run(tmp_path).devices == many.devices
