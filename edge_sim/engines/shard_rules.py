"""Which runs the engine `shards` can have: those in which nothing reaches another device at once."""

from __future__ import annotations

import os

from edge_sdk.boards.profiles import load_link
from edge_sdk.errors import UsageError
from edge_sdk.transport.memory.hub import Faults
from edge_sim.fleet.fleet import Fleet


def check_for_shards(fleet: Fleet, faults: Faults | None) -> None:
    """Raise UsageError for a run whose devices cannot be apart: something would reach another one at once."""
    if os.name != "posix":
        raise UsageError('run.engine: "shards" needs a system that hands files down to processes; use "cohort"')
    if faults is not None and faults.disconnect:
        raise UsageError(
            'run.engine: "shards" cannot draw faults.disconnect, as a frame of one device would cut all others off at '
            'the moment at which it is sent; use "exact", "cohort" or "workers"'
        )
    at_once = [kit.link for kit in (device.kit for device in fleet.devices) if not min(both_ways_s(kit.link))]
    if at_once:
        raise UsageError(
            f'run.engine: "shards" needs links that take time, and frames on {at_once[0]!r} take none; use "exact", '
            '"cohort" or "workers"'
        )


def both_ways_s(link: str) -> tuple[float, float]:
    """Return the time that an empty frame takes up and down."""
    found = load_link(link)
    return found.transfer_s(0, up=True), found.transfer_s(0, up=False)
