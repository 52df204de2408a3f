"""Whether a method's uploads can be combined although they were made from versions of different ages."""

from __future__ import annotations

from typing import Any

from edge_sdk.methods.contract.base import Method
from edge_sdk.protocol.knowledge import Weights
from edge_sdk.reductions.ageing import COUNTED


def why_in_rounds(method: Method[Any]) -> str:
    """Return why a method needs rounds, or "" if uploads of different ages can count together in a buffer."""
    if len(method.exchanges) > 1:
        return f"each of its {len(method.exchanges)} exchanges answers the one before, which all devices must have done"
    if method.lock_step:
        return "every exchange waits for every device"
    if method.caching is not None:
        return "it keeps the uploads of devices by round"
    if method.own_rounds:
        return method.own_rounds
    exchange = method.exchanges[0]
    if not exchange.up:
        return "devices send nothing"
    for role, slot in exchange.up.items():
        if role in method.newest:
            continue
        if role not in method.means:
            return f"it does more with the {role} of a round than average them, so an old upload cannot count for less"
        sent = exchange.down.get(role)
        both_ways = slot.kind is Weights and sent is not None and sent.kind is Weights and not sent.personal
        if slot.kind not in COUNTED and not both_ways:
            return f"its {role} have no weight that could shrink with their age"
    return ""


def begins_alike(method: Method[Any]) -> bool:
    """Whether an upload made from the first version, which devices never receive, can count later."""
    return all(slot.kind is not Weights for slot in method.exchanges[0].up.values())
