"""The engine of worker processes, this side: who computes what, where its row is, and what to do about losses."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from edge_sdk.models.optim import moment_count
from edge_sdk.models.torch_model import TorchModel
from edge_sdk.objectives import Optim
from edge_sdk.workbench import Workbench
from edge_sim import meter_totals
from edge_sim.engine import LOST, Answer, Asked, served
from edge_sim.fleet import Fleet
from edge_sim.torch_slab import Slab, row_bytes, settle, settle_moments, take_moments
from edge_sim.workers import COMPUTED, Delivery, Gone, Order, Setup, Worker


class Workers:
    """Divides the devices among some processes for the whole run; what has no torch model is served here."""

    def __init__(
        self,
        fleet: Fleet,
        count: int,
        *,
        stacked: frozenset[str] = frozenset(),
        spill: Path | None = None,
        memory_bytes: int = 0,
    ) -> None:
        """stacked: names of models that they stack (torch_cohort.py).

        spill: a folder for weights of more than memory_bytes; None: they are always in memory.
        """
        self._memory_bytes = memory_bytes
        self._fleet, self._count, self._stacked, self._spill = fleet, count, stacked, spill
        train = fleet.federation.spec.train
        self._moments = moment_count(
            Optim(kind=train.optimiser, learning_rate=train.learning_rate, momentum=train.momentum)
        )
        self._benches: dict[int, Workbench] = {}
        self._rows: dict[int, tuple[int, int]] = {}
        self._owner: dict[int, int] = {}
        self._slab: Slab | None = None
        self._workers: list[Worker] = []
        self.peak_bytes = 0

    def attach(self, number: int, bench: Workbench) -> None:
        """See Engine."""
        self._benches[number] = bench
        if self._slab is not None:
            self._settle(number)

    def serve(self, asked: Sequence[Asked]) -> list[Answer]:
        """See Engine."""
        if self._slab is None:
            self._begin()
        answers: list[Answer] = [None] * len(asked)
        shares: dict[int, list[int]] = {}
        for at, each in enumerate(asked):
            if each.job.number in self._owner and isinstance(each.request, COMPUTED):
                shares.setdefault(self._owner[each.job.number], []).append(at)
        lost = [owner for owner, share in shares.items() if not self._order(owner, [asked[at] for at in share])]
        for at, each in enumerate(asked):
            if each.job.number not in self._owner or not isinstance(each.request, COMPUTED):
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
        if self._slab is not None:
            self._slab.close()

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the processes."""
        return tuple(worker.pid for worker in self._workers)

    # -- who and where ----------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Everybody is there: divide the memory and the devices."""
        at = 0
        for number, bench in sorted(self._benches.items()):
            if isinstance(bench.model, TorchModel):
                size = row_bytes(bench.model, self._moments)
                self._rows[number] = at, at + size
                at += size
        self._slab = Slab(at, self._spill if at > self._memory_bytes else None)
        for number in self._rows:
            self._settle(number)
        self._owner = _divided({number: _cost(self._benches[number]) for number in self._rows}, self._count)
        self._workers = [self._worker(owner) for owner in range(self._count)]

    def _worker(self, owner: int) -> Worker:
        own = [number for number, whose in self._owner.items() if whose == owner]
        setup = Setup(
            devices=tuple(self._fleet.devices[number] for number in own),
            rows={number: self._rows[number] for number in own},
            spec=self._fleet.federation.spec,
            moments=self._moments,
            stacked=self._stacked,
            modules=tuple(sys.path),
        )
        return Worker(self._require_slab().descriptor, setup)

    def _settle(self, number: int) -> None:
        model = self._benches[number].model
        if isinstance(model, TorchModel):
            begin, end = self._rows[number]
            settle(model, self._require_slab().memory[begin:end], fresh=True)

    def _require_slab(self) -> Slab:
        if self._slab is None:
            raise RuntimeError("no memory is divided yet")
        return self._slab

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
            begin, end = self._rows[number]
            settle_moments(model, self._require_slab().memory[begin:end])
        return Order(
            number=number,
            request=asked.request,
            round=asked.job.round,
            exchange=asked.job.exchange,
            optim=optimiser.optim if optimiser else None,
            steps=optimiser.steps if optimiser else 0,
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
        model, (begin, end) = asked.bench.model, self._rows[asked.job.number]
        if isinstance(model, TorchModel):
            row = self._require_slab().memory[begin:end]
            take_moments(model, row, delivery.optim, delivery.steps, self._moments)
        meter_totals.add(asked.bench.meter, delivery.spent)
        return delivery.answer


def _cost(bench: Workbench) -> float:
    """About what a round costs this device."""
    return bench.model.spec.flops_per_sample * len(bench.data.train)


def _divided(costs: dict[int, float], count: int) -> dict[int, int]:
    """Owner by device number: the dearest first, each to whoever has least so far."""
    load = [0.0] * count
    owners: dict[int, int] = {}
    for number, cost in sorted(costs.items(), key=lambda each: -each[1]):
        owners[number] = owner = load.index(min(load))
        load[owner] += cost
    return owners
