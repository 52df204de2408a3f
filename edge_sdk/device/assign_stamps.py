"""The stamps of the Assigns that a device has got, and what those of earlier rounds tell of the coordinator."""

from __future__ import annotations

from collections import OrderedDict

from edge_sdk.protocol.codec import Stamp

MOST_STAMPS = 128
"""The most stamps that are remembered."""
UNKNOWN_BEFORE_TOLD = 3
"""A long Assign may arrive late, after the next one; a coordinator that has gone back sends one after the other."""


class AssignStamps:
    """Tells a coordinator whose run went back from copies of its old frames.

    Its newer frames have later stamps.  A run folder that came back from an older copy may also count a start again
    that devices know: its frames have the stamps of a start that was, and are yet none of the frames that came then.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[int, int], None] = OrderedDict()
        self._newest = (0, 0)
        self._newest_behind = (0, 0)
        self._unknown = 0
        """Assigns of earlier rounds with older stamps, each with a later one than the one before, that never came."""

    def shows_loss(self, stamp: Stamp, *, earlier_round: bool) -> bool:
        """Note the stamp of an Assign; returns whether the coordinator has lost rounds.

        earlier_round: whether it assigns a round before the one that this device has begun.
        """
        came, before = (stamp.boot_epoch, stamp.sequence), self._newest
        if came in self._known:
            return False
        self._known[came] = None
        if len(self._known) > MOST_STAMPS:
            self._known.popitem(last=False)
        self._newest = max(came, before)
        if not earlier_round or before == (0, 0):
            return False
        if came < before:
            self._unknown += came > self._newest_behind
            self._newest_behind = max(came, self._newest_behind)
        return came > before or self._unknown >= UNKNOWN_BEFORE_TOLD
