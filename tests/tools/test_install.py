"""`edge-sdk install --systemd`: the unit that it writes, what it refuses, and that systemd itself finds no fault."""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edge_sdk import cli
from edge_sdk.errors import UsageError
from edge_sdk.tools.install import command
from edge_sdk.tools.install.command import check_reach
from edge_sdk.tools.install.unit import Service, unit_text

OPTIONS = ["--broker", "mqtt://lab:1883", "--federation", "cameras", "--app", "unit_app:make", "--id", "cam-7"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A working directory with an app, and a home of its own."""
    (tmp_path / "hot.toml").write_text("max_temperature_c = 'hot'\n")
    (tmp_path / "unit_app.py").write_text("def make():\n    raise AssertionError('an app is not made here')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def service(folder: Path, **changed) -> Service:
    values = {
        "device": "cam-7",
        "federation": "cameras",
        "python": Path("/usr/bin/python3"),
        "folder": folder,
        "options": OPTIONS,
        "state": None,
        "identity": None,
        "system": True,
        "user": "pi",
        "secrets": Path("/etc/edge-sdk/cam-7.env"),
        "memory_bytes": 2**29,
        "cpu_weight": 20,
        "nice": 10,
    }
    return Service(**{**values, **changed})


def settings(text: str) -> configparser.SectionProxy:
    reader = configparser.RawConfigParser(strict=True)
    reader.optionxform = str  # type: ignore[method-assign,assignment]  # names with their case
    reader.read_string(text)
    return reader["Service"]


def test_a_dry_run_writes_nothing(folder, capsys):
    before = sorted(folder.rglob("*"))
    assert cli.main(["install", "--systemd", "--dry-run", "--unit", "system", "--memory", "512M", "--", *OPTIONS]) == 0
    shown = capsys.readouterr().out
    assert "/etc/systemd/system/edge-sdk-cam-7.service" in shown
    assert f"MemoryMax={2**29}" in shown
    assert "systemctl daemon-reload" in shown
    assert [path for path in sorted(folder.rglob("*")) if "__pycache__" not in path.parts] == before


def test_a_user_unit_is_written_where_systemd_looks_for_it(folder, capsys):
    assert cli.main(["install", "--systemd", "--unit", "user", "--", *OPTIONS]) == 0
    file = folder / "config" / "systemd" / "user" / "edge-sdk-cam-7.service"
    assert str(file) in capsys.readouterr().out
    unit = settings(file.read_text())
    assert unit["WorkingDirectory"] == str(folder)
    assert unit["StateDirectory"] == "edge-sdk/cam-7"
    assert unit["ExecStart"].endswith("--id cam-7 --state %S/edge-sdk/cam-7")
    assert "User" not in unit


def test_limits_and_hardening_of_a_unit_of_the_system(folder):
    unit = settings(unit_text(service(folder)))
    wanted = {
        "User": "pi",
        "MemoryMax": str(2**29),
        "CPUWeight": "20",
        "Nice": "10",
        "NoNewPrivileges": "yes",
        "ProtectSystem": "strict",
        "ProtectHome": "read-only",
        "CapabilityBoundingSet": "",
        "Restart": "on-failure",
        "RestartPreventExitStatus": "2",
    }
    assert {key: unit[key] for key in wanted} == wanted
    assert "WatchdogSec" not in unit  # the device does not notify systemd


def test_no_setting_hides_gpus_and_cameras(folder):
    unit = settings(unit_text(service(folder)))
    assert not {"PrivateDevices", "DevicePolicy", "DeviceAllow", "ProtectClock"} & set(unit)


@pytest.mark.parametrize(
    ("changed", "private"),
    [
        ({"folder": Path("/opt/app")}, True),
        ({"folder": Path("/tmp/app")}, False),
        ({"folder": Path("/opt/app"), "state": Path("/var/tmp/state")}, False),
        ({"folder": Path("/tmpfs/app")}, True),
    ],
)
def test_a_tmp_of_its_own_hides_nothing_that_the_service_needs(changed, private):
    assert ("PrivateTmp" in settings(unit_text(service(**changed)))) is private


def test_a_state_of_ones_own_is_writable(folder):
    unit = settings(unit_text(service(folder, state=Path("/srv/my state"))))
    assert "StateDirectory" not in unit
    assert unit["ReadWritePaths"] == '"/srv/my state"'
    assert unit["ExecStart"].endswith('--state "/srv/my state"')


def test_the_identity_folder_is_writable(folder):
    """A device counts its starts in it."""
    unit = settings(unit_text(service(folder, identity=Path("/srv/cam 7"))))
    assert unit["ReadWritePaths"] == '"/srv/cam 7"'
    both = settings(unit_text(service(folder, identity=Path("/srv/cam-7"), state=Path("/srv/state"))))
    assert both["ReadWritePaths"] == '"/srv/state" "/srv/cam-7"'
    assert "ReadWritePaths" not in settings(unit_text(service(folder)))


def test_words_that_systemd_would_read_otherwise_are_quoted(folder):
    unit = settings(unit_text(service(folder, options=['a b"c', "100%", "$HOME"])))
    assert r'"a b\"c" "100%%" "$$HOME"' in unit["ExecStart"]


@pytest.mark.parametrize(
    "changed", [{}, {"state": Path("/srv/state"), "identity": Path("/srv/my id")}, {"system": False}]
)
def test_systemd_finds_no_fault(folder, changed):
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("no systemd-analyze here")
    made = service(folder, **{"user": "root", **changed})
    file = folder / made.name
    file.write_text(unit_text(made))
    manager = ["--system"] if made.system else ["--user"]
    found = subprocess.run(
        [program, *manager, "verify", str(file)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "XDG_RUNTIME_DIR": str(folder)},
    )
    assert made.name not in found.stderr, found.stderr
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize(
    ("before", "options", "named"),
    [
        ([], OPTIONS, "--systemd"),
        (["--systemd"], OPTIONS[:-2], "--id"),
        (["--systemd"], [*OPTIONS[:-1], "Cam 7"], "--id"),
        (["--systemd"], ["--broker", "http://lab", *OPTIONS[2:]], "mqtt://"),
        (["--systemd"], ["--broker", "mqtt://me:secret@lab", *OPTIONS[2:]], "EDGE_SDK_BROKER_PASSWORD"),
        (["--systemd"], OPTIONS[2:], "give --broker URL, or --identity DIR"),
        (["--systemd"], ["--identity", "missing", *OPTIONS[2:]], "missing is not an identity folder"),
        (["--systemd"], [*OPTIONS, "--public", "missing.npz"], "missing.npz"),
        (["--systemd"], [*OPTIONS, "--ca", "a\nb"], "--ca|unprintable"),
        (["--systemd"], [*OPTIONS[:4], "--app", "no_such_module:make", *OPTIONS[6:]], "no_such_module"),
        (["--systemd", "--memory", "lots"], OPTIONS, "--memory"),
        (["--systemd", "--memory", "1M"], OPTIONS, "--memory"),
        (["--systemd", "--user", "no-such-login"], OPTIONS, "--user"),
        (["--systemd", "--unit", "user", "--user", "root"], OPTIONS, "--user"),
        (["--systemd"], [*OPTIONS, "--policy", "hot.toml"], "max_temperature_c"),
    ],
)
def test_what_would_fail_later_is_one_line_now(capsys, before, options, named):
    assert cli.main(["install", "--dry-run", *before, "--", *options]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "secret" not in told
    assert any(each in told for each in named.split("|"))


@pytest.mark.parametrize("options", [(), ("--", "--id", "cam-7"), ("--federation", "cameras")])
def test_where_the_options_of_the_device_go_is_shown(capsys, options):
    with pytest.raises(SystemExit) as ended:
        cli.main(["install", "--systemd", *options])
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "--systemd -- --broker" in told


@pytest.mark.parametrize("options", [("--cpu-weight", "0"), ("--cpu-weight", "10001"), ("--nice", "x")])
def test_a_number_out_of_range_does_not_list_the_whole_range(capsys, options):
    with pytest.raises(SystemExit) as ended:
        cli.main(["install", "--systemd", *options, "--", *OPTIONS])
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert options[0] in told
    assert len(told) < 200


def test_an_option_that_a_device_does_not_have(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["install", "--systemd", "--dry-run", "--", *OPTIONS, "--colour"])
    assert ended.value.code == 2
    assert "--colour" in capsys.readouterr().err


def test_a_kernel_that_does_not_limit_memory_is_told_of(tmp_path):
    file = tmp_path / "cgroup.controllers"
    file.write_text("cpuset cpu io pids\n")
    assert "cgroup_enable=memory" in command.missing_controllers(file)[0]
    file.write_text("cpu memory\n")
    assert command.missing_controllers(file) == []
    assert command.missing_controllers(tmp_path / "none") == []


@pytest.mark.skipif(sys.platform == "win32", reason="no permission bits")
def test_a_user_who_cannot_reach_the_interpreter_is_refused_now(folder):
    closed = folder / "closed"
    closed.mkdir()
    (closed / "python").write_text("")
    folder.chmod(0o700)
    login = next((each for each in ("nobody", "daemon") if _uid(each) not in (None, os.getuid())), None)
    if login is None:
        pytest.skip("no other login here")
    with pytest.raises(UsageError, match=f"--user {login}: .* is closed to this user"):
        check_reach(login, [closed / "python"])
    link = Path(os.path.realpath("/usr/bin/env"))
    check_reach(login, [link])
    check_reach("root", [closed / "python"])


@pytest.mark.skipif(sys.platform == "win32", reason="no permission bits")
def test_the_bits_of_owner_group_and_others_count_for_each(folder):
    file = folder / "file"
    file.write_text("")
    known = file.stat()
    for mode, uid, groups, may in (
        (0o400, known.st_uid, set(), True),
        (0o040, known.st_uid, {known.st_gid}, False),
        (0o040, known.st_uid + 1, {known.st_gid}, True),
        (0o004, known.st_uid + 1, {known.st_gid}, False),
        (0o004, known.st_uid + 1, set(), True),
    ):
        file.chmod(mode)
        assert command.may_use(file, 0o4, uid, groups) is may


def _uid(login: str) -> int | None:
    import pwd

    try:
        return pwd.getpwnam(login).pw_uid
    except KeyError:
        return None
