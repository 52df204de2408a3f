"""Frames in parts.  Many frames may share one part, which is in memory once, and is compared by identity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True, eq=False)
class FrameParts:
    """A frame in three parts, whose middle may be shared; `bytes` joins them."""

    head: bytes
    """Begins with the whole header of the frame."""
    middle: bytes
    tail: bytes = b""

    def __len__(self) -> int:
        return len(self.head) + len(self.middle) + len(self.tail)

    def __bytes__(self) -> bytes:
        return b"".join((self.head, self.middle, self.tail))

    def __reduce__(self) -> tuple[type[FrameParts], tuple[bytes, bytes, bytes]]:
        return FrameParts, (self.head, self.middle, self.tail)


class ToldFrame(bytes):
    """A frame made in this process, with what it says: who gets it in this process need not decode it."""

    envelope: Any
    """The Envelope that decoding it would give."""


Frame: TypeAlias = bytes | FrameParts


def beginning(frame: Frame, count: int) -> bytes:
    """Return the first bytes of a frame, at most the length of its header."""
    return (frame if isinstance(frame, bytes) else frame.head)[:count]
