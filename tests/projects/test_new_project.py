"""`edge-sdk new`: the project that it makes passes its own test, for each kind of model; what cannot be is one line."""

from __future__ import annotations

import io
import shlex
import shutil
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from coordinator.config import federation, load_toml, read_settings
from edge_sdk.agent.app import load_app
from edge_sdk.cli import main
from edge_sdk.errors import UsageError
from edge_sdk.tools.install import unit
from edge_sim.projects.new_command import FILES, ProjectAnswers, asked, make_project

NOTHING_GIVEN = dict.fromkeys(["name", "model", "onnx", "classes", "devices", "kind"])


def options(folder: Path, **given: object) -> Namespace:
    return Namespace(folder=folder, **{**NOTHING_GIVEN, "broker": "mqtt://127.0.0.1:1883", **given})


ONE_BY_ONE = """
import os, sys, unittest
for folder in sys.argv[1:]:
    os.chdir(folder)
    sys.path.insert(0, folder)
    before = set(sys.modules)
    tests = unittest.TestLoader().discover(folder)
    if not unittest.TextTestRunner().run(tests).wasSuccessful():
        sys.exit(1)
    sys.path.remove(folder)
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(folder):
            del sys.modules[name]
"""


def pass_their_own_tests(*folders: Path) -> None:
    """In one process, so that torch is imported once."""
    command = [sys.executable, "-W", "ignore", "-c", ONE_BY_ONE]  # what a torch of any version warns of is not ours
    done = subprocess.run([*command, *map(str, folders)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("Ran 3 tests") == len(folders)


def test_a_numpy_project_passes_its_own_test(tmp_path: Path) -> None:
    assert main(["new", str(tmp_path / "My App"), "--model", "numpy", "--classes", "4", "--devices", "3"]) == 0
    pass_their_own_tests(tmp_path / "My App")


@pytest.mark.costly
@pytest.mark.timeout(900)
def test_a_project_of_each_kind_passes_its_own_test(tmp_path: Path) -> None:
    kinds = ["series", "text", "picture"]
    for kind in kinds:
        assert main(["new", str(tmp_path / kind), "--kind", kind, "--classes", "4", "--devices", "3"]) == 0
    pass_their_own_tests(*[tmp_path / kind for kind in kinds])


@pytest.mark.long
def test_a_project_passes_a_strict_type_checker(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    assert main(["new", str(tmp_path / "mine"), "--model", "numpy", "--classes", "4", "--devices", "3"]) == 0
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "."]
    done = subprocess.run(command, cwd=tmp_path / "mine", capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.torch
@pytest.mark.long
def test_a_torch_project_passes_its_own_test(tmp_path: Path) -> None:
    assert main(["new", str(tmp_path / "app"), "--model", "torch", "--classes", "4", "--devices", "3"]) == 0
    pass_their_own_tests(tmp_path / "app")


@pytest.mark.long
def test_a_project_around_an_onnx_file_has_its_shape_and_classes(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    from onnx_files import CLASSES, classifier

    file = tmp_path / "mine.onnx"
    file.write_bytes(classifier())
    answers = asked(options(tmp_path / "app", onnx=file), None)
    assert (answers.model, answers.classes, answers.shape) == ("onnx", CLASSES, (6, 6))
    assert main(["new", str(tmp_path / "app"), "--onnx", str(file), "--devices", "3"]) == 0
    pass_their_own_tests(tmp_path / "app")


def test_its_files_are_what_device_and_coordinator_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cameras"
    assert main(["new", str(folder), "--classes", "5", "--devices", "3"]) == 0
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()) == sorted(FILES)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    subprocess.run([sys.executable, "prepare.py"], check=True, timeout=60, capture_output=True)
    file = folder / "federation.toml"
    ready = federation(read_settings(load_toml(file), file))
    assert (ready.spec.federation, ready.spec.classes, ready.policy.expected) == ("cameras", 5, 3)
    monkeypatch.delitem(sys.modules, "app", raising=False)
    assert load_app("app:make").model.spec.classes == 5
    monkeypatch.delitem(sys.modules, "app")
    text = (folder / "systemd/coordinator.service").read_text(encoding="utf-8")
    assert f"WorkingDirectory={folder}" in text
    assert "$$(test -e" in text  # one $ for systemd, the other for the shell


def unit_of(folder: Path, broker: str = "mqtt://lab:1883") -> str:
    """The coordinator's unit of a project in this folder."""
    make_project(
        ProjectAnswers(folder=folder, name="cameras", model="numpy", classes=5, devices=3, broker=broker, shape=(64,))
    )
    return (folder / "systemd/coordinator.service").read_text(encoding="utf-8")


def test_the_unit_of_the_coordinator_ends_and_hides_what_that_of_a_device_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = unit_of(tmp_path / "in tmp").splitlines()
    assert {"Restart=on-failure", "RestartPreventExitStatus=2", "NoNewPrivileges=yes"} <= set(lines)
    assert "PrivateTmp=yes" not in lines  # the project would not be there
    monkeypatch.setattr(unit, "SHARED_FOLDERS", ())
    assert "PrivateTmp=yes" in unit_of(tmp_path / "elsewhere").splitlines()


@pytest.mark.parametrize("broker", ["mqtt://lab:1883", "mqtt://me%40lab@lab:1883"])
def test_the_unit_of_the_coordinator_starts_what_it_names(tmp_path: Path, broker: str) -> None:
    """As systemd reads it: %% is %, $$ is $, and the words are those of a shell."""
    text = unit_of(tmp_path / "100% sure lab", broker)
    assert f"WorkingDirectory={tmp_path}/100%% sure lab\n" in text
    (line,) = [each for each in text.splitlines() if each.startswith("ExecStart=")]
    words = shlex.split(line.removeprefix("ExecStart=").replace("%%", "%").replace("$$", "$"))
    assert words[:2] == ["/bin/sh", "-c"]
    script = words[2].replace("exec ", "echo ", 1)
    said = subprocess.run(
        ["/bin/sh", "-c", script, *words[3:]], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    expected = f"{sys.executable} -m edge_sdk.cli coordinator federation.toml --broker {broker} --out runs/cameras"
    assert said.stdout.strip() == expected
    (tmp_path / "runs/cameras/checkpoint").mkdir(parents=True)
    (tmp_path / "runs/cameras/checkpoint/ledger.db").touch()
    said = subprocess.run(
        ["/bin/sh", "-c", script, *words[3:]], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == f"{expected} --resume"


def test_systemd_finds_no_fault_in_the_unit_of_the_coordinator(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("no systemd-analyze here")
    unit_of(tmp_path / "100% sure lab")
    file = tmp_path / "100% sure lab/systemd/coordinator.service"
    found = subprocess.run([program, "verify", str(file)], capture_output=True, text=True, check=False, timeout=60)
    assert file.name not in found.stderr, found.stderr


def test_four_questions_are_asked_and_a_wrong_answer_is_asked_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = asked(options(tmp_path / "app"), io.StringIO("lab-1\nsteam\ntorch\nmany\n7\n\n"))
    assert (answers.name, answers.model, answers.classes, answers.devices) == ("lab-1", "torch", 7, 4)
    assert capsys.readouterr().out.count("[") == 6  # four questions, two of them twice


def test_what_is_given_is_not_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked(options(tmp_path / "app", name="a", model="numpy", classes=3, devices=2), io.StringIO())
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"model": "steam"}, "steam"),
        ({"model": "onnx"}, "--onnx"),
        ({"name": "Über"}, "Über"),
        ({"onnx": Path("no-such.onnx")}, "no-such.onnx"),
        ({"broker": "mqtt://me:word@lab:1883"}, r"give mqtt://me@lab:1883, and set EDGE_SDK_\w+="),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, given: dict[str, object], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        asked(options(tmp_path / "app", **given), None)
    assert not (tmp_path / "app").exists()


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    assert main(["new", str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
