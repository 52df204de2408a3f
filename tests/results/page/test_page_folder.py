"""`edge-sdk page RUN_DIR`: what a folder shows, and what is said of one that cannot be shown."""

from __future__ import annotations

import dataclasses
import json
import os
import urllib.error
import urllib.request

import pytest
import synthetic

from coordinator.results.page import values
from coordinator.results.page.feed import Feed
from coordinator.results.page.serving import folder_state, page_feed, served
from coordinator.results.page.values import device_columns, round_columns
from coordinator.results.report.run_files import write_run
from edge_sdk import cli
from edge_sdk.errors import UsageError


@pytest.fixture
def folder(tmp_path):
    write_run(synthetic.result(), "", tmp_path / "run")
    return tmp_path / "run"


def test_a_finished_run_is_shown_whole(folder):
    state, goes_on = folder_state(folder)
    result = synthetic.result()
    assert not goes_on
    assert state.head["state"] == "finished"
    assert state.head["accuracy"] == pytest.approx(sum(d.accuracy for d in result.devices) / len(result.devices))
    assert [row[0] for row in state.history] == [entry.round for entry in result.history]
    row = dict(zip(device_columns(), state.devices["device-3"], strict=True))
    assert (row["board"], row["link"], row["class_counts"]) == ("x86", "wifi", [*result.devices[3].class_counts])
    alone = [row[round_columns().index("alone")] for row in state.history]
    assert (alone[-1] is not None) == bool(result.standalone_history)


def test_a_run_that_failed_says_why(tmp_path):
    result = dataclasses.replace(synthetic.result(), completed=False, reason="no quorum")
    write_run(result, "", tmp_path)
    state, _ = folder_state(tmp_path)
    assert state.head["state"] == "failed"
    assert state.head["text"].endswith("no quorum")


def progress(**changes):
    whole = {"version": 1, "federation": "lab", "method": "fedavg", "seed": 0, "part": "", "round": 2, "rounds": 9}
    whole |= {"devices": 1, "expected": 2, "accuracy": {"round": 2, "mean": 0.5}, "updates": {}}
    whole |= {"bytes": {"up_total": 5, "down_total": 7}, "refused_devices": [], "refused_frames": {}}
    whole |= {"per_device": [{"id": "cam", "accuracy": 0.5, "rounds_done": 2, "bytes_up": 5, "bytes_down": 7}]}
    return json.dumps(whole | changes)


def test_a_run_that_goes_on_is_followed_by_its_progress(tmp_path):
    (tmp_path / "progress.json").write_text(progress())
    state, goes_on = folder_state(tmp_path)
    assert goes_on
    assert (state.head["state"], state.head["round"], state.head["accuracy"]) == ("followed", 2, 0.5)
    assert [*state.devices] == ["cam"]


def another_version(folder):
    whole = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps(whole | {"version": 99}))


def no_run(folder):
    for path in folder.iterdir():
        path.unlink()


def half(folder):
    path = folder / "summary.json"
    path.write_text(path.read_text()[:100])


def comparison_that_goes_on(folder):
    (folder / "fedavg" / "seed-0").mkdir(parents=True)
    (folder / "summary.json").rename(folder / "fedavg" / "seed-0" / "summary.json")


def newer_progress(folder):
    (folder / "summary.json").unlink()
    (folder / "progress.json").write_text(progress(version=99))


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (another_version, "99"),
        (no_run, "not a run directory"),
        (comparison_that_goes_on, "fedavg/seed-0"),
        (half, "not JSON"),
        (newer_progress, "another version"),
    ],
)
def test_what_cannot_be_shown_is_said_in_one_line(folder, damage, word, capsys):
    damage(folder)
    assert cli.main(["page", str(folder), "--at", "127.0.0.1:0"]) == 2
    said = capsys.readouterr().err.strip()
    assert word in said
    assert "\n" not in said


def test_a_folder_that_is_not_there_is_named(tmp_path, capsys):
    assert cli.main(["page", str(tmp_path / "none")]) == 2
    assert "none" in capsys.readouterr().err


def test_the_page_is_served_and_ends(folder):
    pytest.importorskip("uvicorn")
    said = []
    with served(Feed(folder_state(folder)[0]), "127.0.0.1:0", said.append):
        (url,) = [line.removeprefix("page: ") for line in said]
        with urllib.request.urlopen(f"{url}state", timeout=30) as answer:
            assert json.load(answer)["head"]["state"] == "finished"
    with pytest.raises(OSError):  # noqa: PT011  # refused or reset
        urllib.request.urlopen(f"{url}state", timeout=5)


@pytest.mark.parametrize(("proxies", "refused_at"), [("", 11), ("127.0.0.1", 0)])
def test_wrong_tokens_are_counted_by_the_address_that_connects(folder, monkeypatch, proxies, refused_at):
    """X-Forwarded-For names another address only where its proxy was named: anybody may send that header."""
    pytest.importorskip("uvicorn")
    monkeypatch.setenv("EDGE_SDK_PAGE_TOKEN", "x" * 16)
    monkeypatch.setenv("EDGE_SDK_PAGE_PROXIES", proxies)
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")  # of uvicorn, as images of containers set it
    said, answers = [], []
    with served(Feed(folder_state(folder)[0]), "127.0.0.1:0", said.append):
        url = said[0].removeprefix("page: ").partition("?")[0]
        for number in range(1, 13):
            headers = {"Authorization": "Bearer wrong", "X-Forwarded-For": f"10.0.0.{number}"}
            with pytest.raises(urllib.error.HTTPError) as found:
                urllib.request.urlopen(urllib.request.Request(f"{url}state", headers=headers), timeout=30)
            answers.append(found.value.code)
            found.value.close()
    assert (answers.index(429) + 1 if 429 in answers else 0) == refused_at


def test_a_run_without_a_page_has_no_feed():
    with page_feed(None) as feed:
        assert feed is None


def test_an_address_in_use_ends_the_run_before_it_begins(tmp_path, capsys):
    pytest.importorskip("uvicorn")
    said = []
    with served(Feed(), "127.0.0.1:0", said.append):
        address = said[0].removeprefix("page: http://").rstrip("/")
        (tmp_path / "a.toml").write_text(
            '[federation]\nname = "a"\nmethod = "fedavg"\nrounds = 1\ndevices = 2\n[data]\nsource = "digits"\n'
        )
        code = cli.main(["simulate", str(tmp_path / "a.toml"), "--page", address, "--out", os.fspath(tmp_path / "out")])
    assert code == 2
    assert address in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(UsageError, match=r"edge-sdk\[page\]"), served(Feed(), "127.0.0.1:0", str):
        pass


def test_of_many_devices_the_page_lists_those_with_most_bytes_and_counts_the_classes_of_all(monkeypatch):
    monkeypatch.setattr(values, "MOST_ON_PAGE", 3)
    result = synthetic.result()
    state = values.finished_state(result, "runs/lab")
    most = sorted(result.devices, key=lambda device: device.bytes_up + device.bytes_down)[-3:]
    assert {*state.devices} == {device.id for device in most}
    assert state.head["unlisted"] == len(result.devices) - 3
    held = [sum(device.class_counts[label] for device in result.devices) for label in range(synthetic.CLASSES)]
    assert [samples for samples, _ in state.head["by_class"]] == held


def test_devices_of_the_open_exchange_are_listed_first(monkeypatch):
    monkeypatch.setattr(values, "MOST_ON_PAGE", 2)
    sizes = {"a": 1, "b": 9, "c": 5, "d": 7}
    assert values.on_page([*sizes], sizes.__getitem__, {"a"}) == {"a", "b"}
