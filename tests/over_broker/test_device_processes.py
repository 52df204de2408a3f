"""What is told of device processes that end, and of devices that stop inside one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from edge_sim.over_broker.processes import DeviceProcesses


def ending(code: int, before: str = "") -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", f"import os\n{before}\nraise SystemExit({code})"])


def test_every_device_that_stopped_is_told_once_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "device-00.log").write_text("a warning\ndevice-01: no room\ndevice-02: refused\n", encoding="utf-8")
    (tmp_path / "device-03.log").write_text("Traceback\nValueError: early\n", encoding="utf-8")
    (tmp_path / "device-04.log").write_text("a warning\n", encoding="utf-8")
    processes = {
        ("device-00", "device-01", "device-02"): ending(1),
        ("device-03",): ending(1),
        ("device-04",): ending(0),
    }
    told = list[str]()
    found = DeviceProcesses(processes, tmp_path, 2, told.append)
    found.wait(60.0)
    assert found.check() == "; ".join(told)  # too few are left
    assert found.check()
    assert told == [
        "the process of device-00, device-01, device-02 ended with code 1: device-01: no room; device-02: refused",
        "the process of device-03 ended with code 1: ValueError: early",
    ]


def test_a_process_that_was_killed_without_a_word_is_told_with_its_signal_and_log(tmp_path: Path) -> None:
    (tmp_path / "device-00.log").touch()
    killed = ending(0, before="os.kill(os.getpid(), 9)")
    found = DeviceProcesses({("device-00",): killed}, tmp_path, 1, lambda _line: None)
    found.wait(60.0)
    log = tmp_path / "device-00.log"
    assert found.check() == f"the process of device-00 ended by signal 9: nothing in {log}"
