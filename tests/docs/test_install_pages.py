"""The pages on installing have the lines of the systems' profiles, which `edge-sdk boards` shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from edge_sdk.tools.boards_command import systems

ROOT = Path(__file__).parents[2]
SYSTEMS = list(systems().values())
LINES = {line for each in SYSTEMS for line in (*each.install, each.onnx)}


@pytest.mark.parametrize(
    "page",
    ["docs/how-to/install-on-raspberry-pi.md", "docs/how-to/install-on-jetson.md", "docs/how-to/put-it-on-a-board.md"],
)
def test_its_lines_are_those_of_the_profiles(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    shown = [line for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    installing = [
        line for line in shown if " install --python " in line or "bin/pip install '" in line or "venv" in line
    ]
    assert len(installing) >= 2
    assert [line for line in installing if line not in LINES] == []
    inline = re.findall(r"`(~/edge/bin/pip install onnxruntime==[\d.]+)`", text)
    assert all(line in LINES for line in inline)


def test_the_versions_of_jetpack_are_those_of_the_profiles() -> None:
    text = (ROOT / "docs/how-to/install-on-jetson.md").read_text(encoding="utf-8")
    named = {f"jetpack-{number}" for number in re.findall(r"^\| `# R\d+` \| (\d) \|", text, re.MULTILINE)}
    assert named == {each.name for each in SYSTEMS if each.name.startswith("jetpack-")}
