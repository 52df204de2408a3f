"""Puts frames together from their chunks, in bounded memory.

The sender decides how much it sends, the receiver how much it holds: a set that announces more than a frame may have,
or more than fits beside the others, is refused before a byte of it is kept.  Nothing is trusted until the digest of
the whole has been computed again.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass, field

from edge_sdk.errors import RemoteProtocolError
from edge_sdk.transport.chunks import packets
from edge_sdk.transport.chunks.packets import Chunk, ChunkLayout, Range

STALL_S = 1.0
"""Silence after which a receiver names what is missing; doubled each time, up to a minute."""
_LONGEST_STALL_S = 60.0
GIVE_UP_S = 600.0
"""Silence after which a set is dropped."""
SILENT_S = 10.0
"""Silence after which a set gives way where there is no room for a newer one."""
MAX_SETS = 4096
"""Sets under way at once."""
_ECHO_S = 0.25
"""The least time between two wants for one set."""
_LOOK_S = 0.1
_WANTS_A_LOOK = 64
"""So many sets are asked for at a time: wants for thousands must not keep other frames waiting."""
REST_S = 30.0
"""For so long a complete set is not begun anew: whoever sends it again has only not heard yet what became of it."""


@dataclass(frozen=True, slots=True)
class MissingChunks:
    """What to ask the sender of a topic for."""

    topic: str
    shape: ChunkLayout
    ranges: tuple[Range, ...]


@dataclass
class _Partial:
    """A frame that is not complete yet."""

    shape: ChunkLayout
    seen: bytearray  # one per chunk
    left: int
    heard_s: float
    asked_s: float
    stall_s: float = STALL_S
    buffer: io.BytesIO = field(default_factory=io.BytesIO)  # its getvalue() hands the bytes over without a copy

    def write(self, chunk: Chunk) -> None:
        self.buffer.seek(chunk.index * self.shape.chunk_bytes)
        self.buffer.write(chunk.body)
        self.seen[chunk.index] = 1
        self.left -= 1

    def holds_other(self, chunk: Chunk) -> bool:
        """Whether a chunk that came before said something else."""
        begin, end = self.shape.span(chunk.index)
        with self.buffer.getbuffer() as held:
            return held[begin:end] != chunk.body

    def missing(self) -> tuple[Range, ...]:
        return tuple(_runs(self.seen))


def _runs(seen: bytearray) -> Iterator[Range]:
    at = seen.find(0)
    while at >= 0:
        end = seen.find(1, at)
        yield at, (end if end >= 0 else len(seen)) - 1
        at = seen.find(0, end) if end >= 0 else -1


class Reassembly:
    """The sets under way, at most one for each topic: a newer one on the same topic takes the older one's place."""

    def __init__(self, frame_bytes: int, total_bytes: int) -> None:
        self.frame_bytes = frame_bytes
        """The longest frame that may be announced."""
        self._total_bytes = total_bytes
        self._sets: dict[str, _Partial] = {}  # the one that was silent longest first
        self._complete: dict[str, tuple[ChunkLayout, float]] = {}  # the last one of each topic, and when
        self._given_up: list[tuple[str, str]] = []
        self._looked_s = -_LOOK_S
        self.held_bytes = 0
        """Announced by the sets under way; what is really held is less."""

    def take(self, topic: str, chunk: Chunk, now_s: float) -> bytes | MissingChunks | None:
        """Keep a chunk: the frame when it was the last one, `Missing` when it was here already, else None.

        Raises RemoteProtocolError, and drops the set, where chunks contradict each other or the digest; where the set
        would exceed what may be held nothing of it is kept.
        """
        partial = self._sets.get(topic)
        if self._rests(topic, chunk.shape, now_s):
            return None
        if partial is None or partial.shape != chunk.shape:
            partial = self._begin(topic, chunk.shape, now_s)
        elif partial.seen[chunk.index]:
            return self._again(topic, partial, chunk, now_s)
        partial.write(chunk)
        partial.heard_s, partial.stall_s = now_s, STALL_S
        self._sets[topic] = self._sets.pop(topic)  # to the end
        return self._completed(topic, partial, now_s) if partial.left == 0 else None

    def stalled(self, now_s: float) -> tuple[MissingChunks, ...]:
        """The sets whose senders should be told what is missing."""
        if now_s - self._looked_s < _LOOK_S:
            return ()
        self._looked_s, late = now_s, list[MissingChunks]()
        self._complete = {topic: each for topic, each in self._complete.items() if now_s - each[1] < REST_S}
        for topic, partial in self._sets.items():
            if len(late) < _WANTS_A_LOOK and now_s - max(partial.heard_s, partial.asked_s) >= partial.stall_s:
                late.append(self._ask(topic, partial, now_s))
                partial.stall_s = min(2 * partial.stall_s, _LONGEST_STALL_S)
        return tuple(late)

    def expired(self, now_s: float) -> tuple[tuple[str, str], ...]:
        """Drop the sets that nobody completes; for each dropped since the last call its topic and what to say of it."""
        while self._sets and now_s - next(iter(self._sets.values())).heard_s >= GIVE_UP_S:
            self._give_up(next(iter(self._sets)), f"after {GIVE_UP_S:g} s")
        told, self._given_up = tuple(self._given_up), []
        return told

    def _begin(self, topic: str, shape: ChunkLayout, now_s: float) -> _Partial:
        if shape.total_bytes > self.frame_bytes:
            raise RemoteProtocolError(
                "limit", f"chunks of a frame of {shape.total_bytes} bytes, at most {self.frame_bytes} are legal here"
            )
        older = self._sets.get(topic)
        if older is not None and older.shape.set_id == shape.set_id:  # the same frame, cut anew
            self._drop(topic)
        elif older is not None:
            self._give_up(topic, "when a newer one came")
        while not self._has_room(shape):
            silent = next(iter(self._sets), None)
            if silent is None or now_s - self._sets[silent].heard_s < SILENT_S:
                raise RemoteProtocolError(
                    "busy", f"no room for a frame of {shape.total_bytes} bytes beside the others that are on their way"
                )
            self._give_up(silent, f"after {SILENT_S:g} s, when another needed its room")
        self._sets[topic] = partial = _Partial(shape, bytearray(shape.count), shape.count, now_s, now_s)
        self.held_bytes += shape.total_bytes
        return partial

    def _has_room(self, shape: ChunkLayout) -> bool:
        return len(self._sets) < MAX_SETS and self.held_bytes + shape.total_bytes <= self._total_bytes

    def _drop(self, topic: str) -> _Partial:
        partial = self._sets.pop(topic)
        self.held_bytes -= partial.shape.total_bytes
        return partial

    def _give_up(self, topic: str, when: str) -> None:
        partial = self._drop(topic)
        missing = f"{partial.left} missing {when}"
        self._given_up.append((topic, f"a chunk set of {partial.shape.count} was never completed: {missing}"))

    def _again(self, topic: str, partial: _Partial, chunk: Chunk, now_s: float) -> MissingChunks | None:
        """A chunk came twice: its sender has begun anew, and is told what it may leave out."""
        if partial.holds_other(chunk):
            self._drop(topic)
            raise RemoteProtocolError("chunk", f"two chunks {chunk.index} of one set differ: the set was dropped")
        return self._ask(topic, partial, now_s) if now_s - partial.asked_s >= _ECHO_S else None

    def _ask(self, topic: str, partial: _Partial, now_s: float) -> MissingChunks:
        partial.asked_s = now_s
        return MissingChunks(topic, partial.shape, partial.missing())

    def _rests(self, topic: str, shape: ChunkLayout, now_s: float) -> bool:
        whole, since_s = self._complete.get(topic, (None, 0.0))
        return whole == shape and now_s - since_s < REST_S

    def _completed(self, topic: str, partial: _Partial, now_s: float) -> bytes:
        self._drop(topic)
        frame = partial.buffer.getvalue()
        if packets.set_id(frame) != partial.shape.set_id:
            raise RemoteProtocolError("chunk", "a chunk set does not give the digest that it announced: it was dropped")
        self._complete[topic] = partial.shape, now_s
        return frame
