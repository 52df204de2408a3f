"""Assigns that a device does not carry out: it cannot use their knowledge, or it has too few new samples.

A forged Assign arrives once and is ignored; a genuine coordinator repeats it.  The device then withholds the round, so
that the coordinator need not wait for it.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import replace

from edge_sdk.device.context import DeviceContext
from edge_sdk.device.membership import Membership
from edge_sdk.errors import RefusedKnowledge, RemoteProtocolError
from edge_sdk.policy.policy import Objection
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.frames.codec import Stamp
from edge_sdk.protocol.frames.leaves import one_line
from edge_sdk.protocol.frames.records import FrozenDict
from edge_sdk.protocol.messages import FEW_NEW_SAMPLES, Assign

REFUSED_BEFORE_WITHHELD = 2
"""The number of refused frames with different stamps after which the Assign counts as genuine."""


class RefusedAssigns:
    """The Assigns of the newest exchange whose knowledge was refused."""

    def __init__(self) -> None:
        self._place: ExchangeId | None = None
        self._stamps = set[tuple[int, int]]()

    @property
    def some(self) -> bool:
        """Whether any Assign was refused."""
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


COUNT_EVERY_S = 1.0
"""Seconds between two counts while a device waits for samples."""


class NewSamples:
    """Declines the rounds of a device that learned from most of its samples already."""

    def __init__(self, context: DeviceContext) -> None:
        self._context = context
        self.objection: Objection | None = None
        """Why the device declines, as of the last count."""
        self._count_at_s = math.inf
        """When to count again; infinite while the device does not wait for samples."""

    def allow(self, assign: Assign, now_s: float) -> bool:
        """Whether the device may begin this exchange: it continues a round, closes the run, or has new samples."""
        if assign.closing or assign.round <= self._context.session.exchange_id.round:
            return True
        self._count(now_s)
        return self.objection is None

    def look(self, now_s: float) -> bool:
        """Count again if that is due; returns whether the device no longer waits for samples."""
        if now_s < self._count_at_s:
            return False
        self._count(now_s)
        return self.objection is None

    def _count(self, now_s: float) -> None:
        context, joined = self._context, self._context.membership
        wanted = joined.spec.min_new_samples if joined is not None else 0
        found = context.data.new_samples if wanted else 0
        self.objection, self._count_at_s = None, math.inf
        if found >= wanted:
            return
        self._count_at_s = now_s + COUNT_EVERY_S
        text = f"fewer than the {wanted} new samples that federation.min_new_samples asks for"
        if context.bench.budget is None:  # a budget keeps numbers of samples on the device
            text = f"{found} of the {wanted} new samples that federation.min_new_samples asks for"
        if context.data.changes and context.bench.capacity < wanted:
            text += f", and its SampleStore holds at most {context.bench.capacity}: raise max_samples or max_bytes"
        if not context.data.changes:
            text += ", and its data do not change: give its Agent a SampleStore"
        self.objection = Objection(FEW_NEW_SAMPLES, text)
