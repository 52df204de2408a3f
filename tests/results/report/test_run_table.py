"""The table of a run, and units as people read them."""

import dataclasses

import pytest
import synthetic

from coordinator.record.units import human_bytes, human_seconds, percent, printable
from coordinator.results.figures.device_figures import shown_figures
from coordinator.results.report.run_table import run_table
from coordinator.results.report.summary import summary


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


def names():
    return [column.heading for _, column in shown_figures() if column.heading not in {"global", "steps", "alone steps"}]


def cells(row):
    """The cells of a row by the names of their columns."""
    return dict(zip(names(), row, strict=True))


def test_a_row_by_hand():
    table = run_table(small())
    first, second = table.rows
    board, model = "rpi4", "cnn-16-32"
    gain = ("25.0 %", "75.0 %", "+50.0")
    assert first == ("device-0", board, model, "torch", "0 4 7", "15", *gain, "1.5 kB", "2.5 MB")
    assert second[3:9] == ("numpy (teaches)", "withheld", "5", "-", "-", "-")
    assert table.last == ("mean", "", "", "", "", "10", *gain, "1.0 kB", "1.2 MB")


def test_who_never_joined_is_no_teacher():
    absent = dataclasses.replace(small().devices[0], runtime="", joined=False)
    (row,) = run_table(small(devices=(absent,))).rows
    assert "joined" in cells(row)["runtime"]
    assert "teaches" not in cells(row)["runtime"]


def test_rows_stand_in_number_order_and_many_classes_are_counted():
    result = synthetic.result()
    shuffled = dataclasses.replace(result, devices=tuple(reversed(result.devices)))
    assert run_table(shuffled).rows == run_table(result).rows

    def classes(counts):
        device = dataclasses.replace(result.devices[0], class_counts=counts)
        (row,) = run_table(dataclasses.replace(result, devices=(device,))).rows
        return cells(row)["classes"]

    assert classes((1,) * 60 + (0,) * 40) == "60 of 100"
    assert classes((0, 0)) == "none"


def test_the_verdict_has_accuracies_bytes_times_and_uploads():
    verdict = run_table(small(updates={"accepted": 9, "duplicate": 2, "stale": 0, "refused": 1})).headline
    for part in ("25.0 %", "75.0 %", "+50.0", "2.0 kB", "2.5 MB", "6.4 s", "4 min 10 s", "2 duplicate", "1 refused"):
        assert part in verdict
    assert "9" not in verdict
    assert "stale" not in verdict


def test_the_time_of_a_resumed_run_counts_since_then():
    time = {"wall_s": 37.0, "virtual_s": 120.0}
    once, resumed = (run_table(small(time=time, resumed=extra)).headline for extra in ({}, {"times": 1.0}))
    assert "; 37.0 s here, " in once
    assert "; 37.0 s here since it was resumed, " in resumed


def test_what_a_reader_must_know_stands_below():
    notes = run_table(
        small(
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
    ).notes
    expected = (
        ("0 of 1 rounds", "quorum lost"),
        ("old", "version", "speaks 0", "upgrade it"),
        ("mute",),
        ("device-9", "3 messages", "(checksum)", "1 message ", "(limit)"),
        ("warning", "a term had no effect"),
        ("device-0, device-1", "extractor frozen"),  # what two devices share is said once
    )
    for parts in expected:
        assert sum(all(part in line for part in parts) for line in notes) == 1


def test_the_verdict_where_little_is_known():
    result = small()
    alone_unknown = dataclasses.replace(result.devices[0], standalone_accuracy=None)
    verdict = run_table(dataclasses.replace(result, devices=(alone_unknown,))).headline
    assert "75.0 %" in verdict
    assert "alone" not in verdict
    unmeasured = run_table(dataclasses.replace(result, devices=result.devices[1:], time={})).headline
    assert "%" not in unmeasured
    assert "500 B sent" in unmeasured
    empty = run_table(dataclasses.replace(result, devices=(), completed=False, reason=""))
    assert any("no reason" in line for line in empty.notes)


def test_what_it_drew_and_who_was_waited_for_is_told():
    result = synthetic.result(count=8, rounds=20)
    (told,) = (line for line in run_table(result).notes if "waited longest" in line)
    for part in ("20.0 kJ", "device-7", "x86", "wifi", "7.0 s"):
        assert part in told
    unmetered = [dataclasses.replace(device, waited_s=0.5, energy_j=0.0) for device in result.devices]
    notes = run_table(dataclasses.replace(result, devices=tuple(unmetered))).notes
    assert not any("drawn" in line or "waited" in line for line in notes)


def test_without_a_run_alone_models_are_compared_with_those_that_joined():
    result = small()
    first, second = (dataclasses.replace(device, standalone_accuracy=None) for device in result.devices)
    first = dataclasses.replace(first, joining={"accuracy": 0.5, "local_accuracy": 0.1})
    table = run_table(dataclasses.replace(result, devices=(first, second)))
    names = [column.name for column in table.columns]
    before = names.index("as shipped")
    assert names[before : before + 3] == ["as shipped", "now", "change"]
    assert table.rows[0][before : before + 3] == ("50.0 %", "75.0 %", "+25.0")
    assert table.rows[1][before : before + 3] == ("-", "-", "-")
    assert table.last[before : before + 3] == ("50.0 %", "75.0 %", "+25.0")
    assert "50.0 % as shipped -> 75.0 % now (+25.0 points)" in table.headline
    (cause,) = [line for line in table.notes if line.startswith("change: ")]
    assert "own training and the federation together" in cause


def test_a_device_that_was_not_measured_when_it_joined_shows_what_it_has_now():
    result = small()
    first = dataclasses.replace(result.devices[0], standalone_accuracy=None, joining={"accuracy": 0.5})
    unknown = {"standalone_accuracy": None, "accuracy": None, "learns": True, "joining": {}}
    second = dataclasses.replace(result.devices[1], **unknown, metrics={"validation_accuracy": 0.923})
    table = run_table(dataclasses.replace(result, devices=(first, second)))
    before = [column.name for column in table.columns].index("as shipped")
    assert table.rows[1][before : before + 3] == ("-", "92.3 %", "-")
    assert "(+25.0 points, 1 of 2 devices)" in table.headline


def test_devices_that_only_measure_on_samples_of_their_own_were_evaluated():
    """Before, the headline said that no device was evaluated, beside 92.3 % on the classes that each device holds."""
    result = small(metrics={"local_accuracy_mean": 0.923})
    device = dataclasses.replace(
        result.devices[0], standalone_accuracy=None, accuracy=None, metrics={"local_accuracy": 0.923}
    )
    table = run_table(dataclasses.replace(result, devices=(device,)))
    assert "mean accuracy 92.3 % of the devices' own models, each on held-out samples of its own" in table.headline
    federated = [column.name for column in table.columns].index("federated")
    assert table.rows[0][federated] == table.last[federated] == "92.3 %"


@pytest.mark.parametrize(
    ("metrics", "joining", "pair"),
    [
        ({"validation_accuracy": 0.9}, {"validation_accuracy": 0.5}, (0.5, 0.9)),
        ({"local_accuracy": 0.8, "validation_accuracy": 0.9}, {"validation_accuracy": 0.5}, (0.5, 0.9)),
        ({"local_accuracy": 0.8}, {"validation_accuracy": 0.5}, None),
        ({}, {}, None),
    ],
)
def test_models_are_compared_on_the_same_samples(metrics, joining, pair):
    device = dataclasses.replace(small().devices[0], accuracy=None, metrics=metrics, joining=joining)
    assert device.since_joining == pair


def test_each_board_says_what_its_devices_had_before_and_have_now():
    """A board of which one device's start is unknown is not compared with fewer devices."""
    one = dataclasses.replace(small().devices[0], standalone_accuracy=None, joined=True, learns=True)
    rows = [("nano", 0.2, 0.4), ("nano", 0.4, 0.6), ("rpi4", 0.3, 0.8), ("rpi4", None, 0.6)]
    devices = tuple(
        dataclasses.replace(
            one, id=f"d{place}", board=board, accuracy=now, joining={} if before is None else {"accuracy": before}
        )
        for place, (board, before, now) in enumerate(rows)
    )
    result = dataclasses.replace(small(), devices=devices)
    found = summary(result)
    assert found["by_board"] == {
        "nano": {"devices": 2, "before_mean": pytest.approx(0.3), "now_mean": pytest.approx(0.5)},
        "rpi4": {"devices": 2, "now_mean": pytest.approx(0.7)},
    }
    assert "by_model" not in found
    assert "by board: nano (2) 30.0 % before -> 50.0 % now; rpi4 (2) 70.0 % now" in run_table(result).notes
