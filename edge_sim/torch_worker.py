"""A worker process of the engine in workers.py: `python -m edge_sim.torch_worker PIPE SLAB`, two descriptors."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence

from edge_sdk.device.meter import Meter
from edge_sdk.device.workbench import Workbench
from edge_sdk.models.torch_model import TorchModel
from edge_sim.engine import Asked, Exact, Together, job_at
from edge_sim.torch_cohort import Cohort
from edge_sim.torch_slab import Slab, settle, settle_moments, take_moments
from edge_sim.torch_threads import one_thread
from edge_sim.workers import NO_STEPS, Delivery, Order, Setup, connection


class Workshop:
    """The devices of one worker, and what serves them."""

    def __init__(self, setup: Setup, slab: Slab) -> None:
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
            settle(_torch(bench), self._rows[number], fresh=False)
        self._engine: Together = Cohort(setup.stacked) if setup.stacked else Exact()

    def serve(self, orders: Sequence[Order]) -> list[Delivery]:
        """Answer a batch of requests."""
        asked = [self._asked(order) for order in orders]
        answers = self._engine.serve(asked)
        return [self._delivery(order, each, answer) for order, each, answer in zip(orders, asked, answers, strict=True)]

    def _asked(self, order: Order) -> Asked:
        bench = self._benches[order.number]
        bench.meter = Meter()
        moments = self._setup.moments
        take_moments(_torch(bench), self._rows[order.number], order.optim, order.steps, moments)
        job = job_at(self._setup.spec, order.number, order.round, order.exchange, len(bench.data.train))
        return Asked(bench, order.request, job)

    def _delivery(self, order: Order, asked: Asked, answer: object) -> Delivery:
        model = _torch(asked.bench)
        settle_moments(model, self._rows[order.number])
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


def main() -> int:
    """Serve until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the simulation's to handle
    one_thread()
    pipe, slab = connection(int(sys.argv[1])), Slab(0, descriptor=int(sys.argv[2]))
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
    sys.exit(main())
