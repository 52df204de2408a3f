"""Assigns whose knowledge a device cannot take, and when it tells the coordinator so.

A frame that was forged comes once, and is as if it had never come.  A coordinator that means it repeats
its Assign; then the device withholds the round, for which the coordinator would wait in vain.
"""

from __future__ import annotations

from collections import OrderedDict

from edge_sdk.device.membership import Membership
from edge_sdk.errors import RefusedKnowledge, RemoteProtocolError
from edge_sdk.protocol import codec
from edge_sdk.protocol.codec import Stamp
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frozen_dict import FrozenDict
from edge_sdk.protocol.leaves import one_line
from edge_sdk.protocol.messages import Assign
from edge_sdk.protocol.records import replace

REFUSED_BEFORE_WITHHELD = 2
"""So many frames with different stamps are no forgery that came once."""


class RefusedAssigns:
    """The Assigns of the newest exchange whose knowledge was refused."""

    def __init__(self) -> None:
        self._place: ExchangeId | None = None
        self._stamps = set[tuple[int, int]]()

    def reason(self, assign: Assign, stamp: Stamp, error: RemoteProtocolError) -> RefusedKnowledge | None:
        """Note a refused Assign; returns why its round is withheld; None: the coordinator may send it otherwise yet."""
        place = ExchangeId(assign.round, assign.exchange)
        if place != self._place:
            self._place, self._stamps = place, set()
        self._stamps.add((stamp.boot_epoch, stamp.sequence))
        if len(self._stamps) < REFUSED_BEFORE_WITHHELD:
            return None
        return RefusedKnowledge(one_line(f"what the coordinator sent cannot be taken: {error}"))


def is_in_place(membership: Membership, assign: Assign) -> bool:
    """Whether the run has such an exchange, so that only the Assign's knowledge may be wrong."""
    rounds = membership.spec.rounds
    exchanges = 1 if assign.closing else len(membership.method.exchanges)
    return assign.closing == (assign.round == rounds) and assign.round <= rounds and assign.exchange < exchanges


def without_knowledge(assign: Assign, stamp: Stamp) -> tuple[Assign, bytes]:
    """Return an Assign without its knowledge, and the frame that is stored of it."""
    bare = replace(assign, common=FrozenDict(), personal=FrozenDict())
    return bare, codec.encode(bare, stamp)


# -- The stamps of the Assigns that a device has got, and what those of earlier rounds tell of the coordinator --------

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
