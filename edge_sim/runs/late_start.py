"""A remark for a run whose devices joined late: its costs include the wait for them."""

from __future__ import annotations

from coordinator.record.units import human_seconds
from coordinator.serving.server import Server

WORTH_S, WORTH_SHARE = 60.0, 0.1
"""Least wait in seconds, and its least share of the run, for which the remark is made."""


def remark(server: Server, ended_s: float) -> tuple[str, ...]:
    """Return one line, or none where the wait was short.  ended_s: virtual seconds that the run took."""
    begun_s = server.record.started_s
    if begun_s is None or begun_s < max(WORTH_S, WORTH_SHARE * ended_s):
        return ()
    *_, last = server.hellos
    told = (
        f"the first exchange began after {human_seconds(begun_s)}, when {last} had joined: joules and bytes of that "
        "wait stand in round 1, its time in no round; with a lower federation.quorum a run begins without the last"
    )
    return (told,)
