"""The operating systems of boards: their lines pin versions that this edge-sdk takes, and every board names some."""

from __future__ import annotations

import json
import re

import pytest

from edge_sdk.boards.profiles import boards, load_board
from edge_sdk.tools.boards_command import render_boards, systems
from edge_sdk.tools.doctor import machine
from edge_sdk.version import __version__


@pytest.mark.parametrize("name", systems())
def test_the_pinned_versions_are_those_that_edge_sdk_takes(name):
    system = systems()[name]
    pins = dict(re.findall(r"([a-z-]+)==([0-9.]+)", " ".join((*system.install, system.onnx))))
    assert pins.pop("edge-sdk") == __version__
    own = {each.name: each for each in machine.requirements()}
    assert {"msgpack", "paho-mqtt"} <= set(pins) <= set(own)
    for package, version in pins.items():
        assert machine.fits(machine.parse_version(version), own[package])


def test_a_system_with_a_python_that_is_too_old_brings_another():
    for system in systems().values():
        oldest = min(tuple(map(int, found)) for found in re.findall(r"(\d+)\.(\d+)", system.python))
        brought = re.search(r"--python (\d+)\.(\d+)", " ".join(system.install))
        assert (oldest if brought is None else tuple(map(int, brought.groups()))) >= (3, 10)


def test_every_board_runs_a_system_of_its_processor():
    for board in map(load_board, boards()):
        assert board.systems
        assert board.arch == "any" or all(
            board.arch in systems()[name].arch or systems()[name].arch == "armv7l" for name in board.systems
        )
        if board.name.startswith("jetson"):
            assert all(systems()[name].gpu for name in board.systems)


def test_boards_shows_every_line_to_type():
    shown = render_boards(as_json=False)
    for system in systems().values():
        assert all(f"$ {line}" in shown for line in system.install)
    assert [each["name"] for each in json.loads(render_boards(as_json=True))["systems"]] == list(systems())
