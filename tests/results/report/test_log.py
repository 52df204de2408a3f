"""log.jsonl."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from coordinator.record.run_record import RunRecord
from coordinator.results.report.progress import EventLog


def test_every_event_is_a_line_of_json(tmp_path: Path) -> None:
    record = RunRecord()
    record.measured("a", 1, {"accuracy": 0.5})
    log = EventLog(tmp_path / "run" / "log.jsonl")
    log.joined("a", 1, 2)
    log.turned_away("b", "has\nanother line")
    log.round_done(record.round_done(contributors=1, exchanges=1, now_s=1.0), 3, record)
    log.noted("broker: gone")
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["joined", "turned-away", "round", "note"]
    assert (lines[2]["accuracy_round"], lines[2]["accuracy"]) == (1, {"a": 0.5})


def test_a_line_that_the_disk_will_not_have_ends_no_run(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "run" / "log.jsonl")
    (tmp_path / "run" / "log.jsonl").mkdir()
    log.noted("the disk is full")
    (tmp_path / "run" / "log.jsonl").rmdir()
    log.noted("there is room")
    lines = (tmp_path / "run" / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["message"] for line in lines] == ["there is room"]


def test_a_full_file_takes_the_place_of_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.results.report.progress.MOST_BYTES", 1000)
    log = EventLog(tmp_path / "log.jsonl")
    for number in range(100):
        log.noted(f"line {number:02}")
    texts = [path.read_text() for path in (tmp_path / "log.1.jsonl", tmp_path / "log.jsonl")]
    assert all(len(text) < 1100 for text in texts)
    lines = [json.loads(line)["message"] for text in texts for line in text.splitlines()]
    assert lines == [f"line {number:02}" for number in range(100 - len(lines), 100)]
    assert 12 < len(lines) < 40
    assert {path.name for path in tmp_path.iterdir()} == {"log.1.jsonl", "log.jsonl"}


@pytest.mark.timeout(20)
def test_a_pipe_in_its_place_makes_no_run_wait(tmp_path: Path) -> None:
    """In the folder of a stranger, with which a run is resumed."""
    os.mkfifo(tmp_path / "log.jsonl")
    EventLog(tmp_path / "log.jsonl").noted("nobody reads")
