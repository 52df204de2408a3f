"""One device's part of a trace: its Welcome, the Assigns sent to it, and its uploads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from coordinator.trace.log import CoordinatorStart, Ended, Entry, FramesSent, Heard
from coordinator.trace.replay import message_in
from edge_sdk.errors import UsageError
from edge_sdk.protocol import topics
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames.codec import HEADER
from edge_sdk.protocol.messages import Assign, Upload, Welcome
from edge_sdk.transport.base import Incoming


@dataclass(slots=True)
class Stretch:
    """A part of a run in which the device lost no finished work."""

    assigns: dict[ExchangeId, list[Incoming]] = field(default_factory=dict)
    """Assigns by place, in the order of sending; a place has several if late uploads changed the Assign."""
    uploads: dict[ExchangeId, Upload] = field(default_factory=dict)
    """The first upload of each place."""


@dataclass(slots=True)
class History:
    """The record of one device in one trace."""

    federation: str = ""
    first_epoch: int = 0
    """Epoch of the coordinator at the first start in the trace."""
    welcome: Incoming | None = None
    """The first Welcome sent to the device."""
    stretches: list[Stretch] = field(default_factory=lambda: [Stretch()])
    """Parts of the run; several if a simulation was killed and continued from an earlier checkpoint."""
    ended: bool = False
    """Whether the trace covers the run to its end."""


def device_history(entries: Iterable[Entry], device: str, *, virtual: bool) -> History:
    """Read the history of one device from a trace.

    virtual: whether the run was a simulation in virtual time, which resumes from a checkpoint.

    Raises UsageError if the trace has no upload of the device.
    """
    found = History()
    patterns: tuple[str, ...] = ()
    last_s, reborn = 0.0, False
    for entry in entries:
        if isinstance(entry, CoordinatorStart):
            found.federation = entry.spec.federation
            found.first_epoch = found.first_epoch or entry.epoch
            patterns = topics.device_subscriptions(found.federation, device)
            reborn, found.ended = True, False
        elif isinstance(entry, Heard):
            if virtual and reborn and entry.now_s < last_s:
                found.stretches.append(Stretch())
            last_s, reborn = entry.now_s, False
            _note_upload(found.stretches[-1], entry, device)
        elif isinstance(entry, FramesSent):
            if any(topics.matches(pattern, entry.topic) for pattern in patterns):
                _note_sent(found, entry)
        elif isinstance(entry, Ended):
            found.ended = True
    if found.welcome is None or not any(stretch.uploads for stretch in found.stretches):
        raise UsageError(f"--device {device}: the trace has no upload of it")
    return found


def _note_upload(stretch: Stretch, heard: Heard, device: str) -> None:
    if isinstance(heard.event, Incoming) and topics.sender(heard.event.topic) == device:
        message = message_in(heard.event.frame)
        if isinstance(message, Upload):
            stretch.uploads.setdefault(ExchangeId(message.round, message.exchange), message)


def _note_sent(found: History, sent: FramesSent) -> None:
    message = message_in(sent.frame)
    incoming = Incoming(sent.topic, sent.frame)
    if isinstance(message, Welcome):
        found.welcome = found.welcome or incoming
    elif isinstance(message, Assign):
        known = found.stretches[-1].assigns.setdefault(ExchangeId(message.round, message.exchange), [])
        if not any(_body(each.frame) == _body(sent.frame) for each in known):
            known.append(incoming)


def _body(frame: bytes) -> bytes:
    """Return the frame without its stamp, which differs each time it is sent."""
    return frame[HEADER.size :]
