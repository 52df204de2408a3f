"""The queue of computations: all work that devices begin at one moment of virtual time is computed before time passes.

The simulation cannot observe when a computation really happened: a device begins it at one moment, and its result
is used when the board would have it.  So an engine gets the requests of all devices that were assigned work at the same
moment, and may compute the first ones while the Assigns of the last ones are still being decoded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from edge_sdk.device.participant import Participant
from edge_sdk.device.training.workbench import Workbench
from edge_sim.engines.base import DeviceAnswer, DeviceRequest, Engine

AT_ONCE = 256
"""Maximum number of requests that an engine gets together: enough for its stacks, but bounded in memory."""


@dataclass(slots=True, eq=False)
class Computation:
    """The computation of one exchange by one device: a sequence of requests."""

    participant: Participant
    done: Callable[[], None]
    """Called when the whole computation is done."""
    computed: bool = False


class ComputationQueue:
    """Collects the computations of one moment; `compute` has the engine serve all of them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._added: list[Computation] = []
        """All computations since the clock last advanced."""
        self._participants: set[Participant] = set()
        """The participants of `_added`."""
        self._waiting: deque[Computation] = deque()
        """Computations that have not begun."""
        self._asked: dict[Participant, tuple[Computation, DeviceRequest]] = {}
        """Requests that the engine has not served, by the participant that waits for the answer."""

    def attach(self, number: int, bench: Workbench) -> None:
        """Implement Engine."""
        self._engine.attach(number, bench)

    def ready(self) -> None:
        """Implement Engine."""
        self._engine.ready()

    def add(self, computation: Computation) -> None:
        """Add a computation, to be done before time passes."""
        self._added.append(computation)
        self._participants.add(computation.participant)
        self._waiting.append(computation)
        self._begin()

    def waits_for(self, participant: Participant) -> bool:
        """Whether a computation of this participant was added since the last `compute`."""
        return participant in self._participants

    def settle(self, participant: Participant) -> None:
        """Finish the computations on a device's model before an event changes the device."""
        if participant in self._asked:
            self.compute()

    def compute(self) -> None:
        """Compute everything added, and then call `done` of each computation in the order of `add`."""
        while self._asked or self._waiting:
            asked, self._asked = list(self._asked.values()), {}
            answers = self._engine.serve([request for _, request in asked])
            for (computation, _), answer in zip(asked, answers, strict=True):
                self._step(computation, answer)
            self._begin()
        added, self._added = self._added, []
        self._participants.clear()
        for computation in added:
            if computation.computed:
                computation.done()

    def _begin(self) -> None:
        while self._waiting and len(self._asked) < AT_ONCE:
            self._step(self._waiting.popleft())

    def _step(self, computation: Computation, answer: DeviceAnswer = None) -> None:
        """Give a device the answer to its last request, and take the next one, unless it is done or gave up."""
        participant = computation.participant
        computation.computed = participant.work_slice(answer)
        if not computation.computed and participant.work.computing:
            self._asked[participant] = computation, participant.work.pending_request
