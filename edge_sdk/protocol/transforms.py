"""What stands between a method and the wire: the floats of knowledge travel in the federation's encodings.

    method -> check_roles -> coding.apply -> frame ... frame -> coding.undo -> check_roles -> method

A method therefore always receives f4, whatever the encoding.  The same payload gives the same bytes, so that rebuilding
a frame repeats it.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

from edge_sdk.errors import LocalProtocolError, RemoteProtocolError
from edge_sdk.protocol.encodings import (
    DEFAULT_ENCODING,
    ENCODINGS,
    FLOAT_ENCODINGS,
    Encoding,
)
from edge_sdk.protocol.frames.schema import tag_of
from edge_sdk.protocol.knowledge import Payload
from edge_sdk.protocol.messages import Assign, EncodingSpec, FederationSpec, Upload
from edge_sdk.protocol.wires import Exchange, slots_of

Knowledge: TypeAlias = Mapping[str, Payload]
M = TypeVar("M", Assign, Upload)


@dataclass(frozen=True, slots=True)
class Coding:
    """Encodes the floats of knowledge for the wire, each kind in the federation's encoding for it, and decodes them."""

    spec: EncodingSpec
    _encodings: dict[type[Payload], Encoding] = dataclasses.field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """The encodings of the kinds seen so far."""

    def apply(self, knowledge: Knowledge) -> dict[str, Payload]:
        """Encode knowledge, by role, for sending.  Raises LocalProtocolError, which names the role."""
        encoded, role = dict[str, Payload](), ""
        try:
            for role, payload in knowledge.items():
                encoded[role] = _changed(payload, self._encoding(payload).encode)
        except LocalProtocolError as error:
            raise LocalProtocolError(f"{role}: {error}") from None
        return encoded

    def undo(self, knowledge: Knowledge) -> Knowledge:
        """Decode received knowledge, by role, to f4; returns the same mapping if nothing changes.

        Raises RemoteProtocolError that names the role, if a payload came in another encoding.
        """
        decoded, role = dict[str, Payload](), ""
        try:
            for role, payload in knowledge.items():
                decoded[role] = _changed(payload, self._encoding(payload).decoded)
        except RemoteProtocolError as error:
            raise RemoteProtocolError(error.kind, f"{role}: {error}") from None
        return knowledge if all(map(operator.is_, decoded.values(), knowledge.values())) else decoded

    def received(self, message: M, *fields: str) -> M:
        """Return a message with the knowledge in these fields decoded.  Raises RemoteProtocolError as `undo` does."""
        changes: dict[str, Any] = {}
        for field in fields:
            sent = getattr(message, field)
            undone = self.undo(sent)
            if undone is not sent:
                changes[field] = undone
        return replace(message, **changes) if changes else message

    def _encoding(self, payload: Payload) -> Encoding:
        kind = type(payload)
        if kind not in self._encodings:
            self._encodings[kind] = ENCODINGS[encoding_of(self.spec, kind)]
        return self._encodings[kind]


def _changed(payload: Payload, change: Callable[[Any], Any]) -> Payload:
    """Apply `change` to the fields that CODED_FIELDS names; returns the same payload if nothing changes."""
    changes: dict[str, Any] = {}
    for name in payload.coded:
        before = getattr(payload, name)
        after = change(before)
        if after is not before:
            changes[name] = after
    return dataclasses.replace(payload, **changes) if changes else payload


def encoding_of(spec: EncodingSpec, kind: type[Payload]) -> str:
    """The name of a kind's encoding."""
    tag = tag_of(kind)
    name: str = getattr(spec, setting_of(tag)) if tag in OWN_FIELD else spec.others.get(tag, DEFAULT_ENCODING)
    return name


def setting_of(tag: str) -> str:
    """The key of a kind in the settings."""
    return tag.replace("-", "_")


OWN_FIELD = frozenset(field.name.replace("_", "-") for field in dataclasses.fields(EncodingSpec)) - {"others"}
"""Tags of the kinds that have a field of their own in EncodingSpec."""


def encodings_for(kind: type[Payload], *, probabilities: bool = False) -> tuple[str, ...]:
    """The encodings that a federation may choose for a kind; in int8, rows of probabilities would not sum to 1."""
    if not kind.coded:
        return (DEFAULT_ENCODING,)
    return FLOAT_ENCODINGS if probabilities else kind.encodings


def unfit_encoding(spec: FederationSpec, rows: Iterable[Exchange]) -> str:
    """Return a line about an encoding that the payloads of these exchanges do not allow, or empty if all fit."""
    for slot in slots_of(rows):
        allowed = encodings_for(slot.kind, probabilities=slot.probabilities)
        if encoding_of(spec.encoding, slot.kind) not in allowed:
            why = f"{spec.method} trades probabilities there" if slot.probabilities else "this kind does not allow it"
            return f"encoding.{setting_of(tag_of(slot.kind))}: {why}; choose {' or '.join(allowed)}"
    return ""


def encodings_in_use(spec: FederationSpec, rows: Iterable[Exchange]) -> dict[str, str]:
    """The encodings of the kinds that travel in these exchanges, by tag."""
    kinds = {slot.kind for slot in slots_of(rows)}
    return {tag_of(kind): encoding_of(spec.encoding, kind) for kind in sorted(kinds, key=tag_of)}


def missing_encodings(spec: FederationSpec, rows: Iterable[Exchange], known: Sequence[str]) -> list[str]:
    """Return the encodings of these exchanges that a device does not know, sorted."""
    return sorted(set(encodings_in_use(spec, rows).values()) - {DEFAULT_ENCODING, *known})
