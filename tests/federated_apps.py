"""Small apps and a coordinator, for tests of the agent with threads and real time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import edge_sdk
from coordinator.ledger import Ledger
from coordinator.rounds import RoundPolicy
from coordinator.serving.server import Server
from edge_sdk.methods.contract.registry import load_method
from edge_sdk.models.base import Model
from edge_sdk.protocol.messages import FederationSpec, TrainSpec
from edge_sdk.transport.base import Transport
from edge_sdk.transport.memory.hub import Hub

CLASSES = 4
SAMPLES = 64


class Slow(edge_sdk.NumpyModel):
    """A model whose batches take their time."""

    batch_s = 0.05
    batches = 0
    """How many it was given."""

    def fit(self, *args: object, **kwargs: object) -> object:
        self.batches += 1
        time.sleep(self.batch_s)
        return super().fit(*args, **kwargs)


def federation(
    hub: Hub,
    *,
    devices: int,
    rounds: int,
    local_steps: int = 2,
    roster: tuple[str, ...] = (),
    quorum: int | None = None,
    transport: Transport | None = None,
    deadline_s: float = 60.0,
    name: str = "local",
    **other: Any,
) -> Server:
    method = load_method(name)()
    spec = FederationSpec(
        federation="app",
        method=name,
        contract=method.digest,
        classes=CLASSES,
        rounds=rounds,
        train=TrainSpec(local_steps=local_steps, learning_rate=0.05),
    )
    policy = RoundPolicy(
        expected=devices,
        quorum=quorum or devices,
        rounds=rounds,
        exchanges=1,
        retry_s=0.5,
        deadline_s=deadline_s,
    )
    link = transport or hub.link("coordinator")
    parts = {"ledger": Ledger(None), "roster": roster, **other}
    return Server(spec=spec, policy=policy, method=method, transport=link, **parts)


def samples_of(seed: int = 0) -> edge_sdk.Samples:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, CLASSES, SAMPLES)
    x = rng.normal(size=(SAMPLES, 8)).astype(np.float32) + 3 * np.eye(8, dtype=np.float32)[y]
    return edge_sdk.Samples(x, y)


def agent_of(hub: Hub, name: str, *, model: Model | None = None, **other: Any) -> edge_sdk.Agent:
    samples = samples_of()
    settings: dict[str, Any] = {
        "federation": "app",
        "broker": hub.link(name) if "broker" not in other else None,
        "identity": name,
        "model": model or edge_sdk.NumpyModel(CLASSES, (1, 1, 8), seed=1),
        "data": edge_sdk.LocalData(train=samples, test=samples),
    }
    return edge_sdk.Agent(**{**settings, **other})


def wait_for(condition: Callable[[], bool], within_s: float = 10.0) -> None:
    end_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end_s, "nothing happened"
        time.sleep(0.005)
