"""Fetches the public set from the coordinator, block by block, into a folder of this device.

The device requests a few blocks at a time, and again those that do not arrive.  So loss, repetition, reordering, a
broken connection and a restart of either side only cost time.  Each block is written to disk on arrival, and is not
requested again after a power cut.  The set is used only if its SHA-256 matches the federation's spec.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import weakref
from collections import Counter, deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from edge_sdk.at_rest.files import sync_folder
from edge_sdk.durable import as_store_error
from edge_sdk.errors import Refused, RemoteProtocolError, StoreError
from edge_sdk.protocol.messages import PUBLIC_BLOCK_BYTES, PublicBlock, PublicSetSpec
from edge_sdk.public_set.samples import PublicSet

log = logging.getLogger(__name__)

WINDOW = 8
"""The maximum number of requested blocks; small brokers queue no more for one client (docs/reference/protocol.md)."""
FIRST_TIMEOUT_S, LONGEST_TIMEOUT_S = 4.0, 60.0
"""Requested blocks are requested again when none has arrived for this long; the time doubles while none arrives."""
TIMEOUT_GAPS = 4
"""On a slow link that time is this multiple of the longest recent gap between two blocks."""
LOST_AFTER_REQUESTS = 2 * WINDOW
"""A block also counts as lost when another has arrived that was requested this many requests later."""
MAX_TRIES = 2
"""How often a whole set may arrive damaged before the device gives up."""
MAX_PUBLIC_BYTES = 256 * 2**20
"""The largest public set that a device fetches by default, because it is held in memory as f4."""
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
    """Return the number of blocks of a set of this size."""
    return -(-total_bytes // PUBLIC_BLOCK_BYTES)


class _Partial:
    """The file of an incomplete set: the set's bytes, and behind them one byte for each block, 1 if it has arrived.

    After a power cut the disk may lack a marked block, which the hash of the whole set reveals.
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


class PublicFetch:
    """The public sets of a device on disk, and the fetching of another one.

    The file of a complete set is named by the set's hash, so that all federations of the device share it.  The name of
    an incomplete one has federation and device, too, so that two processes can use the same folder.  The methods raise
    StoreError if the disk fails.
    """

    def __init__(
        self, folder: Path | None, owner: str, faults: Counter[str], max_bytes: int = MAX_PUBLIC_BYTES
    ) -> None:
        """folder: by default a temporary one, created when needed, and deleted with this object or at exit.

        owner: federation and device, for file names; faults: counts damaged sets; max_bytes: the largest set.
        """
        self._given = folder
        self._temporary: Path | None = None
        self._owner, self._max_bytes = owner, max_bytes
        self._faults = faults
        self._wanted: PublicSetSpec | None = None
        self._total_bytes = 0
        self._partial: _Partial | None = None
        self._requests = BlockRequests(())
        self._tries = 0

    @property
    def _folder(self) -> Path:
        if self._given is not None:
            return self._given
        if self._temporary is None:
            with as_store_error(Path(tempfile.gettempdir())):
                self._temporary = Path(tempfile.mkdtemp(prefix="edge-sdk-public-"))
            weakref.finalize(self, shutil.rmtree, self._temporary, ignore_errors=True)
        return self._temporary

    @property
    def wanted(self) -> PublicSetSpec | None:
        """The set that is being fetched, if any."""
        return self._wanted

    def find(self, wanted: PublicSetSpec) -> PublicSet | None:
        """Return the set if it is on the disk; a damaged one is deleted and counted."""
        path = self._folder / f"{wanted.sha256.hex()}.set"
        if not path.exists():
            return None
        public = _read(path, wanted)
        if public is None:
            self._faults["checksum"] += 1
            log.warning("%s: damaged on the disk; it will be fetched again", path)
            with as_store_error(path):
                path.unlink(missing_ok=True)
        return public

    def refusal(self, total_bytes: int) -> Refused | None:
        """Return why a set of this size cannot be fetched, or None if it can."""
        if not total_bytes:
            message = "this device holds no public set, and the coordinator serves none"
            return Refused("public-set", message, "copy the set to the device, and name the file with --public")
        if total_bytes > self._max_bytes:
            return Refused(
                "public-set",
                f"the public set has {_mib(total_bytes)}, this device takes at most {_mib(self._max_bytes)}",
                "raise max_public_bytes, or copy the set to the device and name the file with --public",
            )
        return None

    def begin(self, wanted: PublicSetSpec, total_bytes: int) -> None:
        """Begin to fetch this set, continue after a restart, or request its blocks again."""
        if (wanted, total_bytes) == (self._wanted, self._total_bytes):
            self._requests.request_again()
            return
        name = f"{wanted.sha256.hex()}.{self._owner}.part"
        partial = _Partial(self._folder / name, total_bytes)
        with as_store_error(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            for stale in self._folder.glob(f"*.{self._owner}.part"):
                if stale.name != name:
                    stale.unlink(missing_ok=True)
        missing = partial.missing()
        self._check_space(len(missing) * PUBLIC_BLOCK_BYTES)
        partial.create()
        self._wanted, self._total_bytes, self._partial, self._tries = wanted, total_bytes, partial, 0
        self._requests = BlockRequests(missing)

    def stop(self) -> None:
        """Stop fetching; the blocks that have arrived stay on the disk."""
        self._wanted, self._partial, self._total_bytes = None, None, 0

    def next_due_s(self) -> float | None:
        """Return the time in seconds of the next request or completion, or None if nothing is due."""
        return 0.0 if self.complete else None if self._wanted is None else self._requests.next_due_s()

    def next_requests(self, now_s: float) -> tuple[int, ...]:
        """Return the indices of the blocks to request now; they count as requested."""
        return self._requests.next_requests(now_s)

    @property
    def complete(self) -> bool:
        """Whether all blocks have arrived, so that `finish` can be called."""
        return self._wanted is not None and self._requests.complete

    def receive(self, block: PublicBlock, now_s: float) -> None:
        """Store a block.  Raises RemoteProtocolError for a block that is not part of the set being fetched."""
        if self._wanted is None or self._partial is None:
            return
        if block.sha256 != self._wanted.sha256:
            raise RemoteProtocolError("knowledge", f"a block of the public set {block.sha256.hex()}, not asked for")
        count = block_count(self._total_bytes)
        if (block.total_bytes, block.count) != (self._total_bytes, count) or block.index >= count:
            raise RemoteProtocolError(
                "knowledge",
                f"public block {block.index} of {block.count}, {block.total_bytes} bytes in all; "
                f"announced were {count} and {self._total_bytes}",
            )
        size = min(PUBLIC_BLOCK_BYTES, self._total_bytes - block.index * PUBLIC_BLOCK_BYTES)
        if len(block.data) != size:
            raise RemoteProtocolError(
                "length", f"public block {block.index} has {len(block.data)} bytes, expected {size}"
            )
        if self._requests.note_received(block.index, now_s):
            self._partial.write(block.index, block.data)

    def finish(self) -> PublicSet:
        """Check and return the set, after all blocks have arrived.

        Raises RemoteProtocolError, and begins again, if the set does not have the announced hash; the second time
        raises Refused.
        """
        wanted, partial = self._wanted, self._partial
        if wanted is None or partial is None:
            raise StoreError(f"{self._folder}: no public set is being fetched")
        partial.finish()
        public = _read(partial.path, wanted)
        if public is not None:
            with as_store_error(partial.path):
                partial.path.replace(self._folder / f"{wanted.sha256.hex()}.set")
                with suppress(OSError):  # some network folders cannot be synced
                    sync_folder(self._folder)
            self.stop()
            return public
        partial.delete()
        self._tries += 1
        found = f"the public set that arrived is not {wanted.sha256.hex()}"
        if self._tries < MAX_TRIES:
            partial.create()
            self._requests = BlockRequests(partial.missing())
            raise RemoteProtocolError("checksum", f"{found}: it is fetched again")
        self._faults["checksum"] += 1
        self.stop()
        raise Refused(
            "public-set",
            f"{found}, {MAX_TRIES} times",
            "check this device's disk and the coordinator's file, or copy the set here and name it with --public",
        )

    def _check_space(self, needed: int) -> None:
        with as_store_error(self._folder):
            free = shutil.disk_usage(self._folder).free
        if free < needed + SPARE_BYTES:
            raise StoreError(
                f"{self._folder}: {_mib(free)} are free, the public set needs {_mib(needed)} and {_mib(SPARE_BYTES)} "
                "beside it; free some space, or give another folder"
            )


def _read(path: Path, wanted: PublicSetSpec) -> PublicSet | None:
    """Return the set in a file; None if it is not the one wanted."""
    with as_store_error(path):
        try:
            public = PublicSet.read(path)
        except ValueError:
            return None
    return public if public.spec == wanted else None


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
