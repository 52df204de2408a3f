"""A simulation that is interrupted, or killed, goes on with --resume and ends as if nothing had happened."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import fleets
import pytest
from interrupting import stop_after

from coordinator.config import to_toml
from coordinator.results.figures.result import Result
from edge_sdk import cli
from edge_sdk.at_rest.digests import json_with_digest
from edge_sdk.device.store import SqliteStore
from edge_sdk.errors import StoreError, UsageError
from edge_sim.clock import checkpoint, store_parts
from edge_sim.clock.checkpoint import Checkpoints
from edge_sim.runs.runner import run

METHODS = ["fedmd", pytest.param("fedal", marks=pytest.mark.torch)]


class Killed(BaseException):
    """The process is gone."""


@pytest.fixture(scope="module")
def whole(pictures: Path) -> dict[str, Result]:
    return {method: run(fleets.tables(pictures, method)) for method in ("fedmd", "fedal")}


_undisturbed: dict[str, Result] = {}


def undisturbed(tables: dict[str, Any]) -> Result:
    """The run of these tables to its end, computed once for all places at which tests cut it."""
    key = to_toml(tables)
    if key not in _undisturbed:
        _undisturbed[key] = run(tables)
    return _undisturbed[key]


def same(result: Result, whole: Result) -> None:
    assert result.completed
    assert [d.accuracy for d in result.devices] == [d.accuracy for d in whole.devices]
    assert [entry.accuracy for entry in result.history] == [entry.accuracy for entry in whole.history]
    assert [d.rounds_done for d in result.devices] == [d.rounds_done for d in whole.devices]
    assert result.updates["accepted"] == whole.updates["accepted"]


@pytest.mark.parametrize("steps", [1, 20, 60, 61, 77, 105, 140, 175])
@pytest.mark.parametrize("method", METHODS)
def test_an_interrupt_at_any_moment(  # noqa: PLR0917  # fixtures
    pictures: Path, tmp_path: Path, whole: dict[str, Result], monkeypatch: pytest.MonkeyPatch, method: str, steps: int
) -> None:
    tables = fleets.tables(pictures, method)
    stop_after(monkeypatch, steps, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        run(tables, out=tmp_path / "run")
    same(run(tables, out=tmp_path / "run", resume=True), whole[method])


@pytest.mark.parametrize("steps", [60, 110, 160, 200])
def test_the_faults_that_were_to_come_come(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """Lost frames cost this run seven answers, all after the cut, and decide what is learned."""
    tables = fleets.tables(pictures, rounds=10, quorum=3, deadline_s=20.0, retry_s=20.0)
    tables["faults"] = {"drop": 0.02, "delay": 0.1, "delay_s": 0.5}
    whole = undisturbed(tables)
    assert [entry.contributors for entry in whole.history] == [6, 6, 6, 6, 6, 5, 5, 5, 4, 4]
    with monkeypatch.context() as patch:
        stop_after(patch, steps, KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            run(tables, out=tmp_path / "run")
    resumed = run(tables, out=tmp_path / "run", resume=True)
    assert [entry.contributors for entry in resumed.history] == [entry.contributors for entry in whole.history]
    assert [entry.accuracy for entry in resumed.history] == [entry.accuracy for entry in whole.history]


def test_many_interrupts(
    pictures: Path, tmp_path: Path, whole: dict[str, Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One every hundred steps; resuming costs some, so that is not often enough to stand still."""
    tables, out = fleets.tables(pictures), tmp_path / "run"
    for times in range(50):
        with monkeypatch.context() as patch:
            stop_after(patch, 100, KeyboardInterrupt)
            try:
                result = run(tables, out=out, resume=times > 0)
            except KeyboardInterrupt:
                continue
            break
    assert times >= 2
    same(result, whole["fedmd"])


@pytest.mark.parametrize("steps", [30, 90, 150])
def test_a_kill_between_two_checkpoints(
    pictures: Path, tmp_path: Path, whole: dict[str, Result], monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """Nothing can be saved when it happens: the run goes on from the last checkpoint."""
    saves = []
    save = checkpoint.Checkpoints.save

    def sometimes(self: checkpoint.Checkpoints, *args: Any) -> None:
        if len(saves) < 2:
            save(self, *args)
        saves.append(args)

    asked = [0]

    def due(_self: checkpoint.Checkpoints) -> bool:
        asked[0] += 1
        return asked[0] % (steps // 3) == 0

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.Checkpoints, "save", sometimes)
        patch.setattr(checkpoint.Checkpoints, "due", due)
        stop_after(patch, steps, Killed)
        with pytest.raises(Killed):
            run(fleets.tables(pictures), out=tmp_path / "run")
    assert len(saves) > 2
    same(run(fleets.tables(pictures), out=tmp_path / "run", resume=True), whole["fedmd"])


def interrupted(pictures: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        stop_after(patch, 100, KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            run(fleets.tables(pictures), out=out)


def test_a_checkpoint_that_fails_leaves_the_one_before(
    pictures: Path, tmp_path: Path, whole: dict[str, Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    interrupted(pictures, out, monkeypatch)
    with monkeypatch.context() as patch:
        stop_after(patch, 100, KeyboardInterrupt)

        def full(*_args: object) -> None:
            raise OSError("no space left on device")

        patch.setattr(store_parts, "save_stores", full)
        with pytest.raises(StoreError, match=r"checkpoint\.new: no space left"):
            run(fleets.tables(pictures), out=out, resume=True)
    same(run(fleets.tables(pictures), out=out, resume=True), whole["fedmd"])


def test_a_kill_between_the_two_renames(
    pictures: Path, tmp_path: Path, whole: dict[str, Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    interrupted(pictures, out, monkeypatch)
    for device, store in Checkpoints(out / "checkpoint").load()[1].items():  # as before 2026-11: a file for each
        disk = SqliteStore(out / "checkpoint" / f"{device}.db")
        disk.save_welcome(store.welcome())
        disk.save_start(store.round_start())
        for done in store.finished():
            disk.save(done)
        disk.close()
    world = out / "checkpoint" / "world.json"
    older = {key: value for key, value in json.loads(world.read_bytes())["value"].items() if key != "parts"}
    world.write_bytes(json_with_digest(older))
    (out / "checkpoint" / "0-1.stores").unlink()
    (out / "checkpoint").rename(out / "checkpoint.old")
    with pytest.raises(UsageError, match="already holds a run"):
        run(fleets.tables(pictures), out=out)
    same(run(fleets.tables(pictures), out=out, resume=True), whole["fedmd"])


def test_results_without_their_summary_are_not_mixed_with_those_of_a_new_run(pictures: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / "rounds.csv").write_text("round\n1\n")
    with pytest.raises(UsageError, match=r"holds rounds\.csv of a run whose summary\.json is gone"):
        run(fleets.tables(pictures), out=out)


@pytest.mark.parametrize("made_before", [False, True])
def test_a_refused_run_leaves_no_folder_of_its_own(pictures: Path, tmp_path: Path, made_before: bool) -> None:
    out = tmp_path / "run"
    if made_before:
        out.mkdir()
    refused = fleets.tables(pictures) | {"partition": {"kind": "iid", "min_samples": 10**6}}
    with pytest.raises(UsageError, match="min_samples"):
        run(refused, out=out)
    assert out.exists() == made_before


def test_only_the_same_run_can_be_resumed(pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "run"
    interrupted(pictures, out, monkeypatch)
    with pytest.raises(UsageError, match=r"federation\.seed .*7, is 8"):
        run(fleets.tables(pictures, seed=8), out=out, resume=True)
    other = fleets.tables(pictures) | {"run": {"measured": 3}}
    with pytest.raises(UsageError, match=r"run\.measured was 6, is 3"):
        run(other, out=out, resume=True)
    with pytest.raises(UsageError, match="holds nothing to resume"):
        run(fleets.tables(pictures), out=tmp_path / "other", resume=True)


def test_a_run_over_a_broker_is_not_resumed_in_memory(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its devices keep their states elsewhere, and would begin untrained."""
    out = tmp_path / "run"
    interrupted(pictures, out, monkeypatch)
    for name in ("0-1.stores", "world.json"):
        shutil.move(out / "checkpoint" / name, tmp_path)
    with pytest.raises(UsageError, match=r"device-00: .*over a broker"):
        run(fleets.tables(pictures), out=out, resume=True)


@pytest.mark.parametrize("steps", [25, 45, 60, 75, 90, 105])
@pytest.mark.parametrize("method", ["fedavg", "lg_fedavg"])
def test_devices_that_are_not_asked_have_the_same_figures(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, steps: int
) -> None:
    tables = fleets.tables(pictures, method, participants=2, rounds=5)
    whole = undisturbed(tables)
    stop_after(monkeypatch, steps, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        run(tables, out=tmp_path / "run")
    found = run(tables, out=tmp_path / "run", resume=True)
    same(found, whole)
    assert [entry.local_accuracy for entry in found.history] == [entry.local_accuracy for entry in whole.history]
    assert [entry.global_accuracy for entry in found.history] == [entry.global_accuracy for entry in whole.history]


def test_the_command_that_continues_has_the_options_that_were_given(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "f.toml", tmp_path / "run"
    file.write_text(to_toml(fleets.tables(pictures)), encoding="utf-8")
    stop_after(monkeypatch, 100, KeyboardInterrupt)
    assert cli.main(["simulate", str(file), "--no-plots", "--json", "--log-format", "json", "--out", str(out)]) == 130
    said = capsys.readouterr().err
    assert f"simulate {file} --broker memory --no-plots --json --log-format json --out {out} --resume" in said
