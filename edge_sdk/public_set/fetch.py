"""Fetching the public set from the coordinator, block by block, into a folder of this device.

The receiver drives: it asks for a few blocks at a time, and again for what does not come.  So loss, repetition,
reordering, a broken link and a restart of either side cost time and nothing else.  Each block is written where it
belongs as it comes, and what has come by then is not asked for again after a power cut.  The whole is used only once
its SHA-256 is the one that the federation's spec names.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections import Counter, deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from edge_sdk.durable import guarded
from edge_sdk.errors import Refused, RemoteProtocolError, StoreError
from edge_sdk.protocol.messages import PUBLIC_BLOCK_BYTES, PublicBlock, PublicSetSpec
from edge_sdk.public_set.samples import PublicSet

log = logging.getLogger(__name__)

WINDOW = 8
"""Most blocks on their way at a time: what a small broker queues for one client (docs/reference/protocol.md)."""
PAUSE_FIRST_S, PAUSE_MOST_S = 4.0, 60.0
"""Blocks are asked for again when none has come for this long, doubling while none comes."""
GAPS = 4
"""On a slow link: when none has come for this many times the longest gap between two of late."""
OVERTAKEN = 2 * WINDOW
"""A block is lost, too, when one came that was asked for so many later."""
TRIES = 2
"""Whole sets that may arrive damaged before the device gives up."""
MAX_PUBLIC_BYTES = 256 * 2**20
"""The largest public set that a device takes by default: it holds all of it in memory, as numbers of four bytes."""
SPARE_BYTES = 16 * 2**20
"""What must stay free on the disk for the device's own state."""


class Asking:
    """Which blocks to ask for, and when: no clock, no file, no message.

    It begins with one block at a time, so that it knows how long one takes before several share the link.
    """

    def __init__(self, missing: Iterable[int]) -> None:
        self._todo = deque(sorted(missing))
        self._asked: dict[int, int] = {}
        """Blocks on their way, and the number of their asking."""
        self._number = 0
        self._window = 1
        self._since_s = 0.0
        self._longest_gap_s = 0.0
        self._pause_s = PAUSE_FIRST_S

    @property
    def complete(self) -> bool:
        """Whether every block has come."""
        return not (self._todo or self._asked)

    @property
    def _room(self) -> int:
        """How many to ask for now; half a window at least, to ask for several at once."""
        room = min(self._window - len(self._asked), len(self._todo))
        return room if room >= min(max(1, self._window // 2), len(self._todo)) else 0

    def next_due_s(self) -> float | None:
        """When `ask` can next have something to say."""
        if self._room:
            return 0.0
        return self._since_s + self._pause_s if self._asked else None

    def ask(self, now_s: float) -> tuple[int, ...]:
        """The blocks to ask for now, perhaps none."""
        if self._asked and now_s >= self._since_s + self._pause_s:
            self._pause_s = min(2 * self._pause_s, PAUSE_MOST_S)
            self.begin_again()
        chosen = tuple(self._todo.popleft() for _ in range(self._room))
        if not self._asked:
            self._since_s = now_s
        for index in chosen:
            self._number += 1
            self._asked[index] = self._number
        return chosen

    def begin_again(self) -> None:
        """Nothing is on its way any more: the link was down, or it has taken too long."""
        self._give_up(self._asked)
        self._window = 1

    def arrived(self, index: int, now_s: float) -> bool:
        """Note a block; False: it came before."""
        number = self._asked.pop(index, None)
        if number is None:
            if index not in self._todo:
                return False
            self._todo.remove(index)  # given up too soon
        self._longest_gap_s = max(now_s - self._since_s, 0.9 * self._longest_gap_s)
        self._since_s = now_s
        self._pause_s = min(max(PAUSE_FIRST_S, GAPS * self._longest_gap_s), PAUSE_MOST_S)
        self._window = min(self._window + 1, WINDOW)
        if number is not None:
            self._give_up([other for other, asked in self._asked.items() if asked < number - OVERTAKEN])
        return True

    def _give_up(self, indices: Iterable[int]) -> None:
        lost = sorted(indices, reverse=True)
        self._todo.extendleft(lost)
        for index in lost:
            del self._asked[index]


def block_count(total_bytes: int) -> int:
    """Blocks that a set of this size comes in."""
    return -(-total_bytes // PUBLIC_BLOCK_BYTES)


class _Partial:
    """A set as far as it has come: its bytes, and behind them one byte for each block, 1 where it is there.

    A power cut may leave a block marked that the disk does not hold; the hash of the whole finds it.
    """

    def __init__(self, path: Path, total_bytes: int) -> None:
        self.path = path
        self._total_bytes, self._count = total_bytes, block_count(total_bytes)

    def missing(self) -> tuple[int, ...]:
        """The blocks that are not there."""
        with guarded(self.path):
            size = self.path.stat().st_size if self.path.exists() else -1
            if size == self._total_bytes:  # the power went after `finish`
                return ()
            if size != self._total_bytes + self._count:
                return tuple(range(self._count))
            with self.path.open("rb") as file:
                file.seek(self._total_bytes)
                marks = file.read(self._count)
        return tuple(index for index, mark in enumerate(marks) if mark != 1)

    def make_room(self) -> None:
        """Make the file, unless it is there."""
        size = self._total_bytes + self._count
        with guarded(self.path):
            if not self.path.exists() or self.path.stat().st_size not in (size, self._total_bytes):
                with self.path.open("wb") as file:
                    file.truncate(size)

    def write(self, index: int, data: bytes) -> None:
        """Put a block where it belongs; its mark goes last."""
        with guarded(self.path), self.path.open("r+b", buffering=0) as file:
            file.seek(index * PUBLIC_BLOCK_BYTES)
            file.write(data)
            file.seek(self._total_bytes + index)
            file.write(b"\x01")

    def finish(self) -> None:
        """Take the marks off, and wait until the disk has it all."""
        with guarded(self.path), self.path.open("r+b") as file:
            file.truncate(self._total_bytes)
            os.fsync(file.fileno())

    def drop(self) -> None:
        """Away with it."""
        with guarded(self.path):
            self.path.unlink(missing_ok=True)


class PublicFetch:
    """A device's public sets on disk, and the one that is under way.

    Whole sets are named by their hash, for all federations of this device; parts by federation and device, too, so
    that two processes may share the folder.  Raises StoreError where the disk will not have them.
    """

    def __init__(self, folder: Path, owner: str, faults: Counter[str], max_bytes: int = MAX_PUBLIC_BYTES) -> None:
        """owner: the one device in one federation that fetches; faults: where damage is counted."""
        self._folder, self._owner, self._max_bytes = folder, owner, max_bytes
        self._faults = faults
        self._wanted: PublicSetSpec | None = None
        self._total_bytes = 0
        self._partial: _Partial | None = None
        self._asking = Asking(())
        self._tries = 0

    @property
    def wanted(self) -> PublicSetSpec | None:
        """The set that is under way."""
        return self._wanted

    def find(self, wanted: PublicSetSpec) -> PublicSet | None:
        """The set, if it is here; one that is damaged is thrown away, and counted."""
        path = self._folder / f"{wanted.sha256.hex()}.set"
        if not path.exists():
            return None
        public = _read(path, wanted)
        if public is None:
            self._faults["checksum"] += 1
            log.warning("%s: damaged on the disk; it will be fetched again", path)
            with guarded(path):
                path.unlink(missing_ok=True)
        return public

    def refusal(self, total_bytes: int) -> Refused | None:
        """Why a set of this size will not be fetched; None: it will."""
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
        """Fetch this set, from where an earlier life left off; if it is under way, ask for what is on its way again."""
        if (wanted, total_bytes) == (self._wanted, self._total_bytes):
            self._asking.begin_again()
            return
        name = f"{wanted.sha256.hex()}.{self._owner}.part"
        partial = _Partial(self._folder / name, total_bytes)
        with guarded(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            for stale in self._folder.glob(f"*.{self._owner}.part"):
                if stale.name != name:
                    stale.unlink(missing_ok=True)
        missing = partial.missing()
        self._check_space(len(missing) * PUBLIC_BLOCK_BYTES)
        partial.make_room()
        self._wanted, self._total_bytes, self._partial, self._tries = wanted, total_bytes, partial, 0
        self._asking = Asking(missing)

    def stop(self) -> None:
        """Fetch nothing any more; what has come stays."""
        self._wanted, self._partial, self._total_bytes = None, None, 0

    def next_due_s(self) -> float | None:
        """When there is next something to ask or to finish."""
        return 0.0 if self.arrived else None if self._wanted is None else self._asking.next_due_s()

    def ask(self, now_s: float) -> tuple[int, ...]:
        """The blocks to ask for now, perhaps none."""
        return self._asking.ask(now_s)

    @property
    def arrived(self) -> bool:
        """Whether every block is here."""
        return self._wanted is not None and self._asking.complete

    def take(self, block: PublicBlock, now_s: float) -> None:
        """Keep a block.  Raises RemoteProtocolError for one that is not part of the set under way."""
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
        if self._asking.arrived(block.index, now_s):
            self._partial.write(block.index, block.data)

    def finish(self) -> PublicSet:
        """The set, now that every block is here.

        Raises RemoteProtocolError, and begins again, where it is not what was announced; the second time Refused.
        """
        wanted, partial = self._wanted, self._partial
        if wanted is None or partial is None:
            raise StoreError(f"{self._folder}: no public set is under way")
        partial.finish()
        public = _read(partial.path, wanted)
        if public is not None:
            with guarded(partial.path):
                partial.path.replace(self._folder / f"{wanted.sha256.hex()}.set")
                _sync_folder(self._folder)
            self.stop()
            return public
        partial.drop()
        self._tries += 1
        found = f"the public set that came is not {wanted.sha256.hex()}"
        if self._tries < TRIES:
            partial.make_room()
            self._asking = Asking(partial.missing())
            raise RemoteProtocolError("checksum", f"{found}: it is fetched once more")
        self._faults["checksum"] += 1
        self.stop()
        raise Refused(
            "public-set",
            f"{found}, {TRIES} times over",
            "check this device's disk and the coordinator's file, or copy the set here and name it with --public",
        )

    def _check_space(self, needed: int) -> None:
        with guarded(self._folder):
            free = shutil.disk_usage(self._folder).free
        if free < needed + SPARE_BYTES:
            raise StoreError(
                f"{self._folder}: {_mib(free)} are free, the public set needs {_mib(needed)} and {_mib(SPARE_BYTES)} "
                "beside it; free some space, or give another folder"
            )


def _read(path: Path, wanted: PublicSetSpec) -> PublicSet | None:
    """The set in a file; None where it is not the one wanted."""
    with guarded(path):
        try:
            public = PublicSet.read(path)
        except ValueError:
            return None
    return public if public.spec == wanted else None


def _sync_folder(folder: Path) -> None:
    """Make a rename durable, where the system can."""
    with suppress(OSError):  # Windows does not open folders
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
