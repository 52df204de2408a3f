"""The link of an operator's program with a running coordinator: sends a command or a question until it is answered."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias

from edge_sdk.errors import TransportError, UsageError
from edge_sdk.identity.signatures import FrameSigner
from edge_sdk.protocol import topics
from edge_sdk.protocol.entry_guard import EntryGuard
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.frames.codec import Verify
from edge_sdk.protocol.messages import PUBLIC_BLOCK_BYTES, CoordinatorStatus, PublicBlock
from edge_sdk.protocol.model_offers import OfferedFile
from edge_sdk.protocol.operator_messages import Control, ControlAnswer, Inquiry
from edge_sdk.transport.base import Connected, Disconnected, Incoming, Transport, TransportEvent

LONGEST_S = 3600


def checked_timeout_s(seconds: float) -> float:
    """Return the value of --timeout.  Raises UsageError unless it is above 0, and below an hour."""
    if not 0 < seconds < LONGEST_S:
        raise UsageError(f"--timeout {seconds:g}: expected seconds above 0, and below {LONGEST_S}")
    return seconds


RESEND_S = 1.0
"""Seconds after which a command without an answer is sent again."""
EXPIRES_S = 2
"""Seconds for which the broker keeps a command for an absent coordinator, because an unanswered command must not be
carried out when the coordinator comes back later."""
POLL_S = 0.1

Question: TypeAlias = "Control | Inquiry"


@dataclass(frozen=True, slots=True)
class OperatorKeys:
    """The signer of an operator's frames, and the check of the coordinator's."""

    signer: FrameSigner
    verify: Verify


class OperatorLink:
    """Talks to the coordinator of one federation."""

    def __init__(
        self,
        transport: Transport,
        federation: str,
        operator: str,
        *,
        timeout_s: float,
        keys: OperatorKeys | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """operator: the name under which answers come back.  timeout_s: the longest wait for each answer.

        keys: sign outgoing frames and check incoming ones, or None for plain frames.
        """
        self._keys = keys
        self._run: bytes | None = None
        """The run that the coordinator announced last; a signed command names it."""
        self._transport, self._federation, self._operator = transport, federation, operator
        self._timeout_s, self._clock = timeout_s, clock
        self._linked, self._fault = False, "it does not answer"
        self._guard = EntryGuard("operator")
        self._status = ""
        """The coordinator's last announcement, or empty before the first."""
        transport.connect(topics.operator_subscriptions(federation, operator))

    def command(self, operation: str, device: str | None = None) -> str:
        """Send a command, and return the coordinator's line about it.

        Raises UsageError if the coordinator does not carry it out, TransportError if it does not answer.
        """
        control = Control(
            federation=self._federation,
            operation=operation,
            device=device,
            operator=self._operator,
            request=secrets.token_bytes(16),
        )
        return self.ask(control).text

    def roll_out(self, file: OfferedFile, share: float, board: str, *, asks_cost: bool = False) -> ControlAnswer:
        """Order a file to be rolled out; the answer has what that costs, and the blocks that are missing.

        asks_cost: only ask.  Raises UsageError if the coordinator refuses, TransportError if it does not answer.
        """
        return self.ask(
            Control(
                federation=self._federation,
                operation="rollout",
                operator=self._operator,
                request=secrets.token_bytes(16),
                file=file,
                share=share,
                board=board,
                asks_cost=asks_cost,
            )
        )

    def send_blocks(self, file: OfferedFile, content: bytes, indices: Iterable[int]) -> None:
        """Send blocks of a file; those that do not arrive are missing in the next answer."""
        for index in indices:
            at = index * PUBLIC_BLOCK_BYTES
            block = PublicBlock(
                federation=self._federation,
                device=self._operator,
                sha256=file.sha256,
                index=index,
                count=-(-len(content) // PUBLIC_BLOCK_BYTES),
                total_bytes=len(content),
                data=content[at : at + PUBLIC_BLOCK_BYTES],
            )
            self._transport.send(topics.control(self._federation), self._frame(block))

    def inquiry(self, about: str, device: str | None = None, **more: int) -> Inquiry:
        """Return a new question."""
        return Inquiry(
            federation=self._federation,
            about=about,
            device=device,
            operator=self._operator,
            request=secrets.token_bytes(16),
            **more,
        )

    def ask(self, question: Question) -> ControlAnswer:
        """Send a command or a question until its answer comes.

        Raises UsageError if the coordinator does not carry it out, TransportError if it does not answer in time.
        """
        frame = b""
        end_s, again_s = self._clock() + self._timeout_s, self._clock()
        while self._clock() < end_s:
            if self._linked and self._clock() >= again_s and self._may_send(question):
                frame = frame or self._frame(question)
                self._transport.send(topics.control(self._federation), frame)
                again_s = self._clock() + RESEND_S
            event = self._transport.poll(POLL_S)
            answer = None if event is None else self._answer_in(event)
            if answer is not None and answer.request == question.request:
                if not answer.done:
                    raise UsageError(answer.text)
                return answer
        raise TransportError(self._silence(question))

    def _may_send(self, question: Question) -> bool:
        """Whether it can be sent: a signed command waits for the run that it must name."""
        return self._keys is None or self._run is not None or isinstance(question, Inquiry)

    def _frame(self, question: Question | PublicBlock) -> bytes:
        if self._keys is None:
            return codec.encode(question)
        if isinstance(question, Control):
            question = replace(question, run=self._run)
        return codec.encode(question, self._keys.signer.stamp(), self._keys.signer.sign)

    def _answer_in(self, event: TransportEvent) -> ControlAnswer | None:
        """Process an event; returns the answer in it, if it is one."""
        if isinstance(event, Connected):
            self._linked = True
        elif isinstance(event, Disconnected):
            self._linked, self._fault = False, event.reason
        elif isinstance(event, Incoming):
            event.acknowledge()
            message = None
            with self._guard.message(event.topic):
                message = codec.decode(event.frame, verify=self._keys.verify if self._keys else None).message
            if message is None or message.federation != self._federation:
                return None
            if isinstance(message, CoordinatorStatus):
                self._run = message.run
                self._status = f"{message.state} ({message.reason})" if message.reason else message.state
            return message if isinstance(message, ControlAnswer) else None
        return None

    def _silence(self, question: Question) -> str:
        """Return the reason for a missing answer, and its remedy."""
        if not self._linked:
            return f"no broker within {self._timeout_s:g} s: {self._fault}"
        waited = f"within {self._timeout_s:g} s"
        if not self._status:
            return f"no coordinator of {self._federation!r} answered {waited}, and none was seen: check --federation"
        if isinstance(question, Inquiry) and question.about == "logs" and self._status == "ready":
            return f"{question.device} sent no log {waited}: it is away, or computes a long batch; try --timeout 60"
        return (
            f"the coordinator of {self._federation!r} did not answer {waited}; the last that it announced is "
            f"{self._status}: is it running, with this version of edge-sdk, and may this user publish commands?"
        )


@contextmanager
def linked(
    transport: Transport, federation: str, operator: str, timeout_s: float, keys: OperatorKeys | None = None
) -> Iterator[OperatorLink]:
    """Yield a link to the coordinator of a federation, and close it in the end."""
    try:
        yield OperatorLink(transport, federation, operator, timeout_s=timeout_s, keys=keys)
    finally:
        transport.close()
