"""What a simulation says of a method of another package that makes a mistake: one line, which says where."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import fleets
import odd_methods
import pytest
from deployment import Deployment

from coordinator.broker.embedded import EmbeddedBroker
from coordinator.config import to_toml
from edge_sdk import cli
from edge_sdk.methods.contract.registry import METHODS
from edge_sdk.objectives import TERMS
from edge_sdk.protocol.frames.schema import tag_of

SAID = {
    "begin": r"method odd: begin\(\) gave dict, expected a @wire dataclass",
    "begin raises": r".*: method odd: begin\(\) failed with KeyError: 'in begin' at odd_methods\.py:\d+",
    "down": r".*down\(\) or down_to\(\) gave NoneType, expected a dict of payloads by role",
    "train raises": r"method odd \(odd_methods:Odd\): KeyError: 'in train' \(odd_methods\.py:\d+\); fix the method; .*",
    "value": r"loss term 'odd': value\(\) gave ndarray, expected one number",
    "slope": r"loss term 'odd': slope\(\) gave NoneType, expected an array \(8, 4\)",
    "share": r"the run failed: the quorum of 3 cannot be reached: .*device-0.*",
    "payload": r"the run failed: the quorum of 3 cannot be reached: .*device-0.*",
    "reduce": r"the run failed: method odd: reduce\(\) gave NoneType, expected OddState, as from begin\(\)",
    "reduce raises": r"method odd \(odd_methods:Odd\): KeyError: 'in reduce' \(odd_methods\.py:\d+\); fix the method; .*",
}


@pytest.fixture
def federation(pictures: Path, tmp_path: Path, register: Any) -> Path:
    register(METHODS, {"odd": "odd_methods:Odd"})
    register(TERMS, {"odd": "odd_methods:OddTerm"})
    file = tmp_path / "federation.toml"
    file.write_text(to_toml(fleets.tables(pictures, "odd", devices=3, rounds=2)))
    assert tag_of(odd_methods.OddState)
    return file


def test_a_method_without_a_mistake_runs(federation: Path, tmp_path: Path) -> None:
    assert cli.main(["simulate", str(federation), "--out", str(tmp_path / "run")]) == 0


@pytest.mark.parametrize("mistake", SAID)
def test_a_mistake_is_one_line(
    federation: Path,
    tmp_path: Path,
    mistake: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(odd_methods, "mistake", mistake)
    assert cli.main(["simulate", str(federation), "--out", str(tmp_path / "run")]) in {1, 2}
    said = capsys.readouterr()
    assert re.fullmatch(f"edge-sdk: {SAID[mistake]}", said.err.splitlines()[-1])
    assert "Traceback" not in said.err
    if mistake in {"share", "payload"}:
        assert " left: round 0: " in said.out


def installed(folder: Path, mistake: str) -> None:
    """A package with the method, for processes that begin in this folder."""
    source = Path(odd_methods.__file__).read_text(encoding="utf-8").replace('mistake = ""', f'mistake = "{mistake}"')
    (folder / "odd_methods.py").write_text(source, encoding="utf-8")
    about = folder / "odd-1.0.dist-info"
    about.mkdir(exist_ok=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1.0\n", encoding="utf-8")
    points = "[edge_sdk.methods]\nodd = odd_methods:Odd\n\n[edge_sdk.terms]\nodd = odd_methods:OddTerm\n"
    (about / "entry_points.txt").write_text(points, encoding="utf-8")


@pytest.mark.processes
@pytest.mark.broker
def test_a_coordinator_ends_with_one_line_and_goes_on_once_its_method_is_mended(
    federation: Path, tmp_path: Path, pictures: Path
) -> None:
    pytest.importorskip("amqtt")
    del federation  # which registers the method here, too
    installed(tmp_path, "reduce raises")
    with EmbeddedBroker("amqtt") as broker, Deployment(tmp_path, pictures, broker.url, "odd", rounds=2) as deployment:
        deployment.start_all()
        coordinator = deployment.running.pop("coordinator")
        assert coordinator.wait(60) == 1
        said = deployment.said("coordinator")
        line = SAID["reduce raises"].removesuffix("; .*")
        assert re.search(f"edge-sdk: {line}, then continue with: .* --resume; edge-sdk -v shows the traceback\n", said)
        assert "Traceback" not in said
        installed(tmp_path, "")
        deployment.start_coordinator(resume=True)
        assert deployment.finish()["completed"]
