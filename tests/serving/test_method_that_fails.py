"""A method that cannot go on ends the run with its reason; the coordinator does not fall."""

from __future__ import annotations

from pathlib import Path

import fleets
import pytest

from coordinator.rounds import RoundPhase
from edge_sdk.reductions import weighted_sum


def test_uploads_that_do_not_add_up_exactly_end_the_run(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weighted_sum, "MOST_UPLOADS", 3)
    run = fleets.Run(fleets.built(pictures, "fedavg", rounds=1))
    run.run()
    assert run.server.rounds.phase is RoundPhase.FAILED
    assert "weights of 4 devices" in run.server.rounds.reason
