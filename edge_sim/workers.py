"""The engine of worker processes: each computes for its share of the devices, on weights that all processes map.

A worker holds the samples and nets of its devices for the whole run.  Requests and answers go through a pipe; weights
and moments lie in memory that both sides map, and are never sent.  A worker that ends is replaced, and what it was
asked is answered with LOST.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_sdk.errors import RunFailed
from edge_sdk.methods.base import ClassMeans, Evaluate, Features, Fit, HyperMeans, Logits, MeanLoss, Request
from edge_sdk.objectives import Optim
from edge_sdk.protocol.messages import FederationSpec
from edge_sim.fleet import Device
from edge_sim.memory import as_bytes
from edge_sim.meter_totals import Spent

NO_STEPS = np.zeros(0, np.int64)
"""Of a model that has no optimiser."""
COMPUTED: tuple[type, ...] = (Fit, Logits, Features, ClassMeans, HyperMeans, MeanLoss, Evaluate)
"""Requests that are worth a worker's time; the others only move numbers."""


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


class Gone(Exception):  # never leaves this package
    """The worker has ended."""


class Worker:
    """One process and the pipe to it."""

    def __init__(self, descriptor: int, setup: Setup) -> None:
        """descriptor: of the slab."""
        self._pipe, theirs = Pipe()
        command = [sys.executable, "-m", "edge_sim.torch_worker", str(theirs.fileno()), str(descriptor)]
        self._process = subprocess.Popen(  # noqa: S603  # our own module
            command, pass_fds=(theirs.fileno(), descriptor), stdin=subprocess.DEVNULL
        )
        theirs.close()
        self._setup = setup
        self._told = False

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def order(self, orders: Sequence[Order]) -> None:
        """Send requests.  Raises Gone."""
        try:
            if not self._told:
                self._pipe.send(self._setup)
                self._told = True
            self._pipe.send(orders)
        except OSError as error:
            raise Gone from error

    def deliveries(self) -> list[Delivery]:
        """Wait for the answers to the last order.  Raises Gone, or RunFailed where the worker says why it ended."""
        try:
            found = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise Gone from error
        if isinstance(found, Exception):
            raise RunFailed(f"a worker process could not begin: {found}") from found
        deliveries: list[Delivery] = found
        return deliveries

    def close(self) -> int:
        """End the process, which ends by itself when its pipe does; the most bytes that it had resident."""
        self._pipe.close()
        if self._process.returncode is not None:
            return 0
        _, status, usage = os.wait4(self._process.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        return as_bytes(usage.ru_maxrss)


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
