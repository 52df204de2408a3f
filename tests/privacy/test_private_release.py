"""Mode A on a device: what leaves has noise and a promise; what a model that was trained here gives has none."""

from __future__ import annotations

from pathlib import Path

import fleets
import numpy as np
import pytest

from edge_sdk.data import Samples
from edge_sdk.device.training.budget import BudgetLedger
from edge_sdk.device.training.private_release import release
from edge_sdk.errors import UsageError
from edge_sdk.methods.contract.registry import method_names
from edge_sdk.models.numpy_model import NumpyModel
from edge_sdk.privacy.release import GRID, NOTHING_PROMISED, Guarantee, contributions, means_of, sums_by_class
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.frames.codec import Limits
from edge_sdk.protocol.frames.frame_parts import Frame
from edge_sdk.protocol.messages import Upload
from edge_sdk.transport.memory.hub import MemoryTransport
from edge_sim.config import settings

BUDGET = Guarantee(8.0, 1e-5)
CLASSES, SIDE = 3, 4


def samples(count: int = 600, seed: int = 0) -> Samples:
    rng = np.random.default_rng(seed)
    y = np.arange(count) % CLASSES
    x = (np.eye(CLASSES)[y] @ rng.normal(size=(CLASSES, SIDE * SIDE))).reshape(-1, SIDE, SIDE)
    return Samples(x.astype(np.float32), y)


def model() -> NumpyModel:
    return NumpyModel(CLASSES, (1, SIDE, SIDE), seed=0)


def test_means_of_a_release_are_near_those_of_the_data_and_the_bytes_are_the_same_again() -> None:
    ledger, data, net = BudgetLedger(None, BUDGET), samples(), model()
    first = release(net, data, 10.0, BUDGET, ledger)
    classes, means, _ = means_of(first.sums, 10.0, 50)
    features = net.features(net.spec.preprocess(data.x))
    exact = np.stack([features[data.y == each].mean(axis=0) for each in classes])
    assert np.abs(means - exact).max() < 0.3
    assert "epsilon = 8 " in first.promise
    assert np.array_equal(release(net, data, 10.0, BUDGET, ledger).sums, first.sums)
    assert ledger.releases == 1


def test_new_samples_are_a_new_release_and_the_budget_ends() -> None:
    ledger = BudgetLedger(None, BUDGET)
    release(model(), samples(), 10.0, BUDGET, ledger)
    with pytest.raises(UsageError, match="budget"):
        release(model(), samples(601), 10.0, BUDGET, ledger)


@pytest.mark.torch
def test_an_extractor_that_is_trained_here_promises_nothing() -> None:
    torch = pytest.importorskip("torch")
    from edge_sdk.models.torch_nets.torch_model import TorchModel  # torch is optional

    body = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(SIDE * SIDE, 8), torch.nn.ReLU())
    net = torch.nn.Sequential(body, torch.nn.Linear(8, CLASSES))
    trained = TorchModel(net, features="0", classes=CLASSES, input_shape=(1, SIDE, SIDE))
    with pytest.raises(UsageError, match=NOTHING_PROMISED) as caught:
        release(trained, samples(), 10.0, BUDGET, BudgetLedger(None, BUDGET))
    assert "epsilon" not in str(caught.value)


def test_the_noise_has_the_size_that_the_promise_needs() -> None:
    data, net = samples(), model()
    found = release(net, data, 10.0, BUDGET, BudgetLedger(None, BUDGET)).sums
    exact = sums_by_class(contributions(net.features(net.spec.preprocess(data.x)), 10.0), data.y, CLASSES) / GRID
    assert 0.6 / BUDGET.mu < (found - exact).std() < 1.5 / BUDGET.mu


# -- V1: no record leaves a device ----------------------------------------------------------------------------------

NETS = {"fedalign": "resnet", **dict.fromkeys(("fedbabu", "fedkf", "fedl2g", "fedper", "fedrep"), "mlp")}
"""The nets of methods for which a softmax model is too small."""
LONG = {"creff", "fedgen", "feddf_al", "fedalign"}


@pytest.mark.parametrize(
    "method",
    [pytest.param(name, marks=pytest.mark.long if name in LONG else ()) for name in method_names()],
)
def test_no_record_is_in_what_a_device_sends(pictures: Path, method: str) -> None:
    """Every frame that a device sends is decoded; no row of a tensor, and no stretch of its bytes, is a sample."""
    tables = fleets.tables(pictures, method)
    if method in NETS:
        pytest.importorskip("torch")
        tables["fleet"][0]["model"] = NETS[method]
    run = fleets.Run(settings.parse(tables, Path("test.toml")))
    frames: list[bytes] = []
    publish = run.hub.publish

    def listen(sender: MemoryTransport, topic: str, frame: Frame, *, retain: bool) -> None:
        if "/up/" in topic:
            frames.append(bytes(frame))
        publish(sender, topic, frame, retain=retain)

    run.hub.publish = listen  # type: ignore[method-assign]  # what a tap is
    run.finished()
    sent = b"".join(frames)
    uploads = sum(isinstance(codec.decode(each, Limits(2**24, 2**24)).message, Upload) for each in frames)
    assert uploads >= 6 * 3
    canaries = [
        row.tobytes()
        for device in run.fleet.devices
        for row in (*device.data.train.x.astype("<f4"), *device.data.train.x.astype("<f2"))
    ]
    assert canaries
    assert not [each for each in canaries if each in sent]
