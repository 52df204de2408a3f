"""`edge-sdk init`: every key stands in the file, with its meaning, and the default that it shows is the default."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from edge_sdk import toml
from edge_sdk.cli import main
from edge_sdk.methods.contract.registry import load_method, method_names
from edge_sim.config import settings
from edge_sim.config.settings import DataTable, FleetRow, PartitionTable, RunTable
from edge_sim.fleet.feasible import check_feasible
from edge_sim.fleet.fleet import build_fleet
from edge_sim.projects.commented_settings import commented, words


def uncommented(text: str) -> str:
    """The text with every key set that shows a value; a section that is commented out as a whole stays so."""
    parts = [part for part in text.split("\n\n") if not re.search(r"^# \[", part, re.MULTILINE)]
    return re.sub(r"^# (\w+ = \S.*)$", r"\1", "\n\n".join(parts), flags=re.MULTILINE)


@pytest.mark.parametrize("name", method_names())
def test_the_defaults_that_it_shows_are_the_defaults(name: str) -> None:
    text = commented(load_method(name)(), name="a", devices=3, rounds=5)
    plain, spelt = (settings.parse(toml.loads(each, "f.toml"), Path("f.toml")) for each in (text, uncommented(text)))
    same = [{key: value for key, value in each.tables.items() if key != "method"} for each in (plain, spelt)]
    for tables in same:
        tables["robust"].pop("hold_out_rounds")  # 5 is the default of a deployment; a simulation has 0
    assert same[0] == same[1]
    assert spelt.method[name] == load_method(name)().table


@pytest.mark.parametrize("table", [DataTable, PartitionTable, RunTable, FleetRow])
def test_every_key_stands_there_with_words(table: type) -> None:
    text = commented(load_method("fedmd")(), name="a", devices=3, rounds=5)
    for field in dataclasses.fields(table):
        assert re.search(rf"^(# )?{field.name} =", text, re.MULTILINE)
        assert words(table, field.name)


def test_the_file_runs_and_is_never_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "federation.toml"
    assert main(["init", str(file), "--method", "fedal", "--devices", "4", "--name", "lab"]) == 0
    read = settings.load_config(file)
    assert (read.federation.name, read.federation.method, len(read.rows)) == ("lab", "fedal", 4)
    before = file.read_bytes()
    assert main(["init", str(file)]) == 2
    assert str(file) in capsys.readouterr().err
    assert file.read_bytes() == before


def test_a_dash_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "-"]) == 0
    assert toml.loads(capsys.readouterr().out, "-")["federation"]


@pytest.mark.parametrize("name", method_names())
def test_the_fleet_of_a_new_file_fits_its_method(name: str, tmp_path: Path) -> None:
    file = tmp_path / "federation.toml"
    assert main(["init", str(file), "--method", name]) == 0
    check_feasible(build_fleet(settings.load_config(file)), ())


@pytest.mark.parametrize("devices", range(1, 5))
def test_few_devices_hold_all_classes(devices: int, tmp_path: Path) -> None:
    file = tmp_path / "federation.toml"
    assert main(["init", str(file), "--devices", str(devices)]) == 0
    fleet = build_fleet(settings.load_config(file))
    assert len({int(label) for device in fleet.devices for label in device.data.train.y}) == 10


@pytest.mark.parametrize("name", ["A B", "", "../e", "a\nb"])
def test_a_name_that_no_federation_has_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", str(tmp_path / "f.toml"), "--name", name]) == 2
    assert "--name" in capsys.readouterr().err
    assert not (tmp_path / "f.toml").exists()
