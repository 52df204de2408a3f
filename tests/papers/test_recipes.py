"""Every file of examples/papers is read, and two rounds of it run on digits, with fewer devices and a small model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from coordinator.config import chosen_method, load_toml
from edge_sdk.methods.contract.registry import load_method
from edge_sim import run
from edge_sim.config import settings

FOLDER = Path(__file__).parents[2] / "examples" / "papers"
FILES = sorted(FOLDER.glob("*.toml"))
DEVICES = 5
SMALL = {
    "fedgen": {"generator_steps": 1, "hidden": 8},
    "feddf": {"steps": 1},
    "feddf_al": {"tau": 1},
    "fedal": {"tau": 1},
    "fedkf": {"generator": "board"},
}
"""Parameters that only cost time here."""


def shrunk(file: Path) -> dict[str, Any]:
    """The tables of a file for digits, five devices, two rounds and one mini-batch; all else stays."""
    tables = load_toml(file)
    tables["federation"] |= {"devices": DEVICES, "rounds": 2, "feature_dim": 8}
    if "participants" in tables["federation"]:
        tables["federation"]["participants"] = 2
    tables["train"] |= {"batch_size": 8, "local_steps": 1, "local_epochs": 0}
    kept = {key: tables["data"][key] for key in ("normalise", "augment", "split") if key in tables["data"]}
    public = 40 if tables["data"].get("public", 400) else 0
    tables["data"] = {**kept, "source": "digits", "train_samples": 400, "test_samples": 50, "public": public}
    tables["partition"]["min_samples"] = 4 if "split" in kept else 1
    tables["fleet"] = [{"count": DEVICES, "model": "mlp"}]
    tables["run"] = {"standalone": False}
    method = tables["federation"]["method"]
    known = tables.setdefault("method", {})
    known[method] = {**known.get(method, {}), **SMALL.get(method, {})}
    return tables


def commands(file: Path) -> list[str]:
    return re.findall(r"^#   edge-sdk (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_file_is_read_as_it_stands(file: Path) -> None:
    config = settings.load_config(file)
    assert chosen_method(config).name == config.federation.method
    assert config.federation.method == ("feddf_al" if file.stem == "fedal-figure8" else file.stem.partition("-")[0])
    assert config.federation.start == "equal"
    (command,) = commands(file)
    assert f"examples/papers/{file.name}" in command
    methods = re.findall(r"--methods ([a-z_,]+)", command)[0].split(",")
    assert config.federation.method in methods
    for name in methods:
        load_method(name).read(config.method.get(name, {}))


@pytest.mark.torch
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_two_rounds_of_it_run(file: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    result = run(shrunk(file))
    assert result.completed
    assert result.rounds_done == 2


def test_the_page_lists_each_file_and_no_other() -> None:
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert {file.name for file in FILES} == set(re.findall(r"`([a-z0-9-]+\.toml)`", page)) - {"fedal-pi.toml"}
