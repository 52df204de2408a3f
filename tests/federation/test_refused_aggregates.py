"""An aggregate that devices cannot take: they withhold the round, and both sides read why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fleets
import numpy as np
import pytest

from coordinator.rounds import RoundPhase
from coordinator.serving.command_handler import AssignChecks
from edge_sdk.device.refused_assigns import RefusedAssigns
from edge_sdk.errors import RemoteProtocolError
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.frames.records import replace
from edge_sdk.protocol.knowledge import Weights
from edge_sdk.protocol.messages import Assign

VICTIM = "device-03"
HUGE = "1e+30"


def bad(weights: Weights) -> Weights:
    return replace(weights, values=np.full_like(weights.values, 1e30))


def run_of(pictures: Path, method: str = "fedavg") -> tuple[fleets.Run, list[str]]:
    """A run that has not begun, and the lines that the owner of VICTIM will read."""
    run, lines = fleets.Run(fleets.built(pictures, method)), list[str]()
    agent = next(each.agent for each in run.devices if each.device.kit.id == VICTIM)
    agent.on_news = lines.append  # type: ignore[method-assign]  # what an app does
    return run, lines


def poison(run: fleets.Run, round_: int) -> None:
    """Let the coordinator send weights in this round that no device takes."""
    honest = run.server.method.common

    def common(state: Any, at: ExchangeId) -> Any:
        found = honest(state, at)
        return {role: bad(each) for role, each in found.items()} if at.round == round_ else found

    run.server.method.common = common  # type: ignore[method-assign]


def test_a_coordinator_whose_aggregate_nobody_takes_reads_why(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        AssignChecks, "check_common", lambda *_: None
    )  # a coordinator that does not look, or is hostile
    run, lines = run_of(pictures)
    poison(run, 1)
    run.finished()
    assert run.server.rounds.phase is RoundPhase.FAILED
    assert "cannot use the coordinator's knowledge: " in run.server.rounds.reason
    (told,) = [line for line in lines if HUGE in line]
    assert told.startswith("round 1: cannot use the coordinator's knowledge: ")


def test_one_refused_frame_is_as_if_it_had_never_come_and_two_with_one_stamp_are_one() -> None:
    refused, error = RefusedAssigns(), RemoteProtocolError("knowledge", "too large")
    assign = Assign(federation="tiny", device=VICTIM, round=1, exchange=0)
    assert refused.reason(assign, codec.Stamp(1, 7), error) is None
    assert refused.reason(assign, codec.Stamp(1, 7), error) is None
    assert refused.reason(replace(assign, round=2), codec.Stamp(1, 8), error) is None
    assert refused.reason(assign, codec.Stamp(1, 9), error) is None
    found = refused.reason(assign, codec.Stamp(1, 10), error)
    assert found is not None
    assert "too large" in str(found)
