"""A method's knowledge is checked before it is sent: otherwise devices would refuse it, each in its own log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import fleets
import numpy as np
import pytest

from edge_sdk.protocol.knowledge import ClassRows, Payload


def renamed(shared: Mapping[str, Payload]) -> Mapping[str, Payload]:
    return {role.removesuffix("s"): each for role, each in shared.items()}


def shortened(shared: Mapping[str, Payload]) -> Mapping[str, Payload]:
    return {
        role: replace(each, rows=np.ascontiguousarray(each.rows[:, 1:]))
        for role, each in shared.items()
        if isinstance(each, ClassRows)
    }


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (renamed, "role 'prototype' does not belong to this exchange"),
        (shortened, f"width {fleets.WIDTH - 1}, expected {fleets.WIDTH}"),
    ],
)
def test_the_run_ends_with_what_is_wrong(pictures: Path, wrong: Any, told: str) -> None:
    run = fleets.Run(fleets.built(pictures, "fedproto", devices=3))
    right = run.server.reduction.common
    run.server.reduction.common = lambda at: wrong(right(at))  # type: ignore[method-assign]  # a method with a mistake
    run.run()
    reason = run.server.rounds.reason
    assert reason.startswith("round 1: nothing legal to send: the method fedproto gives knowledge")
    assert reason.endswith(told)
    assert run.clock.now_s < 60.0  # no deadline passed
