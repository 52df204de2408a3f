"""docs/how-to/scale-out.md: its commands exist and its keys are read."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import fleets

from coordinator.config import to_toml
from edge_sdk import cli
from edge_sim.config import settings

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PAGE = (Path(__file__).parents[2] / "docs/how-to/scale-out.md").read_text(encoding="utf-8")


def test_every_command_is_one() -> None:
    commands = re.findall(r"^    edge-sdk (.+)$", PAGE, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        assert "run.cluster=" in cli.parser().parse_args(shlex.split(command)).overrides[0]


def test_every_key_is_read(pictures: Path) -> None:
    (block,) = re.findall(r"```toml\n(.+?)```", PAGE, re.DOTALL)
    run = tomllib.loads(block)["run"]
    found = settings.parse({**fleets.tables(pictures), "run": run}, Path("federation.toml")).run
    for key, value in run.items():
        assert getattr(found, key) == (tuple(value) if isinstance(value, list) else value)


def test_an_address_is_taken_from_the_command_line(pictures: Path, tmp_path: Path) -> None:
    (command,) = re.findall(r"^    edge-sdk (simulate .+cluster=10.+)$", PAGE, re.MULTILINE)
    args = cli.parser().parse_args(shlex.split(command))
    file = tmp_path / str(args.file)
    file.write_text(to_toml(fleets.tables(pictures)), encoding="utf-8")
    assert settings.load_config(file, args.overrides).run.cluster == "10.0.0.1:6379"
