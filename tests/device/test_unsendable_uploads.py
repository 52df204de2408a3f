"""What a device does with knowledge that no frame can hold, as a payload of another package may let pass."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import fleets
import numpy as np
import pytest

from edge_sdk.device import membership


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda rows: np.full_like(rows, np.nan), "the prototypes hold numbers from nan"),
        (lambda rows: rows.astype(np.float64), "Upload.knowledge.prototypes.rows"),
    ],
)
def test_it_withholds_the_round_and_takes_part_in_the_next_one(
    pictures: Path, monkeypatch: pytest.MonkeyPatch, wrong: Any, told: str
) -> None:
    run = fleets.Run(fleets.built(pictures, "fedproto", devices=3, quorum=2))

    def once(assign: Any, knowledge: Any) -> Any:
        if assign.round != 1 or assign.closing:
            return knowledge
        ((role, payload),) = knowledge.items()
        return {role: replace(payload, rows=wrong(payload.rows))}

    run.devices[1].participant.context.outgoing = fleets.Altered(knowledge=once)
    monkeypatch.setattr(membership, "check_roles", lambda *_: None)
    run.finished()
    record = run.server.record
    assert run.result.completed
    assert dict(record.sums["withheld"]) == {"device-01": 1}
    assert told in record.why_withheld["device-01"]
