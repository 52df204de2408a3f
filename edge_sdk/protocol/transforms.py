"""A chain of transforms between a method and the wire; the receiver undoes them in reverse order.

    method -> check_roles -> chain.apply -> frame ... frame -> chain.undo -> check_roles -> method

So a method need not know how its payloads are encoded, and always receives f4.  A transform is a pure function of one
payload: the same payload gives the same bytes, so that a frame that is made again is the same frame.  Settings or seeds
that a transform needs are given when it is made.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

from edge_sdk.errors import LocalProtocolError, RemoteProtocolError
from edge_sdk.protocol.encodings import (
    DEFAULT_ENCODING,
    ENCODINGS,
    FLAT_ENCODINGS,
    FLOAT_ENCODINGS,
    Encoding,
    decode_floats,
)
from edge_sdk.protocol.knowledge import ClassRows, HyperKnowledge, LogitGradients, Payload, PublicLogits, Weights
from edge_sdk.protocol.messages import Assign, FederationSpec, Upload
from edge_sdk.protocol.schema import tag_of
from edge_sdk.protocol.wires import Contract, Slot

Knowledge: TypeAlias = Mapping[str, Payload]
M = TypeVar("M", Assign, Upload)


class Transform(Protocol):
    """One step between a method and the wire."""

    def apply(self, payload: Payload) -> Payload:
        """Transform a payload on the sender.  Raises LocalProtocolError if that is not possible."""

    def undo(self, payload: Payload) -> Payload:
        """Restore a payload on the receiver.  Raises RemoteProtocolError if it was not transformed this way."""


@dataclass(frozen=True, slots=True)
class Chain:
    """Several transforms, in the order in which a sender applies them."""

    transforms: Sequence[Transform]

    def apply(self, knowledge: Knowledge) -> dict[str, Payload]:
        """Transform knowledge, by role, for sending.  Raises LocalProtocolError that names the role."""
        return {role: self._applied(role, payload) for role, payload in knowledge.items()}

    def undo(self, knowledge: Knowledge) -> Knowledge:
        """Restore received knowledge, by role; returns the same mapping if nothing changes.

        Raises RemoteProtocolError that names the role.
        """
        undone = {role: self._undone(role, payload) for role, payload in knowledge.items()}
        return knowledge if all(map(operator.is_, undone.values(), knowledge.values())) else undone

    def received(self, message: M, *fields: str) -> M:
        """Return a message with the knowledge in these fields restored.  Raises RemoteProtocolError as `undo` does."""
        changes: dict[str, Any] = {}
        for field in fields:
            sent = getattr(message, field)
            undone = self.undo(sent)
            if undone is not sent:
                changes[field] = undone
        return dataclasses.replace(message, **changes) if changes else message

    def _applied(self, role: str, payload: Payload) -> Payload:
        try:
            for transform in self.transforms:
                payload = transform.apply(payload)
        except LocalProtocolError as error:
            raise LocalProtocolError(f"{role}: {error}") from None
        return payload

    def _undone(self, role: str, payload: Payload) -> Payload:
        try:
            for transform in reversed(self.transforms):
                payload = transform.undo(payload)
        except RemoteProtocolError as error:
            raise RemoteProtocolError(error.kind, f"{role}: {error}") from None
        return payload


CODED_FIELDS: Mapping[type[Payload], tuple[str, ...]] = {
    PublicLogits: ("values",),
    LogitGradients: ("values",),
    ClassRows: ("rows",),
    HyperKnowledge: ("features",),
    Weights: ("values",),
}
"""The fields that are encoded.  Ids and counts stay exact; probabilities stay f4, because their logarithm is taken."""


@dataclass(frozen=True, slots=True)
class Encode:
    """The transform that encodes the floats of a payload in the encoding of its kind."""

    encodings: Mapping[type[Payload], Encoding]

    def apply(self, payload: Payload) -> Payload:
        """Encode the fields that CODED_FIELDS names.  Raises LocalProtocolError if a number cannot be represented."""
        return _changed(payload, self.encodings[type(payload)].encode)

    def undo(self, payload: Payload) -> Payload:
        """Decode these fields to f4.  Raises RemoteProtocolError if the payload came in another encoding."""
        encoding = self.encodings[type(payload)]
        return _changed(payload, lambda value: decode_floats(encoding, value))


def _changed(payload: Payload, change: Callable[[Any], Any]) -> Payload:
    """Apply `change` to the fields that CODED_FIELDS names; returns the same payload if nothing changes."""
    changes: dict[str, Any] = {}
    for name in CODED_FIELDS[type(payload)]:
        before = getattr(payload, name)
        after = change(before)
        if after is not before:
            changes[name] = after
    return dataclasses.replace(payload, **changes) if changes else payload


def chain(spec: FederationSpec) -> Chain:
    """Return the transforms of a federation, the same in both directions."""
    return Chain((Encode({kind: ENCODINGS[encoding_of(spec, kind)] for kind in CODED_FIELDS}),))


def encoding_of(spec: FederationSpec, kind: type[Payload]) -> str:
    """Return the name of the encoding of a payload kind in a federation."""
    name: str = getattr(spec.encoding, tag_of(kind).replace("-", "_"))
    return name


def encodings_for(kind: type[Payload], *, probabilities: bool = False) -> tuple[str, ...]:
    """Return the encodings that a federation may choose for a payload kind.

    probabilities: the rows must sum to 1, which int8 would not keep.
    """
    if probabilities:
        return FLOAT_ENCODINGS
    return FLAT_ENCODINGS if kind is Weights else tuple(ENCODINGS)


def unfit_encoding(spec: FederationSpec, contract: Contract[Any]) -> str:
    """Return what is wrong with the federation's encodings for this method; empty: nothing."""
    for slot in _slots(spec, contract):
        allowed = encodings_for(slot.kind, probabilities=slot.probabilities)
        if encoding_of(spec, slot.kind) not in allowed:
            key = tag_of(slot.kind).replace("-", "_")
            return f"encoding.{key}: {contract.name} trades probabilities there; choose {' or '.join(allowed)}"
    return ""


def encodings_in_use(spec: FederationSpec, contract: Contract[Any]) -> dict[str, str]:
    """Return the encodings of the payload kinds that the method exchanges, by tag."""
    kinds = {slot.kind for slot in _slots(spec, contract)}
    return {tag_of(kind): encoding_of(spec, kind) for kind in sorted(kinds, key=tag_of)}


def _slots(spec: FederationSpec, contract: Contract[Any]) -> list[Slot]:
    params = contract.read(spec.params)
    rows = (*contract.exchanges(params), contract.closing(params))
    return [slot for row in rows for roles in (row.down, row.up) for slot in roles.values()]


def missing_encodings(spec: FederationSpec, contract: Contract[Any], known: Sequence[str]) -> list[str]:
    """Return the encodings that the method's payloads need and a device does not know, sorted."""
    return sorted(set(encodings_in_use(spec, contract).values()) - {DEFAULT_ENCODING, *known})
