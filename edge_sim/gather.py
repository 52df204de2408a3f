"""Gathers what devices have to compute at one moment of virtual time, and has it done before time passes on.

Nothing else can tell when a computation was done: it is asked for at one moment, and its result is looked at when the
board would have it.  So an engine may see the requests of all devices that were assigned work at the same moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from edge_sdk.agent import Agent
from edge_sdk.errors import RunFailed
from edge_sdk.workbench import Workbench
from edge_sim.engine import LOST, Answer, Asked, Engine

AT_ONCE = 256
"""Devices whose requests are served together: enough to share among processes, few enough to bound what waits."""


@dataclass(slots=True, eq=False)
class Computation:
    """One device's exchange under way, from its first request to its result."""

    agent: Agent
    done: Callable[[], None]
    """Called when it is computed."""
    begun: int = field(init=False)
    answer: Answer = None
    repeated: bool = False

    def __post_init__(self) -> None:
        self.begun = self.agent.begun

    @property
    def wanted(self) -> bool:
        """Whether nothing newer came."""
        return self.agent.computing and self.agent.begun == self.begun

    def step(self) -> Asked | None:
        """Go on to the next request; None: there is none, for it is computed or given up."""
        answer, self.answer = self.answer, None
        if answer is LOST:
            self._begin_anew()
            answer = None
        if self.agent.work_slice(answer):
            self.done()
            return None
        found: Asked | None = self.agent.asked if self.wanted else None
        return found

    def _begin_anew(self) -> None:
        """Once: what is lost twice is lost.  Raises RunFailed."""
        if self.repeated:
            raise RunFailed(
                f"the process that computed for {self.agent.device} ended twice in one round: "
                'look for what ends it (memory, signals), then go on with --resume, or with engine = "exact"'
            )
        self.repeated = True
        self.agent.start_over()
        self.begun = self.agent.begun


class Gatherer:
    """Collects computations; `compute` carries out all of them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiting: list[Computation] = []

    def attach(self, number: int, bench: Workbench) -> None:
        """See Engine."""
        self._engine.attach(number, bench)

    def add(self, computation: Computation) -> None:
        """To be computed before time passes on."""
        self._waiting.append(computation)

    def compute(self) -> None:
        """Carry out whatever waits, request by request of all devices together."""
        waiting, self._waiting = self._waiting, []
        for part in _parts([each for each in waiting if each.wanted]):
            self._to_the_end(part)

    def _to_the_end(self, under_way: list[Computation]) -> None:
        while under_way:
            asked = [(each, each.step()) for each in under_way]
            under_way = [each for each, request in asked if request is not None]
            answers = self._engine.serve([request for _, request in asked if request is not None])
            for each, answer in zip(under_way, answers, strict=True):
                each.answer = answer


def _parts(all_of_them: list[Computation]) -> Iterator[list[Computation]]:
    return (all_of_them[at : at + AT_ONCE] for at in range(0, len(all_of_them), AT_ONCE))
