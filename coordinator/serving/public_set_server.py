"""The public set as the coordinator serves it: block by block from the disk, to whoever has joined and asks."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from edge_sdk.durable import as_store_error
from edge_sdk.errors import RemoteProtocolError
from edge_sdk.protocol.messages import MAX_BLOCKS_ASKED, PUBLIC_BLOCK_BYTES, PublicBlock, PublicRequest
from edge_sdk.public_set.samples import PublicSet

REFILL_PER_S = 8.0
"""Blocks that a device may ask for each second, for ever: half a MiB."""
SETS_AT_ONCE = 3
"""Whole sets that it may ask for on top, as fast as it likes: what a bad link loses, and one that came damaged."""


class PublicSetServer:
    """One public set in a file without a name, which is gone when we are; in memory is only the block being sent.

    The file holds the very bytes that the set's name is the hash of.  Raises StoreError where there is no room for it.
    """

    def __init__(self, public: PublicSet, folder: Path | None = None) -> None:
        self._folder = folder
        with as_store_error(folder):
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  # stays open as long as the public_server
            try:
                self.total_bytes = public.write(self._file)
                self._file.flush()
            except BaseException:
                self._file.close()
                raise
        self.sha256 = public.spec.sha256
        self.count = -(-self.total_bytes // PUBLIC_BLOCK_BYTES)
        self._burst = float(SETS_AT_ONCE * self.count + MAX_BLOCKS_ASKED)
        self._allowances: dict[str, tuple[float, float]] = {}
        """By device: the blocks that it might ask for, and when that was.  Only who has joined gets here."""

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def blocks(self, request: PublicRequest, now_s: float) -> Iterator[PublicBlock]:
        """The answer to a request.

        Raises RemoteProtocolError for what is not here or asked for too often, StoreError where the disk fails.
        """
        if request.sha256 != self.sha256:
            raise RemoteProtocolError("knowledge", f"asks for the public set {request.sha256.hex()}, not this one")
        wild = [index for index in request.blocks if index >= self.count]
        if wild:
            raise RemoteProtocolError("knowledge", f"asks for public block {wild[0]} of {self.count}")
        wanted = sorted(set(request.blocks))
        self._charge(request.device, len(wanted), now_s)
        for index in wanted:
            yield PublicBlock(
                federation=request.federation,
                device=request.device,
                sha256=self.sha256,
                index=index,
                count=self.count,
                total_bytes=self.total_bytes,
                data=self._read(index),
            )

    def _read(self, index: int) -> bytes:
        with as_store_error(self._folder):
            self._file.seek(index * PUBLIC_BLOCK_BYTES)
            return self._file.read(PUBLIC_BLOCK_BYTES)

    def _charge(self, device: str, blocks: int, now_s: float) -> None:
        left, then_s = self._allowances.get(device, (self._burst, now_s))
        left = min(self._burst, left + REFILL_PER_S * max(0.0, now_s - then_s))
        if blocks > left:
            self._allowances[device] = (left, now_s)
            raise RemoteProtocolError("limit", f"{device} asks for the public set over and over")
        self._allowances[device] = (left - blocks, now_s)
