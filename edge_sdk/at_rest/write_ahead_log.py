"""Finds commits that a damaged write-ahead log of SQLite has lost, and the frames after its last commit.

SQLite reads its log up to the first frame with a wrong checksum, and treats the rest as half written before a power
cut.  With synchronous=FULL a power cut can leave only the last commit half written.  So if the log continues after a
commit that SQLite did not read, a frame before it was damaged later.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_HEADER_BYTES, _FRAME_HEADER_BYTES = 32, 24


@dataclass(frozen=True, slots=True)
class _Frame:
    """One page in the log."""

    page: int
    commits: bool
    salts: bytes
    offset: int
    """The offset of its page in the file, in bytes."""


def has_lost_commits(database: Path, log: bytes, read_frames: int) -> bool:
    """Return whether a log holds commits that SQLite did not read, and that a power cut cannot explain.

    log: its content before the database was opened.  read_frames: the number of frames that SQLite has read.
    """
    if len(log) < _HEADER_BYTES + _FRAME_HEADER_BYTES:
        return False
    page_bytes = struct.unpack_from(">I", log, 8)[0]
    if not _sound_header(log):
        page_bytes = _page_bytes(database)
    frames = list(_frames(log, page_bytes))
    if not frames:
        return False
    salts = log[16:24] if _sound_header(log) else frames[min(1, len(frames) - 1)].salts
    unread = [frame for frame in frames[read_frames:] if frame.salts == salts]
    commits = [place for place, frame in enumerate(unread) if frame.commits]
    if not commits or commits[0] == len(unread) - 1:
        return False
    return _sound_header(log) or not _in_database(database, log, frames, page_bytes)


def cut_uncommitted(log_file: Path) -> None:
    """Cut off the frames after the last commit of a log, which belong to a transaction that was rolled back.

    Only for the single connection to the database, because SQLite writes its next frame there.
    """
    log = log_file.read_bytes()
    if len(log) < _HEADER_BYTES or not _sound_header(log):
        return
    page_bytes = struct.unpack_from(">I", log, 8)[0]
    commits = [
        frame.offset + page_bytes for frame in _frames(log, page_bytes) if frame.commits and frame.salts == log[16:24]
    ]
    os.truncate(log_file, max(commits, default=_HEADER_BYTES))


def _frames(log: bytes, page_bytes: int) -> Iterator[_Frame]:
    if page_bytes < 512:  # SQLite's minimum
        return
    step = _FRAME_HEADER_BYTES + page_bytes
    for start in range(_HEADER_BYTES, len(log) - step + 1, step):
        page, size = struct.unpack_from(">II", log, start)
        yield _Frame(page, size > 0, log[start + 8 : start + 16], start + _FRAME_HEADER_BYTES)


def _sound_header(log: bytes) -> bool:
    """Return whether the log's header has the checksum that it names: the sums that SQLite's file format describes."""
    words = struct.unpack(("<" if log[3] == 0x82 else ">") + "6I", log[:24])  # the magic number's end
    first = second = 0
    for at in range(0, 6, 2):
        first = (first + words[at] + second) & 0xFFFFFFFF
        second = (second + words[at + 1] + first) & 0xFFFFFFFF
    return struct.unpack(">II", log[24:32]) == (first, second)


def _page_bytes(database: Path) -> int:
    with database.open("rb") as file:
        file.seek(16)
        return int.from_bytes(file.read(2), "big") or 0


def _in_database(database: Path, log: bytes, frames: list[_Frame], page_bytes: int) -> bool:
    """Return whether the database holds everything in the log, which is the case when a new log begins."""
    last = {frame.page: frame for frame in frames}
    with database.open("rb") as file:
        for frame in last.values():
            file.seek((frame.page - 1) * page_bytes)
            if file.read(page_bytes) != log[frame.offset : frame.offset + page_bytes]:
                return False
    return True
