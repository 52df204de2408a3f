"""One exchange under way on a device: from its Assign through the method's slices to its upload."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from edge_sdk.device import divergence
from edge_sdk.device.learner import ExchangeMetrics, Learner, ServeRequest, WorkSlices
from edge_sdk.device.store import Done, RoundStart, Store
from edge_sdk.device.uplink import Uplink
from edge_sdk.errors import Diverged, LocalProtocolError
from edge_sdk.protocol.knowledge import Payload
from edge_sdk.protocol.leaves import one_line
from edge_sdk.protocol.messages import Assign, Upload

UploadedKnowledge: TypeAlias = Callable[[Assign, Mapping[str, Payload]], Mapping[str, Payload]]
"""What is sent of what an exchange computed."""
Notify: TypeAlias = Callable[[str], None]
"""Told a line of what the device's owner should know."""


@dataclass(frozen=True, slots=True)
class RoundReport:
    """What one exchange brought."""

    round: int
    exchange: int
    closing: bool
    metrics: Mapping[str, float]
    """What the device measured of itself in it; empty where it did not."""
    metrics_round: int
    """The number of completed rounds that the metrics describe."""
    withheld: str = ""
    """Why the device shared nothing and went back to its state before the round; empty: it did not."""


@dataclass
class OngoingExchange:
    """One exchange under way."""

    learner: Learner
    store: Store
    assign: Assign
    """Without what it brought."""
    frame: bytes
    start: RoundStart | None
    """The round's, where this exchange begins it: it is saved with the exchange."""
    measured: ExchangeMetrics
    slices: WorkSlices
    result: tuple[Any, Mapping[str, Payload]] | None = None
    """The method's new state and what to upload, once all is computed."""
    withheld: str = ""
    """Why nothing is shared: what was learned diverged."""
    done: Done | None = None
    """The result as it is stored and sent."""

    @property
    def unsaved_bytes(self) -> int:
        """What it will make durable, but for its upload: the Assign, and a round's start."""
        start_bytes = len(self.start.model) + len(self.start.method) if self.start is not None else 0
        return len(self.frame) + start_bytes

    def withhold(self, reason: str, news: Notify) -> None:
        """Share nothing of it, for what was learned diverged, and stand again where the round began."""
        start = self.start or self.store.start()
        if start is not None:
            self.learner.go_back_to(start)
        if self.learner.sit_out(self.assign.round, reason):
            news(f"round {self.assign.round}: {reason}; withheld and undone: {divergence.REMEDY}")
        self.result, self.withheld, self.measured = (self.learner.state, {}), one_line(reason), ExchangeMetrics()

    def pack(self, answer: UploadedKnowledge, uplink: Uplink, news: Notify) -> None:
        """Make its upload's frame, or where the numbers are not fit to be sent, that of an empty one.

        Raises RemoteProtocolError where the knowledge is not what the federation exchanges.
        """
        assign, knowledge = self.assign, self._take_knowledge()
        try:
            knowledge = answer(assign, knowledge)
            knowledge = self.learner.membership.sendable(knowledge, assign, withheld=bool(self.withheld))
        except (Diverged, LocalProtocolError) as error:  # not finite; or too large for the federation's encoding
            self.withhold(str(error), news)
            knowledge = {}
        self.done = Done(assign.round, assign.exchange, self.frame, uplink.frame(self._upload(knowledge)))

    def save(self) -> None:
        """Make it durable, and what was learned in it what counts.  Raises StoreError where the disk refuses."""
        if self.result is not None and self.done is not None:
            self.store.save(self.done, self.start)
            self.learner.state = self.result[0]

    def _take_knowledge(self) -> Mapping[str, Payload]:
        """What to upload, once: a whole model, perhaps, and not held here while its frame is made."""
        if self.result is None:
            return {}
        state, knowledge = self.result
        self.result = (state, {})
        return knowledge

    def _upload(self, knowledge: Mapping[str, Payload]) -> Upload:
        """With knowledge as it travels."""
        assign, us = self.assign, self.learner.membership.welcome
        return Upload(
            federation=us.federation,
            device=us.device,
            round=assign.round,
            exchange=assign.exchange,
            closing=assign.closing,
            samples=self.learner.samples,
            metrics=self.measured.metrics,
            metrics_round=self.measured.rounds_done,
            withheld="" if assign.closing else self.withheld,
            knowledge=knowledge,
        )

    def report(self) -> RoundReport:
        """What it brought."""
        assign, measured = self.assign, self.measured
        return RoundReport(
            round=assign.round,
            exchange=assign.exchange,
            closing=assign.closing,
            metrics=measured.metrics,
            metrics_round=measured.rounds_done,
            withheld=self.withheld,
        )


def begin_exchange(
    learner: Learner, store: Store, assign: Assign, frame: bytes, serve: ServeRequest
) -> OngoingExchange:
    """The exchange that an Assign opens, before its first slice; if it opens a round, the store holds its start."""
    start, saved = None, store.started()
    if saved is None or assign.round > saved:
        start = learner.start_of(assign.round)
        store.hold(start)
    measured = ExchangeMetrics()
    place = replace(assign, common={}, personal={})
    return OngoingExchange(learner, store, place, frame, start, measured, learner.slices(assign, measured, serve))
