"""The engine of worker processes, this side: who computes what, where its row is, and what to do about losses."""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import dataclass, field
from queue import SimpleQueue

from edge_sdk.errors import RunFailed
from edge_sdk.methods.requests import Fit
from edge_sdk.models.torch_cosine import CosineHead
from edge_sdk.models.torch_model import TorchModel
from edge_sdk.workbench import Workbench
from edge_sim import meter_totals
from edge_sim.engine import LOST, Answer, Asked, served
from edge_sim.fleet import Fleet
from edge_sim.torch_places import Places
from edge_sim.torch_slab import settle_moments, take_moments
from edge_sim.workers import NO_STEPS, Delivery, Order, Read, Setup, Worker, divided

_ORDERS_AHEAD = 2
"""Orders that a worker has at once: the next one is there when it is done with the first."""


@dataclass(slots=True, eq=False)
class _Share:
    """What one worker is to compute."""

    owner: int
    worker: Worker
    waiting: list[Asked] = field(default_factory=list)
    sent: deque[list[Asked]] = field(default_factory=deque)
    """By order, those without an answer."""


class Workers:
    """Divides the devices among some processes for the whole run; what has no torch model is served here."""

    def __init__(self, fleet: Fleet, count: int, places: Places, stacked: frozenset[str] = frozenset()) -> None:
        """places: empty, with room for the moments of the federation's optimiser.

        stacked: names of models that the workers stack (torch_cohort.py).
        """
        self._fleet, self._count, self._places, self._stacked = fleet, count, places, stacked
        self._costs: dict[int, float] = {}
        self._owner: dict[int, int] = {}
        self._shares: list[_Share] = []
        self._here: list[Asked] = []
        """To be served in this process."""
        self._arrived: SimpleQueue[Read] = SimpleQueue()
        self.peak_bytes = 0

    def attach(self, number: int, bench: Workbench) -> None:
        """See Engine."""
        if isinstance(bench.model, TorchModel) and any(isinstance(m, CosineHead) for m in bench.model.net.modules()):
            return  # whether its scale trains is told to the model here
        self._places.attach(number, bench)
        self._costs[number] = bench.model.spec.flops_per_sample * len(bench.data.train)  # about what a round costs

    def ready(self) -> None:
        """See Engine.  Divides the devices and the memory."""
        self._owner = divided({number: self._costs[number] for number in self._places.models}, self._count)
        self._places.divide(self._owner)
        self._shares = [_Share(owner, self._worker(owner)) for owner in range(self._count)]

    def begin(self, asked: Asked) -> None:
        """See Engine."""
        if not self._goes_out(asked):
            self._here.append(asked)
            return
        share = self._shares[self._owner[asked.job.number]]
        share.waiting.append(asked)
        if asked.bench.model.spec.name not in self._stacked:  # what stacks is worth waiting for
            self._send(share)

    def collect(self) -> list[tuple[Asked, Answer]]:
        """See Engine."""
        for share in self._shares:
            self._send(share)
        here, self._here = self._here, []
        if here:
            return [(each, served(each)) for each in here]  # while the workers are at it
        while any(share.sent for share in self._shares):
            worker, found = self._arrived.get()
            share = next(each for each in self._shares if each.worker is worker)
            answers = self._lost(share) if found is None else self._answers(share, found)
            self._send(share)
            if answers:
                return answers
        return []

    def close(self) -> None:
        """See Engine."""
        self.peak_bytes += sum(share.worker.close() for share in self._shares)
        self._shares = []
        self._places.close()

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the processes."""
        return tuple(share.worker.pid for share in self._shares)

    def _goes_out(self, asked: Asked) -> bool:
        """Whether a worker serves it; what keeps state beside weights and moments stays here."""
        if asked.job.number not in self._owner or not asked.request.computes:
            return False
        keeps = isinstance(asked.request, Fit) and any(term.on == "own" for term in asked.request.objective)
        return not keeps

    # -- who and where ----------------------------------------------------------------------------------------------

    def _worker(self, owner: int) -> Worker:
        own = [number for number, whose in self._owner.items() if whose == owner]
        setup = Setup(
            devices=tuple(self._fleet.devices[number] for number in own),
            rows={number: self._places.rows[number] for number in own},
            spec=self._fleet.federation.spec,
            moments=self._places.moments,
            stacked=self._stacked,
            modules=tuple(sys.path),
        )
        return Worker(self._places.slab.descriptor, setup, self._arrived)

    # -- orders and deliveries --------------------------------------------------------------------------------------

    def _send(self, share: _Share) -> None:
        """What waits, to a worker that would be idle soon: the busier it is, the more goes in one order."""
        if share.waiting and len(share.sent) < _ORDERS_AHEAD:
            share.worker.order([self._as_order(each) for each in share.waiting])
            share.sent.append(share.waiting)
            share.waiting = []

    def _as_order(self, asked: Asked) -> Order:
        model, number = asked.bench.model, asked.job.number
        optimiser = model.optimiser if isinstance(model, TorchModel) else None
        if isinstance(model, TorchModel):
            settle_moments(model, self._places.row(number))
        return Order(
            number=number,
            request=asked.request,
            round=asked.job.round,
            exchange=asked.job.exchange,
            optim=optimiser.optim if optimiser else None,
            steps=optimiser.steps if optimiser else NO_STEPS,
        )

    def _answers(self, share: _Share, found: list[Delivery] | Exception) -> list[tuple[Asked, Answer]]:
        """To the oldest order.  Raises RunFailed where the worker says why it ended."""
        if isinstance(found, Exception):
            raise RunFailed(f"a worker process could not begin: {found}") from found
        asked = share.sent.popleft()
        return [(each, self._taken(each, delivery)) for each, delivery in zip(asked, found, strict=True)]

    def _lost(self, share: _Share) -> list[tuple[Asked, Answer]]:
        """A worker has ended, with all that it was given; there is a new one."""
        asked = [each for order in share.sent for each in order]
        share.sent.clear()
        self.peak_bytes += share.worker.close()
        share.worker = self._worker(share.owner)
        return [(each, LOST) for each in asked]

    def _taken(self, asked: Asked, delivery: Delivery) -> Answer:
        model, number = asked.bench.model, asked.job.number
        if isinstance(model, TorchModel):
            take_moments(model, self._places.row(number), delivery.optim, delivery.steps, self._places.moments)
        meter_totals.add(asked.bench.meter, delivery.spent)
        return delivery.answer
