"""docs/tutorial/vibration.md: its blocks run in order, against a real broker and coordinator; its commands exist."""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from undrawn import undrawn

from coordinator.broker.embedded import EmbeddedBroker
from edge_sdk import cli

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/tutorial/vibration.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.+?)```", PAGE, re.DOTALL)
ADDRESS = "mqtt://127.0.0.1:1883"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A copy of the example, in which the blocks run as in the reader's own terminal."""
    copy = tmp_path / "vibration"
    shutil.copytree(ROOT / "examples/vibration", copy, ignore=shutil.ignore_patterns("state", "__pycache__"))
    monkeypatch.chdir(copy)
    monkeypatch.syspath_prepend(copy)
    yield copy
    sys.modules.pop("bearing", None)


def wait_until_over(agent, within_s=60.0):
    end_s = time.monotonic() + within_s
    while not agent.over:
        assert time.monotonic() < end_s, agent.error
        time.sleep(0.05)


@pytest.mark.broker
@pytest.mark.processes
def test_the_blocks_run_in_order(folder, capsys):
    command = next(line for line in PAGE.splitlines() if line.startswith("edge-sdk coordinator")).rstrip(" &")
    small = ["--set", "federation.devices=1", "--set", "federation.rounds=3", "--out", str(folder / "run")]
    with EmbeddedBroker() as broker:
        words = shlex.split(command.replace(ADDRESS, broker.url))
        program = [sys.executable, "-m", "edge_sdk.cli", *words[1:], *small]
        with subprocess.Popen(
            program, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=undrawn()
        ) as coordinator:
            names = {}
            try:
                for block in BLOCKS:
                    if "agent.stop()" in block:  # the reader has more patience than this test's coordinator has rounds
                        wait_until_over(names["agent"])
                    exec(compile(block.replace(ADDRESS, broker.url), "the tutorial", "exec"), names)
                assert coordinator.wait(60) == 0, coordinator.stderr.read()
            finally:
                if coordinator.poll() is None:
                    coordinator.kill()
    assert names["agent"].error is None
    said = capsys.readouterr().out
    assert "1 windows wait" in said
    assert "1 labelled" in said
    assert "0..3" in said
    assert "NaN" in said
    assert "accepted by the coordinator" in said


def test_every_command_is_one():
    commands = [line.rstrip(" &") for line in PAGE.splitlines() if line.startswith("edge-sdk ")]
    assert len(commands) == 2
    for command in commands:
        cli.parser().parse_args(shlex.split(command)[1:])


def test_the_monitor_is_the_page():
    """What the program adds between its rulers are the arguments of the page's store and agent."""
    program = (ROOT / "examples/vibration/monitor.py").read_text(encoding="utf-8")
    added = program.split("# " + "-" * 90)[1]
    for argument in re.findall(r"^    (\w+)=", next(b for b in BLOCKS if "Agent(" in b), re.MULTILINE):
        assert f"{argument}=" in added
    assert added.count(";") == 0
    assert len([line for line in added.splitlines() if line.strip()]) <= 15


def test_machines_repeat_and_differ(folder):
    bearing = runpy.run_path(str(folder / "bearing.py"))
    one, same, other = (bearing["Machine"](number) for number in (3, 3, 4))
    windows = [machine.window(2) for machine in (one, same, other)]
    assert (windows[0].signal == windows[1].signal).all()
    assert abs(windows[0].speed_hz - windows[2].speed_hz) > 0.1
    assert bearing["features"](windows[0]).shape == (bearing["FEATURES"],)


@pytest.mark.long
def test_the_fleet_gains(monkeypatch):
    """What the page claims, on a smaller plant: together each knows faults that it never had."""
    monkeypatch.syspath_prepend(ROOT / "examples/vibration")
    from benchmarks.methods.vibration import measure

    alone, together = (measure(method, machines=3, rounds=40, seed=0)[1] for method in ("local", "fedavg"))
    assert together > alone + 0.05
