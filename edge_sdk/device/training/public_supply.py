"""Fetches the public set that a device's federation needs, unless the device's owner gave one."""

from __future__ import annotations

from collections import Counter

from edge_sdk.device.context import DISK_AGAIN_S, DeviceContext
from edge_sdk.device.link.uplink import Uplink
from edge_sdk.device.session import SessionPhase
from edge_sdk.errors import Refused, StoreError, UsageError
from edge_sdk.protocol.messages import PublicBlock, PublicSetSpec
from edge_sdk.public_set.fetch import PublicFetch


class PublicSupply:
    """Loads public sets into the workbench, from disk or block by block from the coordinator.

    If the disk fails, it tries again later with the blocks that are on the disk.
    """

    def __init__(self, context: DeviceContext, uplink: Uplink, refused: Counter[str]) -> None:
        """refused: counts the blocks that are refused, by word."""
        self._context, self._uplink = context, uplink
        self._fetch: PublicFetch | None = None
        if context.fetches is not None:
            name = f"{context.federation}.{context.device}"
            self._fetch = PublicFetch(context.fetches.folder, name, refused, context.fetches.max_bytes)
        self._wanted: PublicSetSpec | None = None
        self._total_bytes = 0
        self._again_s: float | None = None
        """When to try again after a disk fault."""

    @property
    def missing(self) -> PublicSetSpec | None:
        """The public set that must be fetched before anything can be computed, if any."""
        if self._fetch is None or self._wanted is None:
            return None
        public = self._context.bench.public
        return None if public and public.spec == self._wanted else self._wanted

    def require(self, wanted: PublicSetSpec | None) -> None:
        """Set which public set is needed from now on; it is loaded at once if it is on the disk."""
        self._wanted = wanted
        missing = self.missing
        found = self._fetch.find(missing) if self._fetch and missing else None
        if found is not None:
            self._context.bench.give(found)

    def check_size(self, total_bytes: int) -> Refused | None:
        """Note the size of the coordinator's public set; returns why it cannot be fetched, if it is needed."""
        self._total_bytes = total_bytes
        return self._fetch.refusal(total_bytes) if self._fetch and self.missing else None

    def begin(self) -> None:
        """Begin to fetch the missing set, continue after a restart, or request its blocks again."""
        self._again_s, missing = None, self.missing
        if self._fetch is None or missing is None:
            return
        try:
            if self._fetch.wanted != missing:
                size = f"{missing.count} samples, {self._total_bytes} bytes"
                self._context.owner.news(f"fetching the public set: {size}")
            self._fetch.begin(missing, self._total_bytes)
        except StoreError as error:
            self._try_later(error)

    def stop(self) -> None:
        """Stop fetching; the blocks that have arrived stay on the disk."""
        self._again_s = None
        if self._fetch is not None:
            self._fetch.stop()

    def next_due_s(self) -> float | None:
        """Return the time in seconds at which `advance` next has something to do, or None if nothing is due."""
        session = self._context.session
        if self._fetch is None or not (session.phase is SessionPhase.FETCHING and session.linked):
            return None
        return self._fetch.next_due_s() if self._again_s is None else self._again_s

    def receive(self, block: PublicBlock, now_s: float) -> None:
        """Store a block.  Raises RemoteProtocolError for a block that is not part of the set being fetched."""
        if self._fetch is None:
            return
        try:
            self._fetch.receive(block, now_s)
        except StoreError as error:
            self._try_later(error)

    def advance(self, now_s: float) -> bool:
        """Request missing blocks, or load the complete set into the bench; returns whether the set was loaded.

        Raises RemoteProtocolError if the set arrived damaged and is fetched again, Refused if it cannot be used.
        """
        if self._again_s is not None:
            self.begin()
            return False
        try:
            return self._advance(now_s)
        except StoreError as error:
            self._try_later(error)
            return False

    def _advance(self, now_s: float) -> bool:
        missing = self.missing
        if self._fetch is None or missing is None:
            return False
        if not self._fetch.complete:
            blocks = self._fetch.next_requests(now_s)
            if blocks:
                self._uplink.request_blocks(missing.sha256, blocks)
            return False
        try:
            self._context.bench.give(self._fetch.finish())
        except UsageError as error:
            raise Refused("public-set", str(error), "join with a model that accepts these samples") from error
        return True

    def _try_later(self, error: StoreError) -> None:
        self.stop()
        self._again_s = self._context.now_s + DISK_AGAIN_S
        self._context.note_disk_fault(error)
