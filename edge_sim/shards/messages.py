"""The messages between the coordinator's process and the shards, and the memory in which long frames cross.

Two processes map the memory, so that a frame costs one copy on each side.  It is anonymous and outside /dev/shm.
Without it, or when it is full, frames cross through the pipe.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from edge_sdk.errors import RunFailed
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.transport.memory.hub import Faults, Publication
from edge_sim.config.scenario import ScenarioTable
from edge_sim.config.settings import RunTable
from edge_sim.fleet.fleet import Device


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSetup:
    """The setup that a shard receives once."""

    devices: tuple[Device, ...]
    """The shard's devices, with their samples."""
    spec: FederationSpec
    scenario: ScenarioTable
    faults: Faults | None
    faults_seed: int
    run: RunTable
    """How it computes; `memory_bytes` is this shard's part."""
    most_awake: int | None
    """How many of its devices keep their agents, or None where none may sleep."""
    modules: tuple[str, ...]
    """The module search path of the simulation: a script's folder may contain factories of models."""
    functions: Mapping[str, bytes]
    """The functions that were given for models, as `sent_functions` makes them."""

    @property
    def named(self) -> str:
        """The devices, in words for an error."""
        first, more = self.devices[0].kit.id, len(self.devices) - 1
        return f"{first} and {more} more devices" if more else first


class ShardLost(RunFailed):
    """The process of a shard has ended; its devices' stores are lost."""


class Sent(NamedTuple):
    """A frame on its way between processes."""

    number: int
    """The device that sends or receives it, or EVERYBODY for all devices."""
    given: Publication


EVERYBODY = -1


class ShardProgress(NamedTuple):
    """The progress of a shard."""

    sent: list[Sent]
    """The frames that its devices have published."""
    now_s: float
    """Time of the last event of any of its devices."""
    next_s: float
    """Time of its devices' next event."""
    over: bool
    """Whether all of its devices are over or excused."""


class ProgressMessage(NamedTuple):
    """A ShardProgress for the pipe, without the frames in shared memory."""

    progress: ShardProgress
    placed: dict[int, Placed]
    """The places of these frames in memory, by their index among the sent frames."""


LEAST_BYTES = 16 * 1024
"""Shorter frames cross through the pipe."""
MOST_BYTES = 2**27
"""Size of the memory; frames that do not fit cross through the pipe."""
NOWHERE = -1
"""The file descriptor without such memory."""


class Placed(NamedTuple):
    """Where a frame lies."""

    begin: int
    end: int


def shared_memory() -> int:
    """Return the file descriptor of new memory that a child process can map, or NOWHERE without such memory."""
    try:
        return os.memfd_create("frames", 0)
    except (AttributeError, OSError):  # not on Linux, or no memory
        return NOWHERE


class FrameWriter:
    """Places frames; before `begin`, the reader must have read all earlier ones."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._bytes, self._end = descriptor, 0, 0
        self._map: mmap.mmap | None = None

    def begin(self) -> None:
        """Place the next frame at the beginning."""
        self._end = 0

    def put(self, frame: bytes) -> Placed | None:
        """Place a frame, or return None if it is short or does not fit."""
        begin, end = self._end, self._end + len(frame)
        if self._descriptor == NOWHERE or len(frame) < LEAST_BYTES or not self._room(end) or self._map is None:
            return None
        self._map[begin:end] = frame
        self._end = end
        return Placed(begin, end)

    def _room(self, size: int) -> bool:
        if size <= self._bytes:
            return True
        if size > MOST_BYTES:
            return False
        more = min(MOST_BYTES, max(size, 2 * self._bytes, mmap.ALLOCATIONGRANULARITY))
        try:
            os.posix_fallocate(self._descriptor, 0, more)  # else a full memory would kill the process without an error
            self._map = mmap.mmap(self._descriptor, more)
        except (OSError, ValueError):
            return False
        self._bytes = more
        return True


class FrameReader:
    """Reads the frames placed by a FrameWriter of another process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._bytes = descriptor, 0
        self._map: mmap.mmap | None = None

    def take(self, placed: Placed) -> bytes:
        """Return a copy of a frame.  Raises OSError if the memory cannot be mapped."""
        if self._map is None or placed.end > self._bytes:
            self._bytes = os.fstat(self._descriptor).st_size
            self._map = mmap.mmap(self._descriptor, self._bytes, prot=mmap.PROT_READ)
        return self._map[placed.begin : placed.end]

    def close(self) -> None:
        """Give the memory back."""
        if self._map is not None:
            self._map.close()
            self._map = None
        if self._descriptor != NOWHERE:
            os.close(self._descriptor)
            self._descriptor = NOWHERE
