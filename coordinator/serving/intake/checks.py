"""Checks of what devices send: they refuse frames with a wrong sender, and uploads that do not fit their exchange.

A check changes nothing, and raises RemoteProtocolError with the reason.
"""

from __future__ import annotations

from typing import Any

from coordinator.record import remarks
from coordinator.serving.devices import admission
from edge_sdk.errors import RemoteProtocolError
from edge_sdk.methods.contract.base import Method
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.frames.codec import Envelope, Limits, Verify
from edge_sdk.protocol.messages import Control, FederationSpec, Hello, Inquiry, PublicBlock, Upload
from edge_sdk.protocol.public_batch import batch_digest, batch_indices
from edge_sdk.protocol.wires import (
    check_roles,
    expectation,
    expected_batch,
    expected_upload,
    expected_weights,
    frame_limits,
)


def limits(spec: FederationSpec, method: Method[Any]) -> Limits:
    """The size limits of legal frames in either direction."""
    return frame_limits(method.every_exchange, expectation(spec))


def opened(frame: bytes, sender: str, federation: str, within: Limits, verify: Verify | None = None) -> Envelope:
    """Decode a frame that came on a device's topic, and check that it is from that device and for this federation.

    verify: checks its signature before decoding, or None if signatures are not required.
    """
    envelope = codec.decode(frame, within, verify)
    message = envelope.message
    if message.federation != federation:
        raise RemoteProtocolError("topic", f"for federation {message.federation}")
    if isinstance(message, (Control, Inquiry, PublicBlock)):
        raise RemoteProtocolError("topic", f"a {type(message).__name__} on the topic of a device")
    if getattr(message, "device", None) != sender:
        raise RemoteProtocolError("topic", f"came on the topic of {sender}, but names another sender")
    return envelope


def opened_command(frame: bytes, federation: str, within: Limits, verify: Verify | None = None) -> Envelope:
    """Decode a frame that came on the topic of commands, and check that it is an operator's for this federation.

    verify: checks its signature, or None if only the broker's access rules decide who may publish on that topic.
    """
    envelope = codec.decode(frame, within, verify)
    message = envelope.message
    if message.federation != federation:
        raise RemoteProtocolError("topic", f"for federation {message.federation}")
    if not isinstance(message, (Control, Inquiry, PublicBlock)):
        raise RemoteProtocolError("topic", f"a {type(message).__name__} is not an operator's command")
    return envelope


class UploadChecks:
    """Checks uploads against what each exchange asks for, by the method and the federation's sizes."""

    def __init__(self, spec: FederationSpec, method: Method[Any]) -> None:
        self._spec, self._method = spec, method
        self._exchanges = method.exchanges
        self._sizes = expectation(spec)
        self._batch: tuple[ExchangeId, int, bytes] | None = None
        """The exchange of the last upload to a public batch, the size of the batch, and its digest."""

    def check(self, upload: Upload, hello: Hello, place: ExchangeId, *, closing: bool, alone: bool = False) -> None:
        """Check an upload to the exchange that is open at `place`.

        upload: with its transforms undone.  hello: of its device.  closing: whether this is the closing exchange.
        alone: whether the device is in the control group.
        """
        if upload.alone and not alone:
            raise RemoteProtocolError("knowledge", "it trained alone, and is not in the control group")
        if upload.closing != closing:
            raise RemoteProtocolError("knowledge", "closing flag and place do not agree")
        if closing:
            check_roles(upload.knowledge, {}, self._sizes)
            return
        if upload.alone:
            check_roles(upload.knowledge, {}, self._sizes)
            return
        hello = admission.at_upload(hello, upload)
        slots = self._exchanges[place.exchange].up
        expect = expected_upload(self._sizes, samples=hello.samples)
        if self._method.shares_weights:
            layout = hello.layout or b""
            expect = expected_weights(expect, count=hello.weight_count, feature_dim=hello.feature_dim, layout=layout)
        sizes = {slot.rows for slot in slots.values() if slot.rows}
        if sizes and self._spec.public is not None:
            (size,) = sizes
            expect = expected_batch(expect, rows=size, batch=self._batch_at(place, size))
        check_roles(upload.knowledge, slots, expect)
        remarks.check_classes(self._method, hello, upload.knowledge, slots)

    def _batch_at(self, place: ExchangeId, size: int) -> bytes:
        """Return the digest of an exchange's public batch; cached, since all its uploads share it."""
        known = self._batch
        if known is None or known[:2] != (place, size):
            indices = batch_indices(self._spec, place.round, place.exchange, size)
            self._batch = known = place, size, batch_digest(self._spec, indices)
        return known[2]
