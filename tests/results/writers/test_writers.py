"""Writers for other tools: what they are given, that a failing one ends no run, and the options that open them."""

from __future__ import annotations

import io
import json
import sqlite3
import urllib.request
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import fleets
import pytest
import synthetic

from coordinator.address import ListenAddress
from coordinator.config import to_toml
from coordinator.record.run_record import RunRecord
from coordinator.results import writers
from coordinator.results.writers.opening import (
    JsonLines,
    WriterObserver,
    WriterOptions,
    flat,
    round_figures,
    run_writers,
)
from coordinator.results.writers.tools import DATABASE, MlflowWriter, PrometheusWriter, TensorBoardWriter, WandbWriter
from edge_sdk.cli import main
from edge_sdk.errors import MissingExtra, UsageError
from edge_sim.config import settings

FIGURES = {"accuracy/mean": 0.5, "bytes/up": 100.0, "devices/contributors": 3.0}
DASHBOARD = Path(writers.__file__).parent / "grafana-dashboard.json"


def test_the_figures_of_a_round() -> None:
    entry = synthetic.result(count=3, rounds=1).history[0]
    record = RunRecord(accuracy={1: {"a": 0.4, "b": 0.6}}, global_accuracy={})
    found = round_figures(entry, record)
    assert (found["accuracy/mean"], found["accuracy/min"]) == (0.5, 0.4)
    assert found["bytes/up"] == entry.bytes_up
    assert "global_accuracy/mean" not in found


class Failing:
    """A tool that is out of order."""

    def write(self, _round: int, _figures: Mapping[str, float]) -> None:
        raise ConnectionError("gone")

    def close(self) -> None:
        """Nothing to close."""


def test_a_writer_that_fails_is_said_once() -> None:
    said: list[str] = []
    observer = WriterObserver([Failing()], "alone", said.append)
    for _ in range(2):
        observer.round_done(synthetic.result(count=2, rounds=1).history[0], 5, RunRecord())
    assert len(said) == 1
    assert "ConnectionError" in said[0]


def test_lines_are_json() -> None:
    stream = io.StringIO()
    lines = JsonLines("lab", "", stream, clock=lambda: 1.0)
    lines.joined("device-0", 1, 2)
    lines.round_done(synthetic.result(count=2, rounds=1).history[0], 5, RunRecord())
    lines.noted("a \n line")
    joined, done, noted = map(json.loads, stream.getvalue().splitlines())
    assert (joined["event"], joined["device"], joined["federation"], joined["time_s"]) == (
        "joined",
        "device-0",
        "lab",
        1.0,
    )
    assert (done["round"], done["of"], done["bytes/up"]) == (1, 5, 16_000)
    assert (noted["level"], noted["message"]) == ("warning", "a \n line")


def test_prometheus_reads_gauges_and_counters() -> None:
    pytest.importorskip("prometheus_client", reason="no prometheus_client here: pip install edge-sdk[metrics]")
    writer = PrometheusWriter(ListenAddress("127.0.0.1", 0), {"federation": "lab", "method": "fedavg"})
    try:
        for number in (1, 2):
            writer.write(number, FIGURES)
        with urllib.request.urlopen(f"http://127.0.0.1:{writer.port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
        with pytest.raises(UsageError, match="is free"):
            PrometheusWriter(ListenAddress("127.0.0.1", writer.port), {})
    finally:
        writer.close()
    labels = '{federation="lab",method="fedavg"}'
    assert f"edge_sdk_round{labels} 2.0" in text
    assert f"edge_sdk_accuracy_mean{labels} 0.5" in text
    assert f"edge_sdk_bytes_up_total{labels} 200.0" in text


def test_the_address_of_the_metrics_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("prometheus_client", reason="no prometheus_client here: pip install edge-sdk[metrics]")
    options = WriterOptions(metrics="127.0.0.1:0")
    with run_writers(options, tmp_path, federation="lab", method="fedavg", seed=0, tables={}):
        address = capsys.readouterr().err.removeprefix("metrics: ").strip()
        with urllib.request.urlopen(address, timeout=5) as answer:
            assert answer.status == 200


def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    entry = synthetic.result(count=2, rounds=1).history[0]
    curve = {1: {"a": 0.5}}
    names = {name.replace("/", "_") for name in round_figures(entry, RunRecord(accuracy=curve, global_accuracy=curve))}
    known = {f"edge_sdk_{name}" for name in names} | {f"edge_sdk_{name}_total" for name in names} | {"edge_sdk_round"}
    panels = json.loads(DASHBOARD.read_text())["panels"]
    asked = {part.split("{")[0].split("(")[-1] for panel in panels for part in [panel["targets"][0]["expr"]]}
    assert asked <= known
    assert len(panels) >= 8


def test_tensorboard_has_the_scalars(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="no tensorboardX here: pip install edge-sdk[tensorboard]")
    writer = TensorBoardWriter(tmp_path)
    writer.write(3, FIGURES)
    writer.close()
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    assert all(name.encode() in content for name in FIGURES)


def test_wandb_writes_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="no wandb here: pip install edge-sdk[wandb]")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("WANDB_SILENT", "true")
    writer = WandbWriter("lab", "fedavg-seed-0", tmp_path, {"train.batch_size": 8})
    writer.write(1, FIGURES)
    writer.close()
    assert list(tmp_path.rglob("*.wandb"))


def test_mlflow_writes_into_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="no mlflow here: pip install edge-sdk[mlflow]")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    writer = MlflowWriter("lab", "fedavg-seed-0", tmp_path / "mlruns", {"train.batch_size": 8})
    writer.write(1, FIGURES)
    writer.close()
    with closing(sqlite3.connect(tmp_path / "mlruns" / DATABASE)) as kept:
        assert dict(kept.execute("SELECT key, value FROM metrics")) == FIGURES


@pytest.mark.parametrize(
    "make",
    [TensorBoardWriter, lambda path: WandbWriter("a", "b", path, {}), lambda path: MlflowWriter("a", "b", path, {})],
)
def test_a_package_that_is_missing_is_named(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tensorboardX", "wandb", "mlflow"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(MissingExtra):
        make(tmp_path)


def test_settings_are_flat() -> None:
    assert flat({"train": {"batch_size": 8}, "fleet": [1]}) == {"train.batch_size": 8, "fleet": [1]}


def test_a_simulation_writes_them(pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorboardX", reason="no tensorboardX here: pip install edge-sdk[tensorboard]")
    file = tmp_path / "f.toml"
    tables = fleets.tables(pictures, "fedavg", devices=3, rounds=2)
    file.write_text(to_toml(settings.parse(tables, file).tables))
    out = tmp_path / "run"
    assert (
        main(["simulate", str(file), "--out", str(out), "--log", "tensorboard", "--log-format", "json", "--json"]) == 0
    )
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
    assert [line["round"] for line in lines if line["event"] == "round" and not line["part"]] == [1, 2]
    assert [*(out / "tensorboard").iterdir()]


@pytest.mark.parametrize("arguments", [["--log", "excel"], ["--metrics", "lab"], ["--metrics", "localhost:99999"]])
def test_wrong_options_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    file = tmp_path / "f.toml"
    file.write_text('[federation]\nname = "x"\nrounds = 2\ndevices = 2\n[data]\nsource = "digits"\n')
    assert main(["simulate", str(file), "--out", str(tmp_path / "run"), *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert arguments[0] in line
    assert not (tmp_path / "run").exists()
