"""The message log of a coordinator: all that came, when, and all that it sent.

A trace is a magic word, and then msgpack objects one after the other: the header, and entries (kind, time, ...).  Of
each life of the coordinator it keeps what the life began with, so that a replay needs neither data nor devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import msgpack

from coordinator.round_state import Policy
from edge_sdk.durable import guarded
from edge_sdk.errors import RemoteProtocolError, StoreError, UsageError
from edge_sdk.protocol import keep
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.transport.base import Connected, Disconnected, Incoming, Rejected, TransportEvent

MAGIC = b"EDGTRACE"
VERSION = 1
NAME = "trace.edgt"
"""In a run directory."""
READ_BYTES = 1 << 20
MAX_OBJECT_BYTES = 1 << 30
"""No single frame, and no ledger of a life's start, is longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """What one life of the coordinator began with."""

    spec: FederationSpec
    policy: Policy
    roster: tuple[str, ...]
    epoch: int
    ledger: bytes
    """A copy of its ledger, as a file."""
    serves: bool
    """Whether it had the public set, for devices that fetch it."""


@dataclass(frozen=True, slots=True)
class Heard:
    """Something that the transport brought."""

    now_s: float
    event: TransportEvent


@dataclass(frozen=True, slots=True)
class Flushed:
    """What waited was made durable."""

    now_s: float


@dataclass(frozen=True, slots=True)
class Ticked:
    """A deadline had come."""

    now_s: float


@dataclass(frozen=True, slots=True)
class Sent:
    """A frame went out."""

    topic: str
    frame: bytes
    retain: bool


@dataclass(frozen=True, slots=True)
class Ended:
    """The run was over."""

    phase: str
    state: bytes
    """The hash of the method's state, 32 bytes."""


Entry: TypeAlias = Life | Heard | Flushed | Ticked | Sent | Ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Where a trace comes from."""

    sdk: str
    tables: dict[str, Any]
    """The resolved TOML of the run."""
    file: str
    """Where it lay: paths in it are relative to that."""


class TraceWriter:
    """Appends to a trace.  Raises StoreError where the disk will not have it."""

    def __init__(self, path: Path, tables: Mapping[str, Any], file: Path, *, resume: bool = False) -> None:
        """`resume`: go on with the trace that is there, if there is one, behind its last whole entry."""
        self._path = path
        whole_bytes = Trace(path).whole_bytes() if resume and path.exists() else 0
        with guarded(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO = path.open("r+b" if whole_bytes else "wb")
            self._file.truncate(whole_bytes)
            self._file.seek(whole_bytes)
        if not whole_bytes:
            with guarded(path):
                self._file.write(MAGIC)
            self._write(
                {"trace": VERSION, "sdk": version("edge-sdk"), "tables": dict(tables), "file": str(file.absolute())}
            )

    def write(self, entry: Entry) -> None:
        """Append one entry."""
        self._write(_plain(entry))

    def flush(self) -> None:
        """Hand everything to the operating system: a crash of this process loses nothing of it."""
        with guarded(self._path):
            self._file.flush()

    def close(self) -> None:
        """Let go of the file."""
        with guarded(self._path):
            self._file.close()

    def _write(self, plain: object) -> None:
        with guarded(self._path):
            self._file.write(msgpack.packb(plain))


@contextmanager
def keeping(
    folder: Path, tables: Mapping[str, Any], file: Path, *, wanted: bool, resume: bool
) -> Iterator[TraceWriter | None]:
    """The trace of a run directory, if one is wanted, as long as the context lasts."""
    writer = TraceWriter(folder / NAME, tables, file, resume=resume) if wanted else None
    try:
        yield writer
    finally:
        if writer is not None:
            writer.close()


class Trace:
    """A trace to read."""

    def __init__(self, path: Path) -> None:
        """Raises UsageError for a file that is none, or of another version."""
        self._path = path
        self.header = next(self._headers())

    def __iter__(self) -> Iterator[Entry]:
        """All entries; one that was cut off at the end, as a crash leaves it, is left out."""
        objects = self._objects()
        next(objects)
        try:
            yield from map(_entry, objects)
        except (KeyError, TypeError, RemoteProtocolError, StoreError) as error:
            raise UsageError(f"{self._path}: damaged: an entry does not read ({error!r})") from None

    def whole_bytes(self) -> int:
        """Up to where the file holds whole entries: a crash may have cut off the last one."""
        whole = len(MAGIC)
        with guarded(self._path), self._path.open("rb") as file:
            file.seek(whole)
            unpacker = msgpack.Unpacker(file, read_size=READ_BYTES, max_buffer_size=MAX_OBJECT_BYTES)
            while True:
                try:
                    unpacker.skip()
                except msgpack.OutOfData:
                    return whole
                whole = len(MAGIC) + unpacker.tell()

    def _headers(self) -> Iterator[Header]:
        plain = next(self._objects(), None)
        found = plain.get("trace") if isinstance(plain, dict) else None
        if not isinstance(plain, dict) or found is None:
            raise UsageError(f"{self._path}: damaged: it has no header")
        if found != VERSION:
            raise UsageError(
                f"{self._path}: a trace of version {found}, written by edge-sdk {plain.get('sdk')}; this is edge-sdk "
                f"{version('edge-sdk')}, which reads version {VERSION}: replay it with the one that wrote it"
            )
        yield Header(sdk=str(plain["sdk"]), tables=dict(plain["tables"]), file=str(plain["file"]))

    def _objects(self) -> Iterator[Any]:
        try:
            with self._path.open("rb") as file:
                if file.read(len(MAGIC)) != MAGIC:
                    raise UsageError(
                        f"{self._path}: not a trace; give the trace.edgt of a run that was made with --trace"
                    )
                yield from msgpack.Unpacker(file, read_size=READ_BYTES, max_buffer_size=MAX_OBJECT_BYTES)
        except OSError as error:
            raise UsageError(f"{self._path}: {error.strerror}; give the trace.edgt of a run") from None
        except (ValueError, msgpack.UnpackException) as error:
            raise UsageError(f"{self._path}: damaged: {error}") from None


def _plain(entry: Entry) -> list[Any]:
    if isinstance(entry, Life):
        spec, policy = keep.to_bytes(entry.spec), asdict(entry.policy)
        return ["life", spec, policy, list(entry.roster), entry.epoch, entry.ledger, entry.serves]
    if isinstance(entry, Heard):
        return ["heard", entry.now_s, *_plain_event(entry.event)]
    if isinstance(entry, Sent):
        return ["sent", entry.topic, entry.frame, entry.retain]
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
    "connected": Connected,
    "disconnected": Disconnected,
}
_EVENTS_BY_TYPE = {kind: name for name, kind in _EVENTS.items()}
_ENTRIES: dict[str, type[Any]] = {"flushed": Flushed, "ticked": Ticked, "sent": Sent, "ended": Ended}


def _entry(plain: Any) -> Entry:
    kind, *values = plain
    if kind == "heard":
        now_s, event, *rest = values
        return Heard(now_s, _EVENTS[event](*rest))
    if kind == "life":
        spec, policy, roster, epoch, ledger, serves = values
        return Life(
            spec=keep.from_bytes(FederationSpec, spec),
            policy=Policy(**policy),
            roster=tuple(roster),
            epoch=epoch,
            ledger=ledger,
            serves=serves,
        )
    entry: Entry = _ENTRIES[kind](*values)
    return entry
