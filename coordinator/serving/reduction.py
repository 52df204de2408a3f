"""Runs the method: adds uploads to an aggregate, computes the next state from it, and keeps slots if it has any."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from coordinator.ledger import Ledger, Slots
from coordinator.rounds import RoundPolicy
from edge_sdk.errors import RunFailed
from edge_sdk.methods.contract.base import Method, Registered
from edge_sdk.methods.contract.job import has_instruments
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames import codec, storage
from edge_sdk.protocol.frames.codec import Limits
from edge_sdk.protocol.knowledge import Payload, Weights
from edge_sdk.protocol.messages import FederationSpec, Upload
from edge_sdk.protocol.transforms import Coding
from edge_sdk.reductions import Contribution
from edge_sdk.reductions.influence import aged


@dataclass(frozen=True, slots=True, eq=False)
class StoredUpload:
    """An upload of the ledger that does not count yet: what the rounds pass from Persisted to Fold."""

    upload: Upload


class Reduction:
    """A method's state, and the aggregate of the open exchange."""

    def __init__(self, spec: FederationSpec, method: Method[Any], ledger: Ledger, limits: Limits) -> None:
        self.method = method
        self._spec, self._ledger, self._limits, self.coding = spec, ledger, limits, Coding(spec.encoding)
        self.caching = method.caching
        """How the method keeps slots, or None without slots."""
        self.state: Any = _state_of(method, "begin", method.begin(spec))
        self._aggregate: Any = method.zero()
        self._left_out: tuple[str, ...] = ()
        """The devices whose uploads of the last closed exchange do not count."""
        self.as_counted: Callable[[str, Mapping[str, Payload]], Mapping[str, Payload]] = lambda _device, slot: slot
        """Returns the knowledge in a device's slot, with the cap of the round in which it came."""

    def load(self, state: bytes) -> None:
        """Restore the state from a checkpoint.  Raises StoreError if it is not one of this method."""
        self.state = storage.deserialise(type(self.state), state)

    def common(self, at: ExchangeId) -> Mapping[str, Payload]:
        """The payloads by role for every device in this exchange."""
        return self.method.common(self.state, at)

    def personal(self, at: ExchangeId, number: int) -> Mapping[str, Payload]:
        """The payloads by role for the device with this number alone."""
        return self.method.personal(self.state, at, number)

    def stored(self, frame: bytes) -> Upload | None:
        """The upload in a frame of the ledger, with its transforms undone, or None if it is not an upload."""
        message = codec.decode(frame, self._limits).message
        return self.coding.received(message, "knowledge") if isinstance(message, Upload) else None

    def kept(self, place: ExchangeId, device: str) -> Upload | None:
        """The upload of a device to this exchange, from the ledger."""
        return self.stored(self._ledger.upload(place, device))

    def add(self, number: int, upload: Upload, samples: int) -> None:
        """Add the upload of one device.  Raises StoreError if its slot cannot be read; then nothing has changed."""
        earlier = self._slot(upload.device)
        contribution = Contribution(number=number, samples=samples, knowledge=upload.knowledge, before=earlier)
        self._aggregate = self.method.add(self._aggregate, contribution)

    def drop_all(self) -> None:
        """Drop the uploads of the open exchange, so that those that count can be added again."""
        self._aggregate = self.method.zero()

    def finish(
        self,
        place: ExchangeId,
        contributors: tuple[str, ...],
        numbers: Mapping[str, int],
        registered: Registered,
        left_out: tuple[str, ...] = (),
    ) -> Mapping[str, float]:
        """Let the method reduce the exchange, after taking slots that are now too old out of the aggregate.

        contributors: devices whose uploads count; left_out: others, whose slots are taken out, too.  numbers: by
        device, of all that have joined.  Returns the method's instruments.  Raises EdgeError if the method cannot
        reduce; then nothing has changed.
        """
        self.method.registered = registered
        aggregate = self._aggregate
        expired = [device for device in self._too_old(place.round) if device not in contributors]
        expired += [device for device in left_out if device not in expired and self.caching]
        for device, earlier in [(device, self._slot(device)) for device in expired]:
            if earlier:
                gone = Contribution(number=numbers[device], samples=0, knowledge={}, before=earlier)
                aggregate = self.method.add(aggregate, gone)
        reduced = self.method.finish(self._spec, self.state, place, aggregate)
        _state_of(self.method, "reduce", reduced, type(self.state))
        measured: Mapping[str, float] = {}
        if contributors and has_instruments(self._spec, place.round):
            measured = self.method.instruments(self._spec, self.state, reduced, place, aggregate)
        self.state, self._aggregate = reduced, self.method.zero()
        self._left_out = left_out
        return measured

    def slots_after(self, round_: int) -> Slots | None:
        """How the end of a round changes the slots, or None without slots."""
        if not self.caching:
            return None
        there = self._ledger.contributors(ExchangeId(round_, 0)) if round_ >= self.caching.first_round else ()
        filled = tuple(device for device in there if device not in self._left_out)
        return Slots(filled, self.caching.oldest(round_), self._left_out)

    def _too_old(self, round_: int) -> tuple[str, ...]:
        return tuple(self._ledger.slots_before(self.caching.oldest(round_))) if self.caching else ()

    def _slot(self, device: str) -> Mapping[str, Payload]:
        """The knowledge in a device's slot, by role; empty without a slot."""
        frame = self._ledger.slot(device) if self.caching else None
        if frame is None:
            return {}
        message = codec.decode(frame, self._limits).message
        found = self.coding.undo(message.knowledge) if isinstance(message, Upload) else {}
        return self.as_counted(device, found)


class EarlierVersions:
    """The payloads of earlier versions, if the coordinator aggregates from buffers.

    A device's change of the weights can be computed only from the weights that it began with.  So these are kept, also
    over a restart, until uploads made from them are too old to count.
    """

    def __init__(self, ledger: Ledger, reduction: Reduction, policy: RoundPolicy) -> None:
        self._ledger, self._reduction, self._policy = ledger, reduction, policy
        self._kept: dict[int, Mapping[str, Payload]] = {}

    def began(self, version: int, newest: int) -> Mapping[str, Payload]:
        """Return the payloads of a version; for an earlier one only its weights."""
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
        oldest = version + 1 - max(1, self._policy.max_staleness)  # an upload that waited is one version old
        if weights:
            self._ledger.keep_version(
                version, {role: storage.serialise(each) for role, each in weights.items()}, oldest
            )
            self._kept[version] = weights
        self._kept = {each: kept for each, kept in self._kept.items() if each >= oldest}


def _state_of(method: Method[Any], stage: str, state: Any, like: type | None = None) -> Any:
    """Return the next state that a stage of a method gave.  Raises RunFailed if a checkpoint cannot hold it."""
    if not dataclasses.is_dataclass(state) or (like is not None and type(state) is not like):
        expected = "a @wire dataclass" if like is None else f"{like.__name__}, as from begin()"
        raise RunFailed(f"method {method.name}: {stage}() gave {type(state).__name__}, expected {expected}")
    return state
