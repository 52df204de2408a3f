"""The learning state of a device in one run of a federation: its model and the state of the method."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from edge_sdk.arrays import Floats
from edge_sdk.device.membership import Membership
from edge_sdk.device.store import RoundStart
from edge_sdk.device.training.data_supply import DataSupply
from edge_sdk.errors import LearningLost, NoSamples, UsageError
from edge_sdk.methods.contract.base import NoState, Step
from edge_sdk.methods.contract.job import Job
from edge_sdk.methods.contract.requests import (
    Evaluate,
    Fit,
    FitBoth,
    MeasuredModel,
    Private,
    ReadWeights,
    Report,
    Request,
    TermShares,
)
from edge_sdk.methods.local import Local
from edge_sdk.objectives import CrossEntropy, LabelLoss, Term
from edge_sdk.protocol.frames import storage
from edge_sdk.protocol.knowledge import Payload
from edge_sdk.protocol.messages import FOREVER, MOST_CLASS_FIGURES, OF_CLASS, Assign

ServeRequest: TypeAlias = Callable[[Request, Job], Generator[Any, Any, Any]]
"""Carries out a request of a method.  The generator pauses between batches; its yields go to the driver."""
WorkSlices: TypeAlias = Generator[Any, Any, tuple[Any, Mapping[str, Payload]]]
"""The computation of an exchange, which pauses between batches; it returns the method's new state and the upload."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The metrics of one model."""

    rounds_done: int = 0
    """The number of completed rounds that the metrics describe."""
    metrics: Mapping[str, float] = field(default_factory=dict)


NO_EVALUATION = Evaluation()
NO_SAMPLES = "this device has no labelled samples"


@dataclass(frozen=True, slots=True)
class ExchangeMetrics:
    """The measurements of a device within an exchange."""

    evaluations: dict[MeasuredModel, Evaluation] = field(default_factory=dict)
    """The newest evaluation of each model."""
    instruments: dict[str, float] = field(default_factory=dict)
    """The method's own figures, by name."""


class Learner:
    """The model and the method's state.  Both change from exchange to exchange, and can return to a round's start."""

    def __init__(self, membership: Membership, supply: DataSupply, *, secret: bytes) -> None:
        """secret: the device's 32 bytes from which noise is drawn."""
        self.membership = membership
        self.supply, self._bench, self._secret = supply, supply.bench, secret
        spec = membership.spec
        self._bench.measures_classes = spec.rounds == FOREVER and spec.classes <= MOST_CLASS_FIGURES
        self.state: Any = membership.method.device_state()
        """The method's state after the last exchange that counts."""
        self.skipped_round: tuple[int, LearningLost] | None = None
        """The round whose exchanges are not computed, and the reason."""
        self.learns = membership.method.learnt_by(self._bench.capabilities, self._bench.terms)
        """Whether this device's model can be trained under the method."""

    @property
    def samples(self) -> int:
        """The number of private training samples on this device."""
        return len(self._bench.data.train)

    @property
    def tells_no_counts(self) -> bool:
        """Whether the owner's privacy budget withholds exact numbers of samples."""
        return self._bench.budget is not None

    def told(self, metrics: Mapping[str, float]) -> Mapping[str, float]:
        """Return the figures that leave the device: those of single classes only if its owner discloses the classes."""
        if self._bench.discloses_classes:
            return metrics
        return {name: value for name, value in metrics.items() if not name.startswith(OF_CLASS)}

    @property
    def counts_to_disclose(self) -> tuple[int, ...]:
        """The class counts for an upload: the current ones, if they change and the Hello disclosed them."""
        return self._bench.disclosed_counts if self.supply.changes else ()

    def snapshot(self, round_: int) -> RoundStart:
        """Begin a round: return the current state of model, method and data as its start."""
        return self.start_of(round_, self.supply.begin_round())

    def start_of(self, round_: int, data: bytes = b"") -> RoundStart:
        """Return the current state as the start of a round.  data: the id of the snapshot, if the data change."""
        return RoundStart(round_, self._bench.state_bytes(), storage.serialise(self.state), data)

    def restore(self, start: RoundStart) -> None:
        """Restore model, method and data to the start of a round."""
        self.supply.return_to(start.data)
        self._bench.load_state(start.model)
        self.state = storage.deserialise(self.membership.method.device_state, start.method)

    def skip_round(self, round_: int, reason: LearningLost) -> bool:
        """Stop computing exchanges of this round; returns False if the round was skipped already."""
        if self.skipped_round is not None and self.skipped_round[0] == round_:
            return False
        self.skipped_round = round_, reason
        return True

    def slices(self, assign: Assign, measured: ExchangeMetrics, serve: ServeRequest) -> WorkSlices:
        """Return the computation of an exchange.  It changes the model; the caller assigns `state` once it is stored.

        measured: filled in if the method evaluates.  The computation raises Diverged if training diverges, the reason
        of a skipped round at once, and any error of the model, its loss or the samples.
        """
        job = self.job(assign)
        step = self._alone(job) if assign.alone else self.membership.method.step(self.state, assign.down, job)
        return self._served(step, job, measured, serve)

    def _alone(self, job: Job) -> Step[Any]:
        """Train as the method `local` does, once a round; the method's state on this device stays as it is."""
        if not job.exchange:
            yield from Local().step(NoState(), {}, job)
        return self.state, {}

    def job(self, assign: Assign) -> Job:
        """Return the facts about an exchange that a method and its requests may use on this device."""
        return Job(
            spec=self.membership.spec,
            number=self.membership.welcome.number,
            round=assign.round,
            exchange=assign.exchange,
            closing=assign.closing,
            after=assign.after,
            samples=self.samples,
            class_counts=self._bench.class_counts,
            secret=self._secret,
            inert_terms=self._bench.model.spec.inert_terms,
            learns=self.learns,
        )

    def _served(self, step: Step[Any], job: Job, measured: ExchangeMetrics, serve: ServeRequest) -> WorkSlices:
        """Serve the method's requests one by one, with a pause between batches."""
        if self.skipped_round is not None and self.skipped_round[0] == job.round:
            reason = self.skipped_round[1]
            raise type(reason)(str(reason))
        if not self.samples:
            raise NoSamples(NO_SAMPLES)
        result: Any = None
        lent = False
        while True:
            try:
                request = step.send(result)
            except StopIteration as stop:
                state, knowledge = stop.value
                return state, knowledge
            request = with_label_loss(request, job)
            # lent weights are the model's own memory: a later request that changes the model would change the upload
            if lent and not isinstance(request, (Evaluate, Report)):
                raise UsageError(f"{type(request).__name__} after ReadWeights(lent=True): ask for a copy, lent=False")
            lent = lent or (isinstance(request, ReadWeights) and request.lent)
            result = yield from serve(request, job)
            if isinstance(request, Evaluate):
                if not request.recorded:
                    continue
                measured.evaluations[request.model] = Evaluation(request.rounds_done, result)
            elif isinstance(request, Report):
                measured.instruments.update(request.values)
            elif isinstance(request, (Fit, FitBoth)) and job.instruments:
                several = isinstance(request, FitBoth) or len(request.objective) > 1
                shares = (yield from serve(TermShares(fit=request), job)) if several else {}
                measured.instruments.update(result.instruments if isinstance(request, Fit) else {})
                measured.instruments.update({share_name(request, name): share for name, share in shares.items()})

    def recompute(self, assign: Assign) -> None:
        """Compute an exchange from beginning to end without pauses."""
        slices = self.slices(assign, ExchangeMetrics(), self._bench.serve)
        try:
            while True:
                next(slices)
        except StopIteration as stop:
            self.state, _ = stop.value


def share_name(fit: Fit | FitBoth, term: str) -> str:
    """Return the instrument's name for a term's share in a fit on private or on public samples."""
    return f"share.{'private' if isinstance(fit.source, Private) else 'public'}.{term}"


def with_label_loss(request: Request, job: Job) -> Request:
    """Return the request of a method with the cross-entropy that the federation asks for."""
    train = job.spec.train
    if not isinstance(request, Fit) or (train.class_weights == "none" and not train.label_noise_q):
        return request
    counts = np.asarray(job.class_counts)  # (k,)
    weights = balanced(counts) if train.class_weights == "balanced" else np.ones(len(counts), np.float32)

    def asked(term: Term) -> Term:
        if type(term) is not CrossEntropy:
            return term
        return LabelLoss(class_weights=weights, q=train.label_noise_q, weight=term.weight)

    return replace(request, objective=tuple(asked(term) for term in request.objective))


def balanced(counts: np.ndarray) -> Floats:
    """Return the weights n / (m n_c) of m classes with n_c of n samples: f4 (k,); their mean over the samples is 1."""
    present = counts > 0
    found: Floats = np.where(present, counts.sum() / (max(1, present.sum()) * np.maximum(counts, 1)), 1)
    return found.astype(np.float32)
