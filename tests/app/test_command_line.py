"""Mistakes on the command line: one line on stderr that names what is wrong, and exit code 2."""

from __future__ import annotations

import errno
import importlib.util
from pathlib import Path
from typing import NoReturn

import fleets
import numpy as np
import pytest

from coordinator.config import to_toml
from edge_sdk import cli
from edge_sdk.at_rest.files import unwritable

SERVED = ("--broker", "mqtt://127.0.0.1:1", *("--set", "federation.classes=10"), *("--set", "federation.feature_dim=8"))


@pytest.fixture
def lab(pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "lab.toml"
    file.write_text(to_toml(fleets.tables(pictures, "local", rounds=1)), encoding="utf-8")
    return file


def complaint(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    try:
        code: object = cli.main([str(each) for each in arguments])
    except SystemExit as left:
        code = left.code
    assert code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


@pytest.mark.parametrize("values", ["train.learning_rate", "train.learning_rate=", "learning_rate=0.1"])
def test_an_axis_without_values_is_the_fault_of_over(
    lab: Path, values: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"--over {values}" in complaint(capsys, "sweep", lab, "--over", values)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("simulate",), "FILE.toml"),
        (("no-such-command",), "no-such-command"),
        (("simulate", "lab.toml", "--engine", "steam"), "--engine"),
        (("compare", "lab.toml"), "--methods"),
        (("sweep", "lab.toml", "--over"), "--over"),
    ],
)
def test_arguments_that_do_not_parse_are_one_line(
    arguments: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = complaint(capsys, *arguments)
    assert named in error
    assert "--help" in error


def test_a_folder_is_no_federation(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    error = complaint(capsys, "simulate", lab.parent)
    assert str(lab.parent) in error
    assert "folder" in error
    assert "Errno" not in error


def test_a_bad_broker_url_comes_before_everything_else(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file in (lab, lab.with_name("missing.toml")):
        error = complaint(capsys, "coordinator", file, "--broker", "foo")
        assert "'foo'" in error
        assert "mqtt://" in error
    error = complaint(capsys, "device", "--federation", "lab", "--app", "no_such:make", "--broker", "foo")
    assert "'foo'" in error
    assert not (lab.parent / "runs").exists()


@pytest.mark.parametrize("method", ["local", "fedavg"])
def test_a_parameter_is_named_where_it_stands(lab: Path, method: str, capsys: pytest.CaptureFixture[str]) -> None:
    lab.write_text(lab.read_text(encoding="utf-8") + "\n[method.local]\ntau = 3\n", encoding="utf-8")
    error = complaint(capsys, "simulate", lab, "--set", f"federation.method={method}")
    assert f"{lab}: method.local.tau: " in error


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("simulat", "lab.toml"), "simulate?"),
        (("simulate", "lab.toml", "--engine", "cohrt"), "cohort?"),
        (("simulate", "lab.toml", "--set", "train.optimizer=sgd"), "optimiser?"),
        (("simulate", "lab.toml", "--set", "trian.momentum=0"), "train?"),
        (("simulate", "lab.toml", "--set", "federation.method=fedmb"), "fedmd?"),
        (("compare", "lab.toml", "--methods", "fedmb"), "fedmd?"),
        (("sweep", "lab.toml", "--over", "train.lerning_rate=1,2"), "learning_rate?"),
        (("sweep", "lab.toml", "--over", "method.fedmd.digest_step=1,2", "--methods", "fedmd"), "digest_steps"),
        (("sweep", "lab.toml", "--over", "train.learning_rate=0.1,many"), "'many'"),
        (("compare", "lab.toml", "--methods", "fedmd,fedmd"), "fedmd,fedmd"),
        (("compare", "lab.toml", "--methods", "fedmd", "--seeds", "1,0,1"), "--seeds 1,0,1"),
    ],
)
def test_what_is_misspelt_or_named_twice_is_told_first(
    lab: Path, arguments: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert named in complaint(capsys, *arguments)
    assert not (lab.parent / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("coordinator", "lab.toml", *SERVED, "--out", "a file"), "--out a file: "),
        (("simulate", "lab.toml", "--out", "a file/run"), "--out a file/run: "),
        (("lab", "init", "a file"), "a file: "),
        (("init", "none/new.toml"), "none/new.toml: "),
        (("new", "a file/project", "--model", "numpy"), "a file/project: "),
    ],
)
def test_a_place_that_cannot_be_written_is_named_as_it_was_typed(
    lab: Path, arguments: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (lab.parent / "a file").touch()
    assert complaint(capsys, *arguments).startswith(f"edge-sdk: {named}")
    assert sorted(each.name for each in lab.parent.iterdir()) == ["a file", "lab.toml"]


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (("new", "my +#", "--model", "numpy", "--classes", "3", "--devices", "2"), "cd 'my +#'"),
        (("init", "my +#"), "simulate 'my +#'"),
        (("lab", "init", "my +#", "--host", "localhost"), "lab serve 'my +#'"),
    ],
)
def test_a_command_that_is_shown_quotes_the_place_in_it(
    lab: Path, arguments: tuple[str, ...], command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(list(arguments)) == 0
    assert f"{command}\n" in capsys.readouterr().out
    assert (lab.parent / "my +#").exists()


@pytest.mark.parametrize(
    ("number", "code"), [(errno.ENOSPC, 1), (errno.EROFS, 1), (errno.ENOTDIR, 2), (errno.EACCES, 2)]
)
def test_a_disk_that_fails_is_no_mistake_of_the_user(number: int, code: int) -> None:
    assert unwritable(OSError(number, "why"), "text").exit_code == code


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--federation", "A B"),
        ("--id", "Q Q"),
        ("--ca", "missing.pem"),
        ("--state", "lab.toml"),
        ("--public", "missing.npz"),
        ("--policy", "missing.toml"),
    ],
)
def test_a_device_checks_its_own_options_before_it_loads_the_app(
    lab: Path, option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (lab.parent / "app_that_tells.py").write_text("raise SystemExit('loaded')", encoding="utf-8")
    given = {"--broker": "mqtt://127.0.0.1:1", "--federation": "lab", "--app": "app_that_tells:make", option: value}
    error = complaint(capsys, "device", *(word for pair in given.items() for word in pair))
    assert value in error
    assert "loaded" not in error


def test_the_password_of_a_broker_is_not_told(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broker = "mqtt://me:secret@127.0.0.1:1"
    error = complaint(
        capsys, "device", "--broker", broker, "--federation", "lab", "--app", "no_such:make", "--ca", str(lab)
    )
    assert "--ca" in error
    assert "secret" not in error


def test_an_option_of_no_command_is_the_fault_of_that_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert "edge-sdk report --help" in complaint(capsys, "report", "runs/x", "--outt", "a.html")


def test_a_simulation_that_could_not_write_its_settings_makes_no_folder(
    lab: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "tomli_w" else found(name))
    assert "tomli-w" in complaint(capsys, "simulate", lab)
    assert not Path("runs").exists()


@pytest.mark.usefixtures("figures")
@pytest.mark.parametrize("given", [True, False])
def test_a_simulation_says_that_it_does_not_read_a_public_set(
    lab: Path, given: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--set", f'public.path="{lab.name}"') if given else ()
    assert cli.main(["simulate", "lab.toml", "--out", "run", *options]) == 0
    assert ("public.path" in capsys.readouterr().err) is given


def test_a_simulation_takes_no_public_set_from_a_file(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(lab.with_name("public.npz"), np.zeros((4, 8), np.float32))
    options = ("federation.method=fedmd", 'public.path="public.npz"', "data.public=0")
    assert cli.main(["simulate", "lab.toml", *(word for each in options for word in ("--set", each))]) == 2
    assert "data.public" in capsys.readouterr().err.splitlines()[-1]


def test_a_command_without_memory_ends_with_one_line(
    lab: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As while numpy or torch is imported."""

    def full(*_: object) -> NoReturn:
        raise MemoryError

    monkeypatch.setattr(cli.Subcommand, "run", full)
    assert cli.main(["simulate", str(lab)]) == 1
    assert capsys.readouterr().err == "edge-sdk: out of memory; free some, or raise this process's limit\n"


def test_a_line_declares_the_command_that_it_names_and_else_all() -> None:
    names = [each.name for each in cli.commands()]
    assert len(names) > 1
    assert [each.name for each in cli.commands("device")] == ["device"]
    assert [each.name for each in cli.commands("devise")] == names
