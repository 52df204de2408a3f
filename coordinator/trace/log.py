"""The message log of a coordinator: all events it received, with their times, and all frames it sent.

A trace is a file of entries with checksums, each a msgpack object: the header, and
then (kind, time, ...).  It holds the state at each start of the coordinator, so that a replay needs
neither data nor devices.

It is a magic word and then, for each entry, a head and the entry itself:

    4  marker
    4  length of the entry in bytes, little-endian
    4  CRC32 of the 8 bytes before, so that a damaged length does not look like the end of the file
    4  CRC32 of the entry

Each checksum starts from the one before it, which also reveals removed, repeated or moved entries.  So damage differs
from a file that ends early.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import msgpack

from coordinator.rounds.state import RoundPolicy
from edge_sdk.at_rest.files import write_private
from edge_sdk.at_rest.foreign import UNREADABLE, check_fields, open_foreign
from edge_sdk.durable import as_store_error
from edge_sdk.errors import RemoteProtocolError, StoreError, UsageError
from edge_sdk.protocol.frames import storage
from edge_sdk.protocol.frames.crc import crc32
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.reductions.influence import RobustTable
from edge_sdk.transport.base import Connected, Disconnected, Incoming, Rejected, SendRefused, TransportEvent

MAGIC = b"EDGTRACE"
VERSION = 4
NAME = "trace.edgt"
"""The name of the trace in a run directory."""
_UNREADABLE = (*UNREADABLE, msgpack.UnpackException, RemoteProtocolError, StoreError)
"""The exceptions that an entry of another version can raise when read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorStart:
    """The coordinator started; this is its state at that time."""

    spec: FederationSpec
    policy: RoundPolicy
    roster: tuple[str, ...]
    epoch: int
    ledger: bytes
    """The bytes of a copy of its ledger file."""
    serves: bool
    """Whether it served the public set to devices."""
    robust: RobustTable
    """Limits on the influence of one device."""


@dataclass(frozen=True, slots=True)
class Heard:
    """The transport delivered an event."""

    now_s: float
    event: TransportEvent


@dataclass(frozen=True, slots=True)
class Flushed:
    """The waiting uploads were made durable."""

    now_s: float


@dataclass(frozen=True, slots=True)
class Ticked:
    """The time reached a moment at which the rounds had something to do."""

    now_s: float


@dataclass(frozen=True, slots=True)
class FramesSent:
    """The coordinator sent a frame."""

    topic: str
    frame: bytes
    retain: bool


@dataclass(frozen=True, slots=True)
class LedgerRefused:
    """The disk refused a call of the ledger while the server handled the entry before."""

    call: int
    """The number of the call within that event, from 0."""
    reason: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The coordinator stopped, at the end of the run or before it."""

    phase: str
    state: bytes
    """The hash of the method's state, 32 bytes."""


Entry: TypeAlias = CoordinatorStart | Heard | Flushed | Ticked | FramesSent | LedgerRefused | Ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The origin of a trace."""

    sdk: str
    tables: dict[str, Any]
    """The resolved TOML of the run."""
    file: str
    """The path of the TOML file; paths in its tables are relative to its folder."""
    virtual: bool
    """Whether the run was simulated in virtual time."""


class TraceWriter:
    """Appends to a trace.  Raises StoreError if the disk refuses."""

    def __init__(self, path: Path, tables: Mapping[str, Any], file: Path, *, resume: bool, virtual: bool) -> None:
        """resume: append to an existing trace, if any, after its last whole entry.

        Raises UsageError if that trace is damaged or written by another version.
        """
        self._path = path
        found = _whole(path) if resume else None
        self._chain, whole_bytes = (found.chain, found.whole_bytes) if found else (ChecksumChain(), 0)
        with as_store_error(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO = path.open("r+b") if found else write_private(path)
            self._file.truncate(whole_bytes)
            self._file.seek(whole_bytes)
        if found is None:
            with as_store_error(path):
                self._file.write(MAGIC)
            origin = {"tables": dict(tables), "file": str(file.absolute()), "virtual": virtual}
            self._write({"trace": VERSION, "sdk": version("edge-sdk"), **origin})

    def write(self, entry: Entry) -> None:
        """Append one entry."""
        self._write(_plain(entry))

    def flush(self) -> None:
        """Pass all entries to the operating system, so that a crash of this process loses none of them."""
        with as_store_error(self._path):
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        with as_store_error(self._path):
            self._file.close()

    def _write(self, plain: object) -> None:
        with as_store_error(self._path):
            self._file.write(self._chain.framed(msgpack.packb(plain)))


@contextmanager
def trace_writer(
    folder: Path, tables: Mapping[str, Any], file: Path, *, wanted: bool, resume: bool, virtual: bool = False
) -> Iterator[TraceWriter | None]:
    """Open the trace of a run directory if it is wanted, and close it at the end of the context."""
    writer = TraceWriter(folder / NAME, tables, file, resume=resume, virtual=virtual) if wanted else None
    try:
        yield writer
    finally:
        if writer is not None:
            writer.close()


class Trace:
    """Reads a trace."""

    def __init__(self, path: Path) -> None:
        """Read the header.  Raises UsageError if the file is not a trace, or written by another version."""
        _refuse_format_one(path)
        self._records = TraceEntries(path, MAGIC)
        record = next(iter(self._records), None)
        if record is None:
            raise UsageError(f"{path}: ends before its header: the run was killed as it started")
        try:
            self.header = _header(path, record)
        except _UNREADABLE:
            raise self._records.damaged("it is not a header") from None

    def __iter__(self) -> Iterator[Entry]:
        """All entries; an incomplete last one, as after a crash, is left out.

        Raises UsageError if the trace is damaged.
        """
        records = iter(self._records)
        next(records)
        for record in records:
            try:
                entry = _entry(msgpack.unpackb(record))
                check_fields(entry)
            except _UNREADABLE:
                raise self._records.damaged("it is not an entry of this version") from None
            yield entry


def _whole(path: Path) -> TraceEntries | None:
    """The entries of an existing trace, read to their end, or None without a trace or header."""
    _refuse_format_one(path)
    records = TraceEntries(path, MAGIC)
    if not path.exists() or not path.stat().st_size or next(iter(records), None) is None:
        return None
    Trace(path)
    for _ in records:
        pass
    return records


def _header(path: Path, record: bytes) -> Header:
    plain = msgpack.unpackb(record)
    if (plain["trace"], plain["sdk"]) != (VERSION, version("edge-sdk")):
        raise _foreign(path, plain)
    found = Header(sdk=plain["sdk"], tables=plain["tables"], file=plain["file"], virtual=plain["virtual"])
    check_fields(found)
    return found


def _foreign(path: Path, plain: Mapping[str, Any]) -> UsageError:
    return UsageError(
        f"{path}: a trace of format {plain['trace']}, written by edge-sdk {plain['sdk']}; this is edge-sdk "
        f"{version('edge-sdk')}, which reads only its own traces, in format {VERSION}: use the version that wrote it"
    )


def _refuse_format_one(path: Path) -> None:
    """Raise UsageError for a trace of format 1, in which a header without a record head follows the magic word."""
    with suppress(msgpack.UnpackException, *UNREADABLE), open_foreign(path, sys.maxsize) as file:
        if file.read(len(MAGIC)) == MAGIC and file.peek(1)[:1] != MARKER[:1]:
            plain = msgpack.Unpacker(file).unpack()
            if isinstance(plain, dict):
                raise _foreign(path, plain)


def _plain(entry: Entry) -> list[Any]:
    if isinstance(entry, CoordinatorStart):
        spec, policy = storage.serialise(entry.spec), asdict(entry.policy)
        robust = asdict(entry.robust)
        return ["life", spec, policy, list(entry.roster), entry.epoch, entry.ledger, entry.serves, robust]
    if isinstance(entry, Heard):
        return ["heard", entry.now_s, *_plain_event(entry.event)]
    if isinstance(entry, FramesSent):
        return ["sent", entry.topic, entry.frame, entry.retain]
    if isinstance(entry, LedgerRefused):
        return ["refused", entry.call, entry.reason]
    if isinstance(entry, Ended):
        return ["ended", entry.phase, entry.state]
    return ["flushed" if isinstance(entry, Flushed) else "ticked", entry.now_s]


def _plain_event(event: TransportEvent) -> list[Any]:
    if isinstance(event, Incoming):
        return ["incoming", event.topic, event.frame]
    kind = _EVENTS_BY_TYPE[type(event)]
    return [kind, *(getattr(event, field.name) for field in fields(event))]


_EVENTS: dict[str, type[Any]] = {
    "incoming": Incoming,
    "rejected": Rejected,
    "send-refused": SendRefused,
    "connected": Connected,
    "disconnected": Disconnected,
}
_EVENTS_BY_TYPE = {kind: name for name, kind in _EVENTS.items()}
_ENTRIES: dict[str, type[Any]] = {
    "flushed": Flushed,
    "ticked": Ticked,
    "sent": FramesSent,
    "refused": LedgerRefused,
    "ended": Ended,
}


def _entry(plain: Any) -> Entry:
    kind, *values = plain
    if kind == "heard":
        now_s, event, *rest = values
        return Heard(now_s, _EVENTS[event](*rest))
    if kind == "life":
        spec, policy, roster, epoch, ledger, serves, robust = values
        return CoordinatorStart(
            spec=storage.deserialise(FederationSpec, spec),
            policy=RoundPolicy(**{**policy, "closed_with": tuple(policy.get("closed_with", ()))}),
            roster=tuple(roster),
            epoch=epoch,
            ledger=ledger,
            serves=serves,
            robust=RobustTable(**{**robust, "labels": tuple(robust["labels"])}),
        )
    entry: Entry = _ENTRIES[kind](*values)
    return entry


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
