"""A run folder belongs to one run, of one world: what is over stays as it is, and nobody else writes into it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import fleets
import numpy as np
import pytest

from coordinator.config import to_toml
from coordinator.record.observer import RunObserver
from edge_sdk import cli
from edge_sdk.errors import UsageError
from edge_sim.clock.clock import VirtualClock
from edge_sim.config import settings
from edge_sim.runs import run_folder
from edge_sim.runs.runner import run
from edge_sim.studies.planned_runs import compare, with_setting


class Interrupt(RunObserver):
    """Ctrl-C after the first round."""

    def round_done(self, *_: Any) -> None:
        raise KeyboardInterrupt


HOLD = """
import sys
from pathlib import Path
from edge_sim.runs import run_folder
with run_folder.claimed(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def file(pictures: Path, tmp_path: Path) -> Path:
    path = tmp_path / "f.toml"
    path.write_text(to_toml(fleets.tables(pictures, "fedmd", devices=3, rounds=2)), encoding="utf-8")
    return path


def contents(folder: Path) -> dict[Path, tuple[bytes, int]]:
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def interrupt(monkeypatch: pytest.MonkeyPatch, file: Path, out: Path) -> None:
    """Begin a run and leave it after a few events."""
    with monkeypatch.context() as patch:
        left, step = iter(range(40)), VirtualClock.step

        def counted(clock: VirtualClock) -> bool:
            if next(left, None) is None:
                raise KeyboardInterrupt
            return step(clock)

        patch.setattr(VirtualClock, "step", counted)
        with pytest.raises(KeyboardInterrupt):
            run(file, out=out)


# -- other samples ----------------------------------------------------------------------------------------------------


def add_noise(pictures: Path) -> None:
    """Replace the samples by others of the same shapes."""
    with np.load(pictures) as arrays:
        kept = {name: arrays[name] for name in arrays.files}
    kept["x_train"] = kept["x_train"][::-1].copy()
    np.savez(pictures, **kept)


def own_samples(pictures: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Return a copy of the samples, and a file that names it."""
    samples, path = tmp_path / "samples.npz", tmp_path / "own.toml"
    shutil.copy(pictures, samples)
    path.write_text(to_toml(fleets.tables(samples, "local", devices=3, rounds=2)), encoding="utf-8")
    return samples, path


def test_a_run_does_not_go_on_with_other_samples(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    samples, path = own_samples(pictures, tmp_path)
    interrupt(monkeypatch, path, tmp_path / "run")
    before = contents(tmp_path / "run")
    add_noise(samples)
    assert cli.main(["simulate", str(path), "--out", str(tmp_path / "run"), "--resume"]) == 2
    assert "the run in it began with other samples than [data] gives now" in capsys.readouterr().err
    assert contents(tmp_path / "run") == before


def test_a_study_does_not_mix_runs_with_other_samples(pictures: Path, tmp_path: Path) -> None:
    samples, path = own_samples(pictures, tmp_path)
    config, out = settings.load_config(path), tmp_path / "study"
    compare(config, ["local"], [0], out)
    compare(config, ["local"], [0], out)
    add_noise(samples)
    with pytest.raises(UsageError, match="began with other samples"):
        compare(config, ["local"], [0], out)


def test_a_finished_study_is_shown_without_its_samples(pictures: Path, tmp_path: Path) -> None:
    samples, path = own_samples(pictures, tmp_path)
    config, out = settings.load_config(path), tmp_path / "study"
    found = compare(config, ["local"], [0], out)
    samples.unlink()
    assert compare(config, ["local"], [0], out).lines == found.lines


# -- a folder of another kind -----------------------------------------------------------------------------------------

COMMANDS = {
    "run": ("simulate",),
    "comparison": ("compare", "--methods", "local"),
    "sweep": ("sweep", "--methods", "local", "--over", "partition.classes_per_device=2,3"),
}


@pytest.mark.parametrize("kind", COMMANDS)
def test_a_folder_takes_nothing_of_another_kind(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    file, out = tmp_path / "f.toml", tmp_path / "out"
    file.write_text(to_toml(fleets.tables(pictures, "local", devices=3, rounds=1)), encoding="utf-8")

    def begun(name: str) -> int:
        command, *options = COMMANDS[name]
        return cli.main([command, str(file), *options, "--out", str(out), "--json"])

    assert begun(kind) == 0
    before = contents(out)
    capsys.readouterr()
    for other in COMMANDS.keys() - {kind}:
        assert begun(other) == 2
        assert capsys.readouterr().err == (
            f"edge-sdk: {out}: holds a {kind}, and a {other} needs its own folder; give --out another one\n"
        )
    assert contents(out) == before


# -- a run that is over -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("broker", ["memory", "embedded:amqtt"])
def test_a_finished_run_is_left_as_it_is(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, broker: str
) -> None:
    """Its checkpoint is gone: only the results stay."""
    out = tmp_path / "run"
    interrupt(monkeypatch, file, out)
    command = ["simulate", str(file), "--out", str(out), "--json", "--resume"]
    assert cli.main(command) == 0
    assert not (out / "checkpoint").exists()
    before, summary = contents(out), capsys.readouterr().out
    for again in ([*command[:-2], "--resume"], command):
        assert cli.main([*again, "--broker", broker]) == 0
        said = capsys.readouterr()
        assert said.out == (summary if "--json" in again else "")
        assert said.err.startswith(f"{out}: the run is finished, ")
        assert said.err.count("\n") == 1
    assert run(file, out=out, resume=True, broker=broker).rounds_done == 2
    assert contents(out) == before


def test_a_finished_run_of_a_comparison_is_left_as_it_is(file: Path, tmp_path: Path) -> None:
    compare(settings.load_config(file), ["fedmd"], [7], tmp_path / "cmp")
    before = contents(tmp_path / "cmp")
    assert cli.main(["simulate", str(file), "--out", str(tmp_path / "cmp" / "fedmd" / "seed-7"), "--resume"]) == 0
    assert contents(tmp_path / "cmp") == before


# -- one run at a time ------------------------------------------------------------------------------------------------

STILL = "a run is still active in it, and nothing was changed; wait until it is over, or give --out another folder"


def test_a_second_run_is_refused_before_it_touches_anything(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    interrupt(monkeypatch, file, out)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(out)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        before = contents(out)
        for more in (["--resume"], []):
            assert cli.main(["simulate", str(file), "--out", str(out), *more]) == 2
            said = capsys.readouterr().err
            assert said == f"edge-sdk: {out}: {STILL}\n"
        assert cli.main(["compare", str(file), "--methods", "fedmd", "--out", str(out)]) == 2
        assert contents(out) == before
        other.kill()  # and the lock goes with it
    assert run(file, out=out, resume=True).completed


def test_a_run_that_goes_on_is_told_before_its_first_checkpoint_too(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    with run_folder.claimed(out):
        before = contents(out)
        assert cli.main(["simulate", str(file), "--out", str(out), "--resume"]) == 2
        assert capsys.readouterr().err == f"edge-sdk: {out}: {STILL}\n"
        with pytest.raises(UsageError, match=STILL):
            run(file, out=out, resume=True)
        assert contents(out) == before
    with pytest.raises(UsageError, match="holds nothing to resume"):
        run(file, out=out, resume=True)


def test_the_same_process_is_kept_out_too(tmp_path: Path) -> None:
    with run_folder.claimed(tmp_path), pytest.raises(UsageError, match=STILL), run_folder.claimed(tmp_path):
        pass
    with run_folder.claimed(tmp_path):
        pass


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"^--out .*file: cannot be"), run_folder.claimed(tmp_path / "file"):
        pass


# -- the same world ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"federation.quorum": 2}, "federation.quorum was not given, is 2;"),
        ({"federation.rounds": 9}, "federation.rounds was 2, is 9;"),
        ({"method.public_batch": 4}, "method.fedmd.public_batch was 8, is 4;"),
        ({"partition.classes_per_device": 1}, "partition.classes_per_device was 2, is 1;"),
        ({"faults.drop": 0.1, "faults.seed": 3}, "faults.drop was 0.0, is 0.1; faults.seed was 0, is 3;"),
        ({"scenario.broker_lost_at_s": [3]}, "scenario.broker_lost_at_s was [], is [3.0];"),
        ({"encoding.logits": "f16"}, 'encoding.logits was "f32", is "f16";'),
        (
            {"fleet": [{"count": 2, "model": "softmax"}, {"model": "softmax", "board": "x86", "dropout": 0.5}]},
            "fleet.rows was 1, is 2; fleet[0].count was 3, is 2;",
        ),
    ],
)
def test_another_world_is_refused_by_its_first_keys(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: dict[str, Any], words: str
) -> None:
    out = tmp_path / "run"
    interrupt(monkeypatch, file, out)
    before = contents(out)
    tables = {**settings.load_config(file).tables}
    tables.update({"fleet": setting.pop("fleet")} if "fleet" in setting else {})
    with pytest.raises(UsageError) as caught:
        run(with_setting(tables, setting), out=out, resume=True)
    assert str(caught.value).startswith(f"{out}: ")
    assert f": {words} continue" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert contents(out) == before


def test_what_only_takes_another_time_may_change(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How this machine computes it, and a default that is written out."""
    out = tmp_path / "run"
    interrupt(monkeypatch, file, out)
    setting = {
        "run.processes": 1,
        "run.stack": True,
        "faults.drop": 0.0,
        "partition.export": str(tmp_path / "p.csv"),
    }
    assert run(with_setting(settings.load_config(file).tables, setting), out=out, resume=True).completed


def test_a_run_goes_on_from_its_own_settings(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "run"
    interrupt(monkeypatch, file, out)
    run_folder.check_same_world(out / "federation.toml", settings.load_config(file))
    assert run(out / "federation.toml", out=out, resume=True).completed


def test_the_devices_alone_are_not_trained_again(file: Path, tmp_path: Path) -> None:
    tables = with_setting(settings.load_config(file).tables, {"run.standalone": True})
    out, whole, begun = tmp_path / "run", run(tables), list[str]()

    def observer(part: str) -> RunObserver:
        begun.append(part)
        return RunObserver() if part else Interrupt()

    with pytest.raises(KeyboardInterrupt):
        run(tables, out=out, observer=observer)
    resumed = run(tables, out=out, resume=True, observer=begun.append)
    assert begun == ["alone", "", ""]
    assert [device.standalone_accuracy for device in resumed.devices] == [d.standalone_accuracy for d in whole.devices]
    assert [entry.accuracy for entry in resumed.standalone_history] == [e.accuracy for e in whole.standalone_history]
    assert resumed.metrics == whole.metrics


def test_the_devices_alone_are_trained_again_where_what_they_left_is_of_other_settings(
    file: Path, tmp_path: Path
) -> None:
    tables = with_setting(settings.load_config(file).tables, {"run.standalone": True})
    other = run(with_setting(tables, {"federation.seed": 9}), out=tmp_path / "other")
    shutil.copytree(tmp_path / "other" / "standalone", tmp_path / "run" / "standalone")
    found = run(tables, out=tmp_path / "run")
    assert found.standalone_history == run(tables).standalone_history != other.standalone_history


@pytest.mark.parametrize(
    "content", ["[" * 200_000, "\ud800", "9" * 6000, None], ids=["nested", "bytes", "long", "pipe"]
)
def test_what_a_stranger_put_beside_a_run_is_as_if_it_were_not_there(tmp_path: Path, content: str | None) -> None:
    """The digests of a run that `--resume`, `compare` and `sweep` read: no traceback, no waiting for a pipe."""
    for name in (run_folder.INPUTS, run_folder.SAMPLES, run_folder.KEPT):
        if content is None:
            os.mkfifo(tmp_path / name)
        else:
            (tmp_path / name).write_bytes(content.encode("utf-8", "surrogatepass"))
    assert run_folder.kept_inputs(tmp_path) == {}
    assert run_folder.kept_samples(tmp_path) in {"", content}
    assert run_folder.kept_settings(tmp_path) in {"", content}
