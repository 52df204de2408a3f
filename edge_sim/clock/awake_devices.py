"""The devices of a large fleet that have an agent: beyond a maximum, the one that woke first falls asleep.

A sleeping device keeps its store.  The store's start of the next round, with the model and its moments, stays in memory
up to a bound, and goes to a file beyond it.
"""

from __future__ import annotations

import gc
import tempfile
import weakref
from functools import partial
from itertools import islice
from typing import IO, NamedTuple, Protocol

from edge_sdk.device.store import MemoryStore, RoundStart, Store
from edge_sdk.device.training.workbench import Workbench
from edge_sdk.errors import StoreError
from edge_sim.engines.base import NONE, Untraced, untraced_of

MOST_AWAKE = 500
"""Number of devices that keep their agents, or a round's participants if these are more; an agent takes about a MiB."""
_FEW = 16
"""Up to this number, the agents that exist before the first device wakes are never collected."""
_TRIES = 4
"""Number of devices that may fall asleep when one wakes; some of them may be at work or switched off."""


class SleepyDevice(Protocol):
    """The interface of a device that may fall asleep."""

    @property
    def bench(self) -> Workbench:
        """The workbench of its agent."""

    @property
    def store(self) -> Store:
        """Its store."""

    def fall_asleep(self) -> bool:
        """Give up the agent if the device rests and may; returns whether it sleeps now."""


class AwakeDevices:
    """Devices with an agent, in the order in which they woke."""

    def __init__(self, most: int, memory_bytes: int | None = None) -> None:
        """most: the number that stays awake.  memory_bytes: for the others' models, or None without a limit."""
        self._most, self._starts = most, _Starts(memory_bytes)
        self._order: dict[SleepyDevice, None] = {}
        self._first = True
        """Whether no device has woken yet."""
        self._uncollected = 0
        """Agents dropped since memory was collected."""
        self.untraced: Untraced = NONE
        """The models that trained untraced on devices that sleep now."""

    def begin(self, device: SleepyDevice) -> None:
        """Note that a device begins awake, in a resumed run; it sleeps again once it rests."""
        self._order[device] = None

    def keep(self, device: SleepyDevice) -> None:
        """Keep the model of a device that begins asleep, in a resumed run."""
        self._starts.keep(device)

    def add(self, device: SleepyDevice) -> None:
        """Note that a device woke; others may fall asleep."""
        self._starts.release(device)
        if self._first:
            self._first = False
            if gc.get_freeze_count() and len(self._order) <= _FEW:
                gc.freeze()  # all have joined: collections skip the dormant devices, which are nearly all
        self._order.pop(device, None)
        self._order[device] = None
        for oldest in list(islice(self._order, min(_TRIES, max(0, len(self._order) - self._most)))):
            untraced = untraced_of([oldest.bench])
            del self._order[oldest]
            if oldest.fall_asleep():
                self.untraced |= untraced
                self._uncollected += 1
                self._starts.keep(oldest)
            else:
                self._order[oldest] = None  # it is at work: move it to the end
        if self._uncollected >= self._most:
            self._uncollected = 0
            gc.collect()  # the parts of an agent refer to each other, and the collector does not count models


class _Slot(NamedTuple):
    """A place in memory, or in the file."""

    size_bytes: int
    at: int | None
    """Its offset in the file, or None while it is in memory."""


class _Starts:
    """The starts of sleeping devices' next rounds."""

    def __init__(self, memory_bytes: int | None) -> None:
        self._free_bytes = memory_bytes
        """Bytes that memory still takes, or None without a limit."""
        self._slots: dict[SleepyDevice, _Slot] = {}
        self._file: IO[bytes] | None = None
        self._end = 0
        self._empty: dict[int, list[int]] = {}
        """Offsets in the file that are free again, by size."""

    def keep(self, device: SleepyDevice) -> None:
        """Keep the start in the store of a device.  Raises StoreError if the disk fails."""
        store = device.store
        start = store.round_start()
        if start is None or not isinstance(store, MemoryStore):
            return
        size_bytes = len(start.model) + len(start.method)
        if self._free_bytes is None or size_bytes <= self._free_bytes:
            self._slots[device] = _Slot(size_bytes, None)
            self._free_bytes = None if self._free_bytes is None else self._free_bytes - size_bytes
            return
        at = self._written(start.model + start.method)
        self._slots[device] = _Slot(size_bytes, at)
        store.lay_down(partial(self._read, at, len(start.model), size_bytes, start.round, start.data))

    def release(self, device: SleepyDevice) -> None:
        """Free the place of a device that has woken."""
        slot = self._slots.pop(device, None)
        if slot is None:
            return
        if slot.at is not None:
            if isinstance(device.store, MemoryStore):
                device.store.hold()  # it must not read from this place later
            self._empty.setdefault(slot.size_bytes, []).append(slot.at)
        elif self._free_bytes is not None:
            self._free_bytes += slot.size_bytes

    def _written(self, content: bytes) -> int:
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="edge-sdk-")  # noqa: SIM115  # lasts as long as this object
                weakref.finalize(self, self._file.close)
            empty = self._empty.get(len(content))
            at = empty.pop() if empty else self._end
            self._file.seek(at)
            self._file.write(content)
            self._file.flush()
        except OSError as error:
            raise StoreError(
                f"run.memory_bytes: {tempfile.gettempdir()} cannot take the models of sleeping devices: "
                f"{error.strerror or error}; free space there, name another folder in TMPDIR, or raise memory_bytes"
            ) from error
        self._end = max(self._end, at + len(content))
        return at

    def _read(self, at: int, model_bytes: int, size_bytes: int, round_: int, data: bytes) -> RoundStart:
        if self._file is None:
            raise StoreError("the file of sleeping devices is closed")
        self._file.seek(at)
        content = self._file.read(size_bytes)
        return RoundStart(round_, content[:model_bytes], content[model_bytes:], data)
