"""Describes the devices of a running federation, to operators and to observers of the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from coordinator.record.round_result import OpenExchange
from coordinator.record.run_record import RunRecord
from coordinator.record.units import of_rounds
from coordinator.rounds import RoundPhase, RoundState
from coordinator.serving.run_context import RunContext
from edge_sdk.protocol.frames.leaves import one_line
from edge_sdk.protocol.operator_messages import DeviceEntry

WHY_CHARACTERS = 512


class DeviceReport:
    """The devices of a run and their activities."""

    def __init__(self, context: RunContext, roster: tuple[str, ...]) -> None:
        self._context, self._spec, self._roster = context, context.spec, roster
        self._registry, self._record, self._orders = context.registry, context.record, context.orders
        self._seen_s: dict[str, float] = {}
        """When the last frame of each device that has joined arrived, in seconds of the server's clock."""
        self._here_s: dict[str, float] = {}
        """When each present device joined."""

    # -- presence -----------------------------------------------------------------------------------------------------

    def saw(self, device: str, now_s: float) -> None:
        """Note that a frame of a device arrived."""
        if self._registry.known(device):
            self._seen_s[device] = now_s

    def joined(self, device: str, now_s: float) -> None:
        """Note that a device has joined, for the first time or again."""
        self._here_s.setdefault(device, now_s)
        self._seen_s[device] = now_s

    def parted(self, device: str) -> None:
        """Note that a device has left or was revoked, or that the broker reports its link lost."""
        self._here_s.pop(device, None)

    def forgot(self, device: str) -> None:
        """Note that a device is no longer known."""
        self._here_s.pop(device, None)
        self._seen_s.pop(device, None)

    # -- for operators ------------------------------------------------------------------------------------------------

    def devices(self) -> list[str]:
        """Return all devices that are known, sorted."""
        forgotten = self._orders.forgotten - self._context.rounds.members
        known = {*self._registry.numbers, *self._roster, *self._record.refused_devices, *self._record.left}
        return sorted((known | self._orders.drained) - forgotten)

    def run(self) -> str:
        """Return the activity of the run in one line."""
        state, spec = self._context.rounds, self._spec
        here = len(state.members - state.away)
        number = of_rounds(state.place.round + 1, spec.rounds)
        place = "closing exchange" if state.closing else f"round {number}"
        stops = "; stops at the end of this round" if state.stopping else ""
        return f"{spec.method}, {place}: {self.doing()}; {here} of {state.policy.expected} devices are here{stops}"

    def doing(self) -> str:
        """Return the activity of the run in this exchange."""
        state = self._context.rounds
        words = {
            RoundPhase.GATHERING: "waiting for devices",
            RoundPhase.COLLECTING: f"{len(state.folded)} of {len(state.invited)} uploads received",
            RoundPhase.FINISHING: "computing",
            RoundPhase.RESTING: f"resting: {state.resting}",
        }.get(state.phase, state.phase.value)
        if state.stalled:
            words += f", {state.needed} needed; waiting for devices that decline"
        if self._context.queue.held:
            words += "; the round waits for the coordinator's disk, which refuses writes"
        return words

    def exchange(self) -> OpenExchange:
        """Return the exchange that is open."""
        state = self._context.rounds
        collecting = state.phase is RoundPhase.COLLECTING
        return OpenExchange(
            line=self.run(),
            doing=self.doing(),
            phase=state.phase.value,
            round=min(state.place.round + 1, self._spec.rounds),
            exchange=state.place.exchange + 1,
            exchanges=state.policy.exchanges,
            closing=state.closing,
            expected=state.policy.expected,
            here=len(state.members - state.away),
            invited=len(state.invited),
            answered=len(state.folded),
            needed=state.needed,
            awaited=tuple(sorted(state.missing)) if collecting else (),
            held=tuple(sorted(((state.declined & state.invited) | state.withheld) - state.folded)),
            due_s=state.due_s if collecting else None,
            misses=state.misses,
            patience=state.policy.patience,
        )

    def entry(self, device: str, now_s: float) -> DeviceEntry:
        """Describe one device."""
        word, why = self._doing(device)
        hello = self._registry.hellos.get(device)
        here_s = self._here_s.get(device)
        seen_s = self._seen_s.get(device) if device in self._registry.numbers else None
        return DeviceEntry(
            device=device,
            state=word,
            why=one_line(why, WHY_CHARACTERS),
            here_s=None if here_s is None or word == "absent" else max(0.0, now_s - here_s),
            seen_s=None if seen_s is None else max(0.0, now_s - seen_s),
            number=self._registry.numbers.get(device),
            board=hello.board if hello else "",
            model=hello.model if hello else "",
            runtime=hello.runtime if hello else "",
            sdk=hello.sdk if hello else "",
            round=self._record.last_round.get(device, 0) if hello else 0,
            figures=self._figures(device) if hello else {},
        )

    def _figures(self, device: str) -> dict[str, float]:
        """The last reported figures of a device."""
        record = self._record
        found = {
            "accuracy": record.last_accuracy(device),
            "temperature_c": record.temperature_c.get(device),
            **{name: float(found[device]) or None for name, found in record.sums.items()},
        }
        return {name: value for name, value in found.items() if value is not None}

    def _doing(self, device: str) -> tuple[str, str]:
        """Return the word for a device's activity, and why it is not training."""
        state, record = self._context.rounds, self._record
        if device in self._context.revoked:
            return "revoked", "its messages do not count; edge-sdk lab claim makes a claim with which it enrols again"
        if device in self._orders.paused:
            return "paused", f"an operator paused it; edge-sdk resume {device} invites it again"
        if device in state.members:
            return self._member(device, state)
        if device in self._orders.drained:
            return "drained", f"an operator took it out; edge-sdk drain {device} --undo lets it in again"
        if device in record.left:
            return "left", record.left[device]
        if device in record.refused_devices:
            note = record.refused_devices[device]
            return "refused", f"{note['message']}; {note['remedy']}"
        if device not in self._registry.numbers:
            return "expected", "it is on the roster, but has sent nothing"
        if device not in self._registry.hellos:
            return "fetching", "it fetches the public set"
        return "absent", "it has not joined since the coordinator was started"

    def _member(self, device: str, state: RoundState) -> tuple[str, str]:
        number = state.place.round + 1
        if device in state.draining:
            return "draining", f"an operator takes it out at the end of round {number}"
        if device in state.away:
            guess = "it missed a deadline, or the broker reports its link lost"
            return "absent", self._record.why_silent(device) or guess
        if device in state.declined:
            word, text = self._record.declining.get(device, ("", ""))
            return "declined", text or word
        if device in state.withheld:
            return "withheld", self._record.why_withheld.get(device, "")
        if state.phase is RoundPhase.GATHERING:
            return "waiting", "the run waits for more devices"
        if state.phase is RoundPhase.RESTING and device not in state.folded:
            return "waiting", f"no round is open: {state.resting}"
        if state.phase is RoundPhase.COLLECTING and device in state.invited and device not in state.folded:
            return "training", ""
        if device in state.folded:
            return "waiting", "its upload is here; the round waits for others"
        if state.wanted is not None and state.place.exchange == 0:
            return "waiting", f"it was not drawn for round {number}"
        return "waiting", "it takes part from the next exchange on"


@dataclass(frozen=True, slots=True)
class ServerView:
    """Answers from the server's own parts, as a RunView."""

    record: RunRecord
    now_s: Callable[[], float]
    report: DeviceReport
    operate: Callable[[str, str | None], tuple[bool, str]]

    def devices(self) -> list[str]:
        """Return the ids of all devices that are known, sorted."""
        return self.report.devices()

    def entries(self, devices: Iterable[str]) -> list[DeviceEntry]:
        """Describe these devices."""
        now_s = self.now_s()
        return [self.report.entry(name, now_s) for name in devices]

    def exchange(self) -> OpenExchange:
        """Return the exchange that is open."""
        return self.report.exchange()
