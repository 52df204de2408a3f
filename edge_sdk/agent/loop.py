"""The loop that runs a device's participant in an app, with a real clock and a policy that may pause training."""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack

from edge_sdk.device.participant import Participant
from edge_sdk.device.standing import AgentStanding
from edge_sdk.policy.gate import PAUSED, PauseReport
from edge_sdk.policy.policy import Objection, Policy
from edge_sdk.policy.priority import limit_threads, lower_priority
from edge_sdk.serving.deployment import Deployment

POLL_S = 0.1
"""Poll interval in seconds; `stop` takes effect within it or after the current batch."""
INSTANCE_BYTES = 8


class AgentLoop:
    """Runs one participant, again after an end if asked.  Other threads only set its two events."""

    def __init__(
        self,
        participant: Participant,
        deployment: Deployment,
        policy: Policy,
        clock: Callable[[], float],
        *,
        stays: bool,
    ) -> None:
        """clock: returns the time in seconds.  stays: whether the agent waits for the next run after an end."""
        self._participant, self._deployment, self._policy, self._clock = participant, deployment, policy, clock
        self._context, self._work = participant.context, participant.work
        self.stopping, self.awake = threading.Event(), threading.Event()
        """Set to stop after the current batch; cleared to pause training."""
        self.awake.set()
        self.standing = AgentStanding(
            stays=stays, news=self._context.owner.news, stopping=self.stopping, wall=time.time
        )
        self.leaving: str | None = None
        """The reason to announce at the end, if the device will not come back."""
        self._pauses = PauseReport()
        self._objection: Objection | None = None
        """Why training is paused now, or None."""
        self._trained = 0
        """The exchange of the last computed batch, numbered like `Work.begun`."""
        name = f"{self._context.federation}{self._context.device}{self._context.store.boot_epoch}"
        self._retry_spread = random.Random(name)  # noqa: S311  # spreads retries

    def run(self, *, again: bool) -> None:
        """Take part until the federation is over or `stopping` is set.

        again: whether the participant has ended before.

        Raises Refused, RunFailed or StoreError.
        """
        participant, context = self._participant, self._context
        with ExitStack() as at_end:  # runs all of these in reverse order, even if one raises
            at_end.callback(context.transport.close)
            at_end.callback(self._sign_off)
            if again:
                participant.reopen()
            context.instance = secrets.token_bytes(INSTANCE_BYTES)
            self._deployment.begin(fresh=context.store.saved_round() is None)
            participant.connect()
            lower_priority(self._policy.nice)  # after connect(), so that the socket's thread keeps its priority
            limit_threads(self._policy.threads)
            while not (participant.over or self.stopping.is_set() or self.changes_model):
                self.standing.look(context.session, self._objection.text if self._objection else "")
                busy = self._may_compute()
                trying = context.offers is not None and context.offers.busy
                event = context.transport.poll(0.0 if busy or trying else self._poll_timeout_s())
                if event is not None:
                    participant.handle(event, self._clock())
                participant.tick(self._clock())
                participant.check_store(self._clock())
                if busy:
                    self._compute()
        participant.raise_if_failed()

    def use(self, participant: Participant, deployment: Deployment) -> None:
        """From now on run another participant, which was made with another model."""
        self._participant, self._deployment = participant, deployment
        self._context, self._work = participant.context, participant.work
        self._objection, self._trained = None, 0

    @property
    def changes_model(self) -> bool:
        """Whether the participant ends here so that another one can begin with another model."""
        return self._context.offers is not None and self._context.offers.changed

    def _sign_off(self) -> None:
        self._participant.sign_off(self.leaving)

    def _may_compute(self) -> bool:
        """Whether a batch may be computed now.  After some time without one, the coordinator receives the reason."""
        participant, gate = self._participant, self._context.gate
        if not self._work.computing and participant.declined is None and self._objection is None:
            return False
        now_s, round_ = self._clock(), max(0, self._context.session.exchange_id.round)
        found = PAUSED if not self.awake.is_set() else self._deployment.objection
        if found is None and gate is not None:
            found = gate.objection(now_s, round_)
        if found is not None and gate is not None:
            gate.rest(now_s)
        few = participant.new_samples.objection
        why = found or few
        if why is not None and self._objection is None:
            self._context.owner.news(f"training pauses: {why.text}")
        elif why is None and self._objection is not None:
            self._context.owner.news("training resumes")
        self._objection = why
        told = self._pauses.to_tell(found, now_s, fresh=self._work.begun != self._trained)
        participant.decline(told or few)
        return self._work.computing and found is None

    def _compute(self) -> None:
        try:
            if not self._compute_batch():
                return
        except Exception as error:  # noqa: BLE001  # the app's model and samples may raise anything; it is logged
            self._work.fail(error, self._clock())
        self._participant.finish_work(self._clock())

    def _compute_batch(self) -> bool:
        """Compute a batch.  Returns whether the whole exchange is computed."""
        gate, self._trained = self._context.gate, self._work.begun
        if gate is None:
            return self._participant.work_slice()
        gate.begin(self._clock())
        try:
            return self._participant.work_slice()
        finally:
            gate.end(self._clock())
            if not self._work.computing:
                gate.rest(self._clock())

    def _poll_timeout_s(self) -> float:
        due_s = self._participant.next_due_s()
        if due_s is None:
            return POLL_S
        spread_s = self._retry_spread.uniform(0.0, 0.1)  # so that many devices do not send at the same moment
        return min(POLL_S, max(0.0, due_s - self._clock() + spread_s))
