"""Trains the measured devices of a large fleet alone, for comparison, without a coordinator, a clock and messages.

Where all devices are measured, they train alone as a federation under `local`, with an agent each.  Of a large fleet
only the sample's figures count, so only these devices are built, one after the other.  Draws, batches and figures have
the bits of such a federation.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from coordinator.record.round_result import CURVES, RoundResult
from coordinator.record.run_record import RunRecord
from coordinator.results.figures.outcome import means, versions
from coordinator.results.figures.result import DeviceResult, Result
from coordinator.rounds.selection import select
from edge_sdk.device.training.learner import with_label_loss
from edge_sdk.device.training.workbench import Workbench
from edge_sdk.errors import LearningLost
from edge_sdk.methods.contract.base import NoState, Step
from edge_sdk.methods.contract.job import Job
from edge_sdk.methods.contract.requests import Evaluate, Request
from edge_sdk.methods.local import Local
from edge_sdk.protocol.messages import FederationSpec
from edge_sim.engines.base import DeviceRequest, KnownLogits, serve_alone
from edge_sim.fleet.fleet import Device, Fleet

TELL_EVERY_S = 10.0
"""Seconds between two lines about the devices that are done."""


def trained_sample(fleet: Fleet, ids: Sequence[str], tell: Callable[[str], None]) -> Result:
    """Train the devices of a fleet under `local`, and return their figures.

    fleet: of the sample only, by number.  ids: of all devices, from which rounds draw their participants.
    tell: gets a line now and then.
    """
    spec, policy, record, first = fleet.federation.spec, fleet.federation.policy, RunRecord(), KnownLogits()
    sample, asked = frozenset(each.kit.id for each in fleet.devices), policy.participants or len(ids)
    drawn = [sample & select(ids, asked, policy.seed, round_) for round_ in range(spec.rounds)]
    begun_s = told_s = time.monotonic()
    devices = []
    for done, device in enumerate(fleet.devices, 1):
        rounds = frozenset(round_ for round_, names in enumerate(drawn) if device.kit.id in names)
        devices.append(_SampledDevice(device, spec, record, first).train(rounds))
        if time.monotonic() - told_s > TELL_EVERY_S:
            told_s = time.monotonic()
            tell(f"alone: {done:,} of {len(fleet.devices):,} devices are trained")
    found = Result(
        federation=spec.federation,
        method=spec.method,
        seed=spec.seed,
        rounds=spec.rounds,
        completed=True,
        rounds_done=spec.rounds,
        devices=tuple(devices),
        history=_history(record, spec.rounds),
        time={"wall_s": time.monotonic() - begun_s},
        versions=versions(),
        transport="memory",
        models=Local().measured_models,
        class_names=spec.class_names,
    )
    return dataclasses.replace(found, metrics=means(found))


def _history(record: RunRecord, rounds: int) -> tuple[RoundResult, ...]:
    curves = {name: getattr(record, name) for name in CURVES}
    return tuple(
        RoundResult(round=number, **{name: curve[number] for name, curve in curves.items() if number in curve})
        for number in range(1, rounds + 1)
    )


class _SampledDevice:
    """One device that trains alone in the rounds that draw it."""

    def __init__(self, device: Device, spec: FederationSpec, record: RunRecord, first: KnownLogits) -> None:
        """first: logits of models that have not trained yet: devices that start equal compute them once."""
        self._first: KnownLogits | None = first
        self._device, self._spec, self._record = device, spec, record
        self._bench = Workbench(device.kit.model(device.public), device.data, device.public, discloses_classes=True)
        self._method = Local()
        self._learns = self._method.learnt_by(self._bench.capabilities, self._bench.terms)
        self._measured = False
        """Whether the model is measured as it is."""

    def train(self, rounds: frozenset[int]) -> DeviceResult:
        """Train in these rounds, measure after each round that measures, and return the figures."""
        for round_ in range(self._spec.rounds):
            job = self._job(round_)
            figures: Mapping[str, float] = {}
            if round_ in rounds:
                self._first = None
                figures, self._measured = self._round(job), False
            if job.evaluates:
                self._note(job, figures)
        kit, held, record = self._device.kit, self._device.held, self._record
        return DeviceResult(
            id=kit.id,
            number=kit.number,
            board=kit.board_name,
            model=kit.family,
            learns=self._learns,
            samples=held.counts.train,
            class_counts=held.class_counts(kit.classes),
            accuracy=record.last_accuracy(kit.id),
            metrics=record.metrics.get(kit.id, {}),
            rounds_done=len(rounds),
            steps=self._bench.meter.steps,
        )

    def _round(self, job: Job) -> Mapping[str, float]:
        """Train for one round; returns the figures of the model if the round measures it."""
        before = self._bench.state_bytes()
        try:
            return self._served(self._method.step(NoState(), {}, job), job)
        except LearningLost:  # as a device does that withholds its upload
            self._bench.load_state(before)
            return {}

    def _note(self, job: Job, figures: Mapping[str, float]) -> None:
        """Record the figures after a round: those given, or else those of the last measuring if nothing has changed."""
        name, done = self._device.kit.id, job.round + 1
        if not figures and not (self._measured and self._record.stands(name, done)):
            figures = self._answer(Evaluate(done), job)
        self._record.measured(name, done, figures)
        self._measured = True

    def _served(self, step: Step[Any], job: Job) -> Mapping[str, float]:
        answer: Any = None
        figures: Mapping[str, float] = {}
        try:
            while True:
                request = step.send(answer)
                answer = self._answer(request, job)
                if isinstance(request, Evaluate):
                    figures = answer
        except StopIteration:
            return figures

    def _answer(self, request: Request, job: Job) -> Any:
        bench = self._bench.of(request)
        if self._first is not None:
            bench = self._first.sharing(bench, hashlib.sha256(bench.state_bytes()).digest())
        answer = serve_alone(DeviceRequest(bench, with_label_loss(request, job), job, self._device.kit.brought))
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _job(self, round_: int) -> Job:
        return Job(
            spec=self._spec,
            number=self._device.kit.number,
            round=round_,
            exchange=0,
            closing=False,
            samples=len(self._bench.data.train),
            class_counts=self._bench.class_counts,
            secret=self._device.kit.secret,
            inert_terms=self._bench.model.spec.inert_terms,
            learns=self._learns,
        )
