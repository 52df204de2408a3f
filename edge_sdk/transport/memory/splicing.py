"""Lets long frames that differ only near their ends share one copy of the middle.

The Assigns of an exchange are as long as their weights, and nearly identical for all devices.  A simulation holds
thousands of them at once, in transit and on each device until its round is over.
"""

from __future__ import annotations

from edge_sdk.protocol.frames.frame_parts import FrameParts

LEAST_BYTES = 16 * 1024
"""Shorter frames are not split."""
_EDGE_BYTES = 1024
"""The bytes at either end that each frame keeps for itself: header, ids and short fields."""
_PROBES, _PROBE_BYTES = 8, 32
"""The number and length of samples that are compared before a middle is copied."""


class Splicer:
    """Finds the common middle of a frame and the last one of its kind."""

    def __init__(self) -> None:
        self._last = b""
        """The last frame that shared nothing; its length may differ from that of the next one by that of an id."""
        self._middle = b""

    def spliced(self, frame: bytes) -> bytes | FrameParts:
        """Return a frame, or if it is long and like the one before, the frame with a shared middle."""
        if len(frame) < LEAST_BYTES:
            return frame
        end = len(frame) - _EDGE_BYTES
        begin = end - len(self._middle)
        if not self._middle or begin <= 0 or not frame.startswith(self._middle, begin):
            if not _alike(self._last, frame):
                self._last = frame
                return frame
            begin, self._last = _EDGE_BYTES, b""
            self._middle = frame[begin:end]
        return FrameParts(frame[:begin], self._middle, frame[end:])


def _alike(one: bytes, other: bytes) -> bool:
    """Whether two frames agree at some sampled places, counted from their ends."""
    if abs(len(one) - len(other)) > _EDGE_BYTES // 2:
        return False
    step = (len(other) - 2 * _EDGE_BYTES) // _PROBES
    places = range(_EDGE_BYTES, _EDGE_BYTES + _PROBES * step, step)
    return all(one[-at - _PROBE_BYTES : -at] == other[-at - _PROBE_BYTES : -at] for at in places)
