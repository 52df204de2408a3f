"""What simulated devices compute on: an engine takes in the requests of many devices, and gives the answers.

`exact` serves them one after the other with each device's own model, as a board would, and is what every other engine
is compared with.  Which engine serves changes how long a simulation takes, never what happens in it or when.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from edge_sdk.errors import RunFailed
from edge_sdk.methods.base import Method
from edge_sdk.methods.job import Job
from edge_sdk.methods.requests import Request
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.workbench import Workbench


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """One request of one device."""

    bench: Workbench
    request: Request
    job: Job


Answer: TypeAlias = Any
"""The result of a request; or an exception, to be raised where it was asked; or LOST."""


class Lost:
    """In place of an answer: what computed it is gone, and the device's model is in no known state."""


LOST = Lost()


class Engine(Protocol):
    """Serves requests."""

    peak_bytes: int
    """Resident at most in processes of its own, known once it is closed."""

    def attach(self, number: int, bench: Workbench) -> None:
        """A device is switched on, perhaps again; before it asks anything."""

    def ready(self) -> None:
        """All devices of the run are attached, and none has begun to learn."""

    def begin(self, asked: Asked) -> None:
        """Take a request in.  Its device is left alone, and begins no other, until `collect` gives the answer."""

    def collect(self) -> list[tuple[Asked, Answer]]:
        """Wait for some answers, in whatever order they come; empty: nothing was begun that was not answered."""

    def close(self) -> None:
        """Let go of processes and memory."""


class Together(ABC):
    """An engine that serves all that was begun together, once the first answer is wanted."""

    peak_bytes = 0

    def __init__(self) -> None:
        self._begun: list[Asked] = []

    def begin(self, asked: Asked) -> None:
        """See Engine."""
        self._begun.append(asked)

    def collect(self) -> list[tuple[Asked, Answer]]:
        """See Engine."""
        begun, self._begun = self._begun, []
        return list(zip(begun, self.serve(begun), strict=True)) if begun else []

    @abstractmethod
    def serve(self, asked: Sequence[Asked]) -> list[Answer]:
        """One answer to each, in order; each device asks once at most."""


class Exact(Together):
    """In this process, one after the other."""

    def attach(self, number: int, bench: Workbench) -> None:
        """See Engine."""

    def ready(self) -> None:
        """See Engine."""

    def close(self) -> None:
        """See Engine."""

    def serve(self, asked: Sequence[Asked]) -> list[Answer]:
        """See Together."""
        return [served(each) for each in asked]


def served(asked: Asked) -> Answer:
    """By the device's own workbench, to the end."""
    steps = asked.bench.serve(asked.request, asked.job)
    try:
        while True:
            next(steps)
    except StopIteration as stop:
        return stop.value
    except Exception as error:  # noqa: BLE001  # raised again where the device asked
        return error


Reduction: TypeAlias = Callable[[Method[Any]], Method[Any]]
"""From a method to one that adds uploads up elsewhere, to the same bits."""


def unchanged(method: Method[Any]) -> Method[Any]:
    """The reduction of a deployment: where the coordinator is."""
    return method


def job_at(spec: FederationSpec, number: int, round_: int, exchange: int, samples: int) -> Job:
    """What a bench must know of an exchange to serve its requests, for whoever has no session."""
    return Job(
        spec=spec,
        number=number,
        round=round_,
        exchange=exchange,
        closing=False,
        samples=samples,
        learns=True,
    )


def ask(bench: Workbench, request: Request, job: Job) -> Generator[Asked, Answer, Any]:
    """Leave a request to whoever drives the participant: with its bench, what a Participant takes as `serve`."""
    answer = yield Asked(bench, request, job)
    if isinstance(answer, Exception):
        raise answer
    if answer is LOST:
        raise RunFailed("a lost computation was not begun anew")
    return answer
