"""docs/how-to/live-page.md: its commands exist, and it names what the code keeps to."""

import re
from pathlib import Path

from coordinator.results.page.guard import LEAST_TOKEN, TOKEN_VARIABLE
from coordinator.results.page.serving import PAGE_PORT
from edge_sdk import cli

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "live-page.md").read_text(encoding="utf-8")


def test_its_commands_are_read():
    lines = re.findall(r"^ +edge-sdk (.+)$", PAGE, flags=re.MULTILINE)
    assert len(lines) == 4
    for line in lines:
        assert cli.parser().parse_args(line.split()).command.name in line


def test_it_names_the_port_the_token_and_its_length():
    assert {str(PAGE_PORT), TOKEN_VARIABLE, str(LEAST_TOKEN)} <= {*re.findall(r"\w+", PAGE)}


def test_the_default_of_the_command_is_this_machine():
    assert cli.parser().parse_args(["page", "runs/demo"]).at == f"127.0.0.1:{PAGE_PORT}"
