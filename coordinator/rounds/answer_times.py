"""How long devices take for their answers, and so which of them still compute when silent ones are invited again.

An invitation can be as large as a model, and a second one says nothing new to a device that computes.  So a device is
left out for as long as its last answers tell that it may compute.  Where messages got lost lately, no device is left
out, so that each loss is made good soon.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from edge_sdk.protocol.exchange_id import FIRST, ExchangeId
from edge_sdk.protocol.records import replace
from edge_sdk.reductions.append_only import AppendOnlyMap

_SLACK = 1.5
"""How much longer than before a device may need for its answer until it counts as silent."""
_LOSSY_ROUNDS = 10
"""For how many rounds after a loss devices that compute are invited again, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerTimes:
    """The answer times of the open exchange, and those of the last two rounds."""

    place: ExchangeId = FIRST
    """The exchange that is open, or was last."""
    deadline_s: float = 0.0
    opened_at_s: float = 0.0
    timed: frozenset[str] = frozenset()
    """The devices whose answer tells how long they compute: they were invited when the exchange opened, and have
    neither declined, withheld their upload, left nor joined again since."""
    taken_s: AppendOnlyMap[str, float] = field(default_factory=AppendOnlyMap)
    """How long after the exchange opened the uploads of these devices were durable (s)."""
    known_s: Mapping[int, Mapping[str, tuple[float, ...]]] = field(default_factory=dict)
    """By exchange of a round and device: its answer times of the last two rounds (s), the newest last."""
    lost_round: int | None = None
    """The last round in which some devices, and not most, took longer than enough: their invitation was lost."""

    def opened(self, place: ExchangeId, devices: frozenset[str], now_s: float, deadline_s: float) -> AnswerTimes:
        """An exchange has opened, and these devices are invited at once."""
        return replace(
            self, place=place, deadline_s=deadline_s, opened_at_s=now_s, timed=devices, taken_s=AppendOnlyMap()
        )

    def answered(self, device: str, now_s: float) -> AnswerTimes:
        """The upload of a device is durable."""
        if device not in self.timed:
            return self
        return replace(self, taken_s=self.taken_s.added(device, now_s - self.opened_at_s))

    def without(self, device: str) -> AnswerTimes:
        """An answer of this device tells nothing any more."""
        return replace(self, timed=self.timed - {device}) if device in self.timed else self

    def without_all(self) -> AnswerTimes:
        """No answer to come tells anything."""
        return replace(self, timed=frozenset())

    def closed(self, members: AbstractSet[str], now_s: float | None = None) -> AnswerTimes:
        """The exchange has closed, at the latest answer or at `now_s`; only times of members are kept."""
        exchange = self.place.exchange
        known_s = self.known_s.get(exchange, {})
        new_s = {device: (*known_s.get(device, ())[-1:], each_s) for device, each_s in self.taken_s.items()}
        kept_s = {device: each_s for device, each_s in {**known_s, **new_s}.items() if device in members}
        lost_round = self.place.round if self._some_were_late(now_s) else self.lost_round
        return replace(self, known_s={**self.known_s, exchange: kept_s}, lost_round=lost_round)

    def _some_were_late(self, now_s: float | None) -> bool:
        """Whether some devices were late, but not most: a loss makes some late, and other work makes most late."""
        until_s = max(self.taken_s.values(), default=0.0) if now_s is None else now_s - self.opened_at_s
        enough_s = {device: each_s for device in self.timed if (each_s := self._enough_s(device)) is not None}
        late = sum(self.taken_s.get(device, until_s) > each_s for device, each_s in enough_s.items())
        return 0 < 2 * late <= len(enough_s)

    def overdue_at_s(self, device: str) -> float:
        """When a device is invited again at the earliest: until then it computes, as its last answers tell (s)."""
        if self.lost_round is not None and self.place.round - self.lost_round <= _LOSSY_ROUNDS:
            return self.opened_at_s
        return self.opened_at_s + (self._enough_s(device) or 0.0)

    def _enough_s(self, device: str) -> float | None:
        """How long a device may take for its answer without being silent (s); None: it has not answered before.

        Of two rounds the shorter time counts, for a lost message makes the other one longer.  If this invitation got
        lost, the answer to a second one is to come before the deadline.
        """
        last_s = self.known_s.get(self.place.exchange, {}).get(device)
        if last_s is None:
            return None
        enough_s = _SLACK * min(last_s)
        return min(enough_s, self.deadline_s - enough_s)
