"""Answers operators: carries out their commands, and reports on the devices of the run.

Where the lab was set up, signatures of commands are checked before this module sees them.  Elsewhere the broker's
access rules decide who may publish on the topic of commands.
"""

from __future__ import annotations

import difflib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias, TypeVar

from coordinator import rounds
from coordinator.record.units import of_rounds
from coordinator.rounds import RoundPhase
from coordinator.serving.operators.device_report import DeviceReport
from coordinator.serving.operators.rollout import RolloutDesk
from coordinator.serving.run_context import RunContext
from coordinator.serving.sender import Sender
from edge_sdk.errors import RemoteProtocolError, StoreError
from edge_sdk.protocol.frames.codec import Stamp
from edge_sdk.protocol.frames.leaves import one_line
from edge_sdk.protocol.operator_messages import (
    DEVICES_PER_PAGE,
    MAX_LOG_LINES,
    Control,
    ControlAnswer,
    Inquiry,
    LogLines,
    LogRequest,
)

T = TypeVar("T")
Reply: TypeAlias = "tuple[bool, str, rounds.RoundEvent | None]"
"""The outcome of a command: whether it is carried out, a line about it, and the event for the rounds."""

MOST_REQUESTS = 64
"""Maximum number of answers kept for repeated commands, and of questions about logs that wait for a device."""


class OperatorDesk:
    """Takes the frames of operators, and the log lines that devices send for them."""

    def __init__(self, context: RunContext, report: DeviceReport, sender: Sender, rollouts: RolloutDesk) -> None:
        self._context, self._report, self._sender = context, report, sender
        self._rollouts = rollouts
        self._registry, self._record, self._orders = context.registry, context.record, context.orders
        self._federation = context.spec.federation
        self._answers: OrderedDict[bytes, ControlAnswer] = OrderedDict()
        """The answers to the last commands, by request."""
        self._waiting: OrderedDict[bytes, tuple[str, str]] = OrderedDict()
        """The operator and the device of each question about logs that the device has not answered, by request."""
        self._commands: Mapping[str, Callable[[str | None, float], Reply]] = {
            "drain": self._drain,
            "resume": self._resume,
            "forget": self._forget,
            "pause": self._pause,
            "revoke": self._revoke,
        }

    # -- commands -----------------------------------------------------------------------------------------------------

    def carry_out(self, control: Control, now_s: float, signed: Stamp | None = None) -> rounds.RoundEvent | None:
        """Carry out a command once, and answer it; returns the event for the rounds, if any.

        signed: the stamp of its frame, if that is signed.  Raises RemoteProtocolError for a command without operator
        and request, and for a signed one that was recorded earlier; StoreError if the disk fails.
        """
        if control.operator is None or control.request is None:
            raise RemoteProtocolError("knowledge", "a Control without operator and request is not carried out")
        known = self._answers.get(control.request)
        if known is not None:
            self._sender.answer(known)
            return None
        if signed is not None and (control.run != self._context.run or not self._orders.take_note(signed)):
            raise RemoteProtocolError("replayed", f"a command {control.operation} of before, or of another run")
        event: rounds.RoundEvent | None = None
        wanted: tuple[int, ...] = ()
        if control.operation in ("rollout", "rollback"):
            done, text, wanted = self._rolled_out(control)
        else:
            done, text, event = self.ordered(control.operation, control.device, now_s)
        answer = ControlAnswer(
            federation=self._federation,
            operator=control.operator,
            request=control.request,
            done=done,
            text=one_line(text, 1024),
            wanted=wanted,
        )
        _remember(self._answers, control.request, answer)
        self._sender.answer(answer)
        return event

    def _rolled_out(self, control: Control) -> tuple[bool, str, tuple[int, ...]]:
        try:
            return self._rollouts.ordered(control)
        except StoreError as error:
            return False, str(error), ()

    def ordered(self, operation: str, device: str | None, now_s: float) -> Reply:
        """Carry out an authorised command; the caller feeds the event to the rounds."""
        try:
            command = self._commands.get(operation)
            done, text, event = command(device, now_s) if command else self._unknown(operation)
        except StoreError as error:
            return False, str(error), None
        if event is not None:
            self._context.note(f"an operator: {operation} {device or 'the run'}: {text}")
        return done, text, event

    def _unknown(self, operation: str) -> Reply:
        return False, f"this coordinator does not carry out {operation}", None

    def _drain(self, device: str | None, now_s: float) -> Reply:
        if device is None:
            return self._stop(now_s)
        fault = self._unfit(device)
        if fault:
            return False, fault, None
        state = self._context.rounds
        if device in self._orders.drained:
            return True, f"{device} is taken out already", None
        self._orders.drain(device)
        text = f"{device} is not here; it is refused if it comes back"
        if device in state.members:
            text = f"{device} gets the order to stop"
            if state.phase not in (RoundPhase.GATHERING, RoundPhase.RESTING):
                text = f"{device} finishes round {state.place.round + 1}, and then gets the order to stop"
        return True, text, rounds.Drain(now_s, device)

    def _stop(self, now_s: float) -> Reply:
        state = self._context.rounds
        if state.closing:
            return True, "the last round is over: the run ends with its closing exchange", None
        when = "now" if state.phase in (RoundPhase.GATHERING, RoundPhase.RESTING) or state.stalled else "at the end of"
        if when != "now":
            when += f" round {of_rounds(state.place.round + 1, state.policy.rounds)}"
        text = f"the coordinator stops {when}; --resume continues the run"
        if state.stopping:
            return True, text, None
        self._orders.stop(wanted=True)
        return True, text, rounds.Drain(now_s)

    def _pause(self, device: str | None, now_s: float) -> Reply:
        if device is None:
            return (
                False,
                "name the device to pause; edge-sdk drain stops the whole run, and --resume continues it",
                None,
            )
        fault = self._unknown_device(device)
        if fault:
            return False, fault, None
        self._orders.pause(device, wanted=True)
        return (
            True,
            f"{device} is neither awaited nor invited until it is resumed",
            rounds.Declined(device, None, now_s),
        )

    def _revoke(self, device: str | None, _now_s: float) -> Reply:
        if device is None:
            return False, "name the device to revoke", None
        security = self._context.security
        fault = security.revoke(device) if security else "frames are not signed here: start it with --lab"
        return not fault, fault or f"{device} is revoked; edge-sdk lab revoke also closes the broker for it", None

    def _resume(self, device: str | None, now_s: float) -> Reply:
        if device is None:
            if not self._orders.stopping:
                return True, "the run continues: no stop was ordered", None
            self._orders.stop(wanted=False)
            return True, "the run continues", rounds.CancelDrain()
        if device in self._orders.paused:
            self._orders.pause(device, wanted=False)
            return True, f"{device} is invited again", rounds.Willing(device, now_s)
        if device not in self._orders.drained:
            fault = self._unknown_device(device)
            return not fault, fault or f"{device} takes part: it was not taken out", None
        stays = device in self._context.rounds.draining
        self._orders.let_in(device)
        self._record.refused_devices.pop(device, None)
        text = f"{device} stays" if stays else f"{device} may take part again: start it again on the board"
        return True, text, rounds.CancelDrain(device)

    def _forget(self, device: str | None, now_s: float) -> Reply:
        if device is None:
            return False, "name the device to forget", None
        fault = self._unfit(device)
        if fault:
            return False, fault, None
        if device in self._orders.forgotten:
            return True, f"{device} is forgotten already", None
        here = device in self._context.rounds.members
        self._orders.forget(device)
        self._record.refused_devices.pop(device, None)
        self._record.left.pop(device, None)
        if self._context.rounds.between_rounds:
            self._orders.delete_forgotten(self._registry)
        joins = "; it is here: when its link comes back, or it is started again, it joins as a new device"
        again = f"{joins} (to keep a device out, use edge-sdk drain)" if here else ""
        text = f"{device} is forgotten: the run no longer waits for it, and another device may get its number{again}"
        return True, text, rounds.Left(device, now_s)

    def _unfit(self, device: str) -> str:
        """Return why a device cannot be taken out (it is unknown, or the run would end), or empty if it can."""
        fault = self._unknown_device(device)
        state = self._context.rounds
        if fault or device in state.gone:
            return fault
        without = replace(state, members=state.members - {device}, gone=state.gone | {device})
        if without.quorum_possible:
            return ""
        return (
            f"without {device} the quorum of {state.policy.quorum} cannot be reached, and the run would fail; "
            "stop the run (edge-sdk drain), and resume it with a lower federation.quorum"
        )

    def _unknown_device(self, device: str) -> str:
        known = self._report.devices()
        if device in known:
            return ""
        near = difflib.get_close_matches(device, known, 3) or known[:3]
        more = " ..." if len(known) > len(near) else ""
        return f"no device {device} is known; there are {', '.join(near) or 'none'}{more}"

    # -- questions ----------------------------------------------------------------------------------------------------

    def tell(self, inquiry: Inquiry, now_s: float) -> None:
        """Answer a question, or pass it on to the device that it is about."""
        if inquiry.about == "logs":
            self._ask_device(inquiry)
            return
        if inquiry.about == "rollout":
            lines = tuple(one_line(line) for line in self._rollouts.lines()[:MAX_LOG_LINES])
            self._sender.answer(replace(self._blank(inquiry.operator, inquiry.request), lines=lines))
            return
        names = [name for name in self._report.devices() if inquiry.device is None or name > inquiry.device]
        page = names[:DEVICES_PER_PAGE]
        self._sender.answer(
            replace(
                self._blank(inquiry.operator, inquiry.request),
                run=self._report.run(),
                devices=tuple(self._report.entry(name, now_s) for name in page),
                more=len(names) > len(page),
            )
        )

    def _ask_device(self, inquiry: Inquiry) -> None:
        fault = self._no_logs(inquiry.device)
        if inquiry.device is None or fault:
            answer = self._blank(inquiry.operator, inquiry.request)
            self._sender.answer(replace(answer, done=False, text=one_line(fault, 1024)))
            return
        _remember(self._waiting, inquiry.request, (inquiry.operator, inquiry.device))
        request = LogRequest(
            federation=self._federation, device=inquiry.device, request=inquiry.request, lines=inquiry.lines
        )
        self._sender.send(inquiry.device, request)

    def _no_logs(self, device: str | None) -> str:
        """Return why a device cannot be asked for its log, or empty if it can."""
        if device is None:
            return "name the device whose log is wanted"
        fault = self._unknown_device(device)
        hello = self._registry.hellos.get(device)
        if fault or hello is None:
            return fault or f"{device} has not joined"
        if not hello.sends_logs:
            return f"{device} sends no log: its owner switched that off, or its edge-sdk ({hello.sdk}) is older"
        return ""

    def relay(self, lines: LogLines) -> None:
        """Give the lines of a device to the operator who asked.  Raises RemoteProtocolError without such a question."""
        operator, device = self._waiting.get(lines.request, ("", ""))
        if device != lines.device:
            raise RemoteProtocolError("knowledge", f"log lines of {lines.device} that no operator requested")
        self._sender.answer(replace(self._blank(operator, lines.request), lines=lines.lines))

    def _blank(self, operator: str, request: bytes) -> ControlAnswer:
        return ControlAnswer(federation=self._federation, operator=operator, request=request, done=True)


def _remember(kept: OrderedDict[bytes, T], key: bytes, value: T) -> None:
    """Keep a value, and drop the oldest one beyond MOST_REQUESTS."""
    kept[key] = value
    if len(kept) > MOST_REQUESTS:
        kept.popitem(last=False)
