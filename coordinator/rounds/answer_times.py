"""Measured answer times of devices, to distinguish a device that still computes from one whose invitation was lost.

An invitation can be as large as a model, and a second one is useless to a device that computes.  So a device is not
invited again while its last answers suggest that it still computes.  After rounds that lost messages, every silent
device is invited again, so that each loss is repaired soon.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from edge_sdk.protocol.exchange_id import FIRST, ExchangeId
from edge_sdk.reductions.append_only import AppendOnlyMap

_SLACK = 1.5
"""A device counts as silent once it takes this many times longer than before; the inverse bounds faster answers."""
_LOSSY_ROUNDS = 10
"""For this many rounds after a loss, devices that may still compute are also invited again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerTimes:
    """The answer times of the open exchange, and those of the last two rounds."""

    place: ExchangeId = FIRST
    """The exchange that is open, or was last."""
    deadline_s: float = 0.0
    opened_at_s: float = 0.0
    timed: frozenset[str] = frozenset()
    """Devices whose answer measures their computing time: invited when the exchange opened, and since then they have
    neither declined, withheld their upload, left nor joined again."""
    taken_s: AppendOnlyMap[str, float] = field(default_factory=AppendOnlyMap)
    """How long after the exchange opened the uploads of these devices were durable (s)."""
    again_s: Mapping[str, float] = field(default_factory=dict)
    """How long after the exchange opened these devices were invited again, for the first time (s)."""
    known_s: Mapping[int, Mapping[str, tuple[float, ...]]] = field(default_factory=dict)
    """By exchange of a round and device: its answer times of the last two rounds (s), the newest last."""
    lost_round: int | None = None
    """The last round in which the invitation of some devices, and not of most, was lost."""

    def opened(self, place: ExchangeId, devices: frozenset[str], now_s: float, deadline_s: float) -> AnswerTimes:
        """An exchange has opened and invited these devices."""
        return replace(
            self,
            place=place,
            deadline_s=deadline_s,
            opened_at_s=now_s,
            timed=devices,
            taken_s=AppendOnlyMap(),
            again_s={},
        )

    def invited_again(self, devices: AbstractSet[str], now_s: float) -> AnswerTimes:
        """Silent devices were invited again."""
        return replace(self, again_s={**dict.fromkeys(devices, now_s - self.opened_at_s), **self.again_s})

    def answered(self, device: str, now_s: float) -> AnswerTimes:
        """The upload of a device is durable."""
        if device not in self.timed:
            return self
        return replace(self, taken_s=self.taken_s.added(device, now_s - self.opened_at_s))

    def without(self, device: str) -> AnswerTimes:
        """Ignore the answer time of this device in this exchange."""
        return replace(self, timed=self.timed - {device}) if device in self.timed else self

    def without_all(self) -> AnswerTimes:
        """Ignore the times of all answers that are still to come."""
        return replace(self, timed=frozenset())

    def closed(self, members: AbstractSet[str], now_s: float | None = None) -> AnswerTimes:
        """The exchange has closed, at the latest answer or at `now_s`; only times of members are kept."""
        exchange = self.place.exchange
        known_s = self.known_s.get(exchange, {})
        new_s = {device: (*known_s.get(device, ())[-1:], each_s) for device, each_s in self.taken_s.items()}
        kept_s = {device: each_s for device, each_s in {**known_s, **new_s}.items() if device in members}
        lost_round = self.place.round if self._some_were_lost(now_s) else self.lost_round
        return replace(self, known_s={**self.known_s, exchange: kept_s}, lost_round=lost_round)

    def _some_were_lost(self, now_s: float | None) -> bool:
        """Whether some invitations were lost.  If most devices are late, the cause is other work rather than loss."""
        until_s = max(self.taken_s.values(), default=0.0) if now_s is None else now_s - self.opened_at_s
        last_s = {device: each_s for device in self.timed if (each_s := self._last_s(device)) is not None}
        lost = sum(self._was_lost(device, each_s, until_s) for device, each_s in last_s.items())
        return 0 < 2 * lost <= len(last_s)

    def _was_lost(self, device: str, last_s: float, until_s: float) -> bool:
        """Whether a device was late, and may have begun with its second invitation.

        A device that answers sooner than that was already computing.  last_s: how long it took before.  until_s: how
        long after its opening the exchange closed.
        """
        taken_s, again_s = self.taken_s.get(device, until_s), self.again_s.get(device, math.inf)
        return taken_s > _SLACK * last_s and taken_s - again_s >= last_s / _SLACK

    def overdue_at_s(self, device: str) -> float:
        """Earliest time to invite a device again (s): by its last answers, it computes until then.

        Early enough that the answer to a second invitation arrives before the deadline.
        """
        last_s = self._last_s(device)
        lossy = self.lost_round is not None and self.place.round - self.lost_round <= _LOSSY_ROUNDS
        if last_s is None or lossy:
            return self.opened_at_s
        enough_s = _SLACK * last_s
        return self.opened_at_s + min(enough_s, self.deadline_s - enough_s)

    def _last_s(self, device: str) -> float | None:
        """Return how long a device took before (s), or None if it has not answered before.

        The shorter time of two rounds counts, because a lost message lengthens the other.
        """
        last_s = self.known_s.get(self.place.exchange, {}).get(device)
        return None if last_s is None else min(last_s)
