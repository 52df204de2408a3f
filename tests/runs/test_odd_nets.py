"""What a simulation says of nets that it cannot hold in memory, trace, or compute: one line, in every engine."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fleets
import pytest

from coordinator.config import to_toml
from edge_sdk import cli
from edge_sdk.errors import ModelError
from edge_sim.clock.device_group import DeviceGroup
from edge_sim.clock.whole_fleet import Wanted
from edge_sim.config import settings
from edge_sim.runs.runner import run

pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.processes]

RUNS: Mapping[str, Mapping[str, Any]] = {
    "exact": {},
    "stacked": {"stack": True},
    "shards": {"processes": 2},
    "stacked-shards": {"processes": 2, "stack": True},
}
ENGINES = tuple(RUNS)
"""Stacked shards repeat what stack and shards do, so that they meet one fault alone, and only with --all."""


def tables(pictures: Path, net: str, engine: str) -> dict[str, Any]:
    found = fleets.tables(pictures, "fedproto", devices=4, rounds=4, feature_dim=6)
    found["fleet"] = [{"count": 4, "model": f"odd_nets:{net}"}]
    found["run"] |= RUNS[engine]
    return found


@pytest.mark.parametrize("engine", ENGINES[:3])
def test_a_process_without_memory_ends_the_run_with_one_line(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], engine: str
) -> None:
    file, out = tmp_path / "federation.toml", tmp_path / "run"
    file.write_text(to_toml(tables(pictures, "greedy", engine)))
    assert cli.main(["simulate", str(file), "--out", str(out)]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(
        r"edge-sdk: out of memory: simulate fewer devices, .*, then (start again|continue from the last).*", said
    )
    assert ("--resume" in said) == (out / "checkpoint").exists()
    assert not (out / "checkpoint.new").exists()


SAID = {
    "failing": r"ValueError: my layer has had enough \(odd_nets\.py:\d+\)",
    "exiting": r"SystemExit: 3 \(odd_nets\.py:\d+\)",
    "narrowing": r"RuntimeError: .* cannot be multiplied \(8x3 and 6x4\) \(linear\.py:\d+\)",
}
"""What is said of nets that cannot compute."""


@pytest.mark.parametrize(
    ("net", "engine"),
    [
        *(("failing", each) for each in ENGINES[:3]),
        pytest.param("failing", "stacked-shards", marks=pytest.mark.long),
        ("exiting", "exact"),
        ("exiting", "shards"),
        ("narrowing", "exact"),
    ],
)
def test_a_net_that_raises_ends_the_run_with_one_line_that_names_it(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], net: str, engine: str
) -> None:
    file = tmp_path / "federation.toml"
    file.write_text(to_toml(tables(pictures, net, engine)))
    assert cli.main(["simulate", str(file), "--out", str(tmp_path / "run")]) == ModelError.exit_code
    said = capsys.readouterr().err
    assert re.fullmatch(
        rf"edge-sdk: model odd_nets:{net} in round 1: {SAID[net]}; fix the net; .* shows the traceback",
        said.splitlines()[-1],
    )
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("net", "code", "said"),
    [
        ("exiting_when_tried", 2, r"model odd_nets:exiting_when_tried: it failed when called with .*"),
        ("exiting_when_begun", 1, r"the model cannot take a sample of shape \(1, 4, 4\), which is .*"),
    ],
)
def test_a_net_that_ends_the_process_when_it_is_tried_ends_the_run_with_one_line(  # noqa: PLR0917
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], net: str, code: int, said: str
) -> None:
    file = tmp_path / "federation.toml"
    file.write_text(to_toml(tables(pictures, net, "exact")))
    assert cli.main(["simulate", str(file), "--out", str(tmp_path / "run")]) == code
    assert re.fullmatch(rf"edge-sdk: {said}: SystemExit: 3", capsys.readouterr().err.splitlines()[-1])


def test_a_net_that_raises_where_the_fleet_is_measured_is_named(pictures: Path) -> None:
    whole = fleets.Run(settings.parse(tables(pictures, "failing", "exact"), Path("f.toml")))
    group = DeviceGroup(whole.devices, whole.fleet.federation.spec, lambda _agent: None)
    wanted = [Wanted(0, personal=True, shared=())]
    with pytest.raises(ModelError, match=r"^model odd_nets:failing after round 2: ValueError: my layer has had enough"):
        group.measure(2, whole.server.method_state, wanted)


def test_numbers_that_are_not_finite_leave_the_run_its_own_explanation(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "federation.toml", tmp_path / "run"
    file.write_text(to_toml(tables(pictures, "endless", "exact")))
    assert cli.main(["simulate", str(file), "--out", str(out)]) == 1
    assert re.search(
        r"^edge-sdk: the run failed: .* withheld what they learned .*", capsys.readouterr().err, re.MULTILINE
    )
    said = json.loads((out / "summary.json").read_text())["warnings"]
    assert "no picture of models shows device-00 and 3 more: its outputs are not finite" in said


@pytest.mark.parametrize("engine", ENGINES[:3])
def test_a_net_that_cannot_be_traced_is_named_once_in_the_result(
    pictures: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    monkeypatch.setenv("EDGE_SDK_TRACED", "always")
    found = run(tables(pictures, "branching", engine))
    assert found.completed
    (said,) = [line for line in found.warnings if "trace" in line]
    assert "_local_scalar_dense makes a number of a tensor" in said
