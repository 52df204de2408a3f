"""The checks of what surrounds a board: machine, runtimes, the speed of its card, and dates of certificates."""

from __future__ import annotations

import re
import signal
import ssl
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from edge_sdk.errors import StoreError
from edge_sdk.tools.doctor import certificates, disk, machine
from edge_sdk.tools.doctor.finding import Finding, Level

OK, WARN, FAIL = Level.OK, Level.WARN, Level.FAIL
NOW = datetime(2026, 6, 1, tzinfo=timezone.utc)


def says(finding: Finding, level: Level, found: str, remedy: str = "") -> None:
    assert finding.level is level, finding
    assert re.search(found, finding.found), finding
    assert re.search(remedy, finding.remedy), finding
    assert bool(finding.remedy) == (level is not OK)


# -- clock and heat -------------------------------------------------------------------------------------------------


def test_the_clock():
    says(machine.judge_clock(2026, synchronized=True), OK, "2026")
    says(machine.judge_clock(2026, synchronized=None), OK, "not known")
    says(machine.judge_clock(2026, synchronized=False), WARN, "not synchronised", "timedatectl set-ntp true")
    says(machine.judge_clock(1970, synchronized=None), WARN, "1970", "timedatectl")


@pytest.mark.parametrize(
    ("answer", "known"), [("echo yes", True), ("echo no", False), ("exit 1", None), ("echo what", None)]
)
def test_whether_the_clock_is_synchronised_is_asked_of_the_system(tmp_path, monkeypatch, answer, known):
    monkeypatch.setenv("PATH", str(tmp_path))
    missing = tmp_path / "synchronized"
    assert machine.is_synchronized(missing) is None
    program = tmp_path / "timedatectl"
    program.write_text(f"#!/bin/sh\n{answer}\n")
    program.chmod(0o755)
    assert machine.is_synchronized(missing) is known
    missing.write_text("")
    assert machine.is_synchronized(missing) is True


@pytest.mark.parametrize(
    ("celsius", "throttled", "level"),
    [(None, None, OK), (45.0, False, OK), (74.9, None, OK), (75.0, None, WARN), (50.0, True, WARN)],
)
def test_heat(celsius, throttled, level):
    says(machine.judge_heat(celsius, throttled), level, "", "" if level is OK else "max_temperature_c")


# -- runtimes -------------------------------------------------------------------------------------------------------


def test_runtimes():
    says(machine.judge_runtimes({}), OK, "numpy")
    says(machine.judge_runtimes({"onnxruntime": "", "torch": ""}), OK, "numpy, onnxruntime, torch")
    says(machine.judge_runtimes({"onnxruntime": "ended by SIGILL", "torch": ""}), FAIL, "SIGILL", r"edge-sdk\[onnx\]")


@pytest.mark.parametrize(
    ("module", "fault"),
    [
        ("", r"^$"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGILL)", signal.SIGILL.name),
        ("raise ImportError('libfoo.so.1 is missing')", "libfoo.so.1"),
    ],
)
def test_a_runtime_that_ends_the_process_is_found(tmp_path, monkeypatch, module, fault):
    (tmp_path / "trial_runtime.py").write_text(module)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(machine, "RUNTIMES", {"trial_runtime": "onnx", "not_there_at_all": "torch"})
    faults = machine.load_faults()
    assert list(faults) == ["trial_runtime"]
    assert re.search(fault, faults["trial_runtime"])


# -- the card -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rate", "level"), [(None, FAIL), (1.9e6, WARN), (2e6, OK), (1e8, OK)])
def test_the_speed_of_writes(rate, level):
    says(disk.judge_speed(rate), level, "", "" if level is OK else "state folder|dmesg")


def test_the_speed_is_measured_with_few_bytes_that_are_not_left(tmp_path, monkeypatch):
    asked = []

    def measured(folder, blocks):
        asked.append((folder, blocks))
        return 1e7

    monkeypatch.setattr(disk, "disk_bytes_per_s", measured)
    assert disk.measure_bytes_per_s(tmp_path / "not/yet") == 1e7
    assert asked == [(tmp_path, 4)]
    monkeypatch.undo()
    assert disk.measure_bytes_per_s(tmp_path) > 0
    assert list(tmp_path.iterdir()) == []


def test_a_speed_that_cannot_be_measured(monkeypatch, tmp_path):
    def refused(*_arguments, **_options):
        raise StoreError("no")

    monkeypatch.setattr(disk, "disk_bytes_per_s", refused)
    assert disk.measure_bytes_per_s(tmp_path) is None


# -- certificates ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("begins", "ends", "level", "found"),
    [
        (-400, 400, OK, "2027"),
        (-400, 29, WARN, "29 days"),
        (-400, -1, FAIL, "2026-05-31"),
        (2, 400, FAIL, "2026-06-03"),
    ],
)
def test_dates(begins, ends, level, found):
    dates = (NOW + timedelta(days=begins), NOW + timedelta(days=ends))
    says(certificates.judge_dates(dates, NOW, "openssl"), level, found, "" if level is OK else "tls.md|date")


def test_dates_that_cannot_be_read(tmp_path):
    says(certificates.judge_dates(None, NOW, "openssl x509"), WARN, "", "openssl x509")
    file = tmp_path / "file.pem"
    for text in ("", "nonsense", f"{ssl.PEM_HEADER}\nAAAA\n{ssl.PEM_FOOTER}\n"):
        file.write_text(text)
        assert certificates.file_dates(file) is None
    assert certificates.file_dates(Path("missing.pem")) is None
    assert certificates.validity(b"") is None


@pytest.mark.parametrize(
    "until", [datetime(2031, 2, 3, tzinfo=timezone.utc), datetime(2070, 1, 1, tzinfo=timezone.utc)]
)
def test_the_dates_of_a_file_are_those_of_its_first_certificate(tmp_path, until):
    trustme = pytest.importorskip("trustme")
    leaf = trustme.CA().issue_cert("lab", not_before=NOW, not_after=until)
    file = tmp_path / "own.pem"
    leaf.private_key_and_cert_chain_pem.write_to_path(str(file))
    assert certificates.file_dates(file) == (NOW, until)
    assert certificates.check_file_dates(file, NOW).level is OK
