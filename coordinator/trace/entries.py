"""The file format of a trace: entries with checksums, which distinguish damage from a file that ends early.

A file is a magic word and then, for each entry, a head and the entry itself:

    4  marker
    4  length of the entry in bytes, little-endian
    4  CRC32 of the 8 bytes before, so that a damaged length does not look like the end of the file
    4  CRC32 of the entry

Each checksum starts from the one before it, which also reveals removed, repeated or moved entries.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from edge_sdk.at_rest.foreign import open_foreign
from edge_sdk.errors import UsageError
from edge_sdk.protocol.frames.crc import crc32

MARKER = b"\xedREC"
HEAD = struct.Struct("<4sIII")
_CHECKED_BYTES = 8
"""The first bytes of a head, covered by the head's checksum."""


class ChecksumChain:
    """The checksum of the last whole entry, from which the next entry's checksums start."""

    def __init__(self) -> None:
        self.crc = 0

    def framed(self, entry: bytes) -> bytes:
        """The bytes of the next entry in the file, with its head."""
        head = struct.pack("<4sI", MARKER, len(entry))
        head_crc = crc32(head, self.crc)
        self.crc = crc32(entry, head_crc)
        return HEAD.pack(MARKER, len(entry), head_crc, self.crc) + entry


class TraceEntries:
    """The whole entries of a file, in order.

    Iterating raises UsageError where the file cannot be read, does not begin with the magic word, or is damaged.
    """

    def __init__(self, path: Path, magic: bytes) -> None:
        self._path, self._magic = path, magic
        self.chain = ChecksumChain()
        """The checksum after the entries read so far."""
        self.whole_bytes = 0
        """The length of the file in bytes up to the end of these entries."""

    def __iter__(self) -> Iterator[bytes]:
        """The entries; an incomplete last one, as after a crash of the writer, is left out."""
        self.chain, self.whole_bytes = ChecksumChain(), 0
        try:
            with open_foreign(self._path, sys.maxsize) as file:
                yield from self._entries(file)
        except OSError as error:
            raise UsageError(f"{self._path}: {error.strerror}; give the trace.edgt of a run") from None

    def _entries(self, file: BinaryIO) -> Iterator[bytes]:
        end = os.fstat(file.fileno()).st_size
        magic = file.read(len(self._magic))
        if not magic or not self._magic.startswith(magic):
            raise UsageError(f"{self._path}: not a trace; give the trace.edgt of a run that was made with --trace")
        self.whole_bytes = len(magic)
        while (head := self._head(file.read(HEAD.size))) is not None:
            length, head_crc, crc = head
            if length > end - file.tell():
                return
            entry = file.read(length)
            if crc32(entry, head_crc) != crc:
                raise self.damaged("its checksum does not match")
            yield entry
            self.chain.crc = crc
            self.whole_bytes = file.tell()

    def _head(self, found: bytes) -> tuple[int, int, int] | None:
        """Return the next entry's length in bytes and the checksums of head and entry, or None at the file's end."""
        if not MARKER.startswith(found[: len(MARKER)]):
            raise self.damaged("it is not an entry")
        if len(found) < HEAD.size:
            return None
        _, length, head_crc, crc = HEAD.unpack(found)
        if crc32(found[:_CHECKED_BYTES], self.chain.crc) != head_crc:
            raise self.damaged("the checksum of its head does not match")
        return length, head_crc, crc

    def damaged(self, what: str) -> UsageError:
        """The error for damage in the last entry read."""
        return UsageError(
            f"{self._path}: damaged in the part from byte {self.whole_bytes}: {what}; take another copy of it, or "
            "record the run again"
        )
