"""Many runs: an interrupted one goes on, several at once give the same, the time left is that of all."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import fleets
import pytest
from interrupting import CTRL_C, stop_after

from coordinator.config import to_toml
from coordinator.results.report.run_files import read_run
from coordinator.results.report.summary import summary, without_times
from edge_sdk.errors import UsageError
from edge_sim.clock import checkpoint
from edge_sim.config import settings
from edge_sim.config.settings import Config
from edge_sim.data import datasets
from edge_sim.fleet import fleet as fleet_module
from edge_sim.runs.stopping_workers import interrupts_blocked
from edge_sim.studies.planned_runs import check_methods, compare
from edge_sim.studies.study_runs import TimeLeft

METHODS = ("fedmd", "fedavg")


def config(pictures: Path, **changes: object) -> Config:
    tables = fleets.tables(pictures, "fedmd", devices=3, rounds=4)
    tables["federation"] |= changes
    return settings.parse(tables, Path("f.toml"))


def figures(folder: Path) -> dict[str, object]:
    """What each run of a comparison found, by its folder."""
    found = json.loads((folder / "compare.json").read_text())
    runs = [run["folder"] for each in found["methods"] for run in each["runs"]]
    wholes = {name: without_times(summary(read_run(folder / name))) for name in runs}
    kept = ("accuracy", "own_task", "metrics", "bytes", "rounds_done", "completed")  # joules are near, not equal
    return {name: {key: whole[key] for key in kept} for name, whole in wholes.items()}


@pytest.fixture(scope="module")
def whole(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    folder = tmp_path_factory.mktemp("whole")
    compare(config(pictures), METHODS, (0,), folder)
    return figures(folder)


@pytest.mark.parametrize("steps", [40, 120, 200])
def test_an_interrupt_in_a_run_loses_nothing(
    pictures: Path, tmp_path: Path, whole: dict[str, object], monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    stop_after(monkeypatch, steps, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        compare(config(pictures), METHODS, (0,), tmp_path)
    interrupted = [path.parent for path in tmp_path.glob("*/*/checkpoint")]
    assert len(interrupted) == 1
    said: list[str] = []
    compare(config(pictures), METHODS, (0,), tmp_path, say=said.append)
    assert "1 interrupted" in said[0]
    assert figures(tmp_path) == whole
    assert read_run(interrupted[0]).resumed["times"] == 1
    assert not list(tmp_path.glob("*/*/checkpoint*"))


def test_the_start_says_what_it_does_and_the_end_that_nothing_is_left(pictures: Path, tmp_path: Path) -> None:
    said: list[str] = []
    for _ in range(2):
        compare(config(pictures), METHODS, (0, 1), tmp_path, say=said.append)
    begun, over = said
    assert re.match(r"6 runs: alone, fedmd, fedavg; .*3 devices, 4 rounds", begun)
    assert str(tmp_path) in over


def test_data_are_read_once_a_seed(pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    real = datasets.dataset_of
    monkeypatch.setattr(fleet_module, "dataset_of", lambda *args: read.append(1) or real(*args))
    compare(config(pictures), METHODS, (0, 1), tmp_path)
    # once for each method as settings are checked before the first run, then once a seed
    assert len(read) == 3 + 2


@pytest.mark.processes
@pytest.mark.long
def test_several_at_once_give_the_same(pictures: Path, tmp_path: Path, whole: dict[str, object]) -> None:
    compare(config(pictures), METHODS, (0,), tmp_path, jobs=2)
    assert figures(tmp_path) == whole


@pytest.fixture
def begun(pictures: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A comparison of several runs at once, in a process group of its own, of which two are under way."""
    tables = fleets.tables(pictures, "fedmd", devices=3, rounds=100_000)
    (tmp_path / "f.toml").write_text(to_toml(tables), encoding="utf-8")
    command = [sys.executable, "-m", "edge_sdk.cli", "compare", str(tmp_path / "f.toml"), "--methods", "fedmd,fedavg"]
    with subprocess.Popen(
        [*command, "--jobs", "2", "--out", str(tmp_path / "out")],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        until_s = time.monotonic() + 60
        while len(list(tmp_path.glob("out/*/*/federation.toml"))) < 2 and time.monotonic() < until_s:
            time.sleep(0.05)
        yield process
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.processes
@pytest.mark.long
def test_workers_end_with_their_parent(begun: subprocess.Popen[str], tmp_path: Path) -> None:
    begun.kill()
    begun.communicate(timeout=30)  # every worker has it open for as long as it is there
    assert not list(tmp_path.glob("out/*/*/summary.json"))
    assert len(list(tmp_path.glob("out/*/*/federation.toml"))) == 2  # they began no other run


@pytest.mark.processes
@pytest.mark.long
def test_an_interrupt_of_several_runs_at_once_is_told_in_a_line(begun: subprocess.Popen[str], tmp_path: Path) -> None:
    os.killpg(begun.pid, signal.SIGINT)
    _, told = begun.communicate(timeout=30)
    assert begun.returncode in CTRL_C
    assert told.splitlines()[1:] == [
        "",
        f"interrupted; everything is kept in {tmp_path / 'out'}: repeat the command to continue",
        "edge-sdk: interrupted",
    ]
    assert len(list(tmp_path.glob("out/*/*/federation.toml"))) == 2  # they began no other run


@pytest.mark.processes
def test_an_interrupt_while_workers_start_comes_once_they_are_started() -> None:
    reached: list[bool] = []

    def interrupted() -> None:
        with interrupts_blocked():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.05)
            reached.append(True)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert reached == [True]


def test_the_time_left_is_that_of_all_runs() -> None:
    now = [0.0]
    left = TimeLeft(4, clock=lambda: now[0])
    assert left.words == ""
    now[0] = 10.0
    left.round_done(0.5)
    assert left.words.startswith("about 1 min 10 s")
    left.run_done()
    now[0] = 20.0
    assert left.words.startswith("about 1 min 00 s")


def test_a_method_named_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="fedmd"):
        check_methods(["fedmd", "fedavg", "fedmd"])


@pytest.mark.parametrize(
    ("partition", "word"),
    [
        ({"classes_per_device": 11}, "classes_per_device"),
        ({"kind": "iid", "min_samples": 30_000}, "min_samples"),
        ({"kind": "user"}, "user"),
    ],
)
def test_a_partition_that_cannot_be_is_refused_before_the_data_are_read(
    monkeypatch: pytest.MonkeyPatch, partition: dict[str, object], word: str
) -> None:
    monkeypatch.setattr(fleet_module, "dataset_of", lambda *_args: pytest.fail("was read"))
    tables = {
        "federation": {"name": "x", "rounds": 2, "devices": 3},
        "data": {"source": "mnist", "root": "none"},
        "partition": partition,
    }
    with pytest.raises(UsageError, match=word):
        fleet_module.build_fleet(settings.parse(tables, Path("f.toml")))


def test_a_run_that_failed_begins_anew(pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "FIRST_S", 0.0)
    compare(config(pictures, quorum=3), ("fedmd",), (0,), tmp_path)
    path = tmp_path / "fedmd" / "seed-0" / "summary.json"
    whole = json.loads(path.read_text())
    path.write_text(json.dumps(whole | {"completed": False}))
    (path.parent / "checkpoint").mkdir()
    compare(config(pictures, quorum=3), ("fedmd",), (0,), tmp_path)
    assert json.loads(path.read_text())["completed"]
