"""The engine of worker processes, what lies between them: each computes for its share of the devices.

A worker holds the samples and nets of its devices for the whole run.  Requests and answers go through a pipe; weights
and moments lie in memory that both sides map, and are never sent.  A worker that ends is replaced, and what it was
asked is answered with LOST.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from queue import SimpleQueue
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edge_sdk.methods.requests import Request
from edge_sdk.objectives import Optim
from edge_sdk.protocol.messages import FederationSpec
from edge_sim.fleet import Device
from edge_sim.memory import as_bytes
from edge_sim.meter_totals import Spent

NO_STEPS = np.zeros(0, np.int64)
"""Of a model that has no optimiser."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """All that a worker must know before the first request."""

    devices: tuple[Device, ...]
    rows: Mapping[int, tuple[int, int]]
    """Of the slab, by device number: where each device's row begins and ends."""
    spec: FederationSpec
    moments: int
    """Kinds that a row has room for."""
    stacked: frozenset[str]
    """Names of models."""
    modules: tuple[str, ...]
    """Where Python finds them: factories of models may lie beside a script."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One request of one device."""

    number: int
    request: Request
    round: int
    exchange: int
    optim: Optim | None
    """Whose moments, after so many steps of each parameter, are in the row."""
    steps: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """The answer to it."""

    answer: Any
    spent: Spent
    optim: Optim | None
    steps: NDArray[np.int64]


Read: TypeAlias = "tuple[Worker, list[Delivery] | Exception | None]"
"""What came from a worker: the answers to the oldest order without some, why it could not begin, None: it ended."""


class Worker:
    """One process, the pipe to it, and a thread that reads from it: so neither side waits for the other to listen."""

    def __init__(self, descriptor: int, setup: Setup, into: SimpleQueue[Read]) -> None:
        """descriptor: of the slab.  into: where what it sends is put."""
        self._pipe, theirs = Pipe()
        command = [sys.executable, "-m", "edge_sim.torch_worker", str(theirs.fileno()), str(descriptor)]
        self._process = subprocess.Popen(  # noqa: S603  # our own module
            command, pass_fds=(theirs.fileno(), descriptor), stdin=subprocess.DEVNULL
        )
        theirs.close()
        self._setup: Setup | None = setup
        """Until it is told."""
        self._into = into
        self._reader = threading.Thread(target=self._read, name=f"worker-{self.pid}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def order(self, orders: Sequence[Order]) -> None:
        """Send requests.  To one that has ended they are lost, which is read, too."""
        with contextlib.suppress(OSError):
            if self._setup is not None:
                self._pipe.send(self._setup)
                self._setup = None
            self._pipe.send(orders)

    def close(self) -> int:
        """End the process, which has nothing to keep; the most bytes that it had resident."""
        os.kill(self._process.pid, signal.SIGTERM)
        _, status, usage = os.wait4(self._process.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        self._reader.join()
        self._pipe.close()
        return as_bytes(usage.ru_maxrss)

    def _read(self) -> None:
        found: list[Delivery] | Exception | None = None
        try:
            while True:
                found = self._pipe.recv()
                self._into.put((self, found))
        except (EOFError, OSError):
            self._into.put((self, None))


def connection(descriptor: int) -> Connection[Any, Any]:
    """The worker's end of the pipe."""
    return Connection(descriptor)


def divided(costs: dict[int, float], count: int) -> dict[int, int]:
    """Owner by device number: the dearest first, each to whoever has least so far."""
    load = [0.0] * count
    owners: dict[int, int] = {}
    for number, cost in sorted(costs.items(), key=lambda each: -each[1]):
        owners[number] = owner = load.index(min(load))
        load[owner] += cost
    return owners
