"""docs/how-to/simulate-a-fleet.md: its commands exist, its keys are read, and its example runs, twice the same."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from coordinator.results.report.summary import summary, without_times
from edge_sdk import cli
from edge_sim.config import settings
from edge_sim.runs.runner import run

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/how-to/simulate-a-fleet.md").read_text(encoding="utf-8")
EXAMPLE = ROOT / "examples/fleet/fleet.toml"
FEW = ("federation.rounds=1", "federation.participants=8", "federation.quorum=4", "train.local_steps=2")


def test_every_command_is_one() -> None:
    commands = re.findall(r"^    edge-sdk (.+)$", PAGE, re.MULTILINE)
    assert len(commands) == 5
    for command in commands:
        cli.parser().parse_args(shlex.split(command))


def test_every_key_is_read() -> None:
    whole = tomllib.loads(EXAMPLE.read_text(encoding="utf-8"))
    for block in re.findall(r"```toml\n(.+?)```", PAGE, re.DOTALL):
        tables = tomllib.loads(block.replace("lab-pi.toml", "rpi4"))
        rows = tables.pop("fleet", whole["fleet"])
        count = sum(row["count"] for row in rows)
        merged = {**whole, **tables, "fleet": rows}
        merged["federation"] = {**whole["federation"], **tables.get("federation", {}), "devices": count}
        merged["federation"] |= {key: min(count, merged["federation"][key]) for key in ("participants", "quorum")}
        settings.parse(merged, EXAMPLE)


def test_the_example_is_what_the_page_says() -> None:
    config = settings.load_config(EXAMPLE)
    boards = {row.board: row.count for row in config.fleet}
    assert boards == {"rpi4": 40, "rpi-zero-2w": 30, "jetson-nano": 20, "jetson-orin-nano": 10}
    assert {row.link for row in config.fleet} == {"wifi", "lte-cat1", None}
    assert [row.available for row in config.fleet].count("22:00-06:00") == 1
    assert settings.troubled(config)


@pytest.mark.torch
def test_the_example_runs_and_repeats() -> None:
    pytest.importorskip("torch")
    one, two = (run(settings.load_config(EXAMPLE, FEW)) for _ in range(2))
    assert one.completed
    assert one.history == two.history
    assert one.devices == two.devices
    assert without_times(summary(one)) == without_times(summary(two))
