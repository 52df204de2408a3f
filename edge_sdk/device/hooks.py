"""Hooks for Participant subclasses: the Agent, simulated and malicious devices."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

from edge_sdk.device.exchange import OngoingExchange, RoundReport
from edge_sdk.device.training.learner import WorkSlices
from edge_sdk.policy.energy import TrainingCost
from edge_sdk.protocol.knowledge import Payload
from edge_sdk.protocol.messages import Assign, Hello


class ParticipantHooks:
    """The default hooks, which change nothing."""

    def on_news(self, line: str) -> None:
        """Receive a line for the owner, such as that the broker was found or lost, or that the disk is full."""

    def on_class_news(self, line: str) -> None:
        """Receive news that reveals which classes the device holds; show it only to the owner."""
        self.on_news(line)

    def on_exchange(self, report: RoundReport) -> None:
        """Receive the report of an exchange, once it is stored."""

    def on_unanswered(self, line: str) -> None:
        """Receive the line that no coordinator answers."""
        self.on_news(line)

    def cost(self) -> TrainingCost:
        """Return the cost of training since the last upload; a simulation counts it elsewhere."""
        return TrainingCost()

    def last_lines(self) -> Sequence[str] | None:
        """Return the last log lines, which an operator may read, or None if the owner withholds them."""
        return None

    def examine(self, work: OngoingExchange, slices: WorkSlices) -> WorkSlices:  # noqa: ARG002  # for subclasses
        """Return the computation of an exchange, extended by anything to compute before or after it."""
        return slices

    def knowledge_to_upload(self, assign: Assign, knowledge: Mapping[str, Payload]) -> Mapping[str, Payload]:  # noqa: ARG002  # for subclasses
        """Return the knowledge to upload after an exchange; a simulation of malicious devices overrides this.

        The arrays are the subclass's own.
        """
        return knowledge

    def selected_knowledge(self, assign: Assign, knowledge: Mapping[str, Payload]) -> Mapping[str, Payload]:
        """Return the result of `knowledge_to_upload`, which gets a copy; without an override no model is copied."""
        if type(self).knowledge_to_upload is ParticipantHooks.knowledge_to_upload:
            return knowledge
        return self.knowledge_to_upload(assign, {role: copy.deepcopy(each) for role, each in knowledge.items()})

    def hello_to_send(self, hello: Hello) -> Hello:
        """Return the Hello to send; a simulation of malicious devices overrides this."""
        return hello
