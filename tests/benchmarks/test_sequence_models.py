"""benchmarks/on_device/sequence_models: a line for each data set, and one about a missing one."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest

module = importlib.import_module("benchmarks.on_device.sequence_models")


def test_it_measures_both_data_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EDGE_DATA", str(tmp_path))
    assert module.main() == 2
    assert "no " in capsys.readouterr().err
    y = np.arange(64) % 2
    rhythm = np.sin((1 + y)[:, None] * np.linspace(0, 6, 20)).astype(np.float32)[:, :, None]
    texts = np.array(["a cat and a cat", "dogs bark at dogs"])[y]
    for name, x in (("uci_har", rhythm), ("ag_news", texts)):
        np.savez(tmp_path / f"{name}.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    assert module.main() == 0
    har, news = capsys.readouterr().out.splitlines()
    assert har.startswith("uci_har: 64 samples, 20 epochs: 100.0%, 100.0%, 100.0% of 64")
    assert news.startswith("ag_news: 64 samples, 5 epochs: 100.0%, 100.0%, 100.0% of 64")
