"""The interfaces through which others take part in a device's work: owner, examiner, offered models, attacker.

The device's context (context.py) holds one object of each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from edge_sdk.device.exchange import OngoingExchange, RoundReport
from edge_sdk.device.training.learner import WorkSlices
from edge_sdk.protocol.knowledge import Payload
from edge_sdk.protocol.messages import Assign, Hello, PublicBlock
from edge_sdk.protocol.model_offers import ModelOffer, OfferAnswer


class Owner:
    """The owner of a device, who receives news.  This one reads nothing, as in a simulation."""

    def news(self, line: str) -> None:
        """Receive a line, such as that the broker was found or lost, or that the disk is full."""

    def class_news(self, line: str) -> None:
        """Receive a line that reveals which classes the device holds; only the owner may read it."""
        self.news(line)

    def unanswered(self, line: str) -> None:
        """Receive the line that no coordinator answers."""
        self.news(line)

    def link_lost(self, reason: str, now_s: float) -> None:
        """Receive the reason why the broker cannot be reached; the same reason follows as news."""

    def stored(self, report: RoundReport, *, round_ends: bool) -> None:
        """Receive the report of an exchange once it is stored; round_ends: whether it was the last one of its round."""

    def last_lines(self) -> Sequence[str] | None:
        """Return the last lines, which an operator may read, or None if the owner withholds them."""
        return None


class Examiner(Protocol):
    """Measures the models of a device before and after exchanges, for the app that predicts with them."""

    def examined(self, work: OngoingExchange, slices: WorkSlices) -> WorkSlices:
        """Return the computation of an exchange, extended by measurements before and after it."""

    def settle(self, *, withheld: bool) -> None:
        """Serve the examined model, once its exchange is stored; withheld: whether the round was undone instead."""


class Offers(Protocol):
    """Handles model files that a device is offered, whose owner accepts some."""

    @property
    def answer(self) -> OfferAnswer | None:
        """The answer to the last offer."""

    @property
    def busy(self) -> bool:
        """Whether `tick` has something to compute at once."""

    @property
    def changed(self) -> bool:
        """Whether the device is to begin again, with another model."""

    def offered(self, offer: ModelOffer) -> None:
        """Take an offer.  Raises RemoteProtocolError for one that is out of date."""

    def receive(self, block: PublicBlock, now_s: float) -> bool:
        """Store a block; returns False if it is not of an offered file.  Raises RemoteProtocolError."""

    def tick(self, now_s: float, *, idle: bool) -> bool:
        """Do what is due; returns whether the next Hello has news.

        idle: whether no exchange has changed the model since the last stored one.
        """


class Outgoing(Protocol):
    """Alters what a device sends; a simulation of malicious devices has one."""

    def hello(self, hello: Hello) -> Hello:
        """Return the Hello to send."""

    def knowledge(self, assign: Assign, knowledge: Mapping[str, Payload]) -> Mapping[str, Payload]:
        """Return the knowledge to upload.  Its arrays are copies, which may be changed."""
