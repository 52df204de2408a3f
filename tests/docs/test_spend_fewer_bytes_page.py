"""docs/how-to/spend-fewer-bytes.md and choose-a-method.md name settings and methods that there are, and what they cost."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import fleets
import pytest

from coordinator.config import to_toml
from edge_sdk import cli
from edge_sim.config import settings
from edge_sim.projects.methods_command import describe_methods

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
BYTES = (HOW_TO / "spend-fewer-bytes.md").read_text(encoding="utf-8")
CHOOSE = (HOW_TO / "choose-a-method.md").read_text(encoding="utf-8")
ROWS = {row["name"]: row for row in describe_methods()}


def test_its_encodings_are_taken(pictures: Path) -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", BYTES, re.DOTALL)
    tables = {**fleets.tables(pictures, "fedmd"), **tomllib.loads(block)}
    assert settings.parse(tables, Path("f.toml")).encoding.logits == "int8-row"


def test_every_setting_that_it_names_is_one(pictures: Path) -> None:
    named = re.findall(r"`(federation|train|method)\.(\w+)", BYTES)
    tables = fleets.tables(pictures, "fedavg")
    parsed = settings.parse(tables, Path("f.toml"))
    assert len(named) >= 5
    for section, key in named:
        if section == "method":
            assert any(key in row["parameters"] for row in ROWS.values()), key
        else:
            assert hasattr(getattr(parsed, section), key), key


@pytest.mark.usefixtures("figures")
def test_its_sweep_runs_and_tells_bytes(pictures: Path, tmp_path: Path) -> None:
    (line,) = [line for line in BYTES.splitlines() if line.startswith("edge-sdk sweep")]
    file = tmp_path / "federation.toml"
    file.write_text(to_toml(fleets.tables(pictures, "fedmd", devices=2, rounds=1)), encoding="utf-8")
    command = shlex.split(line.replace("federation.toml", str(file)))[1:]
    split = ["--methods", "fedmd", "--set", "data.split=[8,1,1]", "--out", str(tmp_path / "sweep")]
    assert cli.main([*command, *split]) == 0
    header, *trials = (tmp_path / "sweep" / "trials.csv").read_text(encoding="utf-8").splitlines()
    assert {"bytes_up", "bytes_down"} <= set(header.split(","))
    assert len(trials) == 2 * 6  # the devices alone, too


@pytest.mark.parametrize(("most_bytes", "row"), [(1_000, "under 1 kB"), (25_000, "1 to 25 kB")])
def test_methods_cost_what_their_row_says(most_bytes: int, row: str) -> None:
    names = re.findall(rf"^\| .* \| `(\w+)`.* \| {row} \| .* \|$", CHOOSE, re.MULTILINE)
    assert names
    for name in names:
        if name != "fednh":  # its body travels unless share_body = false
            assert ROWS[name]["bytes_per_round"]["up"]["example"] <= most_bytes, name


def test_every_method_that_it_names_is_one() -> None:
    named = set(re.findall(r"`(fed\w+|fd|fml|local)`", CHOOSE))
    assert named <= set(ROWS)
    assert len(named) > 8
