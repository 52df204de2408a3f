"""The queue of computations: all that devices begin at one moment of virtual time is computed before time passes.

Nothing in the simulation can tell when a computation was really done: a device begins it at one moment, and its result
is used when the board would have it.  So an engine gets the requests of all devices that were assigned work at the same
moment, and may compute the first of them while the Assigns of the last ones are still decoded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from edge_sdk.agent import Agent
from edge_sdk.device.meter import Meter
from edge_sdk.device.workbench import Workbench
from edge_sdk.errors import RunFailed
from edge_sim.engines import meter_totals
from edge_sim.engines.base import LOST, DeviceAnswer, DeviceRequest, Engine

AT_ONCE = 256
"""Largest number of requests that an engine has: enough for all processes, and a limit to what is in memory."""


@dataclass(slots=True, eq=False)
class Computation:
    """The computation of one exchange by one device: a sequence of requests."""

    agent: Agent
    before: Meter
    """A copy of the device's meter, made at the begin of the computation."""
    done: Callable[[], None]
    """Called when all of it is computed."""
    answer: DeviceAnswer = None
    computed: bool = False
    repeated: bool = False

    def step(self) -> DeviceRequest | None:
        """Return the next request; None: there is none, as all is computed or the exchange was given up."""
        answer, self.answer = self.answer, None
        if answer is LOST:
            self._begin_anew()
            answer = None
        self.computed = self.agent.work_slice(answer)
        if self.computed or not self.agent.computing:
            return None
        found: DeviceRequest = self.agent.pending_request
        return found

    def _begin_anew(self) -> None:
        """Begin again, once; raise RunFailed the second time.  The board lost nothing: its cost counts once."""
        if self.repeated:
            raise RunFailed(
                f"the process that computed for {self.agent.device} ended twice in one round: "
                'look for what ends it (memory, signals), then go on with --resume, or with engine = "exact"'
            )
        self.repeated = True
        self.agent.start_over()
        meter_totals.restore(self.agent.meter, self.before)  # includes repeated work of earlier exchanges


class ComputationQueue:
    """Passes computations to an engine as they come; `compute` waits for all of them."""

    def __init__(self, engine: Engine, noted: Callable[[str], None] = lambda _message: None) -> None:
        """noted: called with a line about each computation that was lost and begins again."""
        self._engine, self._noted = engine, noted
        self._added: list[Computation] = []
        """All computations since time passed last."""
        self._agents: set[Agent] = set()
        """Theirs."""
        self._waiting: deque[Computation] = deque()
        self._under_way: dict[DeviceRequest, Computation] = {}
        self._computing: set[Agent] = set()

    def attach(self, number: int, bench: Workbench) -> None:
        """Implement Engine."""
        self._engine.attach(number, bench)

    def ready(self) -> None:
        """Implement Engine."""
        self._engine.ready()

    def add(self, computation: Computation) -> None:
        """Add a computation, which is done before time passes."""
        self._added.append(computation)
        self._agents.add(computation.agent)
        self._waiting.append(computation)
        self._begin()

    def waits_for(self, agent: Agent) -> bool:
        """Whether a computation of this agent was added since the last `compute`."""
        return agent in self._agents

    def settle(self, agent: Agent) -> None:
        """Wait until nothing is computed on a device's model, before an event changes the device."""
        if agent in self._computing:
            self.compute()

    def compute(self) -> None:
        """Compute all that was added, and then call `done` of each computation in the order of `add`."""
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
        self._agents.clear()
        for computation in added:
            if computation.computed:
                computation.done()

    def _tell_of_losses(self, answers: list[tuple[DeviceRequest, DeviceAnswer]]) -> None:
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
