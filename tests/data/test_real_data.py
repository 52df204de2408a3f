"""A look at real data, where it is there: EDGE_DATA, or the folder data/ that git ignores, holds mnist.npz."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edge_sdk.data import Preprocess
from edge_sdk.models.base import Batches
from edge_sdk.objectives import CrossEntropy, Optim
from edge_sim.config.settings import DataTable
from edge_sim.data.datasets import load_dataset
from edge_sim.models import families

FOLDER = Path(os.environ.get("EDGE_DATA", Path(__file__).parents[2] / "data"))
SAMPLES, BATCH = 20_000, 16


@pytest.fixture
def one_torch_thread() -> Iterator[None]:
    """So that the figure repeats, and nobody waits for a second core."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.torch
@pytest.mark.usefixtures("one_torch_thread")
@pytest.mark.skipif(
    not (FOLDER / "mnist.npz").is_file(), reason=f"no mnist.npz in {FOLDER}: set EDGE_DATA to its folder"
)
def test_a_small_cnn_reads_mnist_after_one_pass() -> None:
    data = load_dataset(DataTable(source="npz", path="mnist.npz", public=0, train_samples=SAMPLES), 0, FOLDER)
    net = families.build_model(
        "cnn", classes=10, raw_shape=data.raw_shape, preprocess=Preprocess(scale=data.scale), seed=0
    )
    batches = Batches(
        inputs=net.spec.preprocess(data.private.x),
        labels=data.private.y,
        indices=np.random.default_rng(0).permutation(SAMPLES).reshape(-1, BATCH),
    )
    net.fit(batches, (CrossEntropy(),), Optim(learning_rate=3e-3))
    predicted = net.logits(net.spec.preprocess(data.test.x)).argmax(axis=1)
    assert (predicted == data.test.y).mean() > 0.97  # 97.6 % when this was written
