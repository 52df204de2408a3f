"""Serves files, such as the public set, block by block from the disk to devices that have joined and ask for them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from edge_sdk.durable import as_store_error
from edge_sdk.errors import RemoteProtocolError
from edge_sdk.protocol.messages import PUBLIC_BLOCK_BYTES, PublicBlock, PublicRequest
from edge_sdk.protocol.model_offers import MAX_BLOCKS_ASKED
from edge_sdk.public_set.samples import PublicSet

REFILL_PER_S = 8.0
"""Blocks per second that a device may request without limit: half a MiB."""
SETS_AT_ONCE = 3
"""Whole sets that a device may request beyond that limit, to replace lost blocks or a damaged set."""


class BlockServer:
    """Serves the blocks of one file; memory holds only the block being sent."""

    def __init__(self, file: BinaryIO, sha256: bytes, total_bytes: int, *, folder: Path | None, what: str) -> None:
        """file: open to read; closed with this object.  folder: where it lies, and what: its name, for errors."""
        self._file, self._folder, self._what = file, folder, what
        self.sha256, self.total_bytes = sha256, total_bytes
        self.count = -(-total_bytes // PUBLIC_BLOCK_BYTES)
        self._burst = float(SETS_AT_ONCE * self.count + MAX_BLOCKS_ASKED)
        self._allowances: dict[str, tuple[float, float]] = {}
        """By joined device: (blocks that it could request, at this time in s)."""

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def blocks(self, request: PublicRequest, now_s: float) -> Iterator[PublicBlock]:
        """The blocks that a request asks for.

        Raises RemoteProtocolError if they do not exist or are asked for too often, StoreError if the disk fails.
        """
        if request.sha256 != self.sha256:
            raise RemoteProtocolError("knowledge", f"asks for the {self._what} {request.sha256.hex()}, not this one")
        wild = [index for index in request.blocks if index >= self.count]
        if wild:
            raise RemoteProtocolError("knowledge", f"asks for block {wild[0]} of {self.count} of the {self._what}")
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
            raise RemoteProtocolError("limit", f"{device} asks for the {self._what} too often")
        self._allowances[device] = (left - blocks, now_s)


class PublicSetServer(BlockServer):
    """A public set in a temporary file, deleted with the process.

    The file holds exactly the bytes whose SHA-256 identifies the set.  Raises StoreError if the disk is full.
    """

    def __init__(self, public: PublicSet, folder: Path | None = None) -> None:
        with as_store_error(folder):
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
            file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  # stays open as long as this object
            try:
                total_bytes = public.write(file)
                file.flush()
            except BaseException:
                file.close()
                raise
        super().__init__(file, public.spec.sha256, total_bytes, folder=folder, what="public set")
