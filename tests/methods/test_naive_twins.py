"""Whole runs against naive twins: the same algorithms as a few loops, without codec, rounds, agents or slices."""

from __future__ import annotations

import math
from pathlib import Path

import fleets
import numpy as np
import pytest

from edge_sdk.methods.fedssa import FedSSA
from edge_sim.config import settings
from edge_sim.fleet.fleet import Device

RATE = 0.1


WIDTHS = {"softmax": fleets.WIDTH, "mlp": 64}
"""Features that the families have by themselves."""


def made(pictures: Path, method: str, model: str, **params: object) -> settings.Config:
    tables = fleets.tables(pictures, method, devices=4, rounds=3, feature_dim=WIDTHS[model])
    tables["train"] |= {"optimiser": "sgd", "learning_rate": RATE}
    tables["method"] = params
    tables["fleet"] = [{"count": 4, "model": model}]
    return settings.parse(tables, Path("test.toml"))


def samples(device: Device) -> tuple[np.ndarray, np.ndarray]:
    model = device.kit.model(device.public)
    return model.spec.preprocess(device.data.train.x).astype(np.float64), device.data.train.y


def softmax_step(rows: np.ndarray, x: np.ndarray, y: np.ndarray) -> None:
    """One step of SGD on softmax regression: rows (k, d + 1), x (b, d + 1) with a last column of ones."""
    scores = np.exp(x @ rows.T)
    error = scores / scores.sum(axis=1, keepdims=True) - np.eye(len(rows))[y]
    rows -= RATE * error.T @ x / len(x)


@pytest.mark.parametrize(("fusion", "takes"), [("convex", "seen"), ("literal", "seen"), ("convex", "all")])
def test_fedssa(pictures: Path, fusion: str, takes: str) -> None:
    run = fleets.Run(made(pictures, "fedssa", "softmax", fusion=fusion, mu0=0.8, takes=takes, down=takes))
    devices = run.fleet.devices
    start = FedSSA().begin(run.fleet.federation.spec).header
    header = {int(label): row.astype(np.float64) for label, row in zip(start.classes, start.rows, strict=True)}
    own = [device.kit.model(None).head_rows().astype(np.float64) for device in devices]
    for round_ in range(3):
        mu = 0.8 * math.cos(math.pi * round_ / 4) if round_ <= 2 else 0
        brought: dict[int, list[np.ndarray]] = {}
        for device, rows in zip(devices, own, strict=True):
            x, y = samples(device)
            flat = np.concatenate([x.reshape(len(x), -1), np.ones((len(x), 1))], axis=1)
            for label in np.unique(y) if takes == "seen" else range(len(rows)):
                rows[label] = (header[label] + mu * rows[label]) / (1 + mu if fusion == "convex" else 1)
            for batch in fleets.private_batches(run, device, round_):
                softmax_step(rows, flat[batch], y[batch])
            for label in np.unique(y):
                brought.setdefault(int(label), []).append(rows[label].copy())
        header |= {label: np.mean(rows, axis=0) for label, rows in brought.items()}
    run.finished()
    found = run.server.method_state.header
    np.testing.assert_allclose(found.rows, [header[label] for label in found.classes], atol=1e-5)
    for virtual, rows in zip(run.devices, own, strict=True):
        np.testing.assert_allclose(virtual.participant.context.bench.model.head_rows(), rows, atol=1e-5)
    moved = np.abs(own[0] - devices[0].kit.model(None).head_rows()).max()
    assert moved > 0.05  # the tolerance means something


@pytest.mark.torch
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_fedproto(pictures: Path, weighting: str) -> None:
    torch = pytest.importorskip("torch")
    run = fleets.Run(made(pictures, "fedproto", "mlp", mse_weight=8.0, weighting=weighting))
    devices = run.fleet.devices
    nets = [device.kit.model(None).net.double() for device in devices]
    optims = [torch.optim.SGD(net.parameters(), lr=RATE) for net in nets]
    prototypes: dict[int, object] = {}
    for round_ in range(3):
        brought: dict[int, list[tuple[int, object]]] = {}
        for device, net, optim in zip(devices, nets, optims, strict=True):
            x, y = (torch.tensor(part) for part in samples(device))
            for batch in fleets.private_batches(run, device, round_):
                features = net[:-1](x[batch])
                targets = features.detach().clone()
                for i, label in enumerate(y[batch].tolist()):
                    targets[i] = prototypes.get(label, targets[i])
                loss = torch.nn.functional.cross_entropy(net[-1](features), y[batch])
                loss = loss + 8.0 * torch.nn.MSELoss()(features, targets)
                optim.zero_grad()
                loss.backward()
                optim.step()
            for label in y.unique().tolist():
                weight = int((y == label).sum()) if weighting == "samples" else 1
                brought.setdefault(label, []).append((weight, net[:-1](x[y == label]).mean(dim=0).detach()))
        for label, held in brought.items():
            prototypes[label] = sum(n * row for n, row in held) / sum(n for n, _ in held)
    run.finished()
    found = run.server.method_state.prototypes
    expected = [prototypes[label].numpy() for label in found.classes.tolist()]
    np.testing.assert_allclose(found.rows, expected, atol=1e-5)
    for virtual, net in zip(run.devices, nets, strict=True):
        flat = np.concatenate([p.detach().numpy().ravel() for p in net.parameters()])
        np.testing.assert_allclose(virtual.participant.context.bench.model.weights(), flat, atol=1e-5)
