"""`edge-sdk rollout` with real processes over a broker, through kills of the coordinator and of devices."""

from __future__ import annotations

import signal
from pathlib import Path

import fleets
import numpy as np
import pytest
from deployment import Deployment

from coordinator.broker.embedded import EmbeddedBroker
from edge_sdk.cli import main
from edge_sdk.models.base import Batches
from edge_sdk.models.numpy_model import NumpyModel
from edge_sdk.objectives import CrossEntropy, Optim

pytest.importorskip("amqtt")

pytestmark = [pytest.mark.processes, pytest.mark.broker]


def better_model(ready: Deployment) -> Path:
    """Write a net that was trained elsewhere, on data like those of all devices."""
    model = NumpyModel(fleets.CLASSES, (1, fleets.SIDE, fleets.SIDE), seed=3, hidden=(16,))
    parts = [device.data.train for device in ready.fleet.devices]
    x = ready.fleet.devices[0].kit.model(None).spec.preprocess(np.concatenate([part.x for part in parts]))
    indices = np.random.default_rng(0).integers(0, len(x), (200, 32))
    batches = Batches(inputs=x, labels=np.concatenate([part.y for part in parts]), indices=indices)
    model.fit(batches, (CrossEntropy(),), Optim(learning_rate=0.01))
    path = ready.folder / "new.onnx"
    path.write_bytes(model.onnx_bytes(x))
    return path


def test_a_rollout_survives_kills_of_all_processes(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ACCEPTS", "1")
    with (
        EmbeddedBroker("amqtt") as broker,
        Deployment(tmp_path, pictures, broker.url, rounds="forever", every="1s", quorum=1) as ready,
    ):

        def roll(*words: str) -> str:
            assert main(["rollout", *words, "--broker", broker.url, "--federation", "tiny"]) == 0
            return capsys.readouterr().out

        def until(text: str) -> None:
            ready.until(lambda: text in roll(), text)

        ready.start_all()
        ready.until(lambda: all("accuracy" in ready.said(device) for device in ready.devices), "a round")
        file = str(better_model(ready))
        assert f"{Path(file).stat().st_size:,} bytes to each" in roll(file, "--to", "34%")
        until("stage of 34%, kept: of 1 device 1 run it")
        (first,) = [device for device in ready.devices if "learns with the model" in ready.said(device)]
        for name in ("coordinator", first):
            ready.end(name, signal.SIGKILL)
        ready.start_coordinator(resume=True)
        ready.start_device(first)
        ready.until(lambda: f"{first}: new.onnx (numpy)" in ready.said(first), "a start with the new model")
        until("stage of 34%, kept")
        roll(file, "--to", "100%")
        for device in ready.devices:
            if device != first:
                ready.end(device, signal.SIGKILL)
                ready.start_device(device)
        until("stage of 100%, kept: of 3 devices 3 run it")
        roll("--back")
        until("taken back: 0 of 3 devices still run it")
        assert all("goes back to the model" in ready.said(device) for device in ready.devices)
