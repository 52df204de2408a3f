"""Records one behind the other in a file, each with checksums: damage is told from an end that came early.

A file is a magic word and then, for each record, a head and the record itself:

    4  marker
    4  length of the record in bytes, little-endian
    4  CRC32 of the 8 bytes before, so that a wrong length is not taken for the end of the file
    4  CRC32 of the record

Each checksum goes on from the one before it: a record that is cut out, repeated or moved is noticed, too.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from edge_sdk.errors import UsageError
from edge_sdk.protocol.crc import crc32

MARKER = b"\xedREC"
HEAD = struct.Struct("<4sIII")
_CHECKED_BYTES = 8
"""Of a head: what its own checksum is of."""


class Chain:
    """The checksum of the last whole record, from which the next ones go on."""

    def __init__(self) -> None:
        self.crc = 0

    def framed(self, record: bytes) -> bytes:
        """The next record, with its head."""
        head = struct.pack("<4sI", MARKER, len(record))
        head_crc = crc32(head, self.crc)
        self.crc = crc32(record, head_crc)
        return HEAD.pack(MARKER, len(record), head_crc, self.crc) + record


class Records:
    """The whole records of a file, in order.

    Iterating raises UsageError where the file cannot be read, does not begin with the magic word, or is damaged.
    """

    def __init__(self, path: Path, magic: bytes) -> None:
        self._path, self._magic = path, magic
        self.chain = Chain()
        """Of the records read so far."""
        self.whole_bytes = 0
        """Up to where they stand in the file."""

    def __iter__(self) -> Iterator[bytes]:
        """One that was cut off at the end, as a crash of its writer leaves it, is left out."""
        self.chain, self.whole_bytes = Chain(), 0
        try:
            with self._path.open("rb") as file:
                yield from self._records(file)
        except OSError as error:
            raise UsageError(f"{self._path}: {error.strerror}; give the trace.edgt of a run") from None

    def _records(self, file: BinaryIO) -> Iterator[bytes]:
        end = os.fstat(file.fileno()).st_size
        magic = file.read(len(self._magic))
        if not magic or not self._magic.startswith(magic):
            raise UsageError(f"{self._path}: not a trace; give the trace.edgt of a run that was made with --trace")
        self.whole_bytes = len(magic)
        while (head := self._head(file.read(HEAD.size))) is not None:
            length, head_crc, crc = head
            if length > end - file.tell():
                return
            record = file.read(length)
            if crc32(record, head_crc) != crc:
                raise self.damaged("its checksum is another")
            yield record
            self.chain.crc = crc
            self.whole_bytes = file.tell()

    def _head(self, found: bytes) -> tuple[int, int, int] | None:
        """Length of the next record, and the checksums of its head and of it; None where the file ends before that."""
        if not MARKER.startswith(found[: len(MARKER)]):
            raise self.damaged("it is no entry")
        if len(found) < HEAD.size:
            return None
        _, length, head_crc, crc = HEAD.unpack(found)
        if crc32(found[:_CHECKED_BYTES], self.chain.crc) != head_crc:
            raise self.damaged("the checksum of its head is another")
        return length, head_crc, crc

    def damaged(self, what: str) -> UsageError:
        """To be raised where the file is not as it was written, about the record that was last asked for."""
        return UsageError(
            f"{self._path}: damaged in what begins at byte {self.whole_bytes}: {what}; take another copy of it, or "
            "record the run again"
        )
