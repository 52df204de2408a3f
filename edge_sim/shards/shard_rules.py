"""Decides which runs can be divided among processes: those in which nothing reaches another device instantly."""

from __future__ import annotations

import os

from edge_sdk.boards.profiles import load_link
from edge_sdk.transport.memory.hub import Faults
from edge_sim.fleet.fleet import Fleet


def why_together(fleet: Fleet, faults: Faults | None, *, resumed: bool) -> str:
    """Return why one process must hold all devices of a run, or an empty text if several can."""
    if os.name != "posix":
        return "this system does not hand files down to processes"
    if resumed:
        return "the cost of resuming is counted over all devices together"
    if faults is not None and faults.disconnect:
        return "with faults.disconnect a frame of one device instantly cuts off all others"
    at_once = [kit.link for kit in (device.kit for device in fleet.devices) if not min(both_ways_s(kit.link))]
    if at_once:
        return f"frames on the link {at_once[0]!r} take no time"
    return ""


def both_ways_s(link: str) -> tuple[float, float]:
    """Return the time that an empty frame takes up and down."""
    found = load_link(link)
    return found.transfer_s(0, up=True), found.transfer_s(0, up=False)
