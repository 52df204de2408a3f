"""Boards of a lab: each builds what the simulation builds, and a comparison on boards equals the simulated one."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import fleets
import numpy as np
import pytest

from coordinator.broker.embedded import EmbeddedBroker
from coordinator.config import to_toml
from coordinator.record.observer import RunObserver
from coordinator.record.round_result import RoundResult
from coordinator.record.run_record import RunRecord
from coordinator.results.comparison.compare import Comparison, MethodRuns, Trial
from coordinator.results.comparison.compare_table import compare_table
from edge_sdk.cli import main
from edge_sdk.errors import RunFailed, TransportError, UsageError
from edge_sim.config import settings
from edge_sim.config.settings import Config
from edge_sim.fleet.fleet import build_device, build_fleet
from edge_sim.lab.board import BoardOptions, LabBoard, open_link, read_list
from edge_sim.lab.desk import LabDesk
from edge_sim.lab.wire_settings import packed_settings, unpacked_settings
from edge_sim.runs.runner import run

DEVICES = 3


def tables(devices: int = DEVICES, **federation: Any) -> dict[str, Any]:
    found = fleets.tables(Path("pictures.npz"), devices=devices, **federation)
    return {**found, "partition": {"kind": "dirichlet"}, "method": {"fedmd": found["method"]}}


@pytest.fixture
def folder(tmp_path: Path, pictures: Path) -> Path:
    """The desk's folder, with a copy of the data."""
    (tmp_path / "desk").mkdir()
    (tmp_path / "desk" / "pictures.npz").write_bytes(pictures.read_bytes())
    return tmp_path / "desk"


def config(folder: Path, **federation: Any) -> Config:
    return settings.parse(tables(**federation), folder / "lab.toml")


# -- settings -------------------------------------------------------------------------------------------------------


def test_a_board_reads_the_settings_that_the_desk_has(folder: Path) -> None:
    here = config(folder)
    there = unpacked_settings(packed_settings(here), folder)
    assert dataclasses.replace(there, file=here.file, run=here.run) == here


def test_files_are_looked_up_in_the_folder_of_the_board(folder: Path, tmp_path: Path) -> None:
    packed = packed_settings(config(folder))
    (tmp_path / "board").mkdir()
    with pytest.raises(UsageError, match=r"pictures\.npz"):
        unpacked_settings(packed, tmp_path / "board")
    (tmp_path / "board" / "pictures.npz").write_bytes(b"")
    assert unpacked_settings(packed, tmp_path / "board").data.path == str(tmp_path / "board" / "pictures.npz")


def test_a_file_outside_the_desk_s_folder_cannot_travel(folder: Path, pictures: Path) -> None:
    outside = {**tables(), "data": {"source": "npz", "path": str(pictures)}}
    with pytest.raises(UsageError, match="outside"):
        packed_settings(settings.parse(outside, folder / "lab.toml"))


@pytest.mark.parametrize("path", ["/etc/passwd", "../pictures.npz"])
def test_a_board_reads_no_file_outside_its_folder(folder: Path, path: str) -> None:
    plain = json.loads(packed_settings(config(folder)))
    plain["data"]["path"] = path
    with pytest.raises(UsageError, match="outside"):
        unpacked_settings(json.dumps(plain).encode(), folder)


@pytest.mark.parametrize("model", ["os:system", "cycle:mlp,os:system", "random:os:system"])
def test_a_board_runs_no_function_that_its_owner_has_not_allowed(folder: Path, model: str) -> None:
    plain = json.loads(packed_settings(config(folder)))
    plain["fleet"][0]["model"] = model
    with pytest.raises(UsageError, match="--allow-module os"):
        unpacked_settings(json.dumps(plain).encode(), folder)


def test_a_board_runs_the_functions_of_a_module_that_its_owner_allows(folder: Path) -> None:
    plain = json.loads(packed_settings(config(folder)))
    plain["fleet"][0]["model"] = "fleets:teacher"
    assert unpacked_settings(json.dumps(plain).encode(), folder, ["fleets"]).fleet[0].model == "fleets:teacher"


@pytest.mark.parametrize("packed", [b"{", b"[]", b'{"fleet": 1}', b'{"federation": {}}'])
def test_settings_that_are_none_are_one_line(folder: Path, packed: bytes) -> None:
    with pytest.raises(UsageError) as caught:
        unpacked_settings(packed, folder)
    assert "\n" not in str(caught.value)


# -- devices --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(DEVICES))
def test_a_board_builds_what_the_simulation_builds(folder: Path, number: int) -> None:
    here = config(folder)
    built, dataset = build_device(here, number)
    fleet = build_fleet(here)
    same = fleet.devices[number]
    assert built.kit == same.kit
    assert dataset.sha256 == fleet.dataset.sha256
    for part in ("train", "test"):
        mine, theirs = getattr(built.data, part), getattr(same.data, part)
        assert np.array_equal(mine.x, theirs.x)
        assert np.array_equal(mine.y, theirs.y)
    assert built.kit.model(built.public).state_bytes() == same.kit.model(same.public).state_bytes()


# -- a lab ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    with EmbeddedBroker("amqtt") as running:
        yield running.url


@contextmanager
def boards(url: str, lab: str, folder: Path, state: Path, numbers: range = range(DEVICES)) -> Iterator[list[LabBoard]]:
    """Boards in threads of this process."""
    found = []
    with ExitStack() as stack:
        for number in numbers:
            options = BoardOptions(
                broker=url, lab=lab, device=f"board-{number}", number=number, state=state / str(number), data=folder
            )
            board = LabBoard(options, open_link(options), say=lambda _line: None)
            thread = threading.Thread(target=board.serve, name=options.device, daemon=True)
            thread.start()
            stack.callback(thread.join, 10)
            stack.callback(board.stop)
            found.append(board)
        yield found


@pytest.mark.broker
def test_a_comparison_on_boards_equals_the_simulated_one(
    folder: Path, broker: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = config(folder)
    (folder / "lab.toml").write_text(to_toml(here.tables), encoding="utf-8")
    same = [str(folder / "lab.toml"), "--methods", "fedmd", "--json"]
    there = [*same, "--out", str(tmp_path / "lab"), "--on-devices", "--broker", broker, "--lab", "bench"]
    with boards(broker, "bench", folder, tmp_path / "state"):
        assert main(["compare", *there]) == 0
    measured = json.loads(capsys.readouterr().out)
    assert main(["compare", *same, "--out", str(tmp_path / "simulated")]) == 0
    simulated = json.loads(capsys.readouterr().out)
    for mine, theirs in zip(measured["methods"], simulated["methods"], strict=True):
        assert mine["method"] == theirs["method"]
        assert mine["runs"][0]["mean_accuracy"] == theirs["runs"][0]["mean_accuracy"]
        assert mine["runs"][0]["steps_per_device"] == theirs["runs"][0]["steps_per_device"]
        assert mine["runs"][0]["device_s"] > 0
    assert main(["compare", *there]) == 0  # without boards: what is complete is not repeated
    assert main(["compare", *same, "--out", str(tmp_path / "lab")]) == 2


@pytest.mark.broker
def test_a_run_goes_on_without_a_board_that_goes_away(folder: Path, broker: str, tmp_path: Path) -> None:
    class Pulled(RunObserver):
        def round_done(self, result: RoundResult, of: int, record: RunRecord) -> None:  # noqa: ARG002  # of RunObserver
            if result.round == 2:
                present[1].stop()
                (gone,) = (thread for thread in threading.enumerate() if thread.name == "board-1")
                gone.join(10)  # else the other rounds may be over before the board sees that it is to stop

    here = config(folder, quorum=2, rounds=12, deadline_s=1.0)
    with (
        boards(broker, "away", folder, tmp_path) as present,
        LabDesk(broker, "away", wait_s=10, say=lambda _line: None) as desk,
    ):
        result = desk.run(here, Pulled())
    assert result.completed
    missed = {device.id: result.rounds_done - device.rounds_done for device in result.devices}
    assert missed["device-00"] == missed["device-02"] == 0
    assert missed["device-01"] > 0
    line = MethodRuns("fedmd", (Trial(0, result),))
    notes = compare_table(Comparison((line,), "fedmd")).notes
    assert any(f"device-01 ({missed['device-01']})" in note for note in notes)


@pytest.mark.broker
def test_a_board_that_cannot_build_its_device_says_why(folder: Path, broker: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with (
        boards(broker, "bare", tmp_path / "empty", tmp_path / "state"),
        LabDesk(broker, "bare", wait_s=10, say=lambda _line: None) as desk,
        pytest.raises(RunFailed, match=r"board-\d.*pictures\.npz"),
    ):
        desk.run(config(folder))


@pytest.mark.broker
def test_boards_that_are_missing_are_named(folder: Path, broker: str, tmp_path: Path) -> None:
    with (
        boards(broker, "few", folder, tmp_path, range(1)),
        LabDesk(broker, "few", wait_s=1, say=lambda _line: None) as desk,
        pytest.raises(TransportError, match="missing numbers: 1, 2"),
    ):
        desk.run(config(folder))


@pytest.mark.broker
def test_a_lab_has_one_desk_at_a_time(broker: str) -> None:
    with (
        LabDesk(broker, "busy", say=lambda _line: None),
        pytest.raises(UsageError, match="another desk"),
        LabDesk(broker, "busy", say=lambda _line: None),
    ):
        pass


# -- the command line -----------------------------------------------------------------------------------------------


def test_a_list_gives_boards_their_numbers(tmp_path: Path) -> None:
    file = tmp_path / "boards.txt"
    file.write_text("# the shelf\nlab-pi-01\n\nlab-pi-02  # the hot one\n")
    assert read_list(file) == ("lab-pi-01", "lab-pi-02")


@pytest.mark.parametrize("text", ["a\na\n", "not an id\n"])
def test_a_list_with_a_mistake(tmp_path: Path, text: str) -> None:
    (tmp_path / "boards.txt").write_text(text)
    with pytest.raises(UsageError):
        read_list(tmp_path / "boards.txt")


BROKER = ("--broker", "mqtt://127.0.0.1:1")


@pytest.mark.parametrize(
    "words",
    [
        ("lab-device", *BROKER),
        ("lab-device", *BROKER, "--number", "1", "--list", "x"),
        ("lab-device", *BROKER, "--number", "-1"),
        ("lab-device", *BROKER, "--number", "1", "--data", "no-such-folder"),
        ("lab-device", *BROKER, "--list", "no-such-file"),
        ("lab-device", *BROKER, "--number", "1", "--lab", "No"),
        ("lab-device", "--broker", "http://x", "--number", "1"),
        ("compare", "FILE", "--methods", "fedmd", "--on-devices"),
        ("compare", "FILE", "--methods", "fedmd", *BROKER),
        ("compare", "FILE", "--methods", "fedmd", "--on-devices", *BROKER, "--lab", "No"),
        ("compare", "FILE", "--methods", "fedmd", "--on-devices", *BROKER, "--wait", "-1"),
    ],
)
def test_a_mistake_is_one_line(words: tuple[str, ...], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "lab.toml").write_text(to_toml(config(folder).tables), encoding="utf-8")
    given = [str(folder / "lab.toml") if word == "FILE" else word for word in words]
    assert main(given) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("named", [(), ("--lab", "bench")])
def test_a_federation_with_the_name_of_the_lab_is_refused(
    named: tuple[str, ...], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both would use the same topics: the end of a run would end the lab's, and with it what boards tell of it."""
    (folder / "lab.toml").write_text(to_toml(config(folder).tables), encoding="utf-8")
    name = named[-1] if named else "lab"
    same = ("--methods", "fedmd", "--on-devices", *BROKER, *named, "--set", f"federation.name={name}")
    assert main(["compare", str(folder / "lab.toml"), *same]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert f"federation.name '{name}' is the lab's name, too" in told


# -- processes ------------------------------------------------------------------------------------------------------

THIRTY = 30


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.processes
@pytest.mark.broker
def test_thirty_boards_in_processes_of_their_own(folder: Path, broker: str, tmp_path: Path) -> None:
    plain = {**tables(THIRTY), "partition": {"kind": "iid"}}
    here = settings.parse(plain, folder / "lab.toml")
    with ExitStack() as stack:
        for number in range(THIRTY):
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "edge_sdk.cli", "lab-device", "--broker", broker, "--lab", "shelf"),
                    *("--number", str(number), "--state", str(tmp_path / str(number)), "--data", str(folder)),
                ],
                stdout=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            stack.callback(process.wait, 30)
            stack.callback(process.terminate)
        with LabDesk(broker, "shelf", wait_s=120, say=lambda _line: None) as desk:
            measured = desk.run(here)
    simulated = run(here)
    assert measured.completed
    assert [device.accuracy for device in measured.devices] == [device.accuracy for device in simulated.devices]
