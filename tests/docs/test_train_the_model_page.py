"""docs/how-to/train-the-model-you-have.md: its snippets run, and what it says of messages and names holds."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edge_sdk

torch = pytest.importorskip("torch")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")
pytestmark = pytest.mark.torch

PAGE = (Path(__file__).parents[2] / "docs/how-to/train-the-model-you-have.md").read_text(encoding="utf-8")


def test_the_snippets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    nn = torch.nn
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))
    x, y = np.zeros((4, 1, 8, 8), np.float32), np.arange(4)
    data = edge_sdk.LocalData(train=edge_sdk.Samples(x, y))
    known: dict[str, Any] = {"net": net, "sample": torch.zeros(2, 1, 8, 8), "data": data}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter about itself
        for snippet in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
            exec(compile(snippet, "page", "exec"), known)  # the page's own
    assert known["model"].spec.note == "learns: 2 of 2 layers"
    assert known["app"] is not None


def test_the_dense_net_is_that_of_torch() -> None:
    nn = torch.nn
    layers = (nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    theirs = edge_sdk.TorchModel(nn.Sequential(nn.Flatten(), *layers), 10)
    assert edge_sdk.NumpyModel(10, (1, 8, 8), seed=1, hidden=(64, 32)).spec.layout == theirs.spec.layout
