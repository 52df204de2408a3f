"""The engine of worker processes, this side: who computes what, where its row is, and what to do about losses."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from edge_sdk.methods.base import Fit
from edge_sdk.models.torch_cosine import CosineHead
from edge_sdk.models.torch_model import TorchModel
from edge_sdk.objectives import DataFree
from edge_sdk.workbench import Workbench
from edge_sim import meter_totals
from edge_sim.engine import LOST, Answer, Asked, served
from edge_sim.fleet import Fleet
from edge_sim.torch_places import Places
from edge_sim.torch_slab import settle_moments, take_moments
from edge_sim.workers import COMPUTED, NO_STEPS, Delivery, Gone, Order, Setup, Worker, divided


class Workers:
    """Divides the devices among some processes for the whole run; what has no torch model is served here."""

    def __init__(self, fleet: Fleet, count: int, places: Places, stacked: frozenset[str] = frozenset()) -> None:
        """places: empty, with room for the moments of the federation's optimiser.

        stacked: names of models that the workers stack (torch_cohort.py).
        """
        self._fleet, self._count, self._places, self._stacked = fleet, count, places, stacked
        self._costs: dict[int, float] = {}
        self._owner: dict[int, int] = {}
        self._workers: list[Worker] = []
        self.peak_bytes = 0

    def attach(self, number: int, bench: Workbench) -> None:
        """See Engine."""
        if isinstance(bench.model, TorchModel) and any(isinstance(m, CosineHead) for m in bench.model.net.modules()):
            return  # whether its scale trains is told to the model here
        self._places.attach(number, bench)
        self._costs[number] = bench.model.spec.flops_per_sample * len(bench.data.train)  # about what a round costs

    def serve(self, asked: Sequence[Asked]) -> list[Answer]:
        """See Engine."""
        if not self._places.ready:
            self._begin()
        answers: list[Answer] = [None] * len(asked)
        shares: dict[int, list[int]] = {}
        for at, each in enumerate(asked):
            if self._goes_out(each):
                shares.setdefault(self._owner[each.job.number], []).append(at)
        lost = [owner for owner, share in shares.items() if not self._order(owner, [asked[at] for at in share])]
        for at, each in enumerate(asked):
            if not self._goes_out(each):
                answers[at] = served(each)  # while the workers are at it
        for owner, share in shares.items():
            found = None if owner in lost else self._found(owner)
            for place, at in enumerate(share):
                answers[at] = LOST if found is None else self._taken(asked[at], found[place])
        return answers

    def close(self) -> None:
        """See Engine."""
        self.peak_bytes += sum(worker.close() for worker in self._workers)
        self._workers = []
        self._places.close()

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the processes."""
        return tuple(worker.pid for worker in self._workers)

    def _goes_out(self, asked: Asked) -> bool:
        """Whether a worker serves it; what keeps state beside weights and moments stays here."""
        if asked.job.number not in self._owner or not isinstance(asked.request, COMPUTED):
            return False
        keeps = isinstance(asked.request, Fit) and any(isinstance(term, DataFree) for term in asked.request.objective)
        return not keeps

    # -- who and where ----------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Everybody is there: divide the devices and the memory."""
        self._owner = divided({number: self._costs[number] for number in self._places.models}, self._count)
        self._places.divide(self._owner)
        self._workers = [self._worker(owner) for owner in range(self._count)]

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
        return Worker(self._places.slab.descriptor, setup)

    # -- orders and deliveries --------------------------------------------------------------------------------------

    def _order(self, owner: int, asked: Sequence[Asked]) -> bool:
        """Whether they were sent; else the worker is gone, and there is a new one."""
        try:
            self._workers[owner].order([self._as_order(each) for each in asked])
        except Gone:
            self._replace(owner)
            return False
        return True

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

    def _found(self, owner: int) -> list[Delivery] | None:
        try:
            return self._workers[owner].deliveries()
        except Gone:
            self._replace(owner)
            return None

    def _replace(self, owner: int) -> None:
        self.peak_bytes += self._workers[owner].close()
        self._workers[owner] = self._worker(owner)

    def _taken(self, asked: Asked, delivery: Delivery) -> Answer:
        model, number = asked.bench.model, asked.job.number
        if isinstance(model, TorchModel):
            take_moments(model, self._places.row(number), delivery.optim, delivery.steps, self._places.moments)
        meter_totals.add(asked.bench.meter, delivery.spent)
        return delivery.answer
