"""One exchange on a device, from its Assign through the computation to its upload."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

from edge_sdk.device.link.uplink import Uplink
from edge_sdk.device.store import FinishedExchange, RoundStart, Store
from edge_sdk.device.training.divergence import check_knowledge
from edge_sdk.device.training.learner import (
    NO_EVALUATION,
    Evaluation,
    ExchangeMetrics,
    Learner,
    ServeRequest,
    WorkSlices,
)
from edge_sdk.errors import Diverged, LearningLost, LocalProtocolError, TrainingFailed
from edge_sdk.policy.energy import TrainingCost
from edge_sdk.protocol.frames.frame_parts import Frame
from edge_sdk.protocol.frames.leaves import one_line
from edge_sdk.protocol.knowledge import Payload
from edge_sdk.protocol.messages import Assign, Upload

AlteredKnowledge: TypeAlias = Callable[[Assign, Mapping[str, Payload]], Mapping[str, Payload]]
"""Maps the Assign and the computed knowledge to the knowledge to upload."""
Notify: TypeAlias = Callable[[str], None]
"""A function that receives a line for the device's owner."""


@dataclass(frozen=True, slots=True)
class RoundReport:
    """The result of one exchange, for callbacks of an app."""

    round: int
    exchange: int
    closing: bool
    metrics: Mapping[str, float]
    """The figures of the global model, or of the device's own where the method has no global one; empty if none were
    measured in this exchange."""
    metrics_round: int
    """The number of completed rounds that the metrics describe."""
    personal_metrics: Mapping[str, float] = field(default_factory=dict)
    """The figures of the device's own model after training, if the method also has a global one."""
    personal_round: int = 0
    global_model: bool = False
    """Whether `metrics` describe a model that all devices share."""
    withheld: str = ""
    """Why the device uploaded no knowledge and went back to its state before the round, or empty if it did not."""
    not_served: str = ""
    """Why the new model is not served: it is worse on the device's own held-out samples.  Empty if it is served."""
    joining_metrics: Mapping[str, float] = field(default_factory=dict)
    """The figures of the device's own model before its first round; empty if they were not measured."""
    alone: bool = False
    """Whether the device trained alone, in the control group."""


@dataclass
class OngoingExchange:
    """An exchange that is being computed, or computed and not stored yet."""

    learner: Learner
    store: Store
    assign: Assign
    """The Assign without its knowledge."""
    frame: Frame
    """The frame of the Assign, as received."""
    start: RoundStart | None
    """The device's state before the round, if this exchange begins the round; it is saved with the exchange."""
    measured: ExchangeMetrics
    slices: WorkSlices
    begun: bool = False
    """Whether computing has begun, so that the model may have changed."""
    result: tuple[Any, Mapping[str, Payload]] | None = None
    """The method's new state and the knowledge to upload, or None until all is computed."""
    withheld: LearningLost | None = None
    """Why no knowledge is uploaded, or None if nothing is withheld."""
    joining: Mapping[str, float] = field(default_factory=dict)
    """The figures of the model before it joined, or empty if not measured."""
    not_served: str = ""
    """Why the app still predicts with an older model, or empty if it does not."""
    done: FinishedExchange | None = None
    """The result in the form that is stored and sent."""

    @property
    def unsaved_bytes(self) -> int:
        """Bytes that this exchange will store besides its upload: the Assign, and the start of a round."""
        start_bytes = len(self.start.model) + len(self.start.method) if self.start is not None else 0
        return len(self.frame) + start_bytes

    @property
    def ends_round(self) -> bool:
        """Whether this is the last exchange of its round, or the closing one."""
        return self.assign.closing or self.learner.membership.is_last(self.assign.exchange)

    def withhold(self, reason: LearningLost, notify: Notify) -> None:
        """Upload no knowledge, and restore the device's state before the round."""
        start = self.start or self.store.round_start()
        if start is not None:
            self.learner.restore(start)
        if self.learner.skip_round(self.assign.round, reason):
            notify(f"round {self.assign.round}: {reason}; withheld and undone: {reason.remedy}")
        self.result, self.withheld, self.measured = (self.learner.state, {}), reason, ExchangeMetrics()
        self.not_served = ""

    def pack(
        self,
        alter: AlteredKnowledge | None,
        uplink: Uplink,
        notify: Notify,
        cost: TrainingCost,
        refused_frames: Mapping[str, int],
    ) -> None:
        """Make the frame of the upload; the upload is empty if its knowledge, such as NaN, cannot be sent.

        alter: changes the knowledge of a dishonest device, or None.  cost: of training since the last upload.
        refused_frames: the frames refused since then, by word.

        Raises RemoteProtocolError if the knowledge does not fit the federation's exchange.
        """
        assign, knowledge = self.assign, self._take_knowledge()
        try:
            if alter is not None:  # it gets copies; an honest device copies no model
                knowledge = alter(assign, {role: deepcopy(each) for role, each in knowledge.items()})
            knowledge = self.learner.membership.apply_transforms(knowledge, assign, withheld=bool(self.withheld))
        except (Diverged, LocalProtocolError) as error:  # not finite; or too large for the federation's encoding
            self.withhold(Diverged(str(error)), notify)
            knowledge = {}
        try:
            frame = uplink.frame(self._upload(knowledge, cost, refused_frames))
        except LocalProtocolError as error:  # a payload of another package that its own check lets pass
            self.withhold(_why_not_sent(knowledge, error), notify)
            frame = uplink.frame(self._upload({}, cost, refused_frames))
        self.done = FinishedExchange(assign.round, assign.exchange, self.frame, frame)

    def save(self) -> None:
        """Store the exchange, then take over the method's new state.  Raises StoreError if the disk fails."""
        if self.result is not None and self.done is not None:
            self.store.save(self.done, self.start)
            self.learner.state = self.result[0]
            if self.start is not None:
                self.learner.supply.release(self.start.data)
            if self.learner.membership.is_last(self.assign.exchange) and not self.learner.supply.changes:
                self.store.rest(partial(self.learner.start_of, self.assign.round + 1))

    def _take_knowledge(self) -> Mapping[str, Payload]:
        """Hand out the knowledge and drop it here: it may be a whole model, and need not stay while it is encoded."""
        if self.result is None:
            return {}
        state, knowledge = self.result
        self.result = (state, {})
        return knowledge

    def _upload(
        self, knowledge: Mapping[str, Payload], cost: TrainingCost, refused_frames: Mapping[str, int]
    ) -> Upload:
        """Build the upload; knowledge: after the federation's transforms."""
        assign, us = self.assign, self.learner.membership.welcome
        shared, personal = self._evaluations()
        # duration and accuracy depend on the samples, too, so a privacy budget withholds them with the counts
        if self.learner.tells_no_counts:
            cost, self.joining = TrainingCost(), {}
        return Upload(
            federation=us.federation,
            device=us.device,
            round=assign.round,
            exchange=assign.exchange,
            closing=assign.closing,
            samples=0 if self.learner.tells_no_counts else self.learner.samples,
            metrics=self.learner.told(shared.metrics),
            metrics_round=shared.rounds_done,
            personal_metrics=self.learner.told(personal.metrics),
            personal_round=personal.rounds_done,
            withheld="" if assign.closing else self._why_withheld,
            withheld_cause=Diverged.code if assign.closing or self.withheld is None else self.withheld.code,
            instruments=self.measured.instruments,
            joining_metrics=self.learner.told(self.joining),
            not_served="" if self.learner.tells_no_counts else one_line(self.not_served),
            knowledge=knowledge,
            busy_s=cost.busy_s,
            energy_j=cost.energy_j,
            joules_source=cost.joules_source or None,
            temperature_c=cost.temperature_c,
            class_counts=self.learner.counts_to_disclose,
            refused_frames=refused_frames,
            run=assign.run,
            alone=assign.alone,
        )

    @property
    def _why_withheld(self) -> str:
        return "" if self.withheld is None else one_line(str(self.withheld))

    def _evaluations(self) -> tuple[Evaluation, Evaluation]:
        """Return the evaluations of the shared and of the personal model; one alone comes first."""
        method, found = self.learner.membership.method, self.measured.evaluations
        first = method.arrives(closing=self.assign.closing)
        second = found.get("personal", NO_EVALUATION) if first != "personal" else NO_EVALUATION
        return found.get(first, NO_EVALUATION), second

    def report(self) -> RoundReport:
        """Return the result for the callbacks of an app."""
        assign = self.assign
        shared, personal = self._evaluations()
        return RoundReport(
            round=assign.round,
            exchange=assign.exchange,
            closing=assign.closing,
            metrics=shared.metrics,
            metrics_round=shared.rounds_done,
            personal_metrics=personal.metrics,
            personal_round=personal.rounds_done,
            global_model=self.learner.membership.method.global_model,
            withheld=self._why_withheld,
            not_served=self.not_served,
            joining_metrics=self.joining,
            alone=assign.alone,
        )


def begin_exchange(
    learner: Learner, store: Store, assign: Assign, frame: Frame, serve: ServeRequest
) -> OngoingExchange:
    """Begin the exchange that an Assign opens; nothing is computed yet.

    If the exchange begins a round, the store receives the device's current state as the start of that round.
    """
    start, saved = None, store.saved_round()
    stale = learner.supply.changes and not store.finished()  # saved when joining; samples may have come since
    if saved is None or assign.round > saved or stale:
        start = learner.snapshot(assign.round)
        store.begin_round(start)
    measured = ExchangeMetrics()
    header = replace(assign, common={}, personal={})
    return OngoingExchange(learner, store, header, frame, start, measured, learner.slices(assign, measured, serve))


def training_failed(error: Exception) -> TrainingFailed:
    """Return the reason to withhold a round in which the model, its loss or the samples raised an error.

    It holds only the error's type, because it is uploaded and the text may quote samples.  The error is its cause.
    """
    reason = TrainingFailed(one_line(f"training failed: {type(error).__name__}"))
    reason.__cause__ = error
    return reason


def _why_not_sent(knowledge: Mapping[str, Payload], error: LocalProtocolError) -> LearningLost:
    """Return the reason to withhold knowledge that no frame can hold: its numbers, or its form."""
    try:
        check_knowledge(knowledge)
    except Diverged as diverged:
        return diverged
    return TrainingFailed(one_line(str(error)))
