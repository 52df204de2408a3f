"""Fetches the public set from the coordinator, block by block, into a folder of this device.

Loss, repetition, reordering, a broken connection and a restart of either side only cost time (transfer.py).  The set
is used only if its SHA-256 matches the federation's spec.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import weakref
from collections import Counter
from contextlib import suppress
from pathlib import Path

from edge_sdk.at_rest.files import sync_folder
from edge_sdk.durable import as_store_error
from edge_sdk.errors import Refused, RemoteProtocolError, StoreError
from edge_sdk.protocol.messages import PublicBlock, PublicSetSpec
from edge_sdk.public_set.samples import PublicSet
from edge_sdk.public_set.transfer import FileTransfer

log = logging.getLogger(__name__)

MAX_TRIES = 2
"""How often a whole set may arrive damaged before the device gives up."""
MAX_PUBLIC_BYTES = 256 * 2**20
"""The largest public set that a device fetches by default, because it is held in memory as f4."""


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
        self._transfer: FileTransfer | None = None
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
        if self._transfer is not None and (wanted, total_bytes) == (self._wanted, self._transfer.total_bytes):
            self._transfer.requests.request_again()
            return
        name = f"{wanted.sha256.hex()}.{self._owner}.part"
        with as_store_error(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            for stale in self._folder.glob(f"*.{self._owner}.part"):
                if stale.name != name:
                    stale.unlink(missing_ok=True)
        self._transfer = FileTransfer(self._folder / name, wanted.sha256, total_bytes, "public set")
        self._wanted, self._tries = wanted, 0

    def stop(self) -> None:
        """Stop fetching; the blocks that have arrived stay on the disk."""
        self._wanted, self._transfer = None, None

    def next_due_s(self) -> float | None:
        """Return the time in seconds of the next request or completion, or None if nothing is due."""
        return 0.0 if self.complete else None if self._transfer is None else self._transfer.requests.next_due_s()

    def next_requests(self, now_s: float) -> tuple[int, ...]:
        """Return the indices of the blocks to request now; they count as requested."""
        return () if self._transfer is None else self._transfer.requests.next_requests(now_s)

    @property
    def complete(self) -> bool:
        """Whether all blocks have arrived, so that `finish` can be called."""
        return self._transfer is not None and self._transfer.requests.complete

    def receive(self, block: PublicBlock, now_s: float) -> None:
        """Store a block.  Raises RemoteProtocolError for a block that is not part of the set being fetched."""
        if self._transfer is not None:
            self._transfer.receive(block, now_s)

    def finish(self) -> PublicSet:
        """Check and return the set, after all blocks have arrived.

        Raises RemoteProtocolError, and begins again, if the set does not have the announced hash; the second time
        raises Refused.
        """
        wanted, transfer = self._wanted, self._transfer
        if wanted is None or transfer is None:
            raise StoreError(f"{self._folder}: no public set is being fetched")
        transfer.finish()
        public = _read(transfer.path, wanted)
        if public is not None:
            with as_store_error(transfer.path):
                transfer.path.replace(self._folder / f"{wanted.sha256.hex()}.set")
                with suppress(OSError):  # some network folders cannot be synced
                    sync_folder(self._folder)
            self.stop()
            return public
        self._tries += 1
        found = f"the public set that arrived is not {wanted.sha256.hex()}"
        if self._tries < MAX_TRIES:
            transfer.begin_again()
            raise RemoteProtocolError("checksum", f"{found}: it is fetched again")
        transfer.delete()
        self._faults["checksum"] += 1
        self.stop()
        raise Refused(
            "public-set",
            f"{found}, {MAX_TRIES} times",
            "check this device's disk and the coordinator's file, or copy the set here and name it with --public",
        )


def _read(path: Path, wanted: PublicSetSpec) -> PublicSet | None:
    """Return the set in a file, or None if it is not the one wanted."""
    with as_store_error(path):
        try:
            public = PublicSet.read(path)
        except ValueError:
            return None
    return public if public.spec == wanted else None


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
