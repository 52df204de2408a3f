"""What only a run can show, and its operator should hear of."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping
from typing import Any

from coordinator.report.units import human_bytes
from edge_sdk.protocol.messages import Hello
from edge_sdk.protocol.wires import Contract

LEAST_PARTICIPATION = 0.3
"""The share of devices below which published results of prototype methods fall behind local training."""


def few_holders(contract: Contract[Any], holders: Collection[int], sharers: int, expected: int) -> str | None:
    """Warning W3, for a method that averages rows of classes.

    holders: for each class that came in a round, how many devices brought it.  sharers: devices that brought any class,
    of `expected` ones.  The text tells of no round, so that it is given once.
    """
    if not contract.holders_wanted or not holders:
        return None
    if sharers < LEAST_PARTICIPATION * expected:
        return (
            f"W3: fewer than {LEAST_PARTICIPATION:.0%} of the devices took part in a round: {contract.name}'s rows "
            "follow them; raise federation.quorum"
        )
    if statistics.median(holders) < contract.holders_wanted:
        return (
            f"W3: half of the classes had fewer than {contract.holders_wanted} holders in a round: {contract.name}'s "
            "rows follow the last few devices, and local training may do better"
        )
    return None


def slot_room(contract: Contract[Any], devices: int, weight_count: int, free_bytes: int | None) -> str | None:
    """Warning W8, for a method that keeps a slot for every device: whether they and a round's uploads have room.

    free_bytes: where the ledger lies, on disk or in memory; None: not known.
    """
    need_bytes = 2 * devices * 4 * weight_count
    if free_bytes is None or need_bytes <= free_bytes:
        return None
    return (
        f"W8: the slots of {devices} devices with {weight_count:,} weights, and the uploads of a round, take up to "
        f"{human_bytes(need_bytes)}; {human_bytes(free_bytes)} are free: {contract.name} stands still once they are "
        "used up; make room, set method.max_slot_age, or encoding.weights"
    )


def batch_norm(contract: Contract[Any], hellos: Mapping[str, Hello]) -> tuple[str, ...]:
    """Warning W13, for a method that averages weights: the devices whose models keep running statistics."""
    found = sorted(device for device, hello in hellos.items() if hello.batch_norm)
    if not contract.shares_weights or not found:
        return ()
    named = ", ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")
    warning = (
        f"W13: the models of {named} have BatchNorm: {contract.name} averages its weights while its running statistics "
        "stay on each device, and do not fit one another where devices hold different classes; use GroupNorm"
    )
    return (warning,)
