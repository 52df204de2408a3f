"""What a device learns in one run of a federation: its model, and beside it what the method keeps."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from threading import RLock
from typing import Any, TypeAlias

from edge_sdk.device.membership import Membership
from edge_sdk.device.store import RoundStart
from edge_sdk.device.workbench import Workbench
from edge_sdk.errors import Diverged
from edge_sdk.methods.base import Step
from edge_sdk.methods.job import Job
from edge_sdk.methods.requests import Evaluate, Request
from edge_sdk.protocol import storage
from edge_sdk.protocol.knowledge import Payload
from edge_sdk.protocol.messages import Assign

ServeRequest: TypeAlias = Callable[[Request, Job], Generator[Any, Any, Any]]
"""Carries a method's request out, pausing now and then; what it yields in a pause is for whoever drives us."""
WorkSlices: TypeAlias = Generator[Any, Any, tuple[Any, Mapping[str, Payload]]]
"""A method at work on an exchange, pausing now and then; at the end its new state and what to upload."""


@dataclass
class ExchangeMetrics:
    """What an evaluation within an exchange found."""

    rounds_done: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)


class Learner:
    """A model and a method's state, as they change from exchange to exchange, and the way back to a round's start."""

    def __init__(self, membership: Membership, bench: Workbench, *, secret: bytes, lock: RLock) -> None:
        """secret: see Job; lock: held while the model changes."""
        self.membership, self.lock = membership, lock
        self._bench, self._secret = bench, secret
        self.state: Any = membership.method.device_state()
        """The method's, after the last exchange that counts."""
        self.sits_out: tuple[int, str] | None = None
        """The round whose exchanges are not computed, and why: what was learned in it diverged."""

    @property
    def samples(self) -> int:
        """Private training samples on this device."""
        return len(self._bench.data.train)

    def start_of(self, round_: int) -> RoundStart:
        """All as it is now, where this round begins."""
        return RoundStart(round_, self._bench.model.state_bytes(), storage.to_bytes(self.state))

    def go_back_to(self, start: RoundStart) -> None:
        """Stand where a round began."""
        with self.lock:
            self._bench.model.load_state(start.model)
            self.state = storage.from_bytes(self.membership.method.device_state, start.method)

    def sit_out(self, round_: int, reason: str) -> bool:
        """Compute no more of this round; returns whether that is new."""
        if self.sits_out is not None and self.sits_out[0] == round_:
            return False
        self.sits_out = round_, reason
        return True

    def slices(self, assign: Assign, measured: ExchangeMetrics, serve: ServeRequest) -> WorkSlices:
        """The method at work on an exchange: the model changes on the way, `state` is left to whoever asked for it.

        measured: filled in where the method evaluates.  They raise Diverged where learning does, and at once in a
        round that is sat out.
        """
        model = self._bench.model.spec
        job = Job(
            spec=self.membership.spec,
            number=self.membership.welcome.number,
            round=assign.round,
            exchange=assign.exchange,
            closing=assign.closing,
            samples=self.samples,
            class_counts=self._bench.class_counts,
            secret=self._secret,
            learns=self.membership.method.learnt_by(model.capabilities, model.terms),
        )
        return self._served(self.membership.method.step(self.state, assign.down, job), job, measured, serve)

    def _served(self, step: Step[Any], job: Job, measured: ExchangeMetrics, serve: ServeRequest) -> WorkSlices:
        """The method's requests, served one by one, pausing between batches."""
        if self.sits_out is not None and self.sits_out[0] == job.round:
            raise Diverged(self.sits_out[1])
        result: Any = None
        while True:
            try:
                request = step.send(result)
            except StopIteration as stop:
                state, knowledge = stop.value
                return state, knowledge
            result = yield from serve(request, job)
            if isinstance(request, Evaluate):
                measured.rounds_done, measured.metrics = request.rounds_done, result

    def repeat(self, assign: Assign) -> None:
        """Carry an exchange out to its end, here and now, without looking for news."""
        slices = self.slices(assign, ExchangeMetrics(), self._bench.serve)
        try:
            while True:
                next(slices)
        except StopIteration as stop:
            self.state, _ = stop.value
