"""Profiles that are measured: the fit finds what made the times, and what is written is a profile."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.broker.embedded import EmbeddedBroker
from edge_sdk import cli
from edge_sdk.boards.profiles import Effort, load_board, load_link, parse_board, parse_link
from edge_sdk.errors import StoreError, TransportError, UsageError
from edge_sdk.tools.measure import machine, profile
from edge_sdk.tools.measure.fit import Speed, Timed, fit, numpy_loads, shortest_s, timed, typical_factor
from edge_sdk.tools.measure.profile import measure_link, profile_toml

TRUE = Speed(train_flops_per_s=2e9, infer_flops_per_s=5e9, memory_bytes_per_s=3e8, call_s=2e-4)
EFFORTS = [
    Effort(1e9, 1e6, 10),
    Effort(1e6, 1e8, 12),
    Effort(1e4, 1e4, 5),
    Effort(5e8, 2e7, 30),
    Effort(1e7, 5e6, 40),
]


def samples(noise: float = 0.0) -> list[Timed]:
    found = []
    for i, effort in enumerate(EFFORTS):
        for training in (True, False):
            exact = TRUE.predicted_s(Timed(effort, 0.0, training))
            found.append(Timed(effort, exact * math.exp(noise * (-1) ** i), training))
    return found


def test_the_fit_finds_the_figures_that_made_the_times() -> None:
    found = fit(samples())
    for name in ("train_flops_per_s", "infer_flops_per_s", "memory_bytes_per_s", "call_s"):
        assert getattr(found, name) == pytest.approx(getattr(TRUE, name), rel=0.05), name
    assert typical_factor(found, samples()) < 1.01
    assert fit(samples()) == found


def test_the_error_of_a_fit_is_told() -> None:
    assert typical_factor(TRUE, samples(noise=0.2)) == pytest.approx(math.exp(0.2))
    assert typical_factor(fit(samples(noise=0.2)), samples(noise=0.2)) <= math.exp(0.2) + 1e-9


def test_a_profile_predicts_what_the_fit_does() -> None:
    board = load_board("rpi4")
    speed = Speed(**{name: getattr(board, name) for name in Speed.__slots__})
    for effort in EFFORTS:
        assert speed.predicted_s(Timed(effort, 1.0, training=True)) == board.compute_s(effort)
        assert speed.predicted_s(Timed(effort, 1.0, training=False)) == board.compute_s(Effort(), effort)


@pytest.mark.torch
def test_every_load_runs_and_knows_its_cost() -> None:
    torch_loads = pytest.importorskip("edge_sdk.tools.measure.torch_loads").torch_loads
    for each in timed((numpy_loads()[0], torch_loads()[0]), budget_s=0.0):
        assert each.took_s > 0
        assert each.effort.flops > 0
        assert each.effort.calls >= 1


def test_the_shortest_of_some_times() -> None:
    calls: list[int] = []
    assert shortest_s(lambda: calls.append(1), 0.0) < 0.1
    assert len(calls) == 7


def test_what_the_machine_says_of_itself(tmp_path: Path) -> None:
    assert machine.ram_bytes() > 2**26
    assert machine.cores() >= 1
    assert machine.disk_bytes_per_s(tmp_path) > 1e3
    (tmp_path / "max").write_text("1800000\n")
    (tmp_path / "info").write_text("cpu MHz\t\t: 2596.138\ncpu MHz\t\t: 2700.5\n")
    assert machine.cpu_hz(tmp_path / "max") == 1_800_000_000
    assert machine.cpu_hz(tmp_path / "none", tmp_path / "info") == 2_700_500_000
    assert machine.cpu_hz(tmp_path / "none", tmp_path / "none") == 0
    with pytest.raises(StoreError, match="give --state a folder"):
        machine.disk_bytes_per_s(tmp_path / "none")


@pytest.mark.parametrize("name", ["rpi4", "rpi-zero-2w", "x86"])
def test_a_profile_reads_back_as_it_is(name: str) -> None:
    assert parse_board(profile_toml(load_board(name)), "again") == load_board(name)
    assert parse_link(profile_toml(load_link("wifi")), "again") == load_link("wifi")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is timed in no time."""
    monkeypatch.setattr(profile, "_timed", lambda _budget_s: samples(noise=0.1))
    monkeypatch.setattr(machine, "disk_bytes_per_s", lambda _folder: 1e7)


@pytest.mark.usefixtures("quick")
def test_the_command_writes_a_profile_that_a_fleet_can_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["boards", "--measure", "--name", "lab-pi", "--write", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    assert 'board = "lab-pi.toml"' in shown.out
    assert "a factor of 1." in shown.err
    board = load_board(str(tmp_path / "lab-pi.toml"))
    assert (board.name, board.verified["speed"], board.verified["power"]) == ("lab-pi", "measured", "estimate")
    assert board.source_url.startswith("urn:edge-sdk:boards-measure:20")
    assert cli.main(["boards", "--measure"]) == 0
    assert parse_board(capsys.readouterr().out, "printed").name == "this-board"
    assert json.loads(json.dumps(board.note))


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--name", "My Pi"], 2, "--name My Pi: use a-z"),
        (["--write", "/nowhere/at/all"], 2, "/nowhere/at/all/this-board.toml: cannot be written"),
        (["--broker", "lab"], 2, "lab"),
    ],
)
def test_a_mistake_gets_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, words: str
) -> None:
    assert cli.main(["boards", "--measure", *arguments]) == code
    assert words in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("option", ["--name", "--write", "--state", "--broker"])
def test_what_is_only_about_a_profile_is_refused_where_none_is_measured(
    capsys: pytest.CaptureFixture[str], option: str
) -> None:
    assert cli.main(["boards", option, "value"]) == 2
    shown = capsys.readouterr()
    assert not shown.out
    assert re.search(f"{option}: .*without --measure", shown.err)
    assert shown.err.count("\n") == 1


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    with EmbeddedBroker() as running:
        yield running.url


@pytest.mark.broker
def test_a_link_is_measured_through_a_broker(broker: str) -> None:
    link = measure_link("lab", broker, "doctor-0123456789ab")
    assert parse_link(profile_toml(link), "lab.toml") == link
    assert 0 < link.latency_s < 1
    assert link.up_bytes_per_s == link.down_bytes_per_s > 1e4
    assert link.verified == {
        "rate": "measured", "latency": "measured", "packets": "estimate", "loss": "estimate", "power": "estimate"
    }  # fmt: skip


@pytest.mark.broker
def test_a_broker_that_is_not_there() -> None:
    with pytest.raises(TransportError, match="64 bytes"):
        measure_link("lab", "mqtt://127.0.0.1:1", "doctor-0123456789ab")
    with pytest.raises(UsageError):
        measure_link("lab", "lab", "doctor-0123456789ab")
