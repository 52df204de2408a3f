"""Three rounds of the real thing (messages, agents, server) against a straight-line twin: the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fleets
import numpy as np
import pytest

from edge_sim.config import settings

torch = pytest.importorskip("torch")

import twins

from edge_sdk.methods.parts import torch_fedal as torch_discriminator

pytestmark = pytest.mark.torch

DEVICES = 3


def prepared(pictures: Path, method: str, params: dict[str, Any], train: dict[str, Any]) -> fleets.Run:
    tables = fleets.tables(pictures, method, DEVICES)
    tables["method"] |= params
    tables["train"] |= train
    return fleets.Run(settings.parse(tables, Path("test.toml")))


def compare(run: fleets.Run, copies: list[twins.Twin], begun: list[np.ndarray]) -> None:
    for device, copy, before in zip(run.devices, copies, begun, strict=True):
        rows = device.participant.context.bench.model.head_rows()
        assert rows == pytest.approx(copy.rows, abs=1e-5)
        assert 0.1 < np.abs(rows - before).max() < 10  # it learned, and did not run away: there is something to compare


SGD = {"optimiser": "sgd", "learning_rate": 0.5}


@pytest.mark.parametrize(
    ("params", "train"),
    [
        ({}, {}),
        ({"target": "all", "temperature": 3.0}, {}),
        ({"digest_steps": 4}, SGD),
        ({"form": "digest", "align": 12, "public_batch": 4}, SGD),
        ({"form": "digest", "align": 8, "public_batch": 8, "error": "squared"}, {}),
    ],
    ids=["as it comes", "all, E = 3", "four steps of sgd", "original", "original, squared"],
)
def test_fedmd(pictures: Path, params: dict[str, Any], train: dict[str, Any]) -> None:
    run = prepared(pictures, "fedmd", params, train)
    copies = [twins.Twin.of(run, device) for device in run.devices]
    begun = [copy.rows for copy in copies]
    run.finished()
    twins.fedmd(run, copies)
    compare(run, copies, begun)


@pytest.mark.parametrize(
    ("params", "train"),
    [
        ({"tau": 2, "discriminator_optimiser": "sgd"}, {}),
        (
            {
                "tau": 3,
                "discriminator_optimiser": "sgd",
                "discriminator_rate": 0.3,
                "gradient_clip": 0.05,
                "temperature": 2.0,
            },
            SGD,
        ),
        ({"tau": 2, "discriminator_optimiser": "adam", "discriminator_rate": 0.01, "gradient_clip": 0.0}, SGD),
        ({"tau": 2, "adversarial": 2.0, "less_forgetting": 0.5}, {}),
    ],
    ids=["as it comes", "clipped, E = 2", "adam", "weights"],
)
def test_fedal(pictures: Path, params: dict[str, Any], train: dict[str, Any]) -> None:
    run = prepared(pictures, "fedal", {"max_devices": DEVICES, **params}, train)
    spec = run.fleet.federation.spec
    layers = torch_discriminator.initial_discriminator(spec.classes, DEVICES, spec.seed)
    discriminator = twins.Discriminator([torch.from_numpy(layer) for layer in layers], dict(spec.params))
    copies = [twins.Twin.of(run, device) for device in run.devices]
    begun = [copy.rows for copy in copies]
    run.finished()
    twins.fedal(run, copies, discriminator)
    compare(run, copies, begun)
    ours = np.concatenate(run.server.method_state.discriminator)
    theirs = np.concatenate([p.detach().numpy().reshape(-1) for p in discriminator.net.parameters()])
    assert ours == pytest.approx(theirs, abs=1e-5)
