"""The terminal table, with rich and without, and units as people read them."""

import dataclasses
import io
import itertools
import sys

import pytest
import synthetic

from coordinator.report import table
from coordinator.report.table import COLUMNS, human_bytes, render, rows, show
from coordinator.report.units import human_seconds, percent, printable


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (1540, "1.5 kB"),
        (99_949, "99.9 kB"),
        (99_951, "100 kB"),
        (999_499, "999 kB"),
        (999_501, "1.0 MB"),
        (20_972_464, "21.0 MB"),
        (3.2e9, "3.2 GB"),
        (5e15, "5000 TB"),
        (12.6, "13 B"),
    ],
)
def test_bytes(count, words):
    assert human_bytes(count) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0.00 s"),
        (0.417, "0.42 s"),
        (12.34, "12.3 s"),
        (59.7, "1 min 00 s"),
        (200, "3 min 20 s"),
        (7499, "2 h 04 min"),
        (86400, "24 h 00 min"),
    ],
)
def test_seconds(seconds, words):
    assert human_seconds(seconds) == words


def test_percent_and_printable():
    assert percent(0.88312) == "88.3 %"
    assert printable("a\x1b[31mb\nc") == "a?[31mb?c"
    assert printable("Gerät-7 ünïcode") == "Gerät-7 ünïcode"


def small(**changes):
    result = synthetic.result(count=2, rounds=1)
    first = dataclasses.replace(
        result.devices[0],
        class_counts=(5, 0, 0, 0, 9, 0, 0, 1),
        samples=15,
        standalone_accuracy=0.25,
        accuracy=0.75,
        bytes_up=1500,
        bytes_down=2_500_000,
        note="extractor frozen",
    )
    second = dataclasses.replace(
        result.devices[1],
        learns=False,
        class_counts=(),
        samples=5,
        standalone_accuracy=None,
        accuracy=None,
        bytes_up=500,
        bytes_down=0,
        note="extractor frozen",
    )
    return dataclasses.replace(result, **{"devices": (first, second)} | changes)


def test_a_row_by_hand():
    first, second, mean = rows(small())
    board, model = "rpi4", "cnn-16-32"
    gain = ("25.0 %", "75.0 %", "+50.0")
    assert first == ("device-0", board, model, "torch", "0 4 7", "15", *gain, "1.5 kB", "2.5 MB")
    assert second[3:9] == ("numpy (teaches)", "withheld", "5", "-", "-", "-")
    assert mean == ("mean", "", "", "", "", "10", *gain, "1.0 kB", "1.2 MB")


def test_who_never_joined_is_no_teacher():
    absent = dataclasses.replace(small().devices[0], runtime="", joined=False)
    assert rows(small(devices=(absent,)))[0][3] == "never joined"


def test_rows_stand_in_number_order_and_many_classes_are_counted():
    result = synthetic.result()
    shuffled = dataclasses.replace(result, devices=tuple(reversed(result.devices)))
    assert rows(shuffled) == rows(result)
    many = dataclasses.replace(result.devices[0], class_counts=(1,) * 60 + (0,) * 40)
    assert rows(dataclasses.replace(result, devices=(many,)))[0][4] == "60 of 100"
    none = dataclasses.replace(result.devices[0], class_counts=(0, 0))
    assert rows(dataclasses.replace(result, devices=(none,)))[0][4] == "none"


def test_plain_text_is_aligned():
    lines = render(synthetic.result()).splitlines()
    head, rule = lines[0], lines[1]
    assert head.split() == list(COLUMNS)
    assert set(rule) == {"-", " "}
    edges = [index for index, (here, after) in enumerate(itertools.pairwise(rule)) if here + after == "- "]
    for line in lines[2:10]:
        assert len(line) == len(rule)
        assert all(line[edge + 1 : edge + 3] == "  " for edge in edges)
    assert lines[11].startswith("mean")
    assert all(line == line.rstrip() for line in lines)


def test_the_verdict_and_what_a_reader_must_know():
    text = render(
        small(
            updates={"accepted": 9, "duplicate": 2, "stale": 0, "refused": 1},
            refused_frames={"device-9": {"checksum": 3, "limit": 1}},
            refused_devices=(
                {"device": "old", "reason": "version", "message": "speaks 0", "remedy": "upgrade it"},
                {"device": "mute"},
            ),
            warnings=("a term had no effect",),
            completed=False,
            rounds_done=0,
            reason="quorum lost",
        )
    )
    verdict = (
        "mean accuracy 25.0 % alone -> 75.0 % federated (+50.0 points); 2.0 kB sent, 2.5 MB received; "
        "6.4 s here, 4 min 10 s on the boards' clock; uploads not taken: 2 duplicate, 1 refused"
    )
    for line in (
        verdict,
        "ended early after 0 of 1 rounds: quorum lost",
        "device old was not let in (version: speaks 0); upgrade it",
        "device mute was not let in",
        "refused frames from device-9: 3 checksum, 1 limit",
        "warning: a term had no effect",
        "note on device-0, device-1: extractor frozen",
    ):
        assert line in text.splitlines()


def test_the_verdict_where_little_is_known():
    result = small()
    alone_unknown = dataclasses.replace(result.devices[0], standalone_accuracy=None)
    assert "mean accuracy 75.0 %;" in render(dataclasses.replace(result, devices=(alone_unknown,)))
    unmeasured = dataclasses.replace(result, devices=result.devices[1:], time={})
    assert "no device was evaluated; 500 B sent, 0 B received\n" in render(unmeasured)
    empty = render(dataclasses.replace(result, devices=(), completed=False, reason=""))
    assert "no reason was given" in empty


def test_without_rich_the_text_is_plain(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich", None)
    stream = io.StringIO()
    show(small(), stream)
    assert stream.getvalue() == render(small())


def test_with_rich_every_cell_and_line_is_there_and_nothing_is_markup():
    pytest.importorskip("rich")
    result = small(warnings=("[red]not markup[/red] " + "long " * 40,))
    loud = dataclasses.replace(result.devices[0], model="[bold]net[/bold]\x1b[31m")
    result = dataclasses.replace(result, devices=(loud, result.devices[1]))
    stream = io.StringIO()
    show(result, stream)
    text = stream.getvalue()
    assert "\x1b" not in text
    for cell in {cell for row in rows(result) for cell in row}:
        assert cell in text
    for line in table.footer(result):
        assert line.rstrip() in text


class Terminal(io.StringIO):
    def isatty(self):
        return True


def on_terminal(monkeypatch, result, columns):
    pytest.importorskip("rich")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = Terminal()
    show(result, stream)
    return stream.getvalue()


def test_on_a_terminal_rich_colours_the_gain(monkeypatch):
    assert "\x1b[32m+50.0\x1b[0m" in on_terminal(monkeypatch, small(), 160)


@pytest.mark.parametrize("columns", [60, 80, 100, 116, 117, 200])
def test_a_narrow_terminal_loses_columns_not_figures(monkeypatch, columns):
    text = on_terminal(monkeypatch, synthetic.result(), columns)
    drawn = "".join(text.split("mean accuracy")[0])
    assert "\N{HORIZONTAL ELLIPSIS}" not in drawn
    assert ("too narrow for runtime" in drawn) == (columns < 117)
    for row in rows(synthetic.result()):
        for name in ("device", "alone", "federated", "gain"):
            assert row[COLUMNS.index(name)] in drawn


def test_what_it_drew_and_who_was_waited_for_is_told():
    result = synthetic.result(count=8, rounds=20)
    told = "20.0 kJ drawn by all devices; waited longest for device-7, x86, wifi: 7.0 s"
    assert told in table.footer(result)
    unmetered = [dataclasses.replace(device, waited_s=0.5, energy_j=0.0) for device in result.devices]
    assert "drawn" not in render(dataclasses.replace(result, devices=tuple(unmetered)))
