"""Worker processes of this machine for the remote engine.

Weights and moments lie in memory that all processes map, so they are never sent: requests and answers go through pipes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from queue import SimpleQueue

from edge_sdk.device.workbench import Workbench
from edge_sdk.errors import RunFailed
from edge_sdk.methods.requests import Fit, TermShares
from edge_sdk.models.torch_cosine import TorchCosineHead
from edge_sdk.models.torch_model import TorchModel
from edge_sim.engines.base import DeviceRequest
from edge_sim.engines.remote.messages import RemoteAnswer, RemoteRequest, WorkerSetup
from edge_sim.engines.remote.torch_mapped_models import (
    MappedSetup,
    OptimiserState,
    optimiser_state,
)
from edge_sim.engines.remote.worker_process import WorkerMessage, WorkerProcess
from edge_sim.engines.stack.torch_parameter_buffer import move_back_into_row, move_moments_into_row, use_moments_in_row
from edge_sim.engines.stack.torch_parameter_rows import ParameterRows
from edge_sim.fleet.fleet import Fleet


class ProcessPool:
    """Processes that compute torch models; devices with other models stay with the simulation."""

    def __init__(self, fleet: Fleet, count: int, rows: ParameterRows, stacked: frozenset[str] = frozenset()) -> None:
        """rows: empty, with space for the moments of the federation's optimiser.  stacked: names of models."""
        self._fleet, self.count, self._rows, self._stacked = fleet, count, rows, stacked
        self._owners: Mapping[int, int] = {}
        self._workers: dict[int, WorkerProcess] = {}
        self._received: SimpleQueue[WorkerMessage] = SimpleQueue()
        self.peak_bytes = 0

    @property
    def pids(self) -> tuple[int, ...]:
        """Implement WorkerPool."""
        return tuple(self._workers[worker].pid for worker in sorted(self._workers))

    def attach(self, number: int, bench: Workbench) -> bool:
        """Implement WorkerPool."""
        model = bench.model
        if not isinstance(model, TorchModel) or any(
            isinstance(layer, TorchCosineHead) for layer in model.net.modules()
        ):
            return False  # whether the scale of a cosine head trains is known to the simulation's model only
        self._rows.attach(number, bench)
        return True

    def divide(self, owners: Mapping[int, int]) -> None:
        """Implement WorkerPool."""
        self._owners = owners
        self._rows.divide(owners)

    def start(self, worker: int) -> None:
        """Implement WorkerPool."""
        if worker in self._workers:
            self.peak_bytes += self._workers[worker].close()
        own = [number for number, owner in self._owners.items() if owner == worker]
        setup = WorkerSetup(
            devices=tuple(self._fleet.devices[number] for number in own),
            spec=self._fleet.federation.spec,
            stacked=self._stacked,
            modules=tuple(sys.path),
        )
        rows = {number: self._rows.rows[number] for number in own}
        mapped = MappedSetup(worker=setup, rows=rows, moments=self._rows.moments)
        self._workers[worker] = WorkerProcess(self._rows.buffer.descriptor, mapped, self._received)

    def takes(self, asked: DeviceRequest) -> bool:
        """Implement WorkerPool: what keeps state beside weights and moments stays with the simulation."""
        fit = asked.request.fit if isinstance(asked.request, TermShares) else asked.request
        return not (isinstance(fit, Fit) and any(term.on == "own" for term in fit.objective))

    def outgoing(self, asked: DeviceRequest) -> OptimiserState:
        """Implement WorkerPool: weights and moments are in the device's row, the rest of the optimiser is sent."""
        model = asked.bench.model
        if isinstance(model, TorchModel):
            move_back_into_row(model, self._rows.row(asked.job.number))
            move_moments_into_row(model, self._rows.row(asked.job.number))
        return optimiser_state(model)

    def incoming(self, asked: DeviceRequest, model: OptimiserState) -> None:
        """Implement WorkerPool."""
        own, row = asked.bench.model, self._rows.row(asked.job.number)
        if isinstance(own, TorchModel):
            use_moments_in_row(own, row, model.optim, model.steps, self._rows.moments)

    def send(self, worker: int, requests: Sequence[RemoteRequest]) -> None:
        """Implement WorkerPool."""
        self._workers[worker].send(requests)

    def receive(self) -> tuple[int, list[RemoteAnswer] | None]:
        """Implement WorkerPool."""
        process, found = self._received.get()
        if isinstance(found, Exception):
            raise RunFailed(f"a worker process could not begin: {found}") from found
        return next(worker for worker, own in self._workers.items() if own is process), found

    def close(self) -> None:
        """Implement WorkerPool."""
        self.peak_bytes += sum(process.close() for process in self._workers.values())
        self._workers = {}
        self._rows.close()
