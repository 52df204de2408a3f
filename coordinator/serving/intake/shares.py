"""How many frames each sender may send: token buckets that frames empty and time fills.

The coordinator's requests fill a device's bucket, too: each exchange and each public block earns it the frames of
an answer.  So the share never slows a fast federation, and a device never has many more frames than it needs.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

from edge_sdk.protocol.frames.codec import HEADER_BYTES
from edge_sdk.transport.chunks import MIN_CHUNK_BYTES

EXCHANGE_EARNS, BLOCK_EARNS = 4, 2
"""Frames that an exchange earns its device (an upload, one repetition, a status and a request for chunks), and a public
block (the request for it, and one repetition)."""
HELLO_COSTS = 5
"""A Hello costs as much as this many frames, because the coordinator stores each one on its disk."""
REPEAT_S = 0.5
"""Seconds within which a repeated upload of the same bytes is dropped.  It must be clearly shorter than 1 s: after a
restart of the coordinator devices repeat one a second later, and the network may deliver the two closer together.
A repetition costs no share, so a device that repeats itself without pause can still send its next upload."""
HONEST_COPIES = 2
"""Copies of an upload within REPEAT_S that are not reported: a broker may deliver a message twice, and an upload may
cross the request for it; a restarted device also sends its stored upload unasked."""
COPIES_PER_S = 1.0
"""Further copies that are not reported, for each second in which nothing came: a device without a receipt sends its
upload again at most once a second, and what it sent while this process or the network stood still comes all at once."""
MOST_COPIES = 120
"""Maximum number of copies within REPEAT_S that are not reported."""
MOST_NAMES = 4096
"""Maximum number of outside senders with a bucket of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Frames that a sender may send unasked: per second, and at once after a pause (burst)."""

    per_s: float = 10.0
    burst: float = 100.0
    """The burst of a device that takes part."""
    stranger_per_s: float = 2.0
    stranger_burst: float = 20.0
    """The burst of one sender that does not take part."""
    strangers_per_s: float = 50.0
    strangers_burst: float = 200.0
    """The burst of all of these together."""
    joining_burst: float = 12.0
    """Added to `strangers_burst` for each expected device, because all may join at once."""


RATES = Rates()


class TokenBucket:
    """Tokens that time adds, up to a limit."""

    __slots__ = ("_burst", "_left", "_per_s", "filled_s")

    def __init__(self, per_s: float, burst: float) -> None:
        """Start full.  per_s: tokens added per second.  burst: its capacity."""
        self._per_s, self._burst, self._left = per_s, burst, burst
        self.filled_s: float | None = None
        """When tokens were last requested (s), or None if never."""

    def take(self, cost: float, now_s: float) -> bool:
        """Take `cost` tokens, or return False and take none if fewer are left."""
        if self.filled_s is not None and now_s > self.filled_s:
            self._left = min(self._burst, self._left + self._per_s * (now_s - self.filled_s))
        self.filled_s = now_s
        if self._left < cost:
            return False
        self._left -= cost
        return True

    def earn(self, tokens: float) -> None:
        """Add tokens, up to the limit."""
        self._left = min(self._burst, self._left + tokens)


@dataclass(slots=True)
class _LastUpload:
    """An accepted upload, and how often it has come again since."""

    mark: tuple[int, bytes]
    since_s: float
    honest: int
    """Copies of it that an honest device may cause within REPEAT_S."""
    copies: int = 0


class DeviceShares:
    """The buckets of all senders of one federation; may be used from any thread."""

    def __init__(self, frame_bytes: int, expected: int, rates: Rates = RATES) -> None:
        """frame_bytes: the longest legal frame.  expected: the planned number of devices."""
        self._rates = rates
        self._most_chunks = 2.0 * -(-frame_bytes // MIN_CHUNK_BYTES) + rates.burst
        self._lock = threading.Lock()
        self._frames: dict[str, TokenBucket] = {}
        self._chunks: dict[str, TokenBucket] = {}
        self._last: dict[str, _LastUpload] = {}
        """The last accepted upload of each device."""
        self._strangers: OrderedDict[str, TokenBucket] = OrderedDict()
        self._all_strangers = TokenBucket(rates.strangers_per_s, rates.strangers_burst + rates.joining_burst * expected)

    def take(self, device: str, now_s: float, *, cost: float = 1.0) -> bool:
        """Take the share of a frame of a device that takes part; returns False if it has none left."""
        with self._lock:
            bucket = self._frames.get(device)
            if bucket is None:
                bucket = self._frames[device] = TokenBucket(self._rates.per_s, self._rates.burst)
            return bucket.take(cost, now_s)

    def copies(self, device: str, payload: bytes, now_s: float) -> int:
        """Return how many copies of a device's upload have come within REPEAT_S, including this one; 0 if it is new.

        Length and header identify an upload: the header has a checksum of the body and the number of the frame.
        """
        mark = len(payload), payload[:HEADER_BYTES]
        last = self._last.get(device)
        if last is not None and mark == last.mark and 0.0 <= now_s - last.since_s < REPEAT_S:
            last.copies += 1
            return last.copies
        self._last[device] = _LastUpload(mark, now_s, self._honest_copies(device, now_s))
        return 0

    def copies_are_honest(self, device: str) -> bool:
        """Whether an honest device may cause the number of copies that came of its last upload."""
        last = self._last.get(device)
        return last is None or last.copies <= last.honest

    def _honest_copies(self, device: str, now_s: float) -> int:
        """Return how many copies may come with an upload: after a pause, a device's repetitions arrive together."""
        last, bucket = self._last.get(device), self._frames.get(device)
        before_s = last.since_s if last is not None else bucket.filled_s if bucket is not None else None
        quiet_s = 0.0 if before_s is None else max(0.0, now_s - before_s)
        return HONEST_COPIES + int(min(MOST_COPIES - HONEST_COPIES, quiet_s * COPIES_PER_S))

    def take_chunk(self, device: str, now_s: float) -> bool:
        """Take the share of a chunk: a device may send its longest frame twice over for each exchange."""
        with self._lock:
            bucket = self._chunks.get(device)
            if bucket is None:
                bucket = self._chunks[device] = TokenBucket(self._rates.per_s, self._most_chunks)
            return bucket.take(1.0, now_s)

    def take_stranger(self, sender: str, now_s: float, *, cost: float = 1.0) -> bool:
        """Take the share of a frame of a sender that does not take part."""
        with self._lock:
            bucket = self._strangers.pop(sender, None)
            if bucket is None:
                bucket = TokenBucket(self._rates.stranger_per_s, self._rates.stranger_burst)
            self._strangers[sender] = bucket
            if len(self._strangers) > MOST_NAMES:
                self._strangers.popitem(last=False)
            return bucket.take(cost, now_s) and self._all_strangers.take(cost, now_s)

    def earned(self, device: str, frames: int) -> None:
        """Note that a device is asked for an answer, which takes up to this many frames."""
        with self._lock:
            if device in self._frames:
                self._frames[device].earn(frames)
            if device in self._chunks:
                self._chunks[device].earn(self._most_chunks)
