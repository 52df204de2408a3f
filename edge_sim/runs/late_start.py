"""A remark for a run whose devices came late: some of its costs are those of the wait for them."""

from __future__ import annotations

from coordinator.record.units import human_seconds
from coordinator.serving.server import Server

WORTH_S, WORTH_SHARE = 60.0, 0.1
"""A shorter wait, or a smaller share of the run, goes without saying."""


def remark(server: Server, ended_s: float) -> tuple[str, ...]:
    """One line or none.  ended_s: virtual seconds that the run took."""
    begun_s = server.record.started_s
    if begun_s is None or begun_s < max(WORTH_S, WORTH_SHARE * ended_s):
        return ()
    *_, last = server.hellos
    told = (
        f"the first exchange began after {human_seconds(begun_s)}, when {last} had joined: joules and bytes of that "
        "wait stand in round 1, its time in no round; with a lower federation.quorum a run begins without the last"
    )
    return (told,)
