"""Fetches the public set that a device's federation needs, unless the device's owner gave one."""

from __future__ import annotations

from collections.abc import Callable

from edge_sdk.device.link.uplink import Uplink
from edge_sdk.device.training.workbench import Workbench
from edge_sdk.errors import Refused, UsageError
from edge_sdk.protocol.messages import PublicBlock, PublicSetSpec
from edge_sdk.public_set.fetch import PublicFetch


class PublicSupply:
    """Loads public sets into the workbench, from disk or block by block from the coordinator."""

    def __init__(self, bench: Workbench, fetch: PublicFetch | None, uplink: Uplink) -> None:
        """fetch: None if the owner gave a set, or does not let the device fetch one."""
        self._bench, self._fetch, self._uplink = bench, fetch, uplink
        self._wanted: PublicSetSpec | None = None
        self._total_bytes = 0

    @property
    def fetches(self) -> bool:
        """Whether this device fetches its public sets."""
        return self._fetch is not None

    @property
    def missing(self) -> PublicSetSpec | None:
        """The public set that must be fetched before anything can be computed, if any."""
        if self._fetch is None or self._wanted is None:
            return None
        held = self._bench.public.spec if self._bench.public else None
        return None if held == self._wanted else self._wanted

    def require(self, wanted: PublicSetSpec | None) -> None:
        """Set which public set is needed from now on; it is loaded at once if it is on the disk."""
        self._wanted = wanted
        missing = self.missing
        found = self._fetch.find(missing) if self._fetch and missing else None
        if found is not None:
            self._bench.give(found)

    def check_size(self, total_bytes: int) -> Refused | None:
        """Note the size of the coordinator's public set; returns why it cannot be fetched, if it is needed."""
        self._total_bytes = total_bytes
        return self._fetch.refusal(total_bytes) if self._fetch and self.missing else None

    def begin(self, notify: Callable[[str], None]) -> None:
        """Begin to fetch the missing set, continue after a restart, or request its blocks again.

        notify: receives a line for the device's owner.
        """
        missing = self.missing
        if self._fetch is None or missing is None:
            return
        if self._fetch.wanted != missing:
            notify(f"fetching the public set: {missing.count} samples, {self._total_bytes} bytes")
        self._fetch.begin(missing, self._total_bytes)

    def stop(self) -> None:
        """Stop fetching; the blocks that have arrived stay on the disk."""
        if self._fetch is not None:
            self._fetch.stop()

    def next_due_s(self) -> float | None:
        """Return the time in seconds at which `advance` next has something to do, or None if nothing is due."""
        return self._fetch.next_due_s() if self._fetch is not None else None

    def receive(self, block: PublicBlock, now_s: float) -> None:
        """Store a block.  Raises RemoteProtocolError for a block that is not part of the set being fetched."""
        if self._fetch is not None:
            self._fetch.receive(block, now_s)

    def advance(self, now_s: float) -> bool:
        """Request missing blocks, or load the complete set into the bench; returns whether the set was loaded.

        Raises RemoteProtocolError if the set arrived damaged and is fetched again, Refused if it cannot be used.
        """
        missing = self.missing
        if self._fetch is None or missing is None:
            return False
        if not self._fetch.complete:
            blocks = self._fetch.next_requests(now_s)
            if blocks:
                self._uplink.request_blocks(missing.sha256, blocks)
            return False
        try:
            self._bench.give(self._fetch.finish())
        except UsageError as error:
            raise Refused("public-set", str(error), "join with a model that accepts these samples") from error
        return True
