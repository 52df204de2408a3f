"""The remote engine: it divides the devices among workers for the whole run, and sends their requests there.

The workers belong to a pool: processes of this machine (torch_process_pool.py) or actors on Ray (ray_actor_pool.py).
The simulation keeps a model of each device, too, which the device's agent reads and writes.  The pool keeps it equal to
the worker's model, so a worker that ends loses nothing but the requests that it was computing: they are answered with
LOST, and a new worker takes its place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from edge_sdk.device.workbench import Workbench
from edge_sim.engines import meter_totals
from edge_sim.engines.base import LOST, DeviceAnswer, DeviceRequest, serve_alone
from edge_sim.engines.remote.messages import RemoteAnswer, RemoteRequest
from edge_sim.engines.untraced import NONE

_BATCHES_AHEAD = 2
"""Batches that a worker has at once: the second one is there when it has computed the first."""


class WorkerPool(Protocol):
    """Some workers, numbered from 0, and the transport to them."""

    count: int
    peak_bytes: int
    """Largest resident memory of workers that have ended, in bytes."""

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the workers."""

    def attach(self, number: int, bench: Workbench) -> bool:
        """Register a device that is switched on, perhaps again; return whether a worker can compute its requests."""

    def divide(self, owners: Mapping[int, int]) -> None:
        """Take note of the worker of each device, by device number, before the workers are started."""

    def start(self, worker: int) -> None:
        """Start a worker, or replace it by a new one."""

    def takes(self, asked: DeviceRequest) -> bool:
        """Whether a worker can compute this request."""

    def outgoing(self, asked: DeviceRequest) -> Any:
        """Return what brings the worker's model to the state of the device's model."""

    def incoming(self, asked: DeviceRequest, model: Any) -> None:
        """Bring the device's model to the state that an answer carries."""

    def send(self, worker: int, requests: Sequence[RemoteRequest]) -> None:
        """Send one batch; what is sent to a worker that has ended is lost."""

    def receive(self) -> tuple[int, list[RemoteAnswer] | None]:
        """Wait for a worker's answers to its oldest batch; None: it has ended.  Raises RunFailed, which says why."""

    def close(self) -> None:
        """End all workers."""


@dataclass(slots=True, eq=False)
class _Share:
    """The requests of one worker's devices."""

    worker: int
    waiting: list[DeviceRequest] = field(default_factory=list)
    sent: deque[list[DeviceRequest]] = field(default_factory=deque)
    """Batches without an answer, the oldest first."""


class RemoteEngine:
    """Computes in the workers of a pool; what they cannot compute, it computes in this process."""

    def __init__(self, pool: WorkerPool, stacked: frozenset[str] = frozenset()) -> None:
        """stacked: names of the models that the workers stack."""
        self._pool, self._stacked = pool, stacked
        self._costs: dict[int, float] = {}
        self._shares: list[_Share] = []
        self._share_of: dict[int, _Share] = {}
        self._here: list[DeviceRequest] = []
        """Requests for this process."""
        self.untraced = NONE
        """Implements Engine."""

    @property
    def peak_bytes(self) -> int:
        """Implement Engine."""
        return self._pool.peak_bytes

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the workers."""
        return self._pool.pids

    def attach(self, number: int, bench: Workbench) -> None:
        """Implement Engine; workers have one model of a device, so devices with a proxy compute in this process."""
        if bench.proxy is None and self._pool.attach(number, bench):
            # about proportional to what a round costs
            self._costs[number] = max(bench.model.spec.flops_per_sample, 1) * len(bench.data.train)

    def ready(self) -> None:
        """Implement Engine: divide the devices, and start the workers."""
        owners = divided(self._costs, self._pool.count)
        self._pool.divide(owners)
        self._shares = [_Share(worker) for worker in range(self._pool.count)]
        self._share_of = {number: self._shares[worker] for number, worker in owners.items()}
        for share in self._shares:
            self._pool.start(share.worker)

    def begin(self, asked: DeviceRequest) -> None:
        """Implement Engine."""
        share = self._share_of.get(asked.job.number)
        if share is None or not asked.request.computes or not self._pool.takes(asked):
            self._here.append(asked)
            return
        share.waiting.append(asked)
        if asked.bench.model.spec.name not in self._stacked:  # a stack waits for the requests of other devices
            self._send(share)

    def collect(self) -> list[tuple[DeviceRequest, DeviceAnswer]]:
        """Implement Engine."""
        for share in self._shares:
            self._send(share)
        here, self._here = self._here, []
        if here:
            return [(each, serve_alone(each)) for each in here]  # meanwhile the workers compute
        while any(share.sent for share in self._shares):
            worker, answers = self._pool.receive()
            share = self._shares[worker]
            found = self._lost(share) if answers is None else self._answered(share, answers)
            self._send(share)
            if found:
                return found
        return []

    def close(self) -> None:
        """Implement Engine."""
        self._pool.close()
        self._shares, self._share_of = [], {}

    def _send(self, share: _Share) -> None:
        """Send what waits to a worker that would soon be idle: the busier it is, the larger its next batch."""
        if share.waiting and len(share.sent) < _BATCHES_AHEAD:
            self._pool.send(share.worker, [self._outgoing(each) for each in share.waiting])
            share.sent.append(share.waiting)
            share.waiting = []

    def _outgoing(self, asked: DeviceRequest) -> RemoteRequest:
        job = asked.job
        return RemoteRequest(
            number=job.number,
            request=asked.request,
            round=job.round,
            exchange=job.exchange,
            model=self._pool.outgoing(asked),
        )

    def _answered(self, share: _Share, answers: Sequence[RemoteAnswer]) -> list[tuple[DeviceRequest, DeviceAnswer]]:
        """Take over what the oldest batch of a worker has come to."""
        asked = share.sent.popleft()
        for each, found in zip(asked, answers, strict=True):
            self._pool.incoming(each, found.model)
            self.untraced |= found.untraced
            meter_totals.add(each.bench.meter, found.spent)
        return [(each, found.answer) for each, found in zip(asked, answers, strict=True)]

    def _lost(self, share: _Share) -> list[tuple[DeviceRequest, DeviceAnswer]]:
        """Replace a worker that has ended with all that it was sent."""
        asked = [each for batch in share.sent for each in batch]
        share.sent.clear()
        self._pool.start(share.worker)
        return [(each, LOST) for each in asked]


def divided(costs: Mapping[int, float], count: int) -> dict[int, int]:
    """Return the worker of each device: the most costly device first, each to the worker with the least cost so far."""
    load = [0.0] * count
    owners: dict[int, int] = {}
    for number, cost in sorted(costs.items(), key=lambda each: -each[1]):
        owners[number] = owner = load.index(min(load))
        load[owner] += cost
    return owners
