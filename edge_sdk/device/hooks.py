"""What a subclass of a participant may override: an app's Agent, a simulated device, a malicious one."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

from edge_sdk.device.exchange import OngoingExchange, RoundReport
from edge_sdk.device.learner import WorkSlices
from edge_sdk.policy.energy import TrainingCost
from edge_sdk.protocol.knowledge import Payload
from edge_sdk.protocol.messages import Assign, Hello


class ParticipantHooks:
    """The hooks of a participant; as they stand here they change nothing."""

    def on_news(self, line: str) -> None:
        """Receive a line for the owner, such as that the broker was found or lost, or that the disk is full."""

    def on_class_news(self, line: str) -> None:
        """Receive a line that says of which classes the device has samples: nobody but the owner may know."""
        self.on_news(line)

    def on_exchange(self, report: RoundReport) -> None:
        """Receive the report of an exchange, once it is stored."""

    def on_unanswered(self, line: str) -> None:
        """Receive a line for the device's owner: no coordinator answers."""
        self.on_news(line)

    def cost(self) -> TrainingCost:
        """Return what training since the last upload has cost; a simulation counts it elsewhere."""
        return TrainingCost()

    def last_lines(self) -> Sequence[str] | None:
        """Return the last lines for the owner, which an operator may read, too; None: they stay here."""
        return None

    def examine(self, work: OngoingExchange, slices: WorkSlices) -> WorkSlices:  # noqa: ARG002  # for subclasses
        """Return the computation of an exchange, with what is to be computed before and after it."""
        return slices

    def knowledge_to_upload(self, assign: Assign, knowledge: Mapping[str, Payload]) -> Mapping[str, Payload]:  # noqa: ARG002  # for subclasses
        """Return the knowledge to upload after an exchange; a simulation of malicious devices overrides this.

        The arrays are the subclass's own.
        """
        return knowledge

    def selected_knowledge(self, assign: Assign, knowledge: Mapping[str, Payload]) -> Mapping[str, Payload]:
        """Return what `knowledge_to_upload` makes of the knowledge; the arrays may be the model's own memory."""
        if type(self).knowledge_to_upload is ParticipantHooks.knowledge_to_upload:
            return knowledge
        return self.knowledge_to_upload(assign, {role: copy.deepcopy(each) for role, each in knowledge.items()})

    def hello_to_send(self, hello: Hello) -> Hello:
        """Return the Hello with which the device asks to take part; the same simulation overrides this."""
        return hello
