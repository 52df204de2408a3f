"""What is refused of what devices send: frames that are not theirs to send, uploads that nobody asked them for.

Each check changes nothing, and raises RemoteProtocolError with the reason.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from coordinator.record import remarks
from edge_sdk.errors import RemoteProtocolError
from edge_sdk.methods.base import Method
from edge_sdk.protocol import codec
from edge_sdk.protocol.codec import Envelope, Limits
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.messages import Control, FederationSpec, Hello, Upload
from edge_sdk.protocol.public_batch import batch_digest, batch_indices
from edge_sdk.protocol.wires import check_roles, expectation, expected_upload, expected_weights, frame_limits


def limits(spec: FederationSpec, method: Method[Any]) -> Limits:
    """The largest frame that is legal in either direction."""
    return frame_limits(method.every_exchange, expectation(spec))


def opened(frame: bytes, sender: str, federation: str, within: Limits) -> Envelope:
    """A frame that came on a device's topic, for this federation and from that device."""
    envelope = codec.decode(frame, within)
    message = envelope.message
    if message.federation != federation:
        raise RemoteProtocolError("topic", f"for federation {message.federation}")
    if isinstance(message, Control):
        raise RemoteProtocolError("signature", "a Control without a signature is not obeyed")
    if getattr(message, "device", None) != sender:
        raise RemoteProtocolError("topic", f"came on the topic of {sender}, claims to be from somebody else")
    return envelope


class UploadChecks:
    """What each exchange asks of a device, as its method and the federation's sizes say."""

    def __init__(self, spec: FederationSpec, method: Method[Any]) -> None:
        self._spec, self._method = spec, method
        self._exchanges = method.exchanges
        self._sizes = expectation(spec)

    def check(self, upload: Upload, hello: Hello, place: ExchangeId, *, closing: bool) -> None:
        """Of an upload to the exchange that is open at `place`, with its transforms undone; hello: its device's."""
        if upload.closing != closing:
            raise RemoteProtocolError("knowledge", "closing flag and place do not agree")
        if closing:
            check_roles(upload.knowledge, {}, self._sizes)
            return
        slots = self._exchanges[place.exchange].up
        expect = expected_upload(self._sizes, samples=hello.samples)
        if self._method.shares_weights:
            layout = hello.layout or b""
            expect = expected_weights(expect, count=hello.weight_count, feature_dim=hello.feature_dim, layout=layout)
        sizes = {slot.rows for slot in slots.values() if slot.rows}
        if sizes and self._spec.public is not None:
            (size,) = sizes
            batch = batch_digest(self._spec, batch_indices(self._spec, place.round, place.exchange, size))
            expect = dataclasses.replace(expect, rows=size, batch=batch)
        check_roles(upload.knowledge, slots, expect)
        remarks.check_classes(self._method, hello, upload.knowledge, slots)
