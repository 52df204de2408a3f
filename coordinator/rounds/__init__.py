"""The rounds of a federation as pure functions: a table of rules (machine.py) over the types in state.py.

This package may import `edge_sdk.protocol` and `errors`. It imports nothing that has a clock, a socket, a disk or a
method.
"""

from coordinator.rounds.machine import ROUND_MACHINE, advance_rounds, postponed, resumed, rounds_due_s
from coordinator.rounds.state import (
    Broken,
    Declined,
    DeviceRefused,
    EndRun,
    Finished,
    Fold,
    Invite,
    Joined,
    Left,
    Lost,
    Persist,
    Persisted,
    Received,
    Reduce,
    RoundCommand,
    RoundDone,
    RoundEvent,
    RoundPhase,
    RoundPolicy,
    RoundState,
    RoundTick,
    RoundTransition,
    SendReceipt,
    Willing,
    Withheld,
)
from edge_sdk.protocol.exchange_id import ExchangeId

__all__ = [
    "ROUND_MACHINE",
    "Broken",
    "Declined",
    "DeviceRefused",
    "EndRun",
    "ExchangeId",
    "Finished",
    "Fold",
    "Invite",
    "Joined",
    "Left",
    "Lost",
    "Persist",
    "Persisted",
    "Received",
    "Reduce",
    "RoundCommand",
    "RoundDone",
    "RoundEvent",
    "RoundPhase",
    "RoundPolicy",
    "RoundState",
    "RoundTick",
    "RoundTransition",
    "SendReceipt",
    "Willing",
    "Withheld",
    "advance_rounds",
    "postponed",
    "resumed",
    "rounds_due_s",
]
