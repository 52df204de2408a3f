"""A run directory: what was written reads back the same, and a broken one is told in one line."""

import csv
import dataclasses
import json
import os

import pytest
import synthetic

from coordinator.results.figures.round_figures import csv_columns
from coordinator.results.report.run_files import read_run, write_run
from coordinator.results.report.summary import summary
from edge_sdk import cli
from edge_sdk.errors import StoreError, UsageError

NAMES = {
    "federation.toml",
    "summary.json",
    "rounds.csv",
    "devices.csv",
    "accuracy.csv",
    "instruments.csv",
    "missed.csv",
}


def measured_alone(result):
    """A result whose standalone line has accuracies, which a run directory keeps."""
    return dataclasses.replace(
        result,
        standalone_history=tuple(dataclasses.replace(entry, exchanges=0) for entry in result.standalone_history),
    )


def table(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_what_is_written_reads_back_the_same(tmp_path):
    result = synthetic.result(
        refused_frames={"device-9": {"checksum": 3}},
        refused_devices=({"device": "x", "reason": "capability", "message": 'lacks, "features"\nreally'},),
        warnings=("one, with a comma",),
        completed=False,
        reason="quorum lost",
    )
    write_run(result, "[federation]\n", tmp_path / "deep" / "run")
    assert {path.name for path in (tmp_path / "deep" / "run").iterdir()} == NAMES
    assert read_run(tmp_path / "deep" / "run") == measured_alone(result)
    assert (tmp_path / "deep" / "run" / "federation.toml").read_text() == "[federation]\n"


def test_declines_and_silence_are_counted_apart(tmp_path):
    whole = synthetic.result(count=2, rounds=2)
    devices = (dataclasses.replace(whole.devices[0], declined={"temperature": 2, "charging": 1}), whole.devices[1])
    devices = (devices[0], dataclasses.replace(devices[1], silent=1, joules_source="measured"))
    history = (dataclasses.replace(whole.history[0], declined={"charging": 1}, silent=1), whole.history[1])
    whole = dataclasses.replace(whole, devices=devices, history=history)
    write_run(whole, "", tmp_path)
    assert [row["declined"] for row in table(tmp_path / "devices.csv")] == ["charging 1; temperature 2", ""]
    assert [row["silent"] for row in table(tmp_path / "rounds.csv")] == ["1", "0"]
    assert [row["joules_source"] for row in table(tmp_path / "devices.csv")] == ["", "measured"]
    assert json.loads((tmp_path / "summary.json").read_text())["declined"] == {"charging": 1, "temperature": 2}
    again = read_run(tmp_path)
    assert [entry.declined for entry in again.history] == [{"charging": 1}, {}]
    assert [device.declined for device in again.devices] == [device.declined for device in whole.devices]


def test_unknown_accuracies_stay_unknown(tmp_path):
    result = synthetic.result(count=3, rounds=3)
    first = dataclasses.replace(result.devices[0], accuracy=None, standalone_accuracy=None, class_counts=())
    history = (dataclasses.replace(result.history[0], accuracy={}), *result.history[1:])
    result = dataclasses.replace(result, devices=(first, *result.devices[1:]), history=history, standalone_history=())
    write_run(result, "", tmp_path)
    assert read_run(tmp_path) == result
    assert table(tmp_path / "rounds.csv")[0]["accuracy_mean"] == ""
    cells = [cell for path in tmp_path.glob("*.csv") for row in table(path) for cell in row.values()]
    assert not {"nan", "NaN", "None", "null"} & set(cells)


def test_a_run_without_devices_or_rounds(tmp_path):
    result = synthetic.result(devices=(), history=(), standalone_history=(), completed=False, rounds_done=0)
    write_run(result, "", tmp_path)
    assert read_run(tmp_path) == result


def test_who_never_joined_learns_and_counts_in_no_mean(tmp_path):
    result = synthetic.result(count=2, rounds=1)
    absent = dataclasses.replace(result.devices[1], joined=False, accuracy=None)
    result = dataclasses.replace(result, devices=(result.devices[0], absent))
    write_run(result, "", tmp_path)
    assert [(row["learns"], row["joined"]) for row in table(tmp_path / "devices.csv")] == [("1", "1"), ("1", "0")]
    assert read_run(tmp_path) == result
    assert result.learners == {result.devices[0].id}


def test_what_nobody_metered_is_empty_not_zero(tmp_path):
    result = synthetic.result(count=2, rounds=2, transport="embedded")
    history = tuple(dataclasses.replace(r, device_flops=0, device_s=0.0, device_j=0.0) for r in result.history)
    devices = tuple(dataclasses.replace(device, busy_s=0.0, energy_j=0.0, flops=0) for device in result.devices)
    result = dataclasses.replace(result, history=history, devices=devices)
    write_run(result, "", tmp_path)
    for row in table(tmp_path / "rounds.csv"):
        assert (row["device_flops"], row["device_s"], row["device_j"]) == ("", "", "")
    for row in table(tmp_path / "devices.csv"):
        assert (row["flops"], row["busy_s"], row["energy_j"]) == ("", "", "")
    assert read_run(tmp_path) == result
    again = dataclasses.replace(result, devices=(dataclasses.replace(devices[0], energy_j=2.0), devices[1]))
    write_run(again, "", tmp_path)
    assert [row["energy_j"] for row in table(tmp_path / "devices.csv")] == ["2.0", "0.0"]  # it was off: that is known


def test_the_tables_hold_the_worked_figures(tmp_path):
    result = synthetic.result(count=2, rounds=2)
    a, b = (device.id for device in result.devices)
    history = tuple(
        dataclasses.replace(entry, accuracy={a: 0.25 * entry.round, b: 0.5}, bytes_up=10) for entry in result.history
    )
    devices = (dataclasses.replace(result.devices[0], class_counts=(4, 0, 6)), result.devices[1])
    write_run(dataclasses.replace(result, history=history, devices=devices), "", tmp_path)
    rounds = table(tmp_path / "rounds.csv")
    assert [float(row["accuracy_mean"]) for row in rounds] == [0.375, 0.5]
    assert [float(row["accuracy_std"]) for row in rounds] == [0.125, 0.0]
    assert [int(row["bytes_up"]) for row in rounds] == [10, 10]
    assert float(rounds[1]["standalone_mean"]) == summary(result)["accuracy"]["standalone_mean"]
    first = table(tmp_path / "devices.csv")[0]
    assert (first["classes"], first["class_counts"], first["learns"]) == ("0 2", "4 0 6", "1")
    assert [(row["round"], row["device"]) for row in table(tmp_path / "accuracy.csv")] == [
        ("1", a),
        ("1", b),
        ("2", a),
        ("2", b),
    ]


def test_writing_again_replaces_and_leaves_nothing_behind(tmp_path):
    write_run(synthetic.result(seed=1), "", tmp_path)
    write_run(synthetic.result(seed=2), "", tmp_path)
    assert read_run(tmp_path).seed == 2
    assert {path.name for path in tmp_path.iterdir()} == NAMES


def test_a_crash_while_writing_keeps_the_old_run_whole(tmp_path, monkeypatch):
    write_run(synthetic.result(seed=1), "", tmp_path)
    before = (tmp_path / "summary.json").read_bytes()
    real = os.fdopen

    def full_disk(descriptor, *arguments, **options):
        file = real(descriptor, *arguments, **options)
        file.write(b"half")
        file.flush()
        file.close()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fdopen", full_disk)
    with pytest.raises(StoreError, match="No space left"):
        write_run(synthetic.result(seed=2), "", tmp_path)
    assert (tmp_path / "summary.json").read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == NAMES


def test_a_file_in_the_way_is_told(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(UsageError, match="is a file"):
        write_run(synthetic.result(), "", tmp_path / "run")
    with pytest.raises(UsageError, match="is a file"):
        write_run(synthetic.result(), "", tmp_path / "run" / "below")


@pytest.mark.parametrize("missing", ["summary.json", "rounds.csv", "accuracy.csv"])
def test_a_missing_file_is_named(tmp_path, missing):
    write_run(synthetic.result(), "", tmp_path)
    (tmp_path / missing).unlink()
    with pytest.raises(UsageError, match=missing.replace(".", r"\.")) as caught:
        read_run(tmp_path)
    assert "\n" not in str(caught.value)


def test_no_run_directory_at_all(tmp_path):
    with pytest.raises(UsageError, match="not a run directory"):
        read_run(tmp_path / "nothing")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="not a run directory"):
        read_run(tmp_path / "file")


def edited(change):
    def apply(folder):
        whole = json.loads((folder / "summary.json").read_text())
        change(whole)
        (folder / "summary.json").write_text(json.dumps(whole))

    return apply


BROKEN = {
    "half of a json": lambda folder: (folder / "summary.json").write_text('{"version": 1'),
    "not utf-8": lambda folder: (folder / "summary.json").write_bytes(b"\xff\xfe"),
    "a list": lambda folder: (folder / "summary.json").write_text("[]"),
    "another version": edited(lambda whole: whole.update(version=2)),
    "no seed": edited(lambda whole: whole.pop("seed")),
    "devices of another kind": edited(lambda whole: whole.update(per_device=[3])),
    "a device without id": edited(lambda whole: whole["per_device"][0].pop("id")),
    "no column": lambda folder: (folder / "rounds.csv").write_text("round\n1\n"),
    "an empty table": lambda folder: (folder / "accuracy.csv").write_text(""),
    "a word for a number": lambda folder: (folder / "accuracy.csv").write_text(
        "round,device,accuracy,standalone_accuracy\none,a,0.5,\n"
    ),
    "half a row": lambda folder: (folder / "rounds.csv").write_text(",".join(csv_columns()) + "\n1,0.5\n"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_damaged_run_is_told_in_one_line(tmp_path, name):
    write_run(synthetic.result(count=2, rounds=2), "", tmp_path)
    BROKEN[name](tmp_path)
    with pytest.raises(UsageError) as caught:
        read_run(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def rewritten(change):
    """Changes the content of a file."""
    return lambda path: path.write_bytes(change(path.read_bytes()))


def without_last_line(content):
    return b"\n".join(content.split(b"\n")[:-2]) + b"\n"


CUT = [
    ("rounds.csv", rewritten(lambda content: content[:-20]), "line 4 is cut off"),
    ("rounds.csv", rewritten(lambda content: content[:-1]), "line 4 is cut off"),
    ("rounds.csv", rewritten(without_last_line), "ends after 2 of 3 rounds"),
    ("rounds.csv", rewritten(lambda content: content[:40]), "line 1 lacks the column"),
    ("rounds.csv", rewritten(lambda content: content[:0]), "is empty"),
    ("rounds.csv", rewritten(lambda content: content[:-9] + b"\x00\xff" * 4), "line 4 is not UTF-8"),
    ("rounds.csv", rewritten(lambda content: content[:-30] + bytes(29) + b"\n"), "line 4 is cut off"),
    ("accuracy.csv", rewritten(lambda content: content[:-3]), "line 7 is cut off"),
    ("accuracy.csv", rewritten(without_last_line), "has 1 of 2 accuracies after round 3"),
    ("instruments.csv", rewritten(lambda content: content + b"1,loss,dev"), "line 2 is cut off"),
    ("missed.csv", rewritten(lambda content: content + b"1,1,dev"), "line 2 is cut off"),
    ("summary.json", rewritten(lambda content: content[:60]), "line 4 is not JSON"),
    ("summary.json", rewritten(lambda content: content[:0]), "is empty"),
    ("summary.json", rewritten(lambda content: content[:0] + b'{"version": 1}'), "lacks 'per_device'"),
    ("federation.toml", rewritten(lambda content: content[:0] + b"a\n\xff"), "line 2 is not UTF-8"),
]


@pytest.mark.parametrize(("name", "damage", "found"), CUT)
def test_report_names_the_file_the_line_and_what_to_do(tmp_path, capsys, name, damage, found):
    write_run(synthetic.result(count=2, rounds=3), "", tmp_path)
    damage(tmp_path / name)
    assert cli.main(["report", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{tmp_path / name}: " in line
    assert found in line
    assert "; restore a copy, or remove " in line


def test_a_run_with_its_ledger_is_not_to_be_removed(tmp_path):
    write_run(synthetic.result(count=2, rounds=3), "", tmp_path)
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "ledger.db").touch()
    rewritten(without_last_line)(tmp_path / "rounds.csv")
    with pytest.raises(UsageError, match="--resume"):
        read_run(tmp_path)


def test_later_versions_may_add_fields(tmp_path):
    result = synthetic.result(count=2, rounds=1)
    write_run(result, "", tmp_path)
    edited(lambda whole: (whole.update(new=1), whole["per_device"][0].update(new=1)))(tmp_path)
    assert read_run(tmp_path) == measured_alone(result)
