"""Assigns whose knowledge a device cannot use, and when it withholds their round.

A forged Assign arrives once and is ignored; a genuine coordinator repeats it.  The device then withholds the round, so
that the coordinator need not wait for it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

from edge_sdk.device.membership import Membership
from edge_sdk.errors import RefusedKnowledge, RemoteProtocolError
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.frames.codec import Stamp
from edge_sdk.protocol.frames.leaves import one_line
from edge_sdk.protocol.frames.records import FrozenDict
from edge_sdk.protocol.messages import Assign

REFUSED_BEFORE_WITHHELD = 2
"""The number of refused frames with different stamps after which the Assign counts as genuine."""


class RefusedAssigns:
    """The Assigns of the newest exchange whose knowledge was refused."""

    def __init__(self) -> None:
        self._place: ExchangeId | None = None
        self._stamps = set[tuple[int, int]]()

    @property
    def some(self) -> bool:
        """Whether there is any."""
        return self._place is not None

    def reason(self, assign: Assign, stamp: Stamp, error: RemoteProtocolError) -> RefusedKnowledge | None:
        """Note a refused Assign; returns why its round is withheld, or None while a correct Assign may still arrive."""
        place = ExchangeId(assign.round, assign.exchange)
        if place != self._place:
            self._place, self._stamps = place, set()
        self._stamps.add((stamp.boot_epoch, stamp.sequence))
        if len(self._stamps) < REFUSED_BEFORE_WITHHELD:
            return None
        return RefusedKnowledge(one_line(f"cannot use the coordinator's knowledge: {error}"))


def is_in_place(membership: Membership, assign: Assign) -> bool:
    """Whether the run has such an exchange, so that only the Assign's knowledge may be wrong."""
    rounds = membership.spec.rounds
    exchanges = 1 if assign.closing else len(membership.method.exchanges)
    return assign.closing == (assign.round == rounds) and assign.round <= rounds and assign.exchange < exchanges


def without_knowledge(assign: Assign, stamp: Stamp) -> tuple[Assign, bytes]:
    """Return an Assign without its knowledge, and its frame for the store."""
    bare = replace(assign, common=FrozenDict(), personal=FrozenDict())
    return bare, codec.encode(bare, stamp)


# -- Stamps of received Assigns, from which a device detects a coordinator that lost rounds ---------------------------

MOST_STAMPS = 128
"""The number of stamps that are remembered."""
UNKNOWN_BEFORE_TOLD = 3
"""More than one, because a single long Assign may arrive late, after the next one."""


class AssignStamps:
    """Distinguishes a coordinator whose run went back from replayed copies of its old frames.

    A coordinator that went back sends frames with later stamps.  If its run folder was restored from an older copy, it
    may also repeat a start that devices know; then its frames have old stamps that never arrived before.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[int, int], None] = OrderedDict()
        self._newest = (0, 0)
        self._newest_behind = (0, 0)
        self._unknown = 0
        """Assigns of earlier rounds whose stamps are old, never seen before, and increase from one to the next."""

    def shows_loss(self, stamp: Stamp, *, earlier_round: bool) -> bool:
        """Note the stamp of an Assign; returns whether the coordinator has lost rounds.

        earlier_round: whether the Assign is for a round before the device's current one.
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
