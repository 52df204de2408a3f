"""Assigns whose knowledge a device cannot take, and when it tells the coordinator so.

A frame that was forged comes once, and is as if it had never come.  A coordinator that means it repeats
its Assign; then the device withholds the round, for which the coordinator would wait in vain.
"""

from __future__ import annotations

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
