"""The page about boards: its lines are those of the profiles, and its commands are ones that the command line takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from edge_sdk.cli import parser
from edge_sdk.tools.boards_command import systems

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "put-it-on-a-board.md"


def blocks() -> list[str]:
    return re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_lines_that_install_are_those_of_the_profile():
    assert tuple(blocks()[0].splitlines()) == systems()["pi-os-64"].install


def test_the_commands_of_edge_sdk_are_taken():
    lines = [line for block in blocks() for line in block.replace("\\\n", " ").splitlines()]
    commands = [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("edge-sdk ")]
    assert [command[0] for command in commands] == ["doctor", "install"]
    for command in commands:
        parser().parse_args(command)
    install = parser().parse_args(commands[1])
    assert install.read_device(install.device[1:]).id == "cam-7"


def test_every_setting_that_the_page_explains_is_in_a_unit():
    source = (PAGE.parents[2] / "edge_sdk" / "tools" / "install" / "unit.py").read_text(encoding="utf-8")
    table = [line.split("|")[1] for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    names = {name for cell in table for name in re.findall(r"`([A-Z][A-Za-z]+)", cell)}
    assert {"MemoryMax", "CPUWeight", "StateDirectory", "ProtectSystem"} <= names
    assert all(f"{name}=" in source for name in names)
