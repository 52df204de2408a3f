"""What devices were sent in earlier versions, where the coordinator aggregates from buffers.

The change that a device's training made to weights is known only beside the weights that it began with.  So these are
kept, also over a restart, until uploads made from them are too old to count.
"""

from __future__ import annotations

from collections.abc import Mapping

from coordinator.ledger import Ledger
from coordinator.rounds import RoundPolicy
from coordinator.serving.reduction import Reduction
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames import storage
from edge_sdk.protocol.knowledge import Payload, Weights
from edge_sdk.reductions.ageing import aged


class Versions:
    """The weights of earlier versions by role, and how uploads that were made from them count."""

    def __init__(self, ledger: Ledger, reduction: Reduction, policy: RoundPolicy) -> None:
        self._ledger, self._reduction, self._policy = ledger, reduction, policy
        self._kept: dict[int, Mapping[str, Payload]] = {}

    def began(self, version: int, newest: int) -> Mapping[str, Payload]:
        """Return what devices were sent in a version; of an earlier one only its weights."""
        if version == newest:
            return self._reduction.common(ExchangeId(newest, 0))
        if version not in self._kept:
            found = self._ledger.versions(version)
            self._kept[version] = {role: storage.deserialise(Weights, kept) for role, kept in found.items()}
        return self._kept[version]

    def aged(self, knowledge: Mapping[str, Payload], version: int, newest: int) -> Mapping[str, Payload]:
        """Return the knowledge of an upload made from a version, as it counts in the buffer of the newest one."""
        began = self.began(version, newest)
        return aged(knowledge, newest - version, began, self.began(newest, newest))

    def keep(self, version: int) -> None:
        """Keep the weights of a version that is about to be replaced.  Raises StoreError."""
        sent = self._reduction.common(ExchangeId(version, 0))
        weights = {role: payload for role, payload in sent.items() if isinstance(payload, Weights)}
        oldest = version + 1 - max(1, self._policy.max_staleness)  # an upload that waited for its buffer is one old
        if weights:
            self._ledger.keep_version(
                version, {role: storage.serialise(each) for role, each in weights.items()}, oldest
            )
            self._kept[version] = weights
        self._kept = {each: kept for each, kept in self._kept.items() if each >= oldest}
