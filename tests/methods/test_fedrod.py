"""FedRoD: a whole run against a literal twin, and what a device keeps to itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import fleets
import numpy as np
import pytest
from method_specs import FakeDevice, first_step, job, spec_of

from edge_sdk.methods.contract.requests import Fit, ReadWeights, WriteWeights
from edge_sdk.methods.fedrod import DeviceState
from edge_sdk.protocol.frames import storage
from edge_sdk.protocol.knowledge import Weights
from edge_sim.config import settings
from edge_sim.fleet.fleet import Device

RATE = 0.1


def made(pictures: Path, model: str = "softmax", **params: Any) -> fleets.Run:
    tables = fleets.tables(pictures, "fedrod", devices=4, rounds=3)
    tables["train"] |= {"optimiser": "sgd", "learning_rate": RATE}
    tables["method"] = {"start": "equal", **params}
    tables["fleet"][0]["model"] = model
    return fleets.Run(settings.parse(tables, Path("test.toml")))


def batches(run: fleets.Run, device: Device, round_: int) -> list[tuple[np.ndarray, np.ndarray]]:
    x = device.kit.model(None).spec.preprocess(device.data.train.x).astype(np.float64)
    x = np.concatenate([x.reshape(len(x), -1), np.ones((len(x), 1))], axis=1)
    return [(x[each], device.data.train.y[each]) for each in fleets.private_batches(run, device, round_)]


def slope(logits: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The gradient of the cross-entropy with respect to the rows that gave the logits."""
    scores = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares = scores / scores.sum(axis=1, keepdims=True)
    return (shares - np.eye(logits.shape[1])[y]).T @ x / len(x)


@pytest.mark.parametrize("gamma", [1.0, 0.5])
def test_a_run_is_its_naive_twin(pictures: Path, gamma: float) -> None:
    """With a model that is all last layer: G and P side by side, as the paper writes them."""
    run = made(pictures, gamma=gamma)
    devices = run.fleet.devices
    shared = devices[0].kit.model(None).head_rows().astype(np.float64)
    begun = shared.copy()
    own = [np.zeros_like(shared) for _ in devices]
    samples = [len(device.data.train) for device in devices]
    for round_ in range(3):
        trained = []
        for device, personal in zip(devices, own, strict=True):
            held = np.bincount(device.data.train.y, minlength=len(shared))
            with np.errstate(divide="ignore"):
                raised = gamma * np.log(held)  # -inf: takes no part
            generic = shared.copy()
            for x, y in batches(run, device, round_):
                generic -= RATE * slope(x @ generic.T + raised, x, y)
            for x, y in batches(run, device, round_):
                personal[...] -= RATE * slope(x @ (generic + personal).T, x, y)
            trained.append(generic)
        shared = np.average(trained, axis=0, weights=samples)
    run.finished()
    np.testing.assert_allclose(run.server.method_state.weights.values, shared.ravel(), atol=1e-5)
    for virtual, generic, personal in zip(run.devices, trained, own, strict=True):
        kept = storage.deserialise(DeviceState, virtual.agent.store.round_start().method).personal
        np.testing.assert_allclose(kept, personal, atol=1e-5)
        np.testing.assert_allclose(virtual.agent.bench.model.head_rows(), generic + personal, atol=1e-5)
    assert np.abs(shared - begun).max() > 0.02  # the tolerance means something
    assert np.abs(own[0]).max() > 0.02


@pytest.mark.torch
def test_the_personal_part_moves_the_last_layer_alone(pictures: Path) -> None:
    """With bodies as shared: the mean's body is the mean of what the devices' models have."""
    pytest.importorskip("torch")
    run = made(pictures, "mlp").finished()
    models = [device.agent.bench.model for device in run.devices]
    bodies = [model.weights()[~model.head_mask()] for model in models]
    samples = [len(device.data.train) for device in run.fleet.devices]
    mean = run.server.method_state.weights.values[~models[0].head_mask()]
    np.testing.assert_allclose(np.average(bodies, axis=0, weights=samples), mean, atol=1e-6)
    assert not np.array_equal(models[0].head_rows(), models[1].head_rows())


def test_what_a_device_adds_survives_a_restart() -> None:
    state = DeviceState(np.ones((2, 3), np.float32))
    assert storage.deserialise(DeviceState, storage.serialise(state)).personal.tolist() == [[1, 1, 1]] * 2


class Recording(FakeDevice):
    """Also gives weights."""

    def answer(self, request: Any) -> Any:
        if isinstance(request, (ReadWeights, WriteWeights)):
            return Weights(values=np.ones(9, np.float32), layout=bytes(16))
        return super().answer(request)


def test_both_parts_train_for_the_epochs_that_are_prescribed() -> None:
    spec = spec_of("fedrod", feature_dim=2)
    spec = replace(spec, train=replace(spec.train, local_epochs=2, local_steps=1))
    device = Recording()
    device.run(first_step({}, job(spec, 0)))
    fits = [request for request in device.requests if isinstance(request, Fit)]
    assert [fit.part for fit in fits] == ["all", "head"]
    assert [len(fit.source.indices) for fit in fits] == [5, 5]  # twice 9 samples in mini-batches of 4
