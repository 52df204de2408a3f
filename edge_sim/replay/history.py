"""What a trace holds of one device: who took it in, what it was asked for, and what it answered."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from coordinator.trace.log import CoordinatorStart, Ended, Entry, FramesSent, Heard
from coordinator.trace.replay import message_in
from edge_sdk.errors import UsageError
from edge_sdk.protocol import topics
from edge_sdk.protocol.codec import HEADER
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.messages import Assign, Upload, Welcome
from edge_sdk.transport.base import Incoming


@dataclass(slots=True)
class Stretch:
    """A part of a run in which the device lost nothing that it had finished."""

    assigns: dict[ExchangeId, list[Incoming]] = field(default_factory=dict)
    """By place, in the order in which they were sent; of each all that differ, for what comes late can change one."""
    uploads: dict[ExchangeId, Upload] = field(default_factory=dict)
    """The first that came of each place."""


@dataclass(slots=True)
class History:
    """One device in one trace."""

    federation: str = ""
    first_epoch: int = 0
    """Of the coordinator, in the first life that the trace holds."""
    welcome: Incoming | None = None
    """The first one."""
    stretches: list[Stretch] = field(default_factory=lambda: [Stretch()])
    """More than one where a simulation was killed and went on from a checkpoint of some time before."""
    ended: bool = False
    """Whether the trace holds the run to its end."""


def device_history(entries: Iterable[Entry], device: str, *, virtual: bool) -> History:
    """virtual: whether time is that of a simulation, which goes back with everything else to a checkpoint.

    Raises UsageError where the trace holds no upload of the device.
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
        raise UsageError(f"--device {device}: the trace holds no upload of it")
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
    """Without the stamp, which is another each time."""
    return frame[HEADER.size :]
