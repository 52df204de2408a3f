"""A run that is not over: what its observer writes, and what `edge-sdk report` makes of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import fleets
import pytest
import synthetic

from coordinator.ledger import Ledger
from coordinator.record.observer import ObserverGroup
from coordinator.record.round_result import RoundResult
from coordinator.record.run_record import RunRecord
from coordinator.results.report.progress_file import (
    BETWEEN_S,
    EVERY_S,
    MOST_DEVICES,
    NAME,
    About,
    ProgressFile,
    is_interrupted,
    is_running,
    read_running,
    running_text,
)
from coordinator.results.report.run_files import write_run
from edge_sdk import cli
from edge_sdk.durable import file_lock
from edge_sdk.errors import UsageError

ABOUT = About(federation="lab", method="fedal", seed=3, rounds=4, expected=2)


class Clock:
    """Seconds that pass when told to."""

    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


def record(rounds):
    found = RunRecord()
    for number in range(1, rounds + 1):
        found.measured("left", number, {"accuracy": 0.1 * number})
        found.measured("right", number, {"accuracy": 0.2 * number})
        for name in ("left", "right"):
            found.bytes_up[name] += 100
            found.bytes_down[name] += 300
            found.rounds_done[name] += 1
        found.updates["accepted"] += 2
    return found


def after(observer, rounds):
    observer.round_done(RoundResult(round=rounds), ABOUT.rounds, record(rounds))


def written(folder):
    return json.loads((folder / NAME).read_text())


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def said():
    return []


@pytest.fixture
def observer(tmp_path, clock, said):
    return ProgressFile(tmp_path / "run", ABOUT, say=said.append, clock=clock)


def test_frames_that_are_refused_between_rounds_are_shown_after_a_while(tmp_path, clock):
    """So a federation that is stopped by them shows it; without news the disk is left alone."""
    observer, found = ProgressFile(tmp_path, ABOUT, say=str, clock=clock), record(2)
    for _ in range(2):
        found.round_done(contributors=2, exchanges=1, now_s=0.0)
    observer.waited(found)
    found.refused_frame("left", "busy")
    clock.now_s += BETWEEN_S / 2
    observer.waited(found)
    assert json.loads((tmp_path / NAME).read_text())["refused_frames"] == {}
    clock.now_s += BETWEEN_S
    observer.waited(found)
    shown = json.loads((tmp_path / NAME).read_text())
    assert (shown["refused_frames"], shown["round"], shown["resumed_at"]) == ({"left": {"busy": 1}}, 2, 2)
    (tmp_path / NAME).unlink()
    clock.now_s += BETWEEN_S
    observer.waited(found)
    assert not (tmp_path / NAME).exists()


def test_the_worked_figures(tmp_path, observer, clock):
    clock.now_s += 10
    after(observer, 2)
    found = written(tmp_path / "run")
    assert (found["version"], found["federation"], found["method"], found["seed"]) == (1, "lab", "fedal", 3)
    assert (found["round"], found["rounds"], found["devices"], found["expected"]) == (2, 4, 2, 2)
    assert found["accuracy"]["round"] == 2
    assert found["accuracy"]["mean"] == pytest.approx(0.3)
    assert found["accuracy"]["worst"] == pytest.approx(0.2)
    assert found["bytes"] == {"up_total": 400, "down_total": 1200}
    assert found["elapsed_s"] == 10
    assert found["resumed_at"] == 1
    assert found["per_device"][0] == pytest.approx(
        {"id": "left", "accuracy": 0.2, "rounds_done": 2, "bytes_up": 200, "bytes_down": 600}
    )


def test_it_is_written_at_most_once_a_second_but_the_last_round_always_is(tmp_path, observer, clock):
    after(observer, 1)
    clock.now_s += EVERY_S / 2
    after(observer, 2)
    assert written(tmp_path / "run")["round"] == 1
    clock.now_s += EVERY_S / 2
    after(observer, 3)
    assert written(tmp_path / "run")["round"] == 3
    after(observer, 4)
    assert written(tmp_path / "run")["round"] == 4


def test_devices_that_join_are_told_of_before_the_first_round_ends(tmp_path, observer, clock):
    observer.joined("left", 1, 2)
    assert written(tmp_path / "run")["devices"] == 1
    clock.now_s += 0.5
    observer.joined("right", 2, 2)  # nothing may come for long
    found = written(tmp_path / "run")
    assert found["elapsed_s"] == 0  # waiting for devices says nothing of how long rounds take
    assert (found["devices"], found["round"], found["accuracy"], found["per_device"]) == (2, 0, {}, [])


def test_a_resumed_run_knows_its_devices_though_nobody_joins_again(tmp_path, observer):
    after(observer, 3)
    assert written(tmp_path / "run")["devices"] == 2


def test_the_file_stays_small(tmp_path, observer):
    many = RunRecord()
    for number in range(3 * MOST_DEVICES):
        many.bytes_down[f"device-{number:04d}"] = 1
    observer.round_done(RoundResult(round=4), 4, many)
    found = written(tmp_path / "run")
    assert len(found["per_device"]) == MOST_DEVICES
    assert found["devices"] == 3 * MOST_DEVICES
    text = running_text(tmp_path / "run", read_running(tmp_path / "run"))
    assert f"{MOST_DEVICES} of {3 * MOST_DEVICES} devices are in progress.json" in text
    assert "device-0000" not in text


def test_a_disk_that_will_not_have_it_ends_no_run(tmp_path, clock, said):
    (tmp_path / "file").write_text("")
    observer = ProgressFile(tmp_path / "file/run", ABOUT, say=said.append, clock=clock)
    for number in (1, 2, 3):
        clock.now_s += 5
        after(observer, number)
    (line,) = said
    assert NAME in line
    assert "the run continues" in line


def test_several_watchers_see_the_same():
    class Eyes:
        def __init__(self):
            self.seen = []

        def __getattr__(self, name):
            return lambda *arguments: self.seen.append((name, *arguments))

    first, second = Eyes(), Eyes()
    both = ObserverGroup(first, second)
    both.joined("left", 1, 2)
    both.turned_away("right", "why")
    both.round_done(RoundResult(round=1), 4, RunRecord())
    both.noted("word")
    assert [name for name, *_ in first.seen] == ["joined", "turned_away", "round_done", "noted"]
    assert first.seen == second.seen


# -- reading --------------------------------------------------------------------------------------------------------


def test_the_report_says_round_devices_accuracy_and_what_is_left(tmp_path, observer, clock):
    clock.now_s += 10
    after(observer, 2)  # the first that this process sees: one was done before
    clock.now_s += 10
    after(observer, 3)
    folder = tmp_path / "run"
    found = read_running(folder)
    text = running_text(folder, found, now_s=found["updated_s"] + 12)
    head, figures, left, right = text.splitlines()
    for part in ("lab", "fedal", "seed 3", "round 3 of 4", "12.0 s ago"):
        assert part in head
    for part in ("2 of 2 devices", "45.0 %", "30.0 %", "60.0 %", "600 B", "1.8 kB", "10.0 s left"):
        assert part in figures
    assert left.split()[:2] == ["left", "30.0"]
    assert right.split()[:2] == ["right", "60.0"]


def test_refused_devices_and_hostile_names_are_safe_to_read(tmp_path, observer):
    bad = record(4)
    bad.refused_devices["evil"] = {
        "device": "evil",
        "reason": "roster",
        "message": "not \x1b[2J listed",
        "remedy": "add it",
    }
    bad.refused_frame("evil\x1b", "chunk")
    bad.refused_frame("evil\x1b", "chunk")
    observer.round_done(RoundResult(round=4), 4, bad)
    text = running_text(tmp_path / "run", read_running(tmp_path / "run"))
    assert "\x1b" not in text
    for part in ("evil: not ?[2J listed", "add it", "evil?: 2 messages", "(chunk)"):
        assert part in text


@pytest.mark.parametrize("text", ["{", "[]", '{"version": 99}'])
def test_a_file_that_does_not_read_is_named(tmp_path, text):
    (tmp_path / NAME).write_text(text)
    with pytest.raises(UsageError, match=NAME):
        read_running(tmp_path)


def test_a_run_is_running_until_its_summary_is_the_newest(tmp_path, observer):
    folder = tmp_path / "run"
    assert not is_running(folder)
    after(observer, 1)
    assert is_running(folder)
    write_run(synthetic.result(), "", folder)
    os.utime(folder / NAME, (1, 1))
    assert not is_running(folder)
    os.utime(folder / "summary.json", (0, 0))  # a run that failed goes on with --resume
    assert is_running(folder)


@pytest.fixture
def ledger(tmp_path, pictures):
    """A ledger as a run leaves it after two rounds."""
    path = tmp_path / "run/checkpoint/ledger.db"
    path.parent.mkdir(parents=True)
    run = fleets.Run(fleets.config(pictures, devices=2, rounds=2))
    run.run()
    run.server.ledger.copy_to(path)
    run.server.ledger.close()
    return path


def test_without_a_progress_file_the_ledger_is_read(tmp_path, ledger):
    before = ledger.read_bytes()
    assert is_running(tmp_path / "run")
    found = read_running(tmp_path / "run")
    assert (found["source"], found["round"], found["rounds"], found["devices"]) == ("ledger", 2, 2, 2)
    assert found["per_device"][0]["id"] == "device-00"
    assert ledger.read_bytes() == before
    assert "its checkpoint, of" in running_text(tmp_path / "run", found)


HOLD = """
import sys
from contextlib import closing
from pathlib import Path
from coordinator.ledger import Ledger
ledger = Ledger(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.processes
def test_a_ledger_in_use_is_left_alone(tmp_path, ledger):
    """The coordinator holds it with locking_mode=EXCLUSIVE."""
    command = [sys.executable, "-c", HOLD, str(ledger)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        found = read_running(tmp_path / "run")
        holder.communicate()
    assert found["source"] == "locked"
    assert "locked by the coordinator" in running_text(tmp_path / "run", found)


def test_a_ledger_that_nothing_was_written_to(tmp_path):
    Ledger(tmp_path / "checkpoint/ledger.db").close()
    assert "nothing has happened yet" in running_text(tmp_path, read_running(tmp_path))


@pytest.mark.parametrize("contents", [b"no database at all, but long enough to be taken for one" * 20, b""])
def test_what_is_no_ledger_is_named(tmp_path, contents):
    path = tmp_path / "checkpoint/ledger.db"
    path.parent.mkdir()
    path.write_bytes(contents)
    with pytest.raises(UsageError, match=r"ledger\.db: "):
        read_running(tmp_path)


# -- the command ----------------------------------------------------------------------------------------------------


def test_the_command_takes_finished_and_running_runs(tmp_path, observer, capsys):
    pytest.importorskip("matplotlib")
    after(observer, 1)
    write_run(synthetic.result(), "", tmp_path / "done")
    assert cli.main(["report", str(tmp_path / "run"), str(tmp_path / "done"), "--json"]) == 0
    running, finished = json.loads(capsys.readouterr().out)
    assert (running["state"], running["round"]) == ("running", 1)
    assert "state" not in finished
    assert finished["rounds_done"] == 20
    assert cli.main(["report", str(tmp_path / "run")]) == 0
    assert "round 1 of 4" in capsys.readouterr().out


def test_a_folder_that_holds_nothing_is_the_users_error(tmp_path, capsys):
    assert cli.main(["report", str(tmp_path)]) == 2
    assert "not a run directory" in capsys.readouterr().err


def test_a_simulation_leaves_its_progress_behind(tmp_path, pictures):
    from coordinator.config import to_toml

    tables = fleets.tables(pictures, devices=2, rounds=2) | {"run": {"standalone": True}}
    path = Path(tmp_path / "tiny.toml")
    path.write_text(to_toml(tables))
    out = tmp_path / "run"
    assert cli.main(["simulate", str(path), "--out", str(out), "--json"]) == 0
    found = written(out)
    summary = json.loads((out / "summary.json").read_text())
    assert (found["round"], found["rounds"], found["part"], found["method"]) == (2, 2, "", "fedmd")
    assert found["per_device"][0]["bytes_up"] <= summary["per_device"][0]["bytes_up"]
    assert not is_running(out)


def test_a_run_without_a_process_is_called_interrupted(tmp_path, observer):
    after(observer, 3)
    folder = tmp_path / "run"
    with closing(file_lock(folder / "lock")):
        assert not is_interrupted(folder)
        assert "interrupted" not in running_text(folder, read_running(folder))
    assert is_interrupted(folder)
    text = running_text(folder, read_running(folder))
    assert "--resume continues it" in text
    assert "about " not in text
