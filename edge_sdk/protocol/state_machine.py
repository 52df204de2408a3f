"""State machines as tables of rules; the behaviour, its checks and the diagram all come from the table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

from edge_sdk.errors import LocalProtocolError


class HasPhase(Protocol):
    """The state of a machine: a frozen value with a phase."""

    @property
    def phase(self) -> Enum:
        """The phase of the machine."""


class Stay(Enum):
    """In a rule for several phases: the machine stays in its phase."""

    SAME = "the same"


SAME = Stay.SAME
S = TypeVar("S", bound=HasPhase)
Transition = tuple[S, tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Rule(Generic[S]):
    """The reaction to one kind of event in some phases."""

    phases: tuple[Enum, ...]
    event: type
    then: tuple[Enum, ...]
    """The phases that may follow; SAME allows the current one."""
    act: Callable[[S, Any], Transition[S]]
    """A pure function of state and event that returns the next state and the commands."""
    effect: str
    """The reaction in words, for the table in the documentation."""


class StateMachine(Generic[S]):
    """An executable table of rules.  An event without a rule for the current phase changes nothing.

    Raises LocalProtocolError if two rules are for the same phase and event.
    """

    def __init__(self, rules: Iterable[Rule[S]]) -> None:
        self.rules = tuple(rules)
        self._by_key: Mapping[tuple[Enum, type], Rule[S]] = {
            (phase, rule.event): rule for rule in self.rules for phase in rule.phases
        }
        if len(self._by_key) != sum(len(rule.phases) for rule in self.rules):
            raise LocalProtocolError("two rules for the same phase and event")

    def advance(self, state: S, event: object) -> Transition[S]:
        """Return the next state and the commands to carry out, in order.

        Raises LocalProtocolError if a rule leads to a phase that it does not name.
        """
        rule = self._by_key.get((state.phase, type(event)))
        if rule is None:
            return state, ()
        after, commands = rule.act(state, event)
        if after.phase not in rule.then and not (SAME in rule.then and after.phase is state.phase):
            raise LocalProtocolError(f"{type(event).__name__} led from {state.phase.value} to {after.phase.value}")
        return after, commands

    def diagram(self) -> str:
        """Return the table as a mermaid state diagram, without the events that keep the phase."""
        arrows: dict[tuple[str, str], list[str]] = {}
        for rule in self.rules:
            for phase in rule.phases:
                for after in rule.then:
                    if after not in (phase, SAME):
                        arrows.setdefault((phase.value, after.value), []).append(rule.event.__name__)
        lines = [f"    {a} --> {b}: {', '.join(events)}" for (a, b), events in arrows.items()]
        return "\n".join(["stateDiagram-v2", *lines])

    def table(self) -> str:
        """Return the table as Markdown."""
        rows = [
            f"| {', '.join(p.value for p in rule.phases)} | {rule.event.__name__} | "
            f"{', '.join(p.value for p in rule.then)} | {rule.effect} |"
            for rule in self.rules
        ]
        return "\n".join(["| in | on | then | what happens |", "|---|---|---|---|", *rows])
