"""Puts together what decides when a device trains, for an agent that starts."""

from __future__ import annotations

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
    return TrainingGate(policy, found, EnergyCounter(found, meter, _busy_w(board), warn), warn)


def _busy_w(board: str) -> float | None:
    """Return the watts of the busy board by its profile; None: there is no profile of it."""
    name = board or profiles.detect()
    return profiles.load_board(name).busy_w if name in profiles.boards() else None
