"""A worker process of the engine in workers.py: `python -m edge_sim.torch_worker PIPE SLAB`, two descriptors."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence

from edge_sdk.meter import Meter
from edge_sdk.models.torch_model import TorchModel
from edge_sdk.workbench import Workbench
from edge_sim.engine_base import BatchEngine, DeviceRequest, ExactEngine, job_at
from edge_sim.torch_cohort import CohortEngine
from edge_sim.torch_parameter_buffer import ParameterBuffer, move_into_row, move_moments_into_row, use_moments_in_row
from edge_sim.torch_threads import use_one_thread
from edge_sim.workers import NO_STEPS, Delivery, Order, Setup, connection


class Workshop:
    """The devices of one worker, and what serves them."""

    def __init__(self, setup: Setup, slab: ParameterBuffer) -> None:
        sys.path[:] = setup.modules
        self._setup = setup
        self._rows = {number: slab.memory[begin:end] for number, (begin, end) in setup.rows.items()}
        self._benches = {
            device.kit.number: Workbench(
                device.kit.model(device.public), device.data, device.public, discloses_classes=True
            )
            for device in setup.devices
        }
        for number, bench in self._benches.items():
            move_into_row(_torch(bench), self._rows[number], fresh=False)
        self._engine: BatchEngine = CohortEngine(setup.stacked) if setup.stacked else ExactEngine()

    def serve(self, orders: Sequence[Order]) -> list[Delivery]:
        """Answer a batch of requests."""
        asked = [self._asked(order) for order in orders]
        answers = self._engine.serve(asked)
        return [self._delivery(order, each, answer) for order, each, answer in zip(orders, asked, answers, strict=True)]

    def _asked(self, order: Order) -> DeviceRequest:
        bench = self._benches[order.number]
        bench.meter = Meter()
        moments = self._setup.moments
        use_moments_in_row(_torch(bench), self._rows[order.number], order.optim, order.steps, moments)
        job = job_at(self._setup.spec, order.number, order.round, order.exchange, len(bench.data.train))
        return DeviceRequest(bench, order.request, job)

    def _delivery(self, order: Order, asked: DeviceRequest, answer: object) -> Delivery:
        model = _torch(asked.bench)
        move_moments_into_row(model, self._rows[order.number])
        optimiser = model.optimiser
        return Delivery(
            answer=answer,
            spent=asked.bench.meter,
            optim=optimiser.optim if optimiser else None,
            steps=optimiser.steps if optimiser else NO_STEPS,
        )


def _torch(bench: Workbench) -> TorchModel:
    if not isinstance(bench.model, TorchModel):
        raise TypeError(f"{bench.model.spec.name} is not for a worker")
    return bench.model


def serve_pipe() -> int:
    """Serve until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the simulation's to handle
    use_one_thread()
    pipe, slab = connection(int(sys.argv[1])), ParameterBuffer(0, descriptor=int(sys.argv[2]))
    try:
        try:
            workshop = Workshop(pipe.recv(), slab)
        except EOFError:
            return 0
        except Exception as error:  # noqa: BLE001  # told to whoever waits for us
            pipe.send(error)
            return 1
        while True:
            pipe.send(workshop.serve(pipe.recv()))
    except (EOFError, OSError):
        return 0


if __name__ == "__main__":
    sys.exit(serve_pipe())
