"""The queue of the round machine's commands, which are carried out in order.

The machine gets an event only after all its earlier commands were carried out.  A command that the disk refuses stays
at the head of the queue, and everything else waits behind it until it is tried again.  Meanwhile the clock of the round
stands still, since no upload could count.  It also stands still without a link to the broker, since no upload could
arrive.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace

from coordinator import rounds
from coordinator.rounds import RoundPhase, RoundState
from edge_sdk.errors import StoreError
from edge_sdk.terminal import LineBudget

_ENDED = (RoundPhase.DONE, RoundPhase.FAILED, RoundPhase.DRAINED)
DISK_AGAIN_S = 5.0
"""The pause in seconds before a command that the disk refused is tried again."""
RECONNECT_GRACE_S = 45.0
"""Minimum seconds from a restored link to a deadline; devices reconnect within 30 s."""


class RoundQueue:
    """Gives events to the machine, and carries out its commands in the order in which it returned them."""

    def __init__(
        self,
        state: RoundState,
        carry_out: Callable[[rounds.RoundCommand, float], rounds.RoundEvent | None],
        noted: Callable[[str], None],
    ) -> None:
        """carry_out: carries out one command at a time in seconds, and returns the event that follows, if any.

        It raises StoreError if the disk refuses; the same command is tried again later.
        noted: receives a message for each refusal.
        """
        self.state = state
        self._carry_out, self._noted = carry_out, noted
        self._commands: deque[rounds.RoundCommand] = deque()
        self._events: deque[rounds.RoundEvent] = deque()
        """Events that wait until all commands are carried out."""
        self._again_s: float | None = None
        """When the disk is tried again (s), or None if nothing waits for it."""
        self._held_since_s = 0.0
        """When the disk first refused the waiting command (s)."""
        self._faults = LineBudget(first=1)
        self._unlinked_since_s: float | None = None
        """When the link to the broker was lost (s), or None while it is up."""

    @property
    def held(self) -> bool:
        """Whether the round waits for the disk."""
        return self._again_s is not None

    def hold(self, now_s: float) -> None:
        """Wait for the disk after it refused a commit of uploads, which is not a command."""
        if not self.held:
            self._held_since_s = now_s
        self._again_s = now_s + DISK_AGAIN_S

    def link_lost(self, now_s: float) -> None:
        """Stop the clock of the round until the link is restored.  No-op if it is lost already."""
        if self._unlinked_since_s is None:
            self._unlinked_since_s = now_s

    def link_restored(self, now_s: float) -> None:
        """Resume the clock of the round, leaving the devices time to reconnect."""
        since_s, self._unlinked_since_s = self._unlinked_since_s, None
        if since_s is not None:
            state = replace(self.state, unlinked_s=self.state.unlinked_s + now_s - since_s)
            self.state = postponed(state, now_s - since_s, not_before_s=now_s + RECONNECT_GRACE_S)

    @property
    def over(self) -> bool:
        """Whether the run is done, failed or drained, and nothing is left to carry out."""
        return self.state.phase in _ENDED and not self._commands and not self._events

    def next_due_s(self) -> float | None:
        """The time in s at which `tick` can next change something, or None if only another event can."""
        if self._again_s is not None:
            return self._again_s
        return rounds.rounds_due_s(self.state) if self._unlinked_since_s is None else None

    def feed(self, *events: rounds.RoundEvent, now_s: float) -> None:
        """Give these events to the machine one by one; while a command waits for the disk, they wait behind it."""
        self._events.extend(events)
        if not self.held:
            self._work(now_s)

    def tick(self, now_s: float) -> None:
        """Retry the command that the disk refused, or else give the machine the time, whichever is due."""
        due_s = self.next_due_s()
        if due_s is None or now_s < due_s:
            return
        if self.held:
            self._try_again(now_s)
        else:
            self.feed(rounds.RoundTick(now_s), now_s=now_s)

    def give_up(self, reason: str, now_s: float) -> None:
        """Fail the run and drop the commands that wait for the disk; a restart carries them out from the ledger.

        A run that is done or drained, and only waits for the disk to record it, does not fail.
        """
        if self.state.phase in (RoundPhase.DONE, RoundPhase.DRAINED):
            return
        self._commands = deque(each for each in self._commands if isinstance(each, rounds.EndRun))
        self._events.clear()
        self._again_s = None
        self.feed(rounds.Broken(reason), now_s=now_s)

    def _try_again(self, now_s: float) -> None:
        since_s, self._again_s = self._held_since_s, None
        if self._commands:
            self._carry_out_first(now_s)
        if self.held:
            self._held_since_s = since_s
            return
        self.state = postponed(self.state, now_s - since_s)
        self._work(now_s)

    def _work(self, now_s: float) -> None:
        while self._again_s is None and (self._commands or self._events):
            if self._commands:
                self._carry_out_first(now_s)
            else:
                self.state, commands = rounds.advance_rounds(self.state, self._events.popleft())
                self._commands.extend(commands)

    def _carry_out_first(self, now_s: float) -> None:
        try:
            event = self._carry_out(self._commands[0], now_s)
        except StoreError as error:
            self.hold(now_s)
            if line := self._faults.line(f"{error}; the round waits, next try in {DISK_AGAIN_S:g} s", now_s):
                self._noted(line)
            return
        self._commands.popleft()
        if event is not None:  # ahead of the waiting events, which came later
            self._events.appendleft(event)


def postponed(state: RoundState, by_s: float, not_before_s: float = 0.0) -> RoundState:
    """The state with all its times moved back by `by_s` seconds, during which the rounds stood still.

    not_before_s: the earliest time of the next deadline, in seconds.
    """
    opens_at_s = None if state.opens_at_s is None else max(state.opens_at_s + by_s, not_before_s)
    due_s = max(state.due_s + by_s, not_before_s)
    return replace(
        state,
        due_s=due_s,
        rest_until_s=max(state.rest_until_s, not_before_s),
        retry_at_s=state.retry_at_s + by_s,
        times=state.times.without_all(),
        opens_at_s=opens_at_s,
    )
