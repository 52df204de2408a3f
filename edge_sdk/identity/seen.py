"""The highest start of a coordinator that a device has seen: frames of earlier starts are replayed, or out of date."""

from __future__ import annotations

from pathlib import Path

from edge_sdk.errors import RemoteProtocolError
from edge_sdk.identity import key_files


class SeenStarts:
    """The starts of one coordinator in one federation, in a file, so that a power cut forgets none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.newest = key_files.read_counter(path)
        """The highest start so far; 0: none was seen."""

    def check(self, start: int) -> None:
        """Take note of a start before anything of it is used; it is durable on return.

        Raises RemoteProtocolError if a later one was seen, StoreError if the disk fails.
        """
        if start < self.newest:
            raise RemoteProtocolError(
                "replayed",
                f"of the coordinator's start {start}, and start {self.newest} was seen: it is replayed, or the "
                "coordinator's keys came back from a backup (there: edge-sdk lab restored DIR)",
            )
        if start > self.newest:
            key_files.write_whole(self._path, key_files.counter_text(start), key_files.PRIVATE)
            self.newest = start
