"""The pictures: drawn for plain and for odd runs, the same bytes each time, and without them a clear word."""

import csv
import dataclasses
import sys

import pytest
import synthetic

from coordinator.record.units import human_bytes
from coordinator.results.plots import device_plots, drawing, plots
from coordinator.results.report.run_files import write_run
from edge_sdk.cli import main
from edge_sdk.errors import MissingExtra, StoreError

pytestmark = pytest.mark.draws

NAMES = [
    "accuracy_by_round.png",
    "devices_alone_federated.png",
    "bytes_by_direction.png",
    "who_holds_what.png",
    "samples_by_class.png",
    "who_was_waited_for.png",
    "own_task_by_round.png",
    "accuracy_by_bytes.png",
    "accuracy_by_time.png",
    "accuracy_by_energy.png",
]
PNG = b"\x89PNG\r\n\x1a\n"


def size(path):
    """Width and height in pixels, and pixels per inch, from the file itself."""
    data = path.read_bytes()
    assert data.startswith(PNG)
    unit = data.index(b"pHYs") + 4
    per_metre = int.from_bytes(data[unit : unit + 4], "big")
    return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big"), round(per_metre * 0.0254)


def words(figure):
    """All visible words of a figure."""
    text = pytest.importorskip("matplotlib.text").Text
    return {found.get_text() for found in figure.findobj(text) if found.get_visible()}


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """A result, its pictures as files, and the words of each picture after it was rendered, by name."""
    figure = pytest.importorskip("matplotlib.figure").Figure
    result, found = synthetic.result(), {}
    real = figure.savefig

    def savefig(self, path, **options):
        real(self, path, **options)
        found[path.stem] = words(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figure, "savefig", savefig)
        paths = plots.draw_run(result, tmp_path_factory.mktemp("drawn") / "plots")
    return result, paths, found


def test_every_picture_is_a_png_and_an_svg(drawn):
    _, paths, _ = drawn
    assert [path.name for path in paths] == NAMES
    for path in paths:
        width, height, dpi = size(path)
        assert dpi == 150
        assert width > 700
        assert height > 300
        assert "<svg" in path.with_suffix(".svg").read_text()


def test_the_pictures_say_what_they_show(drawn):
    result, _, found = drawn
    mean = sum(device.accuracy for device in result.devices) / 8
    accuracy, by_time, by_energy = (found[f"accuracy_by_{of}"] for of in ("round", "time", "energy"))
    assert f"fedal {100 * mean:.1f} %" in accuracy & by_time & by_energy
    assert any(text.startswith("alone ") for text in accuracy)
    assert {"alone", "federated", "device-3", "resnet-tiny \N{MIDDLE DOT} torch"} <= found["devices_alone_federated"]
    assert any(text.startswith("sent: ") for text in found["bytes_by_direction"])
    assert {"class", "samples", "device-7"} <= found["who_holds_what"]
    assert {"class", "device-7", str(max(result.devices[0].class_counts))} <= found["samples_by_class"]
    assert {"AMP", "FM", "WLP", "fedal"} <= found["own_task_by_round"]
    assert {"10.0 kJ", "drawn by all devices so far"} <= by_energy
    assert {"device-7 \N{MIDDLE DOT} wifi \N{MIDDLE DOT} x86", "7 s"} <= found["who_was_waited_for"]
    for text in found.values():
        assert any("digits-demo \N{MIDDLE DOT} fedal \N{MIDDLE DOT} 8 devices" in line for line in text)


def test_drawing_leaves_no_global_state(tmp_path):
    mpl = pytest.importorskip("matplotlib")
    before = dict(mpl.rcParams)
    device_plots.bytes_by_direction(synthetic.result(count=2), tmp_path / "p.png")
    assert dict(mpl.rcParams) == before
    assert pytest.importorskip("matplotlib.pyplot").get_fignums() == []


def test_a_long_subtitle_goes_on_in_a_second_line(tmp_path, figures):
    for name in ("short", "long " * 30 + "name"):
        result = synthetic.result(count=2, rounds=2, federation=name)
        device_plots.devices_alone_federated(result, tmp_path / "p.png")
    heights = [figure.get_size_inches()[1] for figure in figures]
    lines = [figure.texts[1].get_text().count("\n") + 1 for figure in figures]
    assert lines == [1, 2]
    assert heights[1] > heights[0]


def test_the_same_run_gives_the_same_bytes(tmp_path):
    pytest.importorskip("matplotlib")
    for name in ("one.png", "two.png"):
        device_plots.bytes_by_direction(synthetic.result(count=3), tmp_path / name)
    for suffix in (".png", ".svg"):
        one, two = ((tmp_path / name).with_suffix(suffix) for name in ("one.png", "two.png"))
        assert one.read_bytes() == two.read_bytes()


def test_what_is_not_known_is_said(tmp_path, figures):
    result = synthetic.result(count=3, rounds=1, history=(), standalone_history=())
    shy = dataclasses.replace(result.devices[0], class_counts=(), accuracy=None, standalone_accuracy=None, waited_s=0.0)
    teacher = dataclasses.replace(result.devices[1], learns=False, model="a$b$" + "x" * 60, waited_s=0.0)
    absent = dataclasses.replace(result.devices[2], runtime="", joined=False, waited_s=0.0)
    result = dataclasses.replace(result, devices=(shy, teacher, absent), completed=False, rounds_done=0)
    plots.draw_run(result, tmp_path)
    accuracy, devices, _, classes, heat, own_task, _, by_time, by_energy = map(words, figures)  # no round waited
    assert "no accuracy was measured" in accuracy
    assert any("0 of 1 round" in text for text in accuracy)
    assert "not measured" in devices
    assert any(text.startswith("a$b$x") and text.endswith("teaches only") and len(text) < 60 for text in devices)
    assert f"{absent.model} \N{MIDDLE DOT} never joined" in devices
    assert "withheld by its owner" in classes & heat
    assert "no accuracy was measured" in own_task & by_time & by_energy


def test_a_device_that_never_measured_leaves_panels_empty(tmp_path):
    """Such as one that declined every round: figures over all devices are not known then."""
    result = synthetic.result(count=2, rounds=2)
    absent = result.devices[1].id
    history = tuple(
        dataclasses.replace(
            entry,
            accuracy={name: value for name, value in entry.accuracy.items() if name != absent},
            local_accuracy={name: value for name, value in entry.local_accuracy.items() if name != absent},
        )
        for entry in result.history
    )
    paths = plots.draw_run(dataclasses.replace(result, history=history), tmp_path)
    assert [path.name for path in paths] == NAMES


def test_without_joules_there_is_no_picture_of_them(tmp_path, figures):
    result = synthetic.result(count=2, rounds=2)
    history = tuple(dataclasses.replace(entry, device_j=0.0) for entry in result.history)
    devices = tuple(dataclasses.replace(device, energy_j=0.0) for device in result.devices)
    paths = plots.draw_run(dataclasses.replace(result, history=history, devices=devices), tmp_path)
    assert [path.name for path in paths] == [name for name in NAMES if "energy" not in name]
    assert len(figures) == len(paths)
    assert not list(tmp_path.glob("accuracy_by_energy.*"))
    with (tmp_path / "accuracy_by_bytes.csv").open() as file:
        assert [row["device_j"] for row in csv.DictReader(file)] == ["", ""]


def test_without_a_standalone_run_there_is_no_empty_bar(tmp_path, figures):
    result = synthetic.result(count=2, rounds=2, standalone_history=())
    devices = tuple(dataclasses.replace(device, standalone_accuracy=None) for device in result.devices)
    device_plots.devices_alone_federated(dataclasses.replace(result, devices=devices), tmp_path / "p.png")
    assert "alone" not in words(figures[0])
    assert "federated" in words(figures[0])


@pytest.mark.parametrize("count", [0, 1, 300])
def test_any_number_of_devices_stays_in_bounds(tmp_path, count):
    pytest.importorskip("matplotlib")
    result = synthetic.result(count=max(count, 1), rounds=2)
    result = dataclasses.replace(result, devices=result.devices[:count])
    device_plots.who_holds_what(result, tmp_path / "p.png")
    width, height, _ = size(tmp_path / "p.png")
    assert max(width, height) <= drawing.MOST_IN * drawing.DPI


def test_names_never_touch():
    assert [drawing.label_step(count, 0.44) for count in (1, 50, 130, 300, 3000)] == [1, 1, 1, 3, 23]


def test_a_large_fleet_has_rows_for_the_few_that_stand_out(tmp_path, figures):
    result = synthetic.result(count=100, rounds=2)
    drawings = (
        device_plots.devices_alone_federated,
        device_plots.bytes_by_direction,
        device_plots.who_holds_what,
        device_plots.samples_by_class,
    )
    for draw in drawings:
        draw(result, tmp_path / "p.png")
        assert figures[-1].get_size_inches()[1] * drawing.DPI < 2200
    texts = [words(figure) for figure in figures]
    said = ("least accurate", "with most of them", "with most samples", "with most samples")
    for text, which in zip(texts, said, strict=True):
        assert any(f"here the {device_plots.MOST_ROWS} {which}" in line for line in text)
        assert sum(line.startswith("device-") for line in text) == device_plots.MOST_ROWS
    worst = sorted(result.devices, key=lambda device: device.accuracy)
    assert worst[0].id in texts[0]
    assert worst[-1].id not in texts[0]
    all_bytes = sum(device.bytes_up for device in result.devices)
    assert f"sent: {human_bytes(all_bytes)} in all" in texts[1]
    held = (tmp_path / "p.csv").read_text()
    assert all(f"{device.id}," in held for device in result.devices)


@pytest.mark.parametrize(
    ("most_s", "ticks"),
    [
        (70.0, ["0", "20 s", "40 s", "60 s"]),
        (150.0, ["0", "0.5 min", "1 min", "1.5 min", "2 min", "2.5 min"]),
        (385.0, ["0", "2 min", "4 min", "6 min"]),
        (9000.0, ["0", "0.5 h", "1 h", "1.5 h", "2 h", "2.5 h"]),
        (1e6, ["0", "5 d", "10 d"]),
        (0.9, ["0", "0.2 s", "0.4 s", "0.6 s", "0.8 s"]),
    ],
)
def test_an_axis_of_durations_has_one_unit(most_s, ticks):
    axes = pytest.importorskip("matplotlib.figure").Figure().add_subplot()
    axes.set_xlim(0, most_s)
    written = drawing.seconds_axis(axes, "time")
    assert written(most_s).endswith(ticks[-1].split()[-1])
    assert [label.get_text() for label in axes.get_xticklabels()] == ticks


@pytest.mark.parametrize(
    ("most", "examples"), [(160, [100, 50, 20]), (200, [200, 100, 20]), (7, [5, 2, 1]), (1, [1]), (3, [2, 1])]
)
def test_example_sizes_are_round_numbers(most, examples):
    assert device_plots.example_counts(most) == examples


def test_without_matplotlib_the_extra_is_named(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"edge-sdk\[coordinator\]"):
        plots.draw_run(synthetic.result(count=2), tmp_path)


@pytest.mark.parametrize("in_the_way", ["plots", "plots/accuracy_by_round.png/x"])
def test_a_report_that_cannot_be_drawn_shows_its_table_and_says_why(tmp_path, capsys, in_the_way):
    pytest.importorskip("matplotlib")
    write_run(synthetic.result(count=2, rounds=2), "", tmp_path)
    (tmp_path / in_the_way).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / in_the_way).touch()
    assert main(["report", str(tmp_path)]) == StoreError.exit_code
    shown, said = capsys.readouterr()
    assert "device-1" in shown
    assert said.count("\n") == 1
    assert said.startswith(f"edge-sdk: {tmp_path / 'plots'}: cannot write")


def test_a_class_of_a_very_long_name_is_cut_in_pictures_and_whole_in_tables(tmp_path, figures):
    """A name of thousands of characters, such as a sentence, made a picture too wide to be drawn in minutes."""
    result = synthetic.result(count=3, rounds=1)
    named = ("long " * 1000, *(f"class {i}" for i in range(1, len(result.devices[0].class_counts))))
    plots.draw_run(dataclasses.replace(result, class_names=named), tmp_path)
    assert max(len(text) for figure in figures for text in words(figure)) < 200
    assert "long " * 1000 in (tmp_path / "who_holds_what.csv").read_text()
