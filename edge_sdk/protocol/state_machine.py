"""State machines as tables of rules: the behaviour, the checks and the drawn diagram come from the same rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

from edge_sdk.errors import LocalProtocolError


class HasPhase(Protocol):
    """A machine's state: a frozen value with a phase."""

    @property
    def phase(self) -> Enum:
        """Where the machine is."""


class Stay(Enum):
    """For rules of several phases that lead back to whichever it was."""

    SAME = "the same"


SAME = Stay.SAME
S = TypeVar("S", bound=HasPhase)
Transition = tuple[S, tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Rule(Generic[S]):
    """In these phases, on this event: what is done, and in which phases that may end; SAME: where it began."""

    phases: tuple[Enum, ...]
    event: type
    then: tuple[Enum, ...]
    act: Callable[[S, Any], Transition[S]]
    why: str


class StateMachine(Generic[S]):
    """A table of rules that can be run.  An event without a rule for the phase changes nothing."""

    def __init__(self, rules: Iterable[Rule[S]]) -> None:
        self.rules = tuple(rules)
        self._by_key: Mapping[tuple[Enum, type], Rule[S]] = {
            (phase, rule.event): rule for rule in self.rules for phase in rule.phases
        }
        if len(self._by_key) != sum(len(rule.phases) for rule in self.rules):
            raise LocalProtocolError("two rules for the same phase and event")

    def advance(self, state: S, event: object) -> Transition[S]:
        """The next state and the commands to carry out, in order."""
        rule = self._by_key.get((state.phase, type(event)))
        if rule is None:
            return state, ()
        after, commands = rule.act(state, event)
        if after.phase not in rule.then and not (SAME in rule.then and after.phase is state.phase):
            raise LocalProtocolError(f"{type(event).__name__} led from {state.phase.value} to {after.phase.value}")
        return after, commands

    def diagram(self) -> str:
        """The table as a mermaid state diagram; loops back to the same phase are left to the table."""
        arrows: dict[tuple[str, str], list[str]] = {}
        for rule in self.rules:
            for phase in rule.phases:
                for after in rule.then:
                    if after not in (phase, SAME):
                        arrows.setdefault((phase.value, after.value), []).append(rule.event.__name__)
        lines = [f"    {a} --> {b}: {', '.join(events)}" for (a, b), events in arrows.items()]
        return "\n".join(["stateDiagram-v2", *lines])

    def table(self) -> str:
        """The table as markdown."""
        rows = [
            f"| {', '.join(p.value for p in rule.phases)} | {rule.event.__name__} | "
            f"{', '.join(p.value for p in rule.then)} | {rule.why} |"
            for rule in self.rules
        ]
        return "\n".join(["| in | on | then | what happens |", "|---|---|---|---|", *rows])
