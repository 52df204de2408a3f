"""Has what devices compute at one moment of virtual time computed before time passes on.

Nothing else can tell when a computation was done: it is asked for at one moment, and its result is looked at when the
board would have it.  So an engine may see the requests of all devices that were assigned work at the same moment, and
may be at the first of them while the last ones' Assigns are still being decoded.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from edge_sdk.agent import Agent
from edge_sdk.device.meter import Meter
from edge_sdk.device.workbench import Workbench
from edge_sdk.errors import RunFailed
from edge_sim import meter_totals
from edge_sim.engine import LOST, Answer, Asked, Engine

AT_ONCE = 256
"""Devices whose requests an engine has at once: enough to share among processes, few enough to bound what waits."""


@dataclass(slots=True, eq=False)
class Computation:
    """One device's exchange under way, from its first request to its result."""

    agent: Agent
    done: Callable[[], None]
    """Called when it is computed."""
    begun: int = field(init=False)
    answer: Answer = None
    computed: bool = False
    repeated: bool = False
    _before: Meter = field(init=False)
    """What its device's meter showed when it began."""

    def __post_init__(self) -> None:
        self.begun, self._before = self.agent.begun, dataclasses.replace(self.agent.meter)

    def step(self) -> Asked | None:
        """Go on to the next request; None: there is none, for it is computed or given up."""
        answer, self.answer = self.answer, None
        if answer is LOST:
            self._begin_anew()
            answer = None
        self.computed = self.agent.work_slice(answer)
        if self.computed or not self.agent.computing:
            return None
        found: Asked = self.agent.pending_request
        return found

    def _begin_anew(self) -> None:
        """Once: what is lost twice is lost.  The board itself never lost it, so it pays once.  Raises RunFailed."""
        if self.repeated:
            raise RunFailed(
                f"the process that computed for {self.agent.device} ended twice in one round: "
                'look for what ends it (memory, signals), then go on with --resume, or with engine = "exact"'
            )
        self.repeated = True
        self.agent.start_over()
        meter_totals.restore(self.agent.meter, self._before)  # what it computed again of earlier exchanges, too
        self.begun = self.agent.begun


class Gatherer:
    """Hands computations to an engine as they come; `compute` waits for all of them."""

    def __init__(self, engine: Engine, noted: Callable[[str], None] = lambda _message: None) -> None:
        """noted: told of what was lost and is computed anew."""
        self._engine, self._noted = engine, noted
        self._added: list[Computation] = []
        """All since time passed on last."""
        self._waiting: deque[Computation] = deque()
        self._under_way: dict[Asked, Computation] = {}
        self._computing: set[Agent] = set()

    def attach(self, number: int, bench: Workbench) -> None:
        """See Engine."""
        self._engine.attach(number, bench)

    def ready(self) -> None:
        """See Engine."""
        self._engine.ready()

    def add(self, computation: Computation) -> None:
        """To be computed before time passes on."""
        self._added.append(computation)
        self._waiting.append(computation)
        self._begin()

    def settle(self, agent: Agent) -> None:
        """Before anything happens to a device: let nobody be computing on its model."""
        if agent in self._computing:
            self.compute()

    def compute(self) -> None:
        """Carry out whatever was added, then call those who wait for it, in the order in which it was."""
        while self._under_way or self._waiting:
            answers = self._engine.collect()
            self._tell_of_losses(answers)
            for asked, answer in answers:
                computation = self._under_way.pop(asked)
                self._computing.discard(computation.agent)
                computation.answer = answer
                self._go_on(computation)
            self._begin()
        added, self._added = self._added, []
        for computation in added:
            if computation.computed:
                computation.done()

    def _tell_of_losses(self, answers: list[tuple[Asked, Answer]]) -> None:
        lost = [self._under_way[asked].agent.device for asked, answer in answers if answer is LOST]
        if lost:
            more = f" and {len(lost) - 1} more devices" if len(lost) > 1 else ""
            self._noted(f"a process that computed for {lost[0]}{more} was lost; what it had not delivered begins anew")

    def _begin(self) -> None:
        while self._waiting and len(self._under_way) < AT_ONCE:
            self._go_on(self._waiting.popleft())

    def _go_on(self, computation: Computation) -> None:
        asked = computation.step()
        if asked is not None:
            self._under_way[asked] = computation
            self._computing.add(computation.agent)
            self._engine.begin(asked)
