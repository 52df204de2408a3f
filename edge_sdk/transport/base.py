"""The transport contract.

A transport carries frames, best effort: it may lose, repeat, delay or reorder them, and says when it is connected.
Nothing above it relies on more; our own receipts and re-sending make the promises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias


def _nothing() -> None:
    """For transports whose messages need no acknowledgement."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """A frame that arrived.  Call `acknowledge` once it is safe to forget it on the broker's side."""

    topic: str
    frame: bytes
    acknowledge: Callable[[], None] = _nothing


@dataclass(frozen=True, slots=True)
class Rejected:
    """Something arrived that gives no frame: chunks that contradict each other, or are too many, or stay away."""

    topic: str
    kind: str
    """The word under which it is counted; see RemoteProtocolError."""
    reason: str


@dataclass(frozen=True, slots=True)
class Connected:
    """The link is up and subscribed (again)."""


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The link is down; the transport keeps trying, unless `final`."""

    reason: str
    final: bool = False


@dataclass(frozen=True, slots=True)
class Will:
    """What the broker publishes, retained, when this client falls silent."""

    topic: str
    frame: bytes


TransportEvent: TypeAlias = Incoming | Rejected | Connected | Disconnected


class Transport(Protocol):
    """One client's link."""

    def connect(self, subscriptions: Sequence[str], will: Will | None = None) -> None:
        """Begin; returns at once.  `Connected` follows as an event when the subscriptions stand."""

    def send(self, topic: str, frame: bytes, *, retain: bool = False) -> None:
        """Hand a frame over.  Never blocks, never raises for a lost link: what matters is sent again from above.

        Raises LocalProtocolError for a frame longer than any may be, or a retained one longer than the broker takes.
        """

    def accept_up_to(self, frame_bytes: int) -> None:
        """Refuse longer frames before they are complete in memory."""

    def poll(self, timeout_s: float) -> TransportEvent | None:
        """The next event, or None after `timeout_s`."""

    def close(self) -> None:
        """Flush what can be flushed within a second, and leave."""
