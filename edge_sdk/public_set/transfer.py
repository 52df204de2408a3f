"""The transfer of a file in blocks, which may be lost, repeated or reordered, and continues after a power cut.

The receiver requests a few blocks at a time, and again those that do not arrive.  Each block is written to disk on
arrival, and is not requested again.  The SHA-256 of the whole file says whether it is the one that was announced.
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from edge_sdk.durable import as_store_error
from edge_sdk.errors import RemoteProtocolError, StoreError
from edge_sdk.protocol.messages import PUBLIC_BLOCK_BYTES, PublicBlock

WINDOW = 8
"""The maximum number of requested blocks; small brokers have such a limit for one client
(docs/reference/protocol.md)."""
FIRST_TIMEOUT_S, LONGEST_TIMEOUT_S = 4.0, 60.0
"""Requested blocks are requested again when none has arrived for this long; the time doubles while none arrives."""
TIMEOUT_GAPS = 4
"""On a slow link that time is this multiple of the longest recent gap between two blocks."""
LOST_AFTER_REQUESTS = 2 * WINDOW
"""A block also counts as lost when another has arrived that was requested this many requests later."""
SPARE_BYTES = 16 * 2**20
"""The space that must stay free on the disk for the device's own state."""


class BlockRequests:
    """Decides which blocks to request, and when; it has no clock, no files and no messages.

    It begins with one block at a time, to learn how long a block takes before several share the link.
    """

    def __init__(self, missing: Iterable[int]) -> None:
        self._missing = deque(sorted(missing))
        self._requested: dict[int, int] = {}
        """Requested blocks that have not arrived, with the number of their request."""
        self._number = 0
        self._window = 1
        self._last_block_s = 0.0
        self._longest_gap_s = 0.0
        self._timeout_s = FIRST_TIMEOUT_S

    @property
    def complete(self) -> bool:
        """Whether all blocks have arrived."""
        return not (self._missing or self._requested)

    @property
    def _room(self) -> int:
        """The number of blocks to request now: at least half a window, so that one message requests several."""
        room = min(self._window - len(self._requested), len(self._missing))
        return room if room >= min(max(1, self._window // 2), len(self._missing)) else 0

    def next_due_s(self) -> float | None:
        """Return the time in seconds at which `next_requests` next returns blocks, or None if none are missing."""
        if self._room:
            return 0.0
        return self._last_block_s + self._timeout_s if self._requested else None

    def next_requests(self, now_s: float) -> tuple[int, ...]:
        """Return the indices of the blocks to request now; they count as requested."""
        if self._requested and now_s >= self._last_block_s + self._timeout_s:
            self._timeout_s = min(2 * self._timeout_s, LONGEST_TIMEOUT_S)
            self.request_again()
        chosen = tuple(self._missing.popleft() for _ in range(self._room))
        if not self._requested:
            self._last_block_s = now_s
        for index in chosen:
            self._number += 1
            self._requested[index] = self._number
        return chosen

    def request_again(self) -> None:
        """Count all requested blocks as lost: the connection was down, or they took too long."""
        self._mark_lost(self._requested)
        self._window = 1

    def note_received(self, index: int, now_s: float) -> bool:
        """Note that a block has arrived; returns False if it arrived before."""
        number = self._requested.pop(index, None)
        if number is None:
            if index not in self._missing:
                return False
            self._missing.remove(index)  # counted as lost too soon
        self._longest_gap_s = max(now_s - self._last_block_s, 0.9 * self._longest_gap_s)
        self._last_block_s = now_s
        self._timeout_s = min(max(FIRST_TIMEOUT_S, TIMEOUT_GAPS * self._longest_gap_s), LONGEST_TIMEOUT_S)
        self._window = min(self._window + 1, WINDOW)
        if number is not None:
            self._mark_lost([other for other, asked in self._requested.items() if asked < number - LOST_AFTER_REQUESTS])
        return True

    def _mark_lost(self, indices: Iterable[int]) -> None:
        lost = sorted(indices, reverse=True)
        self._missing.extendleft(lost)
        for index in lost:
            del self._requested[index]


def block_count(total_bytes: int) -> int:
    """Return the number of blocks of a file of this size."""
    return -(-total_bytes // PUBLIC_BLOCK_BYTES)


class PartialFile:
    """An incomplete file: its bytes, and behind them one byte for each block, 1 if it has arrived.

    After a power cut the disk may lack a marked block, which the hash of the whole file reveals.
    """

    def __init__(self, path: Path, total_bytes: int) -> None:
        self.path = path
        self._total_bytes, self._count = total_bytes, block_count(total_bytes)

    def missing(self) -> tuple[int, ...]:
        """Return the indices of the blocks that have not arrived."""
        with as_store_error(self.path):
            size = self.path.stat().st_size if self.path.exists() else -1
            if size == self._total_bytes:  # the power failed after `finish`
                return ()
            if size != self._total_bytes + self._count:
                return tuple(range(self._count))
            with self.path.open("rb") as file:
                file.seek(self._total_bytes)
                marks = file.read(self._count)
        return tuple(index for index, mark in enumerate(marks) if mark != 1)

    def create(self) -> None:
        """Create the file with its full size, unless it exists."""
        size = self._total_bytes + self._count
        with as_store_error(self.path):
            if not self.path.exists() or self.path.stat().st_size not in (size, self._total_bytes):
                with self.path.open("wb") as file:
                    file.truncate(size)

    def write(self, index: int, data: bytes) -> None:
        """Write a block, and then its mark.

        A nearly full disk may write a part of the block; the next write of the rest then raises the error.
        """
        with as_store_error(self.path), self.path.open("r+b", buffering=0) as file:
            file.seek(index * PUBLIC_BLOCK_BYTES)
            rest = memoryview(data)
            while rest:
                rest = rest[file.write(rest) :]
            file.seek(self._total_bytes + index)
            file.write(b"\x01")

    def finish(self) -> None:
        """Remove the marks, and sync the file."""
        with as_store_error(self.path), self.path.open("r+b") as file:
            file.truncate(self._total_bytes)
            os.fsync(file.fileno())

    def delete(self) -> None:
        """Delete the file."""
        with as_store_error(self.path):
            self.path.unlink(missing_ok=True)


class FileTransfer:
    """The receiving side of one file.  The methods raise StoreError if the disk fails."""

    def __init__(self, path: Path, sha256: bytes, total_bytes: int, what: str) -> None:
        """path: of the incomplete file, which is created unless it exists.  what: the file's name in errors."""
        self.path, self.sha256, self.total_bytes, self._what = path, sha256, total_bytes, what
        self._partial = PartialFile(path, total_bytes)
        missing = self._partial.missing()
        _check_space(path.parent, len(missing) * PUBLIC_BLOCK_BYTES, what)
        self._partial.create()
        self.requests = BlockRequests(missing)

    def receive(self, block: PublicBlock, now_s: float) -> None:
        """Store a block.  Raises RemoteProtocolError for a block that is not part of the file."""
        if block.sha256 != self.sha256:
            raise RemoteProtocolError("knowledge", f"a block of the {self._what} {block.sha256.hex()}, not asked for")
        count = block_count(self.total_bytes)
        if (block.total_bytes, block.count) != (self.total_bytes, count) or block.index >= count:
            raise RemoteProtocolError(
                "knowledge",
                f"{self._what}: block {block.index} of {block.count}, {block.total_bytes} bytes in all; "
                f"announced were {count} and {self.total_bytes}",
            )
        size = min(PUBLIC_BLOCK_BYTES, self.total_bytes - block.index * PUBLIC_BLOCK_BYTES)
        if len(block.data) != size:
            raise RemoteProtocolError(
                "length", f"{self._what}: block {block.index} has {len(block.data)} bytes, expected {size}"
            )
        if self.requests.note_received(block.index, now_s):
            self._partial.write(block.index, block.data)

    def missing(self) -> tuple[int, ...]:
        """Return the indices of the blocks that have not arrived."""
        return self._partial.missing()

    def finish(self) -> None:
        """Make the file what it is without marks, and durable."""
        self._partial.finish()

    def begin_again(self) -> None:
        """Delete what arrived, and request all of it again."""
        self._partial.delete()
        self._partial.create()
        self.requests = BlockRequests(self._partial.missing())

    def delete(self) -> None:
        """Delete the file."""
        self._partial.delete()


def _check_space(folder: Path, needed: int, what: str) -> None:
    with as_store_error(folder):
        free = shutil.disk_usage(folder).free
    if free < needed + SPARE_BYTES:
        raise StoreError(
            f"{folder}: {_mib(free)} are free, the {what} needs {_mib(needed)} and {_mib(SPARE_BYTES)} "
            "beside it; free some space, or give another folder"
        )


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
