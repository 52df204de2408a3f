"""benchmarks/reference without the reference: what it says, how figures are weighed, and a page of few figures."""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
main = importlib.import_module("benchmarks.reference.__main__").main
ours = importlib.import_module("benchmarks.reference.ours")
page = importlib.import_module("benchmarks.reference.page").page


def test_without_the_reference_it_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("EDGE_REFERENCE", raising=False)
    assert main(["--only", "Local"], tmp_path) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("reference: set EDGE_REFERENCE to the folder with htfllib.json")
    assert not list(tmp_path.iterdir())


def test_as_a_command_it_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["reference", "--list"])
    monkeypatch.delitem(sys.modules, "benchmarks.reference.__main__")  # runpy warns of a module that is there
    with pytest.raises(SystemExit, match="0"):
        runpy.run_module("benchmarks.reference", run_name="__main__")
    assert "FedKD, seed 1" in capsys.readouterr().out


def test_a_row_has_the_difference_and_what_the_seeds_explain() -> None:
    kept = {"FML, seed 0": {"ours": 0.803}, "FML, seed 1": {"ours": 0.813}, "Local, seed 0": {"ours": 0.8415}}
    text = page(kept)
    # 12.706 times the deviation of two values, .71 points, times sqrt(1/2 + 1/2)
    assert "| 0.794, 0.792 | 0.808 ± 0.007 (2 seeds) | +1.5 [-7.5, +10.5] |" in text
    assert " (one seed) | +1.0 |" in text
    assert "LG-FedAvg, seed 0; " in text


def test_mini_batches_as_there_are_compared_seed_by_seed() -> None:
    kept = {"Local, seed 0": {"ours": 0.84}, "Local as fed there, seed 0": {"ours": 0.83}}
    kept |= {"Local, seed 1": {"ours": 0.80}, "Local as fed there, seed 1": {"ours": 0.79}}
    assert "| Local | 2 | -1.0 [-1.0, -1.0] |" in page(kept)


@pytest.mark.torch
def test_a_run_on_a_partition_is_weighed_and_fed_as_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ours, "ROUNDS", 1)
    rng = np.random.default_rng(0)
    device = np.repeat(np.arange(ours.DEVICES), 16)
    test = np.arange(len(device)) % 16 > 12
    y = rng.integers(0, 10, len(device))
    x = rng.normal(size=(len(device), 28, 28)).astype(np.float32)
    reference = ours.Reference({}, "", x, y, device, test)
    assert len(reference.of(3).train) == 13
    line = ours.Line(theirs="Local", method="local", rounds=1)
    found = ours.Run(line, seed=0, as_fed=True).measured(reference)
    assert found["ours"] == found["figures"]["accuracy"]
    assert ours.weighted({"a": 1.0, "b": 0.0}, {"a": 1, "b": 3}) == 0.25
