"""How a device comes by the public set that its federation names, where its owner gave none."""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock

from edge_sdk.device.uplink import Uplink
from edge_sdk.device.workbench import Workbench
from edge_sdk.errors import Refused, UsageError
from edge_sdk.protocol.messages import PublicBlock, PublicSetSpec
from edge_sdk.public_set.fetch import PublicFetch


class PublicSupply:
    """Brings public sets to the bench: from the disk or, block by block, from the coordinator."""

    def __init__(self, bench: Workbench, fetch: PublicFetch | None, uplink: Uplink, lock: RLock) -> None:
        """fetch: None where the owner gave a set, or no folder for one; lock: held while the bench takes a set up."""
        self._bench, self._fetch, self._uplink, self._lock = bench, fetch, uplink, lock
        self._wanted: PublicSetSpec | None = None
        self._total_bytes = 0

    @property
    def fetches(self) -> bool:
        """Whether this device gets its public sets here."""
        return self._fetch is not None

    @property
    def missing(self) -> PublicSetSpec | None:
        """The public set that must be fetched before anything is computed; None: none."""
        if self._fetch is None or self._wanted is None:
            return None
        held = self._bench.public.spec if self._bench.public else None
        return None if held == self._wanted else self._wanted

    def want(self, wanted: PublicSetSpec | None) -> None:
        """From now on this set is needed, or none; it is taken up at once if it is on the disk."""
        self._wanted = wanted
        missing = self.missing
        found = self._fetch.find(missing) if self._fetch and missing else None
        if found is not None:
            self._bench.give(found)

    def offered(self, total_bytes: int) -> Refused | None:
        """The coordinator serves the set in so many bytes; returns why it cannot be fetched so, if it must be."""
        self._total_bytes = total_bytes
        return self._fetch.refusal(total_bytes) if self._fetch and self.missing else None

    def begin(self, news: Callable[[str], None]) -> None:
        """Fetch what is missing, from where an earlier life left off; if it is under way, ask anew for its blocks."""
        missing = self.missing
        if self._fetch is None or missing is None:
            return
        if self._fetch.wanted != missing:
            news(f"fetching the public set: {missing.count} samples, {self._total_bytes} bytes")
        self._fetch.begin(missing, self._total_bytes)

    def stop(self) -> None:
        """Fetch nothing any more; what has come stays on the disk."""
        if self._fetch is not None:
            self._fetch.stop()

    def next_due_s(self) -> float | None:
        """When `go_on` can next matter."""
        return self._fetch.next_due_s() if self._fetch is not None else None

    def take(self, block: PublicBlock, now_s: float) -> None:
        """Keep a block.  Raises RemoteProtocolError for one that is not part of the set under way."""
        if self._fetch is not None:
            self._fetch.take(block, now_s)

    def go_on(self, now_s: float) -> bool:
        """Ask for what is missing, or once nothing is, bring the set to the bench; whether it did.

        Raises RemoteProtocolError where the set came damaged and is fetched once more, Refused where it is of no use.
        """
        missing = self.missing
        if self._fetch is None or missing is None:
            return False
        if not self._fetch.arrived:
            blocks = self._fetch.ask(now_s)
            if blocks:
                self._uplink.ask_for_blocks(missing.sha256, blocks)
            return False
        try:
            public = self._fetch.finish()
            with self._lock:
                self._bench.give(public)
        except UsageError as error:
            raise Refused("public-set", str(error), "join with a model that takes them") from error
        return True
