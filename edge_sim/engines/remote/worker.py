"""The worker's side of the remote engine: it holds the samples and models of its devices for the whole run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from edge_sdk.device.meter import Meter
from edge_sdk.device.workbench import Workbench
from edge_sdk.models.base import Model
from edge_sim.engines.base import BatchEngine, DeviceAnswer, DeviceRequest, ExactEngine, job_at
from edge_sim.engines.remote.messages import RemoteAnswer, RemoteRequest, WorkerSetup
from edge_sim.engines.untraced import untraced_of


class WorkerModels(Protocol):
    """Keeps the models of a worker and those of the simulation equal; each pool of workers has its own way."""

    def attach(self, number: int, model: Model) -> None:
        """Register a device's model before the first request."""

    def load(self, number: int, model: Model, state: Any) -> None:
        """Bring a model to the state that a RemoteRequest carries."""

    def save(self, number: int, asked: DeviceRequest) -> Any:
        """Return the state that the RemoteAnswer to this request carries."""


class WorkerDevices:
    """The devices of one worker, and the engine that computes their requests there."""

    def __init__(self, setup: WorkerSetup, models: WorkerModels) -> None:
        """Build the devices' models.  Raises UsageError for a family or factory that is not found here."""
        self._spec, self._models = setup.spec, models
        self._benches = {
            device.kit.number: Workbench(
                device.kit.model(device.public), device.data, device.public, discloses_classes=True
            )
            for device in setup.devices
        }
        self._brought = {device.kit.number: device.kit.brought for device in setup.devices}
        for number, bench in self._benches.items():
            models.attach(number, bench.model)
        self._engine: BatchEngine = ExactEngine()
        if setup.stacked:
            from edge_sim.engines.stack.torch_cohort import CohortEngine  # models that stack have torch

            self._engine = CohortEngine(setup.stacked)

    def serve(self, requests: Sequence[RemoteRequest]) -> list[RemoteAnswer]:
        """Compute a batch of requests, and return the answers in their order."""
        asked = [self._asked(each) for each in requests]
        answers = self._engine.serve(asked)
        return [self._answered(request.number, *each) for request, *each in zip(requests, asked, answers, strict=True)]

    def _asked(self, request: RemoteRequest) -> DeviceRequest:
        bench = self._benches[request.number]
        bench.meter = Meter()
        self._models.load(request.number, bench.model, request.model)
        samples = len(bench.data.train)
        job = job_at(self._spec, request.number, request.round, request.exchange, samples)
        return DeviceRequest(bench, request.request, job, self._brought[request.number])

    def _answered(self, number: int, asked: DeviceRequest, answer: DeviceAnswer) -> RemoteAnswer:
        model = self._models.save(number, asked)
        return RemoteAnswer(answer=answer, spent=asked.bench.meter, model=model, untraced=untraced_of([asked.bench]))
