"""A board that trains all layers of a file stops between two steps, within 200 ms."""

from __future__ import annotations

import time

import numpy as np
import pytest
from federated_apps import CLASSES, agent_of, federation, wait_for

import edge_sdk
from edge_sdk.transport.memory.hub import Hub

MOST_S = 0.2


def test_it_stops_within_200_ms(serve, tmp_path) -> None:
    pytest.importorskip("onnxruntime")
    file = edge_sdk.NumpyModel(CLASSES, (1, 1, 8), seed=1, hidden=(1024, 1024)).onnx_bytes(np.zeros((1, 1, 1, 8)))
    took_s: list[float] = []
    while not took_s or (min(took_s) > MOST_S and len(took_s) < 5):  # the best of five: others share the machine
        hub, state = Hub(), tmp_path / str(len(took_s))
        serve(federation(hub, devices=1, rounds=1, local_steps=100))
        agent = agent_of(hub, "left", model=edge_sdk.OnnxModel(file, train="all"), state=state)
        before = agent.participant.context.bench.model.weights()
        agent.start()
        wait_for(
            lambda agent=agent, before=before: (
                agent.participant.work.computing and (agent.participant.context.bench.model.weights() != before).any()
            )
        )
        begun = time.monotonic()
        agent.stop()
        took_s.append(time.monotonic() - begun)
        assert not agent.running
        again = agent_of(hub, "left", model=edge_sdk.OnnxModel(file, train="all"), state=state)
        again.start()
        wait_for(lambda again=again: not again.running)
        assert again.error is None
    assert min(took_s) <= MOST_S, took_s
