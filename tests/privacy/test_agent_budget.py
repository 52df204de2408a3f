"""The budget of an agent: where its ledger lies, and who may use it at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_sdk import Agent, LocalData, NumpyModel, Samples
from edge_sdk.device.store import MemoryStore
from edge_sdk.errors import UsageError
from edge_sdk.privacy.release import Guarantee
from edge_sdk.transport.memory.hub import Hub

BUDGET = Guarantee(8.0, 1e-5)


def agent(federation: str = "lab", **more: Any) -> Agent:
    x = np.random.default_rng(0).normal(size=(12, 4, 4)).astype(np.float32)
    return Agent(
        federation=federation,
        identity="left",
        broker=Hub().link("left"),
        model=NumpyModel(3, (1, 4, 4), seed=0),
        data=LocalData(train=Samples(x, np.arange(12) % 3)),
        privacy=BUDGET,
        **more,
    )


def test_a_budget_without_a_state_folder_is_refused() -> None:
    with pytest.raises(UsageError, match="give state=FOLDER") as caught:
        agent()
    assert "\n" not in str(caught.value)


def test_a_ledger_in_memory_is_told() -> None:
    found, lines = agent(state=MemoryStore()), list[str]()
    found.on_link(lines.append)
    found.participant.connect()
    assert [line for line in lines if "forgotten with this process" in line]


def test_federations_of_a_device_share_its_ledger_at_once_and_after_a_stop(tmp_path: Path) -> None:
    first, second = agent(state=tmp_path), agent("yard", state=tmp_path)
    for each in (first, second):
        assert each.participant.context.bench.budget is not None
        assert each.participant.context.bench.budget.releases == 0
    first.stop()
    again = agent(state=tmp_path)
    for each in (again, second):
        each.stop()
