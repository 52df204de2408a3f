"""FedAL's test bed: the file is the paper's, the short version runs, and real boards can use the same file."""

from __future__ import annotations

import csv
import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator import config as coordinators
from edge_sim.config import settings

FOLDER = Path(__file__).parents[2] / "benchmarks" / "papers"
FILE = FOLDER / "fedal-pi.toml"
SHORT = [
    "--digits",
    "--rounds",
    "2",
    "--alphas",
    "1",
    "--set",
    "federation.devices=3",
    "--set",
    "train.evaluate_every=1",
]


def loaded(name: str) -> Any:
    """A script of the folder."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_the_file_says_what_the_paper_does() -> None:
    config = settings.load_config(FILE, ["data.source=digits"])
    assert config.federation.devices == sum(row.count for row in config.fleet) == 10
    assert {(row.model, row.board, row.link) for row in config.fleet} == {("lenet5", "rpi4", "wifi")}
    assert (config.train.optimiser, config.train.learning_rate, config.train.batch_size) == ("adam", 1e-3, 32)
    assert (config.data.public, config.partition.kind, config.train.local_steps) == (1000, "dirichlet", 5)
    assert config.tables["method"]["fedal"]["tau"] == 5


def test_methods_of_one_step_take_as_many_in_all() -> None:
    script, config = loaded("fedal_pi"), settings.load_config(FILE, ["data.source=digits"])
    assert script.setting(config, "fedal") == script.setting(config, "fedavg") == {}
    for method in ("fedmd", "fedproto"):
        setting = script.setting(config, method)
        assert setting["train.local_steps"] * setting["federation.rounds"] == 5 * config.federation.rounds


@pytest.mark.torch
@pytest.mark.usefixtures("figures")
def test_the_short_version_draws_accuracy_against_virtual_time(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = loaded("fedal_pi")
    script.FILE = tmp_path / "few.toml"
    script.FILE.write_text(FILE.read_text().replace("count = 10", "count = 3"))
    assert script.main([*SHORT, "--out", str(tmp_path / "out")]) == 0
    with (tmp_path / "out" / "alpha-1" / "plots" / "accuracy_by_time.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["method"] for row in rows} == {"alone", "fedal", "fedmd", "fedproto", "fedavg"}
    last = {row["method"]: float(row["time_s"]) for row in rows}
    assert last["fedal"] > last["fedavg"] > 0  # six exchanges a round take a board longer than one
    assert all(float(row["device_j"]) > 0 for row in rows)


@pytest.mark.torch
def test_real_boards_take_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    script = loaded("fedal_pi")
    assert script.main(["--digits", "--export", str(tmp_path)]) == 0
    tables = coordinators.load_toml(FILE, [f"public.path={tmp_path / 'fedal-pi-public.npz'}"])
    ready = coordinators.federation(coordinators.read_settings(tables, FILE))
    assert (ready.spec.method, ready.spec.classes, ready.policy.expected) == ("fedal", 10, 10)
    assert ready.spec.public is not None
    monkeypatch.setenv("FEDAL_PI", str(tmp_path / "device-03"))
    app = loaded("fedal_pi_app").make()
    assert app.model.spec.name == "lenet5"
    assert app.share_weights
    assert len(app.data.train) >= 8
    simulated = script.build_fleet(settings.load_config(FILE, [*script.DIGITS, "partition.alpha=5.0"])).devices[3]
    assert np.array_equal(app.data.train.x, simulated.data.train.x)
    assert simulated.public.spec == ready.spec.public


def test_what_is_missing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    script = loaded("fedal_pi")
    with pytest.raises(SystemExit):
        script.main([])
    assert "--data FILE.npz" in capsys.readouterr().err
    assert script.main(["--data", "none.npz"]) == 2
    assert "no such file" in capsys.readouterr().err
