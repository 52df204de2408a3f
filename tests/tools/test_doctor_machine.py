"""The checks of the machine: each says what is fine, and each planted fault gets its level and its remedy."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from edge_sdk.tools.doctor import disk, machine
from edge_sdk.tools.doctor.command import MACHINE, PACKAGES, run_all_checks
from edge_sdk.tools.doctor.finding import Check, CheckTarget, Finding, Level, ok, run_checks
from edge_sdk.tools.doctor.machine import Requirement

OK, WARN, FAIL = Level.OK, Level.WARN, Level.FAIL


def says(finding: Finding, level: Level, found: str, remedy: str = "") -> None:
    assert finding.level is level, finding
    assert re.search(found, finding.found), finding
    assert re.search(remedy, finding.remedy), finding
    assert bool(finding.remedy) == (level is not OK)  # a fault says what to do; no fault, nothing to do


def test_python():
    says(machine.judge_python((3, 10, 4)), OK, r"^3\.10\.4$")
    says(machine.judge_python((3, 15, 0)), OK, "")
    says(machine.judge_python((3, 9, 18)), FAIL, r"3\.9\.18, but 3\.10", "virtual environment")


@pytest.mark.parametrize(("soft", "level"), [(None, OK), (1024, OK), (1023, WARN), (64, WARN), (63, FAIL)])
def test_open_files(soft, level):
    says(machine.judge_files(soft), level, "open files|no limit", "" if level is OK else "ulimit -n 1024")


def test_the_limit_of_open_files_is_that_of_the_system():
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
    try:
        assert machine.files_limit() == 300
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("version", "level"),
    [
        ("2.0.11", WARN),
        ("2.0.22", WARN),
        ("2.0.23", OK),
        ("2.1.0", WARN),
        ("2.1.1", WARN),
        ("2.1.2", OK),
        ("2.2.0", OK),
        ("3.0", OK),
        ("1.6.9", WARN),
        ("", WARN),
    ],
)
def test_mosquitto_versions(version, level):
    says(machine.judge_mosquitto(version, amqtt=True), level, version, "" if level is OK else r"2\.0\.23 .* 2\.1\.2")


def test_without_mosquitto_the_finding_says_what_is_taken_instead():
    says(machine.judge_mosquitto(None, amqtt=True), OK, "amqtt")
    says(machine.judge_mosquitto(None, amqtt=False), OK, "nor is amqtt installed")


def fake_mosquitto(folder: Path, script: str) -> None:
    program = folder / "mosquitto"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


@pytest.mark.skipif(os.name != "posix", reason="needs a shell")
def test_the_version_is_what_mosquitto_on_path_says(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.mosquitto_version() is None
    fake_mosquitto(tmp_path, "echo 'mosquitto version 2.0.11'; exit 3")
    assert machine.mosquitto_version() == "2.0.11"
    fake_mosquitto(tmp_path, "echo 'something else'")
    assert machine.mosquitto_version() == ""


def test_the_board_and_its_profile():
    says(machine.judge_board("rpi4"), OK, "rpi4; its profile is .*cores.*GiB.*numpy")
    says(machine.judge_board("riscv64"), WARN, "riscv64: it has no profile", "--measure")


# -- the state folder -----------------------------------------------------------------------------------------------


def test_a_state_folder_that_is_there_or_can_be_made(tmp_path):
    says(disk.judge_writable(tmp_path), OK, re.escape(str(tmp_path)))
    says(disk.judge_writable(tmp_path / "a/b"), OK, "will be made in")
    assert list(tmp_path.iterdir()) == []  # a doctor leaves nothing behind


def test_a_file_in_the_way(tmp_path):
    (tmp_path / "file").write_text("")
    says(disk.judge_writable(tmp_path / "file/state"), FAIL, "is a file", "--state")


def test_a_folder_of_somebody_else(tmp_path, monkeypatch):
    def denied(*_arguments, **_options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(disk.tempfile, "TemporaryFile", denied)  # a test as root could write anywhere
    says(disk.judge_writable(tmp_path), FAIL, "Permission denied", "chmod")
    new = tmp_path / "its own" / "state"
    says(disk.judge_writable(new), FAIL, "cannot be made in", re.escape(f"sudo mkdir -p '{new}' && sudo chown $USER '"))
    assert all(" -R " not in disk.judge_writable(folder).remedy for folder in (tmp_path, new))
    assert disk.measure_sync_s(tmp_path) is None


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="the system has no /proc")
def test_a_place_that_keeps_no_files_is_left_alone():
    state = Path("/proc/state")
    finding, room = disk.judge_writable(state), disk.judge_room(disk.free_bytes(state))
    says(finding, FAIL, "cannot be made in /proc", "another --state")
    says(room, FAIL, "cannot be measured")
    assert not re.search("sudo|apt", finding.remedy + room.remedy)


@pytest.mark.parametrize(("median_s", "level"), [(0.0002, OK), (0.09, OK), (0.11, WARN), (None, FAIL)])
def test_how_long_a_sync_takes(median_s, level):
    says(disk.judge_sync(median_s), level, "", "" if level is OK else "card|see the line")


def test_a_sync_is_measured_and_leaves_nothing_behind(tmp_path, monkeypatch):
    ticks = iter(range(1000))
    monkeypatch.setattr(disk.time, "perf_counter", lambda: next(ticks))
    synced = []
    monkeypatch.setattr(disk.os, "fsync", synced.append)
    assert disk.measure_sync_s(tmp_path) == 1.0
    assert len(synced) == disk.SYNCS
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("mib", "level"), [(10, FAIL), (63, FAIL), (64, WARN), (511, WARN), (512, OK), (99999, OK)])
def test_free_space(mib, level):
    says(disk.judge_room(mib * 2**20), level, "free", "" if level is OK else "MiB")


def test_free_space_is_asked_of_the_place_where_the_folder_would_be(tmp_path):
    free_bytes = disk.free_bytes(tmp_path / "a/b")
    assert free_bytes is not None
    assert abs(free_bytes - shutil.disk_usage(tmp_path).free) < 2**30


def test_a_state_folder_in_memory_is_told_of(tmp_path):
    says(disk.judge_medium(Path("state"), "tmpfs"), WARN, "power cut", "card")
    says(disk.judge_medium(Path("state"), "ext4"), OK, "ext4")
    says(disk.judge_medium(Path("state"), ""), OK, "not known")
    place = tmp_path.resolve()
    mounts = f"root / ext4 rw 0 0\nx {place} tmpfs rw 0 0\ny {place}/a\\040b btrfs rw 0 0\nshort line\n"
    assert disk.filesystem(tmp_path / "new", mounts) == "tmpfs"
    (tmp_path / "a b").mkdir()
    assert disk.filesystem(tmp_path / "a b/c", mounts) == "btrfs"
    assert disk.filesystem(Path("/"), mounts) == "ext4"
    assert disk.filesystem(tmp_path, "") == ""


# -- packages -------------------------------------------------------------------------------------------------------


def test_requirements_are_read_from_our_own_metadata():
    lines = [
        "numpy>=1.24",
        "paho-mqtt<3,>=2.1",
        'tomli>=2.0; python_version < "3.11"',
        'torch>=2.1; extra == "torch"',
        "torch>=2.1; extra == 'coordinator'",
        "amqtt<0.13,>=0.12; extra == 'coordinator'",
        'edge-sdk[torch]; extra == "sim"',
        'pytest>=8; extra == "dev"',
    ]
    assert machine.requirements(lines) == (
        Requirement("numpy", "", ((">=", (1, 24)),)),
        Requirement("paho-mqtt", "", (("<", (3,)), (">=", (2, 1)))),
        Requirement("torch", "torch", ((">=", (2, 1)),)),
        Requirement("amqtt", "coordinator", (("<", (0, 13)), (">=", (0, 12)))),
    )


def test_every_package_that_we_name_is_checked():
    names = {check.name for check in PACKAGES}
    assert {"numpy", "msgpack", "paho-mqtt", "torch", "onnxruntime", "matplotlib", "amqtt", "scikit-learn"} <= names
    assert "pytest" not in names


@pytest.mark.parametrize(
    ("version", "level", "found"),
    [
        ("0.12.1", OK, r"0\.12\.1"),
        ("0.11.9", WARN, r"0\.11\.9, but edge-sdk\[coordinator\] wants >= 0\.12, < 0\.13"),
        ("0.13.0", WARN, "wants"),
        (None, OK, r"not installed; edge-sdk\[coordinator\]"),
    ],
)
def test_a_package_of_an_extra(version, level, found):
    amqtt = Requirement("amqtt", "coordinator", ((">=", (0, 12)), ("<", (0, 13))))
    says(machine.judge(amqtt, version), level, found, "" if level is OK else r"edge-sdk\[coordinator\]")


@pytest.mark.parametrize(("version", "level"), [("2.4.6", OK), ("1.23.5", FAIL), (None, FAIL)])
def test_a_package_of_the_base_install(version, level):
    says(
        machine.judge(Requirement("numpy", "", ((">=", (1, 24)),)), version),
        level,
        "",
        "" if level is OK else "pip install",
    )


def test_versions_are_compared_by_their_numbers():
    assert machine.parse_version("2.13.0+cpu") == (2, 13, 0)
    assert machine.parse_version("1.10") > machine.parse_version("1.9.9")
    assert machine.parse_version("odd") == ()


def test_msgpack_without_its_c_extension():
    import msgpack.fallback

    says(machine.judge_msgpack("msgpack._cmsgpack"), OK, "C extension")
    says(machine.judge_msgpack(msgpack.fallback.Packer.__module__), WARN, "pure Python", "wheel")
    assert machine.judge_msgpack(machine.msgpack_packer()).level in (OK, WARN)


# -- all together ---------------------------------------------------------------------------------------------------


def test_a_check_that_breaks_is_a_finding_and_the_others_go_on(tmp_path):
    def broken(_patient):
        raise RuntimeError("no such device")

    examined = run_checks((Check("first", broken), Check("second", lambda _: ok("fine"))), CheckTarget(state=tmp_path))
    says(examined[0].finding, FAIL, "RuntimeError: no such device", "report")
    assert examined[1].finding.level is OK


def test_this_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "load_faults", dict)
    examined = run_all_checks(CheckTarget(state=tmp_path / "state"))
    assert [each.name for each in examined] == [check.name for check in (*MACHINE, *PACKAGES)] + ["plug-ins"]
    failed = [each for each in examined if each.finding.level is FAIL]
    assert failed == []
    assert not (tmp_path / "state").exists()
