"""Detects another coordinator of a federation before this one begins: two would compete for devices and link."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

from edge_sdk.errors import RemoteProtocolError
from edge_sdk.protocol import topics
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.messages import ControlAnswer, CoordinatorStatus, Inquiry
from edge_sdk.transport.base import Connected, Disconnected, Incoming, Transport

LINK_S = 10.0
"""Maximum wait for a link: a broker that is silent or refuses these topics must not block a coordinator."""
SETTLE_S = 0.3
"""Seconds within which a broker delivers the retained status of a coordinator."""
ANSWER_S = 3.0
"""Maximum wait for the answer of a coordinator that has announced that it serves."""
POLL_S, ASK_S = 0.1, 1.0
"""Maximum wait for one event, and the seconds after which the question is repeated."""


def another_serves(
    transport: Transport, federation: str, operator: str, clock: Callable[[], float] = time.monotonic
) -> bool:
    """Whether a coordinator of this federation has announced that it serves and answers a question.

    transport: not connected yet; closed in the end.  operator: an id for the answer, used only here.
    Returns False at once without a broker.  A killed coordinator cannot answer, even if its status is still on the
    broker, so it can be restarted.
    """
    question = Inquiry(federation=federation, about="devices", operator=operator, request=secrets.token_bytes(16))
    transport.connect(topics.operator_subscriptions(federation, operator))
    linked = ready = False
    end_s, ask_s = clock() + LINK_S, clock()
    try:
        while clock() < end_s:
            if linked and ready and clock() >= ask_s:
                transport.send(topics.control(federation), codec.encode(question))
                ask_s = clock() + ASK_S
            event = transport.poll(POLL_S)
            if isinstance(event, Disconnected):
                return False
            if isinstance(event, Connected):
                linked, end_s = True, clock() + (ANSWER_S if ready else SETTLE_S)
            message = _message(event, federation) if isinstance(event, Incoming) else None
            if isinstance(message, ControlAnswer) and message.request == question.request:
                return True
            if isinstance(message, CoordinatorStatus):
                if message.state != "ready":
                    return False
                if not ready:
                    ready, end_s = True, clock() + (ANSWER_S if linked else LINK_S)
        return False
    finally:
        transport.close()


def _message(incoming: Incoming, federation: str) -> object:
    """Return the message of a frame, or None if it is illegal or of another federation."""
    incoming.acknowledge()
    try:
        message = codec.decode(incoming.frame).message
    except RemoteProtocolError:
        return None
    return message if message.federation == federation else None
