"""The first checks of frame_intake.py, which the transport makes before it keeps a message.

They run in the transport's thread.  So a flood never reaches the queue in which frames wait for the coordinator, and
a chunk takes no memory before its sender is known.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from coordinator.serving.intake.shares import HELLO_COSTS, DeviceShares
from edge_sdk.protocol import topics
from edge_sdk.protocol.frames.codec import CONTROL_LIMITS
from edge_sdk.protocol.topics import CONTROL, Origin
from edge_sdk.transport.base import Place, Rejected

REPORT_S = 1.0
"""Minimum seconds between two reports of refused messages."""
MOST_REPORTED = 256
"""Maximum number of (sender, word) pairs in one report; further ones are counted without a name."""
LONG_KINDS = frozenset({"hello", "upd", "log"})
"""The kinds of topics whose legal frames may be long enough to travel in chunks."""
STRANGER, MEMBER, DUE = 0, 1, 2
"""The ranks of long frames: from a non-participant; from a device; an upload that the round waits for."""
NO_PLACE = Place(0, STRANGER)


class FrameScreen:
    """Refuses messages by their topics and by their senders' shares, and limits the memory of long frames."""

    def __init__(
        self,
        *,
        federation: str,
        frame_bytes: int,
        shares: DeviceShares,
        known: Callable[[str], bool],
        due: Callable[[str], bool],
    ) -> None:
        """known: whether a device takes part or is on the roster.  due: whether the round waits for its upload."""
        self._federation, self._frame_bytes, self._shares = federation, frame_bytes, shares
        self._known, self._due = known, due
        self._lock = threading.Lock()
        self._refused: Counter[tuple[str, str]] = Counter()
        """Refused messages since the last report, by (sender, word); the empty sender stands for unnamed ones."""
        self._topics: dict[str, str] = {}
        """A topic of each of these senders."""
        self._report_s = 0.0

    def passes(self, topic: str, payload: bytes, now_s: float, *, chunk: bool) -> bool:
        """Whether a message may pass; if not, it is counted, unless it is a copy that honest devices may cause.

        An empty message is not counted either: `lab revoke` sends one to delete a retained message.
        """
        word = self._fault(topic, payload, now_s, chunk=chunk)
        if not word:
            return True
        if word in (_COPY, _CLEARED):
            return False
        with self._lock:
            sender = topics.sender(topic) or ""
            if (sender, word) not in self._refused and len(self._refused) >= MOST_REPORTED:
                sender = ""
            self._topics.setdefault(sender, topic[: topics.LONGEST] if sender else "")
            self._refused[sender, word] += 1
        return False

    def place(self, topic: str) -> Place:
        """Return the room for a long frame on this topic; each device has one topic of each kind."""
        origin = self._origin(topic)
        if origin is None or origin.kind not in LONG_KINDS:
            return NO_PLACE
        if not self._known(origin.device):
            return Place(CONTROL_LIMITS.frame_bytes, STRANGER) if origin.kind == "hello" else NO_PLACE
        if origin.kind != "upd":
            return Place(CONTROL_LIMITS.frame_bytes, MEMBER)
        return Place(self._frame_bytes, DUE if self._due(origin.device) else MEMBER)

    def refused(self, now_s: float) -> tuple[Rejected, ...]:
        """Return the refusals since the last report, or nothing if that was a moment ago."""
        if not self._refused or now_s < self._report_s:
            return ()
        self._report_s = now_s + REPORT_S
        with self._lock:
            counted, self._refused = self._refused, Counter()
            named, self._topics = self._topics, {}
        return tuple(Rejected(named[sender], word, _REASONS[word], n) for (sender, word), n in counted.items())

    def _origin(self, topic: str) -> Origin | None:
        origin = topics.origin(topic)
        return origin if origin is not None and origin.federation == self._federation else None

    def _fault(self, topic: str, payload: bytes, now_s: float, *, chunk: bool) -> str:
        """Return the word for the fault of a message, or empty if it has none."""
        origin = self._origin(topic)
        if origin is None:
            return "topic"
        device, cost = origin.device, HELLO_COSTS if origin.kind == "hello" else 1
        if origin.kind != CONTROL and not self._known(device):
            if chunk and origin.kind != "hello":
                return "stranger"
            return "" if self._shares.take_stranger(device, now_s, cost=1 if chunk else cost) else "rate"
        if chunk and origin.kind != "want":
            return "" if self._shares.take_chunk(device, now_s) else "rate"
        if origin.kind == "upd" and self._shares.copies(device, payload, now_s):
            return _COPY if self._shares.copies_are_honest(device) else "rate"
        if not self._shares.take(device, now_s, cost=cost):
            return "rate"
        return "" if payload else _CLEARED


_COPY = "copy"
"""An upload that has just come; it is dropped, and not reported."""
_CLEARED = "cleared"
"""An empty message, which deletes a retained one on the broker."""
_REASONS = {
    "topic": "a topic that this federation does not have",
    "rate": "it sends more than its share, or repeats one upload",
    "stranger": "a long frame of a sender that has not joined",
}
