"""Puts together what decides when a device trains, for an agent that starts."""

from __future__ import annotations

import functools
from collections.abc import Callable

from edge_sdk.boards import profiles
from edge_sdk.policy.energy import EnergyCounter, PowerMeter
from edge_sdk.policy.gate import TrainingGate
from edge_sdk.policy.linux_sensors import LinuxSensors
from edge_sdk.policy.policy import Policy
from edge_sdk.policy.sensors import Sensors


def training_gate(
    policy: Policy, sensors: Sensors | None, meter: PowerMeter | None, board: str, warn: Callable[[str], None]
) -> TrainingGate:
    """Return the gate of a policy.  sensors: None: Linux's own files.  board: its name; "": it is detected."""
    found = sensors or LinuxSensors(warn=warn)
    here = functools.cache(lambda: profiles.board_here(warn, board))  # what it says is said once
    return TrainingGate(policy, found, EnergyCounter(found, meter, lambda: here().busy_w, warn), warn)
