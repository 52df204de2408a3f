"""The interface of a transport, and the events that it reports.

A transport carries frames with best effort: it may lose, repeat, delay or reorder them, and it reports when it is
connected.  So the layers above send a frame again until the other side answers it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from edge_sdk.protocol.frames.frame_parts import Frame


def _do_nothing() -> None:
    """No-op for transports without acknowledgements."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """A frame that arrived."""

    topic: str
    content: Frame
    """The frame: bytes, or parts where sender and receiver are in one process."""
    acknowledge: Callable[[], None] = _do_nothing
    """Call it when the broker may delete the frame; may be called from any thread."""

    @property
    def frame(self) -> bytes:
        """The frame, in one piece."""
        return self.content if isinstance(self.content, bytes) else bytes(self.content)


@dataclass(frozen=True, slots=True)
class Rejected:
    """Messages without a frame: refused by the screen, or chunks that contradict each other or never came."""

    topic: str
    kind: str
    """The word under which they are counted, one of REFUSAL_WORDS."""
    reason: str
    count: int = 1
    """The number of messages."""


@dataclass(frozen=True, slots=True)
class SendRefused:
    """The broker refused frames on a topic, because of its access rules or a quota."""

    topic: str
    reason: str
    too_long: bool = False
    """Whether it refuses even the smallest chunks for their length; `reason` holds the remedy."""


@dataclass(frozen=True, slots=True)
class Connected:
    """The link is up and all subscriptions are in force, for the first time or again."""


@dataclass(frozen=True, slots=True)
class LinkNotice:
    """Warnings for people before the link is in danger, such as a certificate that ends soon."""

    text: str


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The link is down."""

    reason: str
    final: bool = False
    """Whether the transport gives up; otherwise it tries to connect again."""
    taken_over: bool = False
    """Whether another client has connected with this client's id, for certain or, on silent brokers, probably."""


@dataclass(frozen=True, slots=True)
class Will:
    """The retained message that the broker publishes when this client disappears without disconnecting."""

    topic: str
    frame: bytes


TransportEvent: TypeAlias = Incoming | Rejected | SendRefused | Connected | LinkNotice | Disconnected


@dataclass(frozen=True, slots=True)
class Place:
    """The room that a long frame may take while its chunks arrive."""

    most_bytes: int
    """The longest legal frame, or 0 if no long frame is legal."""
    rank: int
    """A frame of a higher rank takes the room of one with a lower rank."""


class Screen(Protocol):
    """Decides whether a transport accepts a message, before it is stored.  Methods may be called from any thread."""

    def passes(self, topic: str, payload: bytes, now_s: float, *, chunk: bool) -> bool:
        """Whether a message is accepted; chunk: whether it is a packet of a long frame."""

    def place(self, topic: str) -> Place:
        """Return the room for a long frame on this topic."""

    def refused(self, now_s: float) -> Sequence[Rejected]:
        """Return a summary of refusals since the last call, or nothing shortly after the last report."""


class Transport(Protocol):
    """The connection of one client with the broker."""

    def connect(self, subscriptions: Sequence[str], will: Will | None = None) -> None:
        """Start connecting and return at once; the event `Connected` follows when the subscriptions are in force.

        May be called again after `close`, which drops earlier events.
        """

    def send(self, topic: str, frame: Frame, *, retain: bool = False, answered: bool = False) -> None:
        """Queue a frame for sending; `retain` asks the broker to keep it for later subscribers.

        answered: whether the layer above sends the frame again until it is answered, so that the broker need not
        acknowledge it.
        Never blocks, and never raises for a lost link.  Raises LocalProtocolError for a frame above the maximum length,
        and for a retained one that is too long for the broker.
        """

    def accept_up_to(self, frame_bytes: int) -> None:
        """Refuse longer frames from now on, before they are complete in memory."""

    def screen_with(self, screen: Screen) -> None:
        """Ask this screen about every message from now on."""

    def poll(self, timeout_s: float) -> TransportEvent | None:
        """Return the next event, or None if none occurs within `timeout_s` seconds."""

    def close(self) -> None:
        """Send what is queued for at most a second, then disconnect."""
